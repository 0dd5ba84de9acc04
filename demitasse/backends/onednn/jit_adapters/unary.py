"""Kernels from one blob to another, and their calls.

Activations, LRN, softmax, interpolation, ROI pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall, images_of
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.regions import Bins
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from demitasse.backends.kernels.elementwise import AddReluScatter, Elementwise
    from demitasse.backends.kernels.l2_normalize import L2Normalize
    from demitasse.backends.kernels.lrn import Response
    from demitasse.backends.kernels.resize import Interpolation
    from demitasse.backends.kernels.roi_pooling import RegionMaxima, RegionMeans
    from demitasse.backends.kernels.softmax import SmallAxisSoftmax


def elementwise_call(
    engine: Engine,
    function: str,
    numbers: Sequence[float],
    sources: Sequence[InputArg],
    *targets: OutputArg,
) -> ElementwiseCall:
    """Return what computes a function of every element.

    Args:
        engine: The engine.
        function: Its name in ``kernels.elementwise``.
        numbers: Its constants.
        sources: What is read, one array or two.
        targets: What is written, in the same layout, one array or two.

    Raises:
        Declined: There are no kernels here.
    """
    from demitasse.backends.kernels.elementwise import Elementwise

    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        message = f"no kernels are made at run time; {function} needs those"
        raise Declined(message)

    kernel = Elementwise(function, numbers, targets[0].layout.size, tuning)
    return ElementwiseCall(engine, kernel, sources, targets)


def sum_call(engine: Engine, sources: Sequence[InputArg], target: OutputArg) -> SumCall:
    """Return what adds arrays, from first to last.

    Args:
        engine: The engine.
        sources: What is read, up to four arrays.
        target: What is written, in the same layout.

    Raises:
        Declined: There are more arrays, gaps between elements, or no kernels.
    """
    from demitasse.backends.kernels.elementwise import MOST, AddReluScatter, Rows

    tuning, layout = engine.tuning.as_set(wanted()), target.layout
    if not tuning.width or layout.channel_slice is not None or len(sources) > MOST:
        message = f"a sum of {len(sources)}; our kernel adds up to {MOST} whole arrays"
        raise Declined(message)
    rows = Rows.all_of(layout.size)
    kernel = AddReluScatter(rows, len(sources), 0, tuning, relu=False, total=True)
    return SumCall(engine, kernel, sources, target)


def factors_call(
    engine: Engine, source: InputArg, target: OutputArg, values: tuple[np.ndarray, np.ndarray]
) -> MapCall | None:
    """Return what multiplies channels with factors, adds offsets and rectifies; perhaps None.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written, in the same layout or one with the same blocks of channels.
        values: Factors and offsets, which may change between calls.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    x, y = (images_of(argument.layout) for argument in (source, target))
    if x is None or y is None:
        return None
    from demitasse.backends.kernels.channel_affine import ChannelFactors

    if not x.has_whole_vectors(tuning.width):
        return None
    return map_call(engine, source, target, ChannelFactors((x, y), *values, tuning))


def map_call(engine: Engine, source: InputArg, target: OutputArg, kernel: Maps) -> MapCall:
    """Return a call of a kernel with one input and one output."""
    return MapCall(engine, source, target, kernel)


def interpolation_kernel(engine: Engine, op: ops.Interpolation) -> Interpolation | None:
    """Return a kernel that resizes channels-last images; None if no kernels can be compiled."""
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels.images import Images
    from demitasse.backends.kernels.resize import Interpolation

    n, c, *bottom = op.bottom
    x, y = (Images.in_blocks((n, c, h, w), c) for h, w in (bottom, op.top[2:]))
    return Interpolation(x, y, op.cut, op.size, tuning)


def lengths_kernel(engine: Engine, layout: Layout, eps: float) -> L2Normalize | None:
    """Return what divides pixels in a layout by their lengths; perhaps None.

    Args:
        engine: The engine.
        layout: Of input and output.
        eps: What is added to the sums of squares.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    from demitasse.backends.kernels import l2_normalize as lengths

    return lengths.L2Normalize(images, eps, tuning) if lengths.takes(images, tuning.width) else None


def region_call(
    engine: Engine, op: ops.ROIPool, source: InputArg, target: OutputArg
) -> RegionCall | None:
    """Return what pools regions of a map, whatever they are; perhaps None.

    Args:
        engine: The engine.
        op: What is to be computed.
        source: The map.
        target: The results, in C order.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(source.layout)
    if not tuning.width or images is None:
        return None
    from demitasse.backends.kernels.roi_pooling import RegionMaxima

    if not images.has_runs(tuning.width):
        return None
    regions, _, rows, columns = op.top
    kernel = RegionMaxima(images, regions, (rows, columns), tuning)
    return RegionCall(engine, source, target, kernel)


def means_call(
    engine: Engine, op: ops.PSROIPool, source: InputArg, target: OutputArg
) -> RegionCall | None:
    """Return what takes means of bins, both in C order; None where no kernels can be made."""
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels.roi_pooling import RegionMeans

    regions, _, rows, columns = op.top
    kernel = RegionMeans(op.bottom, regions, (rows, columns), tuning)
    return RegionCall(engine, source, target, kernel)


def rows_kernel(
    engine: Engine, rows: int, length: int, images: int | None = None
) -> SmallAxisSoftmax | None:
    """Return the softmax of many short rows; None for others, or where none can be made.

    Args:
        engine: The engine.
        rows: How many there are, one behind the other, or in each image.
        length: Elements of a row.
        images: How many images there are whose planes are classes.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width or "few_classes" in tuning.without:
        return None
    from demitasse.backends.kernels import softmax as classes

    pays = classes.takes(rows, length, tuning.width)
    return classes.SmallAxisSoftmax(rows, length, tuning, images) if pays else None


def lrn_kernel(engine: Engine, op: ops.LRN, layout: Layout) -> Response | None:
    """Return what normalises by neighbours in a layout, in both directions; perhaps None.

    Args:
        engine: The engine.
        op: What is to be computed, across channels or within them.
        layout: Of input, output and their gradients.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    sizes, width = (op.size, op.alpha, op.k), tuning.width
    from demitasse.backends.kernels import lrn

    if op.region == "ACROSS_CHANNELS":
        across = lrn.takes(images, op.size, op.beta, width)
        return lrn.LocalResponse(images, *sizes, tuning) if across else None
    within = lrn.takes_within(images, op.size, op.beta, width)
    return lrn.WithinResponse(images, *sizes, tuning) if within else None


class Maps(Protocol):
    """A kernel that reads one array and writes another."""

    @property
    def code(self) -> str:
        """Name of the code."""
        ...

    def __call__(self, source: np.ndarray, target: np.ndarray, /) -> None:
        """Write the target."""
        ...


class MapCall(KernelCall):
    """A kernel that makes one blob of another.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written.
        kernel: The kernel.
    """

    def __init__(self, engine: Engine, source: InputArg, target: OutputArg, kernel: Maps) -> None:
        self._source, self._target, self._kernel = source, target, kernel
        super().__init__(engine, (source, target), kernel.code)

    def __call__(self) -> None:
        self._kernel(self._source.array(), self._target.array())


class Offset(Protocol):
    """A kernel of convolutions that are given their offsets in each call."""

    scratch_size: int

    @property
    def code(self) -> str:
        """Name of the code."""
        ...

    @property
    def filters_nbytes(self) -> int:
        """Bytes of all filters that it holds."""
        ...

    def __call__(
        self, source: np.ndarray, target: np.ndarray, added: Any, scratch: np.ndarray, /
    ) -> None:
        """Write the target."""
        ...


class OffsetCall(KernelCall):
    """Convolutions that run as one, with what a normalisation before or after them does.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written.
        kernel: The kernel.
        offsets: Those of the outputs, as the kernel takes them; they may change between calls.
        other: What else is added to the outputs, by kernels that take it behind the offsets.
    """

    def __init__(
        self,
        engine: Engine,
        source: InputArg,
        target: OutputArg,
        kernel: Offset,
        offsets: np.ndarray | tuple[np.ndarray, ...],
        other: InputArg | None = None,
    ) -> None:
        self._source, self._target, self._other = source, target, other
        self._kernel, self._offsets = kernel, offsets
        arguments = (source, target) if other is None else (source, other, target)
        super().__init__(engine, arguments, kernel.code)

    @property
    def kept_bytes(self) -> int:
        return self._kernel.filters_nbytes

    def __call__(self) -> None:
        added = self._offsets
        if self._other is not None:
            added = (*added, self._other.array())
        source, target = self._source.array(), self._target.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, added, scratch)


class ElementwiseCall(KernelCall):
    """The function.

    Args:
        engine: The engine.
        kernel: The kernel.
        sources: What is read, as many arrays as the kernel takes.
        targets: What is written, in the same layout, one array or two.
    """

    def __init__(
        self, engine: Engine, kernel: Elementwise, sources: Sequence[InputArg],
        targets: Sequence[OutputArg],
    ) -> None:  # fmt: skip
        self._kernel, self._sources, self._targets = kernel, sources, targets
        super().__init__(engine, (*sources, *targets), kernel.code)

    def __call__(self) -> None:
        arrays = [source.array() for source in self._sources]
        self._kernel(arrays, *(target.array() for target in self._targets))


class SumCall(KernelCall):
    """The sum.

    Args:
        engine: The engine.
        kernel: The kernel.
        sources: What is read.
        target: What is written, in the same layout.
    """

    def __init__(
        self, engine: Engine, kernel: AddReluScatter, sources: Sequence[InputArg],
        target: OutputArg,
    ) -> None:  # fmt: skip
        self._kernel, self._sources, self._target = kernel, sources, target
        super().__init__(engine, (*sources, target), f"sum llvm:{kernel.tuning.instructions}")

    def __call__(self) -> None:
        self._kernel([one.array() for one in self._sources], [], total=self._target.array())


class LRNCall(KernelCall):
    """The normalisation.

    Args:
        engine: The engine.
        kernel: The kernels.
        source: What is read.
        target: What is written, in the same layout.
    """

    def __init__(
        self, engine: Engine, kernel: Response, source: InputArg, target: OutputArg
    ) -> None:
        self._kernel, self._source, self._target = kernel, source, target
        super().__init__(engine, (source, target), kernel.code, 0)

    def __call__(self) -> None:
        source, target = self._source.array(), self._target.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel.forward(source, target, scratch)


class LRNGradientCall(KernelCall):
    """The gradient of its input.

    Args:
        engine: The engine.
        kernel: The kernels.
        source: The input.
        dy: The gradient of the output, in the same layout.
        dx: That of the input, in it too.
    """

    def __init__(
        self, engine: Engine, kernel: Response, source: InputArg, dy: InputArg, dx: OutputArg
    ) -> None:
        self._kernel, self._source, self._dy, self._dx = kernel, source, dy, dx
        super().__init__(engine, (source, dy, dx), kernel.code, 0)

    def __call__(self) -> None:
        source, dy, dx = self._source.array(), self._dy.array(), self._dx.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel.backward(source, dy, dx, scratch)


class RegionCall(KernelCall):
    """A kernel that pools the bins of regions.

    Args:
        engine: The engine.
        source: The map.
        target: The results, in C order.
        kernel: The kernel.

    Attributes:
        bins: Those of the regions, to be given before each call.
    """

    bins: Bins

    def __init__(
        self,
        engine: Engine,
        source: InputArg,
        target: OutputArg,
        kernel: RegionMaxima | RegionMeans,
    ) -> None:
        self._source, self._target, self._kernel = source, target, kernel
        super().__init__(engine, (source, target), kernel.code)

    def __call__(self) -> None:
        self._kernel(self._source.array(), self.bins, self._target.array())
