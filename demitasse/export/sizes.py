"""How the shapes of a net's blobs follow the first axes of its inputs.

The net is asked, not analysed: its layers give their tops shapes for longer inputs, and what grows
with an input is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from demitasse.errors import DemitasseError, NetError
from demitasse.net import Net

__all__ = ["Free", "Size", "Sizes", "declared_sizes", "free_sizes"]

BATCH = "batch"

COUNTED = {"DetectionOutput": 2, "Filter": 0, "Proposal": 0}
"""Type of layer -> the axis of its tops whose size is known when a pass comes there."""


@dataclass(frozen=True)
class Free:
    """A size that is known when the net runs: ``factor`` times another, and ``extra`` more.

    Attributes:
        symbol: What the other size is called.
        factor: How many times it.
        extra: What is added.
    """

    symbol: str
    factor: int = 1
    extra: int = 0

    def __str__(self) -> str:
        """Return it as a formula, e.g. ``4*batch + 1``."""
        product = self.symbol if self.factor == 1 else f"{self.factor}*{self.symbol}"
        return f"{product} + {self.extra}" if self.extra else product


Size = int | Free
Sizes = list[tuple[Size, ...]]


def declared_sizes(net: Net) -> Sizes:
    """Return the sizes of every blob where the inputs keep theirs."""
    return _sizes(_Asked(net), {})


def free_sizes(net: Net) -> Sizes:
    """Return the sizes of every blob where the first axes of inputs are free.

    An input that can have another first size by itself gets a symbol of its own. Others that begin
    with the same size share one, or, where they cannot have another, keep theirs. The symbol of the
    first input is "batch".

    Raises:
        NetError: The first input cannot have another first size; says which layer refuses, and why.
    """
    asked = _Asked(net)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    groups = [[name] for name in names if not asked.refusal([name])]
    rest = [name for name in names if [name] not in groups]
    for size in dict.fromkeys(asked.own[name][0] for name in rest):
        same = [name for name in rest if asked.own[name][0] == size]
        reason = asked.refusal(same)
        if not reason:
            groups.append(same)
        elif same[0] == names[0]:
            message = f"the net takes no other batch than its own: {reason}"
            raise NetError(message)
    symbols = {
        name: BATCH if names[0] in group else f"{BATCH}_of_{group[0]}"
        for group in groups
        for name in group
    }
    return _sizes(asked, symbols)


class _Asked:
    """A net whose layers are asked for shapes.

    Args:
        net: The net; its inputs have their own shapes again after each question.
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        self.own = {name: net.blobs[name].shape for name in net.inputs}
        self.counted = [i for i, layer in enumerate(net.layers) if layer.type in COUNTED]

    def shapes(
        self, inputs: Sequence[str] = (), counted: int | None = None, more: int = 0
    ) -> list[tuple[int, ...]]:
        """Return the shapes of all blobs.

        Args:
            inputs: Those whose first axis is longer.
            counted: The layer whose tops have more than one row, where it is known late how many.
            more: By how much.
        """
        net = self.net
        try:
            for name, shape in self.own.items():
                net.blobs[name].reshape((shape[0] + more, *shape[1:]) if name in inputs else shape)
            for index, place in enumerate(net.structure.places()):
                try:
                    place.layer.run_reshape(place.bottom, place.top)
                except DemitasseError as error:
                    raise error.at(place.called) from None
                for blob in place.top if index in self.counted else ():
                    axes, axis = list(blob.shape), COUNTED[place.layer.type]
                    axes[axis] = 1 + (more if index == counted else 0)
                    blob.reshape(axes)
            return [blob.shape for blob in net.structure.blob_list]
        finally:
            for name, shape in self.own.items():
                net.blobs[name].reshape(shape)

    def refusal(self, inputs: Sequence[str]) -> str:
        """Say why the first axes of these inputs cannot be longer; "" where they can."""
        try:
            for more in (1, 2) if inputs else ():
                self.shapes(inputs, more=more)
        except DemitasseError as error:
            return str(error)
        return ""


def _sizes(asked: _Asked, symbols: Mapping[str, str]) -> Sizes:
    """Return the sizes of all blobs, given what the first axes of inputs are called.

    One that follows several, or follows one in another way than ``Free`` can say, has a symbol of
    its own.
    """
    net, own = asked.net, asked.own
    base = asked.shapes()
    sizes: list[list[Size]] = [list(shape) for shape in base]
    grown: list[tuple[str, int, Callable[..., list[tuple[int, ...]]]]] = []
    for symbol in dict.fromkeys(symbols.values()):
        inputs = [name for name in symbols if symbols[name] == symbol]
        grown.append((symbol, own[inputs[0]][0], partial(asked.shapes, inputs)))
    for index in asked.counted:
        symbol = f"{net.layers[index].name}_count"
        grown.append((symbol, 1, partial(asked.shapes, (), index)))
    for symbol, size, shapes in grown:
        once, twice = shapes(more=1), shapes(more=2)
        for blob, (zero, one, two) in enumerate(zip(base, once, twice, strict=True)):
            for axis, (a, b, c) in enumerate(zip(zero, one, two, strict=True)):
                factor = b - a
                if factor == 0 and c == b:
                    continue
                follows = c - b == factor > 0 and sizes[blob][axis] == a
                name = f"{net.blob_names[blob]}_axis_{axis}"
                extra = a - factor * size
                sizes[blob][axis] = Free(symbol, factor, extra) if follows else Free(name)
    asked.shapes()
    return [tuple(one) for one in sizes]
