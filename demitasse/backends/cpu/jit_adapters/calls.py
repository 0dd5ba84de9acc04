"""Calls of kernels, and descriptions of their images, operands and epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    Argument,
    GradArg,
    InputArg,
    OutputArg,
    layout_uses,
    written_layout,
)
from demitasse.backends.cpu.copies import LayoutCopy
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import op_title
from demitasse.backends.cpu.threads import wanted
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.igemm import MOST_AXES
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Declined, Layouts, LayoutUse, Memory, Operand
from demitasse.backends.storage import Stored

IMAGE_AXES = 4


def images_of(layout: Layout) -> Images | None:
    """Return a layout of (N, C, H, W) as kernels know it.

    None where there are other axes, or channels lie neither side by side nor in blocks, or are
    padded.
    """
    images = folded_images(layout) if len(layout.shape) == IMAGE_AXES else None
    return images if images is not None and images.shape == layout.shape else None


def folded_images(layout: Layout) -> Images | None:
    """Return a layout of (N, C, *spatial) with the rows of all planes one after the other.

    Channels that fill a block up count. None where channels lie neither side by side nor in blocks,
    or there are no rows at equal distances.
    """
    axes = range(len(layout.shape))
    loops: dict[int, list[tuple[int, int]]] = {axis: [] for axis in axes}
    n, _, *deep, w = shape = layout.shape
    plain = [(axis, count, math.prod(shape[axis + 1 :])) for axis, count in enumerate(shape)]
    for axis, count, stride in plain if layout.plain else layout.loops:
        loops[axis].append((count, stride))
    channels = loops[1]
    if any(len(loops[axis]) > 1 for axis in axes if axis != 1) or not 1 <= len(channels) <= 2:
        return None
    block, side_by_side = channels[-1]
    rows = [loop for axis in axes[2:-1] for loop in loops[axis] if loop[0] > 1]
    even = all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(rows))
    if side_by_side != 1 or not even:
        return None
    c, h = math.prod(count for count, _ in channels), math.prod(deep)
    image, column = (loops[axis][0][1] if loops[axis] else layout.size for axis in (0, axes[-1]))
    row = rows[-1][1] if rows else layout.size
    if w == 1 < h:  # pixels follow each other as rows do
        column = row
    return Images((n, c, h, w), image, row, column, block, channels[0][1] if block < c else 0)


def volumes_of(layout: Layout) -> Images:
    """Return images of up to three axes with their channels last.

    Raises:
        Declined: They lie otherwise.
    """
    n, c, *spatial = shape = layout.shape
    strides = dict.fromkeys(range(len(shape)), layout.size)
    strides |= {axis: stride for axis, _, stride in layout.loops}
    blocks = len(layout.loops) > len({axis for axis, _, _ in layout.loops})
    last = not blocks and (c == 1 or strides[1] == 1)
    if not last or len(spatial) > MOST_AXES:
        message = f"{layout}; implicit GEMM takes channels that lie side by side"
        raise Declined(message)
    planes, rows, columns = [1] * (MOST_AXES - len(spatial)) + spatial
    deep, down, right = [layout.size] * (MOST_AXES - len(spatial)) + [
        strides[axis] for axis in range(2, len(shape))
    ]
    return Images((n, c, rows, columns), strides[0], down, right, c, 0, planes, deep)


def images_in_vectors(layout: Layout, width: int) -> Images | None:
    """Return the images of a layout; None where it has no vectors of so many channels."""
    images = images_of(layout)
    return images if images is not None and images.fits(width) else None


def kernel_tuning(engine: Engine, lowering: str = "", storage: Stored = "float") -> Tuning:
    """Return the tuning of our kernels, by the settings and the storage of a net's values."""
    tuning = engine.tuning.as_set(wanted(), storage)
    tuning.require(lowering)
    return tuning


SIX = (0.0, 6.0)
"""The limits of ReLU6."""


def rectifier_of(then: ops.Activation | None) -> Rectifier:
    """Return what our kernels do for an activation, or for none."""
    if then is None:
        return NOTHING
    if then.function == "clip":
        low, high = then.parameters
        return Rectifier(limits=(low, high))
    if then.function == "relu6" and not any(then.parameters):
        return Rectifier(limits=SIX)
    if then.function == "relu":
        slope = then.parameters[0] if then.parameters else 0.0
        if slope >= 0:  # so it is monotone, and its gradient known from the result
            return Rectifier(slope=slope)
    message = (
        f"{op_title(then)} runs by itself; kernels append ReLU with a slope of at least 0, ReLU6 "
        "and Clip"
    )
    raise Declined(message)


class Follower:
    """Passes a parameter, in C order, to ``take`` after each change."""

    def __init__(self, take: Callable[[np.ndarray], None]) -> None:
        self._take, self._version = take, (-1, -1)

    def follow(self, memory: Memory) -> None:
        """Pass the memory's values if they have changed."""
        version = memory.serial, memory.version
        if version != self._version:
            values = memory.cpu_data()
            call_recorder.call(self._take, values)
            self._version = version


class KernelCall:
    """A kernel with its arguments.

    Args:
        run: The kernel; None in a class with a ``__call__`` of its own.
        scratch: Elements of scratch memory, which the kernel takes last; 0 for none.
        held: Bytes of the kernel.
    """

    def __init__(
        self,
        engine: Engine,
        arguments: Sequence[Argument],
        code: str,
        run: Callable[..., None] | None = None,
        *,
        scratch: int = 0,
        held: int = 0,
    ) -> None:
        self.engine, self.arguments, self.code = engine, tuple(arguments), code
        self._run, self._scratch, self._held = run, scratch, held
        for argument in arguments:
            argument.engine = engine

    @property
    def implementations(self) -> list[str]:
        """Names of the code that it runs."""
        return [self.code]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        return self.kept_bytes + sum(argument.copied for argument in self.arguments)

    @property
    def kept_bytes(self) -> int:
        """Bytes of its kernel."""
        return self._held

    @property
    def layout_uses(self) -> list[LayoutUse]:
        """The layouts of the blobs that it writes; kernels read blobs as they are written."""
        return layout_uses(one for one in self.arguments if isinstance(one, OutputArg))

    def scratch(self) -> list[np.ndarray]:
        """Return the scratch memory in a list, which is empty if the kernel takes none."""
        return self.engine.workspaces(self._scratch) if self._scratch else []

    def __call__(self) -> None:
        """Run it."""
        if self._run is not None:
            self._run(*[argument.array() for argument in self.arguments], *self.scratch())


def copy_call(
    engine: Engine,
    source: InputArg,
    target: OutputArg,
    here: Layout | None = None,
    there: Layout | None = None,
) -> KernelCall:
    """Return a copy from one layout to another, by default those of the arguments.

    Raises:
        Declined: There are too many loops, or blocks of several sizes.
    """
    ends = here or source.layout, there or target.layout
    copy = LayoutCopy(*ends, kernel_tuning(engine))
    return KernelCall(engine, (source, target), copy.code, copy)


class FilterGradientCall(KernelCall):
    """The gradients of the weights and the bias of a convolution.

    Args:
        write: Writes the gradients of weights and bias: takes source, dy, weight, bias and scratch.
    """

    def __init__(
        self,
        engine: Engine,
        operands: GradientOperands,
        code: str,
        write: Callable[..., None],
        *,
        scratch: int = 0,
        held: int = 0,
    ) -> None:
        self.operands, self._write = operands, write
        super().__init__(engine, operands.arguments, code, scratch=scratch, held=held)

    def __call__(self) -> None:
        operands = self.operands
        arrays = [each.array() for each in (operands.source, operands.dy, operands.weight)]
        bias = operands.bias.array() if operands.bias else None
        self._write(*arrays, bias, *self.scratch())
        operands.done()


class ConvCall(KernelCall):
    """A convolution by a kernel with filters in its own order.

    Args:
        make: Returns the kernel, which has ``filters``, ``update`` for new weights, and
            ``take_slopes`` if slopes of channels follow. Called at the first run or with the first
            weights, because fused calls replace some of the prepared calls.
    """

    def __init__(
        self,
        engine: Engine,
        operands: ConvOperands,
        code: str,
        make: Callable[[], Any],
        uses: Sequence[LayoutUse] = (),
    ) -> None:
        self.operands, self._make, self._uses = operands, make, uses
        self._weights, self._slopes = Follower(self._take), Follower(self._take_slopes)
        others = [] if operands.other is None else [operands.other]
        super().__init__(engine, (operands.source, *others, operands.target), code)

    @cached_property
    def kernel(self) -> Any:
        """The kernel."""
        return self._make()

    @property
    def kept_bytes(self) -> int:
        return self.kernel.filters.nbytes if "kernel" in vars(self) else 0

    @property
    def layout_uses(self) -> list[LayoutUse]:
        return [*super().layout_uses, *self._uses]

    def scratch(self) -> list[np.ndarray]:
        size: int = getattr(self.kernel, "scratch_size", 0)
        return self.engine.workspaces(size) if size else []

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order."""
        self._take(weights)

    def __call__(self) -> None:
        operands = self.operands
        source = operands.source.array()
        others = [] if operands.other is None else [operands.other.array()]
        target = operands.target.array()
        self._follow()
        self.kernel(source, target, operands.offsets(), *self.scratch(), *others)

    def _follow(self) -> None:
        """Pass changed parameters to the kernel."""
        if not self.operands.external_weights:
            self._weights.follow(self.operands.weight.data_memory)
        self._follow_channels()

    def _follow_channels(self) -> None:
        """Pass changed slopes."""
        if self.operands.slopes is not None:
            self._slopes.follow(self.operands.slopes.blob.data_memory)

    def _take(self, weights: np.ndarray) -> None:
        self.kernel.update(weights)

    def _take_slopes(self, slopes: np.ndarray) -> None:
        self.kernel.take_slopes(slopes)


class PackedConvCall(ConvCall):
    """A convolution whose kernel has a copy of the offsets, too, by ``take_offsets``."""

    @cached_property
    def _offsets(self) -> Follower:
        return Follower(self._take_offsets)

    def update(self, weights: np.ndarray) -> None:
        """Take new weights, in C order, and the offsets that were given as an array."""
        super().update(weights)
        bias = self.operands.bias
        if bias is not None and not isinstance(bias, InputArg):
            self._take_offsets(bias)

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        self.kernel(source, target, *self.scratch())

    def _follow_channels(self) -> None:
        super()._follow_channels()
        if isinstance(self.operands.bias, InputArg):
            self._offsets.follow(self.operands.bias.blob.data_memory)

    def _take_offsets(self, offsets: np.ndarray) -> None:
        self.kernel.take_offsets(offsets)


class Folded:
    """Weights and offsets folded from several layers' parameters.

    Attributes:
        bias: One offset for each channel of the top.
        update: Accepts new weights in C order; set by the call that uses them.
    """

    update: Callable[[np.ndarray], None]

    def __init__(self, bias: np.ndarray) -> None:
        self.bias = bias


@dataclass(frozen=True)
class ConvOperands:
    """The operands of a convolution's forward pass, and what follows.

    Attributes:
        bias: One offset per channel of the output, an argument or an array; None for none.
        slopes: One slope for each channel of the output, for negative values; None for none.
        other: What is added before the activation, in the target's layout; None for nothing.
        external_weights: True if ``Folded`` supplies the filters.
    """

    source: InputArg
    target: OutputArg
    weight: Operand
    layouts: Layouts
    bias: InputArg | np.ndarray | None = None
    then: Rectifier = NOTHING
    slopes: InputArg | None = None
    other: InputArg | None = None
    external_weights: bool = False

    def offsets(self) -> np.ndarray | None:
        """Return the offsets as they are now."""
        return self.bias.array() if isinstance(self.bias, InputArg) else self.bias


@dataclass(frozen=True)
class GradientOperands:
    """The operands of the gradients of weights, in C order, and bias."""

    source: InputArg
    dy: InputArg
    weight: GradArg
    bias: GradArg | None
    layouts: Layouts

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """All of them."""
        return (self.source, self.dy, self.weight, *([self.bias] if self.bias else []))

    def done(self) -> None:
        """Clean up, after the gradients have been computed."""
        self.weight.done()
        if self.bias:
            self.bias.done()


@dataclass(eq=False)
class ConvKernels:
    """Interface of kernels for some convolutions.

    Its methods return what a Step runs, or None where other kernels are to run.

    Attributes:
        takes_slopes: Whether slopes of channels may follow.
    """

    engine: Engine
    x: ops.Shape
    why: tuple[str, ...] = field(default=(), kw_only=True)

    takes_slopes = True

    def within(self, x: Layout, y: Layout) -> ConvKernels:
        """Return the kernels that read and write images in these layouts."""
        del x, y
        return self

    def forward(self, operands: ConvOperands) -> ConvCall | None:
        """Return the forward pass."""
        del operands
        return None

    def weights(self, operands: GradientOperands) -> KernelCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        del operands
        return None

    def data(self, operands: ConvOperands) -> ConvCall | None:
        """Return the gradient of the input."""
        del operands
        return None

    def gradients(
        self, weights: GradientOperands, data: ConvOperands, wanted: tuple[bool, bool]
    ) -> KernelCall | None:
        """Return those gradients that are wanted, in one pass."""
        del weights, data, wanted
        return None

    def _plain(self, argument: InputArg) -> InputArg:
        """Return an argument for the same blob in C order."""
        return InputArg("src", argument.blob, layouts.plain(self.x))

    def _as_it_comes(self, operands: ConvOperands, width: int) -> InputArg:
        """Return the source in the layout in which the blob is written, if that fits."""
        blob = operands.source.blob
        expected = written_layout(operands.layouts, blob.data_memory, self.x)
        if images_in_vectors(expected, width):
            return InputArg("src", blob, expected)
        return operands.source
