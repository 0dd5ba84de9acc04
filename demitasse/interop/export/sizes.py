"""How the shapes of a net's blobs follow the first axes of its inputs.

The net is asked, not analysed: its layers give their tops shapes for longer inputs, and what grows
with an input is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.net import Net

__all__ = ["Free", "Size", "Sizes", "declared_sizes", "free_sizes"]

BATCH = "batch"

STRIDES = 64
"""By how many pixels images grow: a multiple of the strides that nets have."""

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
        if self.extra < 0:
            return f"{product} - {-self.extra}"
        return f"{product} + {self.extra}" if self.extra else product


Size = int | Free
Sizes = list[tuple[Size, ...]]


def declared_sizes(net: Net) -> Sizes:
    """Return the sizes of every blob where the inputs keep theirs."""
    return _sizes(_Asked(net), [])


def free_sizes(net: Net, *, any_size: bool = False) -> Sizes:
    """Return the sizes of every blob where the first axes of inputs are free.

    An input that can have another first size by itself gets a symbol of its own. Others that begin
    with the same size share one, or, where they cannot have another, keep theirs. The symbol of the
    first input is "batch".

    Args:
        net: The net.
        any_size: Whether height and width of images are free, too: the last two of four axes.

    Raises:
        NetError: The first input cannot have another first size, or images no other height or
            width; says which layer refuses, and why.
    """
    asked = _Asked(net)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    groups = [[name] for name in names if not asked.refusal(_first([name]))]
    rest = [name for name in names if [name] not in groups]
    for size in dict.fromkeys(asked.own[name][0] for name in rest):
        same = [name for name in rest if asked.own[name][0] == size]
        reason = asked.refusal(_first(same))
        if not reason:
            groups.append(same)
        elif same[0] == names[0]:
            message = f"the net takes no other batch than its own: {reason}"
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, field="batch")
    grown = [
        _Growth(BATCH if names[0] in group else f"{BATCH}_of_{group[0]}", _first(group), 1)
        for group in groups
    ]
    return _sizes(asked, [*grown, *(_of_images(asked) if any_size else ())])


Axis = tuple[str, int]
"""An input, and one of its axes."""


@dataclass(frozen=True)
class _Growth:
    """Axes of inputs that grow together.

    Attributes:
        symbol: What their size is called.
        axes: The axes.
        step: By how much they grow.
    """

    symbol: str
    axes: Sequence[Axis]
    step: int


def _first(names: Sequence[str]) -> list[Axis]:
    return [(name, 0) for name in names]


def _of_images(asked: _Asked) -> list[_Growth]:
    """Return the heights and widths of images.

    Raises:
        NetError: They cannot have others.
    """
    images = [name for name, shape in asked.own.items() if len(shape) == 4]
    found = [
        _Growth(symbol, [(name, axis) for name in images], STRIDES)
        for axis, symbol in ((2, "height"), (3, "width"))
    ]
    for one in found if images else ():
        reason = asked.refusal(one.axes, one.step)
        if reason:
            message = f"images can have no other {one.symbol}: {reason}"
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, field=one.symbol)
    return found if images else []


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
        self, longer: Sequence[Axis] = (), counted: int | None = None, more: int = 0
    ) -> list[tuple[int, ...]]:
        """Return the shapes of all blobs.

        Args:
            longer: The axes of inputs that are longer.
            counted: The layer whose tops have more than one row, where it is known late how many.
            more: By how much.
        """
        net = self.net
        try:
            for name, shape in self.own.items():
                wanted = [n + more * ((name, axis) in longer) for axis, n in enumerate(shape)]
                net.blobs[name].reshape(wanted)
            for index, place in enumerate(net.structure.places()):
                try:
                    place.layer.run_reshape(place.bottom, place.top)
                except DemitasseError as error:
                    raise error.at(place.called, layer=place.layer.name) from None
                for blob in place.top if index in self.counted else ():
                    axes, axis = list(blob.shape), COUNTED[place.layer.type]
                    axes[axis] = 1 + (more if index == counted else 0)
                    blob.reshape(axes)
            return [blob.shape for blob in net.structure.blob_list]
        finally:
            for name, shape in self.own.items():
                net.blobs[name].reshape(shape)

    def refusal(self, longer: Sequence[Axis], step: int = 1) -> str:
        """Say why these axes cannot be longer; "" where they can."""
        try:
            for more in (step, 2 * step):
                self.shapes(longer, more=more)
        except DemitasseError as error:
            return str(error)
        return ""


def _sizes(asked: _Asked, growths: Sequence[_Growth]) -> Sizes:
    """Return the sizes of all blobs, given which axes of inputs grow.

    One that follows several, or follows one in another way than ``Free`` can say, has a symbol of
    its own.
    """
    net, own = asked.net, asked.own
    base = asked.shapes()
    sizes: list[list[Size]] = [list(shape) for shape in base]
    grown: list[tuple[str, int, int, Callable[..., list[tuple[int, ...]]]]] = []
    for growth in growths:
        name, axis = growth.axes[0]
        shapes = partial(asked.shapes, growth.axes)
        grown.append((growth.symbol, own[name][axis], growth.step, shapes))
    for index in asked.counted:
        symbol = f"{net.layers[index].name}_count"
        grown.append((symbol, 1, 1, partial(asked.shapes, (), index)))
    for symbol, size, step, longer in grown:
        once, twice = longer(more=step), longer(more=2 * step)
        for blob, (zero, one, two) in enumerate(zip(base, once, twice, strict=True)):
            for axis, (a, b, c) in enumerate(zip(zero, one, two, strict=True)):
                if a == b == c:
                    continue
                factor, rest = divmod(b - a, step)
                follows = c - b == b - a and not rest and factor > 0 and sizes[blob][axis] == a
                name = f"{net.blob_names[blob]}_axis_{axis}"
                extra = a - factor * size
                sizes[blob][axis] = Free(symbol, factor, extra) if follows else Free(name)
    asked.shapes()
    return [tuple(one) for one in sizes]
