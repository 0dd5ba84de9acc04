"""Operation descriptors: the vocabulary in which a backend is asked for a faster way.

A layer that does something a backend might know sets ``self.op`` in ``reshape``. A descriptor is
frozen data: geometry with the output shape, mode, dtype, no arrays. Two equal descriptors are the
same operation, so that a prepared Step can be kept and found again.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from demitasse.core.deprecated import deprecated_names
from demitasse.core.frozen_struct import FrozenStruct

Shape = tuple[int, ...]

LOWEST = -3.4028234663852886e38
"""The lowest float32: what Caffe starts a maximum with, in double precision too."""


class Op(FrozenStruct):
    """Base of all operations: the dtype they compute in."""

    joins: ClassVar[bool] = False
    """True if an output depends only on inputs of its own channel at its own position, so that it
    can be fused into the operation before."""

    dtype: str

    def fuses_after(self, first: Op) -> bool:
        """Return whether this operation can be fused with those before it, from ``first`` on."""
        return self.joins

    @property
    def multiply_adds(self) -> int:
        """Multiplications, each with an addition, that the forward pass needs by the definition.

        0 where reading and writing dominate.
        """
        return 0


class Conv(Op):
    """Convolution over the axes after ``axis``; groups and dilation as Caffe's.

    Shapes: bottom (*lead, C, *spatial) -> top (*lead, M, *out); weight (M, C/group, *kernel).

    Attributes:
        pad: Elements added before each spatial axis, and after it without ``after``.
        after: Elements added after each axis where they differ from ``pad``, or None.
    """

    bottom: Shape
    top: Shape
    axis: int
    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape
    group: int
    bias: bool
    after: Shape | None = None

    @property
    def is_pointwise(self) -> bool:
        """True if an output depends on all channels of one pixel, the one at its own position."""
        alone = all(n == 1 for n in (*self.kernel, *self.stride, self.group))
        return self.axis == 1 and alone and not any((*self.pad, *(self.after or ())))

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is convolved with one filter of its own."""
        channels = self.bottom[self.axis], self.top[self.axis]
        return self.axis == 1 and channels == (self.group,) * 2 != (1, 1)

    def fuses_after(self, first: Op) -> bool:
        return self.is_pointwise and isinstance(first, Conv) and first.is_depthwise

    @property
    def multiply_adds(self) -> int:
        channels = self.bottom[self.axis] // self.group
        return math.prod(self.top) * channels * math.prod(self.kernel)


class Deconv(Conv):
    """Transposed convolution: the gradient of the Conv that maps top to bottom.

    Shapes: weight (C, M/group, *kernel).
    """

    def fuses_after(self, first: Op) -> bool:
        return False

    @property
    def multiply_adds(self) -> int:
        filters = self.top[self.axis] // self.group
        return math.prod(self.bottom) * filters * math.prod(self.kernel)


class Pool(Op):
    """Pooling over windows of the spatial axes, Caffe's rounding and clipping in ``top``.

    Attributes:
        after: Elements added after each axis where they differ from ``pad``, or None.
        counts_pads: Whether a mean (AVE) counts the pads.
    """

    method: Literal["MAX", "AVE", "STOCHASTIC"]
    bottom: Shape
    top: Shape
    kernel: Shape
    stride: Shape
    pad: Shape
    tops: int
    train: bool
    after: Shape | None = None
    counts_pads: bool = True


class SpatialPyramidPool(Op):
    """Pooling of the same images over several grids, the results behind each other."""

    bottom: Shape
    top: Shape
    levels: tuple[Pool, ...]


class Constant(Op):
    """The same ``values`` in each pass: the bytes of the top's elements in C order."""

    values: bytes


class Embed(Op):
    """Rows of a table (``rows``, ``columns``) by their indices."""

    count: int
    rows: int
    columns: int


class InnerProduct(Op):
    """y = x W^T + b on rows of x.

    Shapes: x (rows, k), weight (m, k), or (k, m) with ``transpose``; y (rows, m).
    """

    rows: int
    k: int
    m: int
    transpose: bool
    bias: bool

    @property
    def multiply_adds(self) -> int:
        return self.rows * self.k * self.m


class Recurrent(Op):
    """T steps of N sequences through a recurrent layer; the bottoms and parameters are the layer's.

    States that are not exposed are carried in the saved blobs "state 0", "state 1" ...

    Shapes: x (steps, rows, k) -> y (steps, rows, m).
    """

    cell: Literal["LSTM", "RNN"]
    steps: int
    rows: int
    k: int
    m: int
    static: bool
    exposed: bool

    @property
    def multiply_adds(self) -> int:
        # an LSTM has four gates, each with a product of the input and one of the state; an RNN a
        # product of the input, one of the state, and one for the output
        gates = 4 * (self.k + self.m) if self.cell == "LSTM" else self.k + 2 * self.m
        return self.steps * self.rows * self.m * gates


class LRN(Op):
    """Local response normalisation."""

    region: Literal["ACROSS_CHANNELS", "WITHIN_CHANNEL"]
    bottom: Shape
    size: int
    alpha: float
    beta: float
    k: float


class Normalize(Op):
    """y = s x / sqrt(sum of x^2 + eps), the sum over the channels of each position.

    Shapes: bottom (N, C, ...); s (C,), or () where it is ``shared``.
    """

    bottom: Shape
    eps: float
    shared: bool


class AxisOp(Op):
    """An operation along one axis of the bottom."""

    bottom: Shape
    axis: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of elements before, on and after the axis."""
        before, after = self.bottom[: self.axis], self.bottom[self.axis + 1 :]
        return math.prod(before), self.bottom[self.axis], math.prod(after)


class Softmax(AxisOp):
    """Softmax along ``axis``."""


class SoftmaxLoss(AxisOp):
    """Softmax and multinomial logistic loss; ``normalization`` as Caffe's enum names."""

    ignore_label: int | None
    normalization: str
    tops: int


class PairLoss(Op):
    """A loss of two blobs element by element, a sum that is divided by ``divisor``.

    "euclidean" is (a - b)^2 / 2, "sigmoid" the cross entropy of the sigmoid of a and of b. Elements
    whose b, cut to an integer, is ``ignore_label`` do not count. A ``divisor`` of None is how many
    do, at least 1.
    """

    loss: Literal["euclidean", "sigmoid"]
    count: int
    divisor: float | None
    ignore_label: int | None


class Accuracy(AxisOp):
    """The share of labels whose score along ``axis`` is among the ``top_k`` highest.

    The saved blob "not numbers" gets how many labelled scores are none. Shape: ().
    """

    top_k: int
    ignore_label: int | None
    tops: int


class BatchNorm(Op):
    """Normalisation by batch statistics, or by the stored ones."""

    joins = True

    bottom: Shape
    eps: float
    fraction: float
    use_global_stats: bool


class AffineBatchNorm(Op):
    """A batch normalisation, then a factor and an offset of each channel.

    Attributes:
        fraction: How much of the running averages stays when a batch is added.
        statistics: Places of the running averages of mean and variance among the parameters, and of
            their common factor where they are sums as Caffe's; none where there are no averages.
        affine: Places of factors and offsets.
    """

    joins = True

    bottom: Shape
    eps: float
    fraction: float
    use_global_stats: bool
    statistics: Shape
    affine: Shape


class MVN(Op):
    """Each channel of each item by its own mean and deviation, or each item ``across`` channels.

    Shapes: ``shape``, (N, C, H, W), on both sides. ``divides`` by the deviation and ``eps``.
    """

    shape: Shape
    across: bool
    divides: bool
    eps: float


class Scale(Op):
    """y = x * w (+ b), the weight broadcast over (outer, dim, inner)."""

    joins = True

    outer: int
    dim: int
    inner: int
    bias: bool


class Bias(Op):
    """y = x + b, b broadcast over (outer, dim, inner)."""

    joins = True

    outer: int
    dim: int
    inner: int


class Axpy(Op):
    """y = a x + b, with one a for each channel of each image.

    Shapes: a (N, C) or (N, C, 1, 1); x and b ``shape``, (N, C, ...).
    """

    shape: Shape


class Eltwise(Op):
    """Elementwise PROD, SUM with coefficients, or MAX of equal shapes.

    Where ``stable``, the gradient of a product multiplies the other factors; else it divides.
    """

    joins = True

    operation: Literal["PROD", "SUM", "MAX"]
    shape: Shape
    coefficients: tuple[float, ...]
    stable: bool = True


class Concat(Op):
    """Bottoms joined along ``axis``."""

    bottoms: tuple[Shape, ...]
    axis: int


class Crop(Op):
    """The part of the first bottom that begins at a place, of the top's shape."""

    bottom: Shape
    top: Shape
    first: Shape


class Interpolation(Op):
    """A part of each plane resized by bilinear interpolation, its corners to the corners.

    The part is of so many rows and columns, ``size``, and so many, ``cut``, come before it.
    """

    bottom: Shape
    top: Shape
    cut: tuple[int, int]
    size: tuple[int, int]


class PSROIPool(Op):
    """The mean of each bin of regions of interest, each from a channel of its own.

    Bin (i, j) of channel d of the top, (R, D, G, G), is from channel (d G + i) G + j of the bottom.
    Regions are as those of :class:`ROIPool`, their corners between pixels.
    """

    bottom: Shape
    top: Shape
    scale: float


class ROIPool(Op):
    """The largest value in each bin of regions of interest; 0 in an empty one.

    Regions are (item, x1, y1, x2, y2) in pixels of which ``scale`` make one of the map. They are
    widened by ``pad_ratio`` of their size on each side.
    """

    bottom: Shape
    top: Shape
    scale: float
    pad_ratio: float = 0


class Permute(Op):
    """The axes in another order: axis ``order[i]`` of the bottom is axis ``i`` of the top."""

    bottom: Shape
    order: Shape

    @property
    def top(self) -> Shape:
        """The top's shape."""
        return tuple(self.bottom[axis] for axis in self.order)


class Repeat(Op):
    """Each pixel repeated in a block. Shape: (..., H, W) -> (..., H rows, W columns)."""

    bottom: Shape
    top: Shape
    rows: int
    columns: int


class Tile(Op):
    """Copies of blocks. Shape: (blocks, inner) -> (blocks, tiles, inner)."""

    blocks: int
    tiles: int
    inner: int


class Shuffle(Op):
    """Channel j of group i becomes channel i of group j. Shape: (N, C, ...) -> the same."""

    shape: Shape
    group: int


class Slice(Op):
    """Cut one blob along an axis where ``ends`` say, 0 and the axis's size included."""

    bottom: Shape
    axis: int
    ends: tuple[int, ...]


class Split(Op):
    """One blob seen by several readers; backward sums their gradients."""

    shape: Shape
    tops: int


class Activation(Op):
    """An elementwise function; ``parameters`` are its constants, in the layer's order."""

    joins = True

    function: str
    count: int
    parameters: tuple[float, ...] = ()


class PReLU(Op):
    """y = max(x, 0) + slope min(x, 0), the slope a parameter: one for each channel, or for all.

    Shapes: bottom (N, C, ...); slope (C,), or () where it is ``shared``.
    """

    joins = True

    bottom: Shape
    shared: bool


class Dropout(Op):
    """Multiply elements by ``factor``, and where ``drops`` by 0 those that are not kept.

    An element is kept where its random word (``Operands.random_words``) is above ``threshold``.
    """

    count: int
    factor: float
    drops: bool
    threshold: int


__getattr__ = deprecated_names(
    __name__,
    {
        "Fixed": "Constant",
        "Pyramid": "SpatialPyramidPool",
        "RegionMeans": "PSROIPool",
        "RegionPool": "ROIPool",
    },
)


def loss_divisor(
    normalization: str, batch: int, labels: int, *, some_ignored: bool
) -> float | None:
    """Return the normalizer of a loss that is summed over all labels, at least 1.

    None is the number of labels that count, or 1 if none do: labels may be ignored. ``batch`` is
    the product of the axes before the class axis.

    Source: Caffe, ``SoftmaxWithLossLayer::get_normalizer`` in
    ``src/caffe/layers/softmax_loss_layer.cpp``.
    """
    match normalization:
        case "VALID" if some_ignored:
            return None
        case "FULL" | "VALID":
            return max(1.0, float(labels))
        case "BATCH_SIZE":
            return max(1.0, float(batch))
        case _:
            return 1.0
