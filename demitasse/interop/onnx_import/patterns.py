"""Operators that together are one layer, found by what they compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from demitasse.interop.onnx_import.reading import Model
from demitasse.interop.onnx_import.source import Node, Tensor

__all__ = ["with_patterns"]

HALF_ROOT = math.sqrt(0.5)


def with_patterns(model: Model) -> list[Node]:
    """Return the nodes of a model, those of a GELU as one."""
    nodes = {id(node): node for node in model.nodes}
    readers: dict[str, list[Node]] = {}
    for node in model.nodes:
        for one in node.inputs:
            if one is not None:
                readers.setdefault(one.name, []).append(node)
    made = {one.name: node for node in model.nodes for one in node.outputs if one is not None}
    for erf in [node for node in model.nodes if node.op == "Erf"]:
        found = _gelu(erf, made, readers, set(model.outputs))
        if found is not None:
            last, x, inner = found
            for node in inner:
                nodes.pop(id(node), None)
            nodes[id(last)] = Node("Gelu", last.name, last.opset, [x], last.outputs)
    return [nodes[id(node)] for node in model.nodes if id(node) in nodes]


def _gelu(
    erf: Node, made: dict[str, Node], readers: dict[str, list[Node]], outputs: set[str]
) -> tuple[Node, Tensor, Sequence[Node]] | None:
    """Return the last node of x (1 + erf(x / sqrt(2))) / 2, x, and the nodes before the last."""

    def next_of(node: Node) -> Node | None:
        found = readers.get(node.y.name, [])
        return found[0] if len(found) == 1 and node.y.name not in outputs else None

    inside = made.get(erf.x.name)
    if inside is None or len(readers[inside.y.name]) != 1:
        return None
    factor, x = _number(inside)
    if x is None or factor is None or inside.op not in {"Mul", "Div"}:
        return None
    factor = 1 / factor if inside.op == "Div" else factor
    more = next_of(erf)
    if not _near(factor, HALF_ROOT) or more is None or more.op != "Add":
        return None
    one, _ = _number(more)
    if one != 1:
        return None
    inner, gain, has_x, node = [inside, erf, more], 1.0, False, more
    while (after := next_of(node)) is not None and after.op in {"Mul", "Div"}:
        number, _ = _number(after)
        other = next((b for b in after.inputs if b is not None and b.name != node.y.name), None)
        if number is not None:
            gain *= 1 / number if after.op == "Div" else number
        elif other is not None and after.op == "Mul" and not has_x:
            has_x = True
            if other.name != x.name:
                half = made.get(other.name)
                number, source = _number(half) if half is not None else (None, None)
                if half is None or number is None or source != x:
                    return None
                gain *= 1 / number if half.op == "Div" else number
                if len(readers[half.y.name]) == 1 and half.y.name not in outputs:
                    inner.append(half)
        else:
            return None
        if has_x and _near(gain, 0.5):
            return after, x, inner
        inner.append(after)
        node = after
    return None


def _number(node: Node | None) -> tuple[float | None, Tensor | None]:
    """Return the constant number of a product or sum, and its other operand."""
    if node is None or node.op not in {"Mul", "Div", "Add"}:
        return None, None
    for number, other in _pairs(node.inputs):
        if number.array is not None and number.array.size == 1:
            if node.op == "Div" and number is node.inputs[0]:
                return None, None
            return float(number.array.reshape(())), other
    return None, None


def _pairs(inputs: Sequence[Tensor | None]) -> Iterable[tuple[Tensor, Tensor]]:
    first, second = inputs[:2] if len(inputs) > 1 else (None, None)
    if first is not None and second is not None:
        yield second, first
        yield first, second


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)
