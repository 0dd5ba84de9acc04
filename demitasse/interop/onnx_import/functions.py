"""Functions of a model of ONNX, which a node calls: put in the place of their calls.

A few functions that call each other ten times over would become more nodes than any memory has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from demitasse.errors import ErrorCode, NetError

__all__ = ["without_functions"]

MOST_NODES = 100_000
"""That a model with functions may have without them."""

DEEPEST = 100
"""Calls within calls."""


def without_functions(model: Any) -> Any:
    """Return a model whose nodes call no functions of its own.

    Raises:
        NetError: It would have too many nodes, or functions call themselves.
    """
    if not model.functions:
        return model
    total = _Counting(model.functions).nodes(model.graph.node, DEEPEST)
    if total > MOST_NODES:
        message = (
            f"without its functions it has {total if total < 10**12 else 'more than 10^12'} "
            f"nodes; at most {MOST_NODES} are taken"
        )
        raise NetError(message, code=ErrorCode.LIMIT, got=min(total, 10**12), expected=MOST_NODES)
    from onnx.inliner import inline_local_functions

    return inline_local_functions(model)


class _Counting:
    """Counts nodes as they are when functions stand in the place of their calls."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = {(one.domain, one.name): one for one in functions}
        self._known: dict[tuple[str, str], int] = {}

    def nodes(self, nodes: Iterable[Any], deepest: int) -> int:
        """Return how many there are.

        Raises:
            NetError: Calls are deeper than that.
        """
        return sum(self._function((one.domain, one.op_type), deepest) for one in _all(nodes))

    def _function(self, name: tuple[str, str], deepest: int) -> int:
        if name not in self._functions:
            return 1
        if name not in self._known:
            if not deepest:
                message = (
                    f"its functions call others more than {DEEPEST} deep, or themselves: "
                    f"{name[1]!r} of {name[0]!r} among them"
                )
                raise NetError(message, code=ErrorCode.LIMIT, function=name[1], expected=DEEPEST)
            self._known[name] = self.nodes(self._functions[name].node, deepest - 1)
        return self._known[name]


def _all(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes, and those of the graphs that they hold."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all(graph.node)
