"""Symbolic sizes of blobs, inferred by reshaping a net with longer inputs.

The layers themselves infer the shapes: an axis that grows with an input is symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.net import Net

BATCH = "batch"

STRIDE = 64
"""Pixels that images grow by: a multiple of usual total strides."""


Axis = tuple[str, int]
"""Name of a value, and one of its axes."""


@dataclass(frozen=True)
class SymbolicSize:
    """Size that is known when the exported model runs: ``factor * symbol + extra``, factor > 0."""

    symbol: str
    factor: int = 1
    extra: int = 0

    def __str__(self) -> str:
        """Return the formula, e.g. ``4*batch + 1``."""
        product = self.symbol if self.factor == 1 else f"{self.factor}*{self.symbol}"
        if self.extra < 0:
            return f"{product} - {-self.extra}"
        return f"{product} + {self.extra}" if self.extra else product


Size = int | SymbolicSize
Sizes = list[tuple[Size, ...]]


class SizeSources:
    """Axes of values whose sizes are symbols: where an exported model reads these symbols."""

    def __init__(self) -> None:
        self._axes: dict[str, Axis] = {}

    def record(self, name: str, sizes: Sequence[Size]) -> None:
        """Record a value, which replaces an earlier one of this name."""
        self._axes = {symbol: place for symbol, place in self._axes.items() if place[0] != name}
        for axis, size in enumerate(sizes):
            if isinstance(size, SymbolicSize) and size == SymbolicSize(size.symbol):
                self._axes.setdefault(size.symbol, (name, axis))

    def find(self, size: SymbolicSize) -> Axis:
        """Return the value and axis of a size's symbol.

        Raises:
            NetError: No recorded value has this symbol.
        """
        if size.symbol not in self._axes:
            message = (
                f"the size {size} is unknown before the layer runs, as it is no multiple of a size "
                "of an input"
            )
            raise NetError(message, code=ErrorCode.UNSUPPORTED, got=str(size))
        return self._axes[size.symbol]


@dataclass(frozen=True)
class _SymbolicAxes:
    """Axes of inputs, or rows of layer ``counted``, that have one symbol; they grow by ``step``."""

    symbol: str
    axes: Sequence[Axis] = ()
    step: int = 1
    counted: int | None = None


def declared_sizes(net: Net) -> Sizes:
    """Return the sizes of every blob for inputs of the declared shapes."""
    return _infer(_ShapeProbe(net), [])


def symbolic_sizes(net: Net, *, any_size: bool = False) -> Sizes:
    """Return the sizes of every blob with a symbolic first axis of each input.

    An input whose first size can vary alone has its own symbol. Inputs of equal first size that can
    only vary together share one; inputs that cannot vary keep their size. The symbol of the first
    input is "batch". With ``any_size``, height and width of images (the last two of four axes) are
    symbolic, too.

    Raises:
        NetError: The first size of the first input, or height or width of images, cannot vary;
            names the layer that refuses another size.
    """
    probe = _ShapeProbe(net)
    names = [name for name in net.inputs if net.blobs[name].num_axes]
    groups = [[name] for name in names if not probe.refusal(_first_axes([name]))]
    rest = [name for name in names if [name] not in groups]
    for size in dict.fromkeys(probe.own[name][0] for name in rest):
        same = [name for name in rest if probe.own[name][0] == size]
        reason = probe.refusal(_first_axes(same))
        if not reason:
            groups.append(same)
        elif same[0] == names[0]:
            message = f"the batch of this net cannot vary: {reason}"
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, field="batch")
    axes = [
        _SymbolicAxes(BATCH if names[0] in group else f"{BATCH}_of_{group[0]}", _first_axes(group))
        for group in groups
    ]
    return _infer(probe, [*axes, *(_image_axes(probe) if any_size else ())])


def _first_axes(names: Sequence[str]) -> list[Axis]:
    return [(name, 0) for name in names]


def _image_axes(probe: _ShapeProbe) -> list[_SymbolicAxes]:
    """Return heights and widths of images."""
    images = [name for name, shape in probe.own.items() if len(shape) == 4]
    found = []
    for axis, symbol in ((2, "height"), (3, "width")) if images else ():
        found.append(_SymbolicAxes(symbol, [(name, axis) for name in images], STRIDE))
        reason = probe.refusal(found[-1].axes, STRIDE)
        if reason:
            message = f"the {symbol} of images cannot vary: {reason}"
            raise NetError(message, code=ErrorCode.SHAPE_MISMATCH, field=symbol)
    return found


class _ShapeProbe:
    """Shapes of a net's blobs for other input shapes; the net's own shapes are restored."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.own = {name: net.blobs[name].shape for name in net.inputs}
        self.counted = [i for i, layer in enumerate(net.layers) if layer.rows_axis is not None]

    def shapes(
        self, longer: Sequence[Axis] = (), counted: int | None = None, more: int = 0
    ) -> list[tuple[int, ...]]:
        """Return the shapes of all blobs, with ``more`` elements along axes of inputs.

        ``counted`` is the index of a layer with a value-dependent number of rows to lengthen.
        """
        net = self.net
        try:
            for name, shape in self.own.items():
                wanted = [n + more * ((name, axis) in longer) for axis, n in enumerate(shape)]
                net.blobs[name].reshape(wanted)
            for index, place in enumerate(net.structure.bindings()):
                try:
                    place.layer.run_reshape(place.bottom, place.top)
                except DemitasseError as error:
                    raise error.at(place.label, layer=place.layer.name) from None
                if (rows := place.layer.rows_axis) is None:
                    continue
                for blob in place.top:
                    axes = list(blob.shape)
                    axes[rows] = 1 + (more if index == counted else 0)
                    blob.reshape(axes)
            return [blob.shape for blob in net.structure.blob_list]
        finally:
            for name, shape in self.own.items():
                net.blobs[name].reshape(shape)

    def refusal(self, longer: Sequence[Axis], step: int = 1) -> str:
        """Return the error of lengthening these axes; "" if no layer refuses."""
        try:
            for more in (step, 2 * step):
                self.shapes(longer, more=more)
        except DemitasseError as error:
            return str(error)
        return ""


def _infer(probe: _ShapeProbe, symbolic: Sequence[_SymbolicAxes]) -> Sizes:
    """Return the sizes of all blobs from their shapes for inputs of three lengths.

    A size that depends on several symbols, or not linearly on one, becomes a new symbol.
    """
    net, base = probe.net, probe.shapes()
    sizes: list[list[Size]] = [list(shape) for shape in base]
    rows = [
        _SymbolicAxes(f"{net.layers[index].name}_count", counted=index) for index in probe.counted
    ]
    for one in (*symbolic, *rows):
        symbol, step, size = one.symbol, one.step, 1
        for name, axis in one.axes[:1]:
            size = probe.own[name][axis]
        once, twice = (probe.shapes(one.axes, one.counted, more) for more in (step, 2 * step))
        for blob, shapes in enumerate(zip(base, once, twice, strict=True)):
            for axis, (a, b, c) in enumerate(zip(*shapes, strict=True)):
                if a == b == c:
                    continue
                factor, rest = divmod(b - a, step)
                linear = c - b == b - a and not rest and factor > 0 and sizes[blob][axis] == a
                sizes[blob][axis] = (
                    SymbolicSize(symbol, factor, a - factor * size)
                    if linear
                    else SymbolicSize(f"{net.blob_names[blob]}_axis_{axis}")
                )
    probe.shapes()
    return [tuple(one) for one in sizes]
