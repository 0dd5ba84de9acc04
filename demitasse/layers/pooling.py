"""Pooling: one value for each window: the largest, the mean, or a random element."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.ops import LOWEST
from demitasse.backends.windows import Shape, Window
from demitasse.blob import Blob
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import PoolingParameter
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import conflict, missing, out_of_range, wrong_shapes
from demitasse.layers.numerics import FLT_MIN
from demitasse.layers.registry import register_layer
from demitasse.layers.windows import PaddedImage, pads, sides


class Method(ABC):
    """Pooling method, for bottoms of one size.

    Shapes: bottom (N, C, *spatial), top (N, C, *positions).
    """

    def __init__(self, layer: Pooling, padded: PaddedImage) -> None:
        self.layer, self.padded = layer, padded

    @abstractmethod
    def forward(self, bottom: Blob, top: Blobs) -> None:
        """Fill the tops."""

    @abstractmethod
    def backward(self, top: Blob, bottom: Blob) -> Array:
        """Return the bottom's gradient."""


class _Selecting(Method):
    """Methods that select one element of the window, saved as its index in the plane."""

    def backward(self, top: Blob, bottom: Blob) -> Array:
        xp, padded = self.layer.xp, self.padded
        dy, index = top.read_diff(), self.layer.saved("index", top.shape, "int32").read()
        nothing = self.layer.zeros(())
        total, add_at = padded.blank(*bottom.shape[:2]), self.layer.device.backend.add_at
        for offset in padded.kernel_offsets:
            share = xp.where(index == self.index_of(offset), dy, nothing)
            total = add_at(total, padded.slice_for(offset), share)
        return padded.crop(total)

    def index_of(self, offset: Shape) -> Array:
        """Return the index in the plane for a kernel offset. Shape: (*positions), int32."""
        layer, padded = self.layer, self.padded
        window, spatial, out = padded.window, padded.spatial, padded.out
        strides = [math.prod(spatial[axis + 1 :]) for axis in range(len(spatial))]

        def first_index() -> Array:
            """Return the index for the first kernel offset; padding has indices of neighbours."""
            total = layer.zeros(out, "int32")
            for axis, step in enumerate(strides):
                at = layer.arange(out[axis], "int32") * window.stride[axis] - window.pad[axis]
                shape = [1] * len(out)
                shape[axis] = out[axis]
                total = total + layer.xp.reshape(at * step, tuple(shape))
            return total

        shift = sum(t * s for t, s in zip(offset, strides, strict=True))
        return layer.constant("index", (window, spatial, out), first_index) + shift


class Max(_Selecting):
    """Largest element; the first of equal elements. NaN is never chosen."""

    def forward(self, bottom: Blob, top: Blobs) -> None:
        xp, layer = self.layer.xp, self.layer
        padded = self.padded.pad(bottom.read(), LOWEST)
        best = layer.full(top[0].shape, LOWEST)
        index = layer.full(top[0].shape, -1, "int32")
        for offset in self.padded.kernel_offsets:
            seen = padded[self.padded.slice_for(offset)]
            better = seen > best
            best = xp.where(better, seen, best)
            index = xp.where(better, self.index_of(offset), index)
        top[0].write(best)
        layer.saved("index", top[0].shape, "int32").write(index)
        if len(top) > 1:
            top[1].write(layer.cast(index))


class Average(Method):
    """Sum divided by the size of the window's part on image and pads, or on the image alone."""

    def forward(self, bottom: Blob, top: Blobs) -> None:
        total = self.padded.pad(bottom.read())
        for _, offsets in self._sweeps():
            total = sum((total[offset] for offset in offsets[1:]), start=total[offsets[0]])
        top[0].write(total / self._divisor())

    def backward(self, top: Blob, bottom: Blob) -> Array:
        total = top.read_diff() / self._divisor()
        for axis, offsets in reversed(self._sweeps()):
            shape = list(total.shape)
            shape[axis] = self.padded.size[axis - 2]
            wider = self.layer.zeros(tuple(shape))
            for offset in offsets:
                wider = self.layer.device.backend.add_at(wider, offset, total)
            total = wider
        return self.padded.crop(total)

    def _sweeps(self) -> list[tuple[int, list[tuple[slice, ...]]]]:
        """Return the slices of the kernel offsets along each spatial axis."""
        everything = [slice(None)] * (2 + len(self.padded.out))
        sweeps = []
        for axis, offsets in enumerate(self.padded.window.kernel, start=2):
            index = []
            for offset in range(offsets):
                one = list(everything)
                reach = self.padded.window.reach((offset,) * len(self.padded.out), self.padded.out)
                one[axis] = reach[axis - 2]
                index.append(tuple(one))
            sweeps.append((axis, index))
        return sweeps

    def _divisor(self) -> Array:
        layer, padded = self.layer, self.padded

        def make() -> Array:
            divisors = padded.window.divisors(padded.spatial, padded.out, pads=layer.counts_pads)
            return layer.device.backend.asarray(divisors.astype(layer.dtype))

        return layer.constant("divisor", (padded.window, padded.spatial, padded.out), make)


class Stochastic(_Selecting):
    """TRAIN: one element, drawn with a probability proportional to it. TEST: the expected value."""

    def forward(self, bottom: Blob, top: Blobs) -> None:
        padded = self.padded.pad(bottom.read())
        if self.layer.phase == "TRAIN":
            self._draw(padded, top[0])
        else:
            total, squares = self._sums(padded)
            top[0].write(squares / total)

    def backward(self, top: Blob, bottom: Blob) -> Array:
        if self.layer.phase == "TRAIN":
            return super().backward(top, bottom)
        padded = self.padded.pad(bottom.read())
        share = top.read_diff() / self._sums(padded)[0]
        result = self.padded.blank(*bottom.shape[:2])
        for offset in self.padded.kernel_offsets:
            at = self.padded.slice_for(offset)
            part = share * (2 * padded[at] - top.read())
            result = self.layer.device.backend.add_at(result, at, part)
        return self.padded.crop(result)

    def _sums(self, padded: Array) -> tuple[Array, Array]:
        # FLT_MIN: against 0 / 0, as in Caffe
        least = self.layer.full((*padded.shape[:2], *self.padded.out), FLT_MIN)
        seen = [padded[self.padded.slice_for(offset)] for offset in self.padded.kernel_offsets]
        return sum(seen, start=least), sum(x * x for x in seen)

    def _draw(self, padded: Array, top: Blob) -> None:
        xp, layer = self.layer.xp, self.layer
        total = layer.zeros(top.shape)
        for offset in self.padded.kernel_offsets:
            total = total + padded[self.padded.slice_for(offset)]
        # a random number in (0, 1] for each window
        threshold = (layer.cast(layer.random_words(top.shape)) + 1) * 2.0**-32 * total
        running = chosen = layer.zeros(top.shape)
        index = layer.full(top.shape, -1, "int32")
        for offset in self.padded.kernel_offsets:
            seen = padded[self.padded.slice_for(offset)]
            running = running + seen
            hit = (running >= threshold) & (index == -1)
            chosen = xp.where(hit, seen, chosen)
            index = xp.where(hit, self.index_of(offset), index)
        top.write(chosen)
        layer.saved("index", top.shape, "int32").write(index)


METHODS: dict[str, type[Method]] = {"MAX": Max, "AVE": Average, "STOCHASTIC": Stochastic}


LEAD = 2
"""Axes before the spatial ones: images and channels."""


@register_layer("Pooling", "NdPooling")
class Pooling(Layer):
    """Summarise every window of every channel.

    Sizes are rounded up by default; with padding, a window that would start beyond the image and
    its first pad is dropped. The mean divides by the size of the window's part on the image or its
    pads; with ``AVE_EXC_PAD``, or without ``avg_include_pad``, of its part on the image. A window
    without elements gives the lowest float32 (MAX). Its mean is Caffe's quotient: NaN (0 / 0) if
    the window begins at the image's end along some axis, and 0 of either sign if it begins beyond
    the end. Kernel, stride and pad of each axis are given by the fields of the forks, or several
    times. video-caffe's NdPooling is the same layer.

    Source: Caffe, ``src/caffe/layers/pooling_layer.cpp``, ``pooling_layer.cu``.
    Shapes: bottom (N, C, *spatial) -> top (N, C, *positions); with MAX, a second top of the same
    shape takes the index of the largest element within its (flattened) plane, -1 for none.
    Any number of spatial axes, where Caffe takes two; ``_h`` and ``_w`` fields need two.

    Raises:
        ConfigError: The window is given twice, not at all, or has padding it cannot have.
        ShapeError: The bottom has no spatial axis, or the window does not fit.
        NetError: A second top without MAX, or a gradient is wanted in place.
    """

    bottoms = Exactly(1)
    tops = Between(1, 2)

    method: Method

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.pooling_param
        self.kind, self.counts_pads = pooling_method(p)
        if len(top) > 1 and self.kind != "MAX":
            message = f"a second top, the mask, comes with pool: MAX only, got {self.kind}"
            field = "pooling_param.pool"
            raise NetError(message, code=ErrorCode.CONFLICT, field=field, got=self.kind)
        self.window_of(bottom[0])

    def window_of(self, bottom: Blob) -> Window:
        """Return the window for a bottom of this size, all of it with ``global_pooling``."""
        if bottom.num_axes <= LEAD:
            expected = "(N, C, H, W), or another number of spatial axes"
            raise wrong_shapes("Pooling", expected, bottom)
        return pooling_window(self.param.pooling_param, bottom.shape[LEAD:])

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        window = self.window_of(bottom[0])
        shape = bottom[0].shape
        spatial = shape[LEAD:]
        ceil = self.param.pooling_param.round_mode == PoolingParameter.CEIL
        out = window.pooled(spatial, ceil=ceil)
        for blob in top:
            blob.reshape((*shape[:LEAD], *out))
        # beyond the image only "at its end" and "later" differ
        stride = tuple(
            min(step, size + pad + 1)
            for step, size, pad in zip(window.stride, spatial, window.pad, strict=True)
        )
        window = replace(window, stride=stride)
        self.method = METHODS[self.kind](self, PaddedImage(self, window, spatial, out))
        self.op = ops.Pool(
            self.dtype,
            self.kind,  # type: ignore[arg-type]
            *(shape, top[0].shape, window.kernel, window.stride, window.pad),
            tops=len(top),
            train=self.phase == "TRAIN",
            after=window.after,
            counts_pads=self.counts_pads,
        )

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.method.forward(bottom[0], top)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            self.refuse_overwritten(bottom, top, propagate_down)
            bottom[0].write_diff(self.method.backward(top[0], bottom[0]))


def pooling_method(param: PoolingParameter) -> tuple[str, bool]:
    """Return MAX, AVE or STOCHASTIC, and whether a mean counts pads."""
    if param.pool == PoolingParameter.AVE_EXC_PAD:
        return "AVE", False
    return PoolingParameter.PoolMethod.Name(param.pool), param.avg_include_pad


def pooling_window(param: PoolingParameter, spatial: Shape) -> Window:
    """Read the window of a pooling layer over a bottom of this size; errors as of ``Pooling``."""
    axes = len(spatial)
    path = "pooling_param"
    if param.global_pooling:
        given = {field.name for field, _ in param.ListFields()}
        if given & GLOBAL_KERNEL:
            message = "pooling_param has global_pooling and a kernel_size; remove one"
            raise conflict("pooling_param.global_pooling", message)
        kernel = spatial
    else:
        kernel = sides(param, path, "kernel", axes, partial(_sides, param, "kernel", "kernel_size"))
    stride = sides(param, path, "stride", axes, partial(_sides, param, "stride", "stride"))
    pad, after = pads(param, path, axes, partial(_sides, param, "pad", "pad"))
    for name, values in (("kernel_size", kernel), ("stride", stride)):
        if min(values) <= 0:
            raise out_of_range(f"pooling_param.{name}", values, "numbers above 0")
    window = Window(kernel, stride, pad, (1,) * axes, after)
    padded, shown = any(map(any, window.pads)), window.given_pads
    if param.global_pooling and (padded or set(stride) != {1}):
        message = f"global_pooling takes pad 0 and stride 1, got pad {shown} and stride {stride}"
        raise conflict("pooling_param.global_pooling", message)
    if padded:
        if param.pool == PoolingParameter.STOCHASTIC:
            raise conflict("pooling_param.pad", f"pool: STOCHASTIC takes no pad, got {shown}")
        if any(max(side) >= k for side, k in zip(window.pads, kernel, strict=True)):
            raise out_of_range("pooling_param.pad", shown, f"less than the kernel {kernel}")
    return window


GLOBAL_KERNEL = frozenset(
    {"kernel_size", "kernel_h", "kernel_w", "kernel_size_3d", "kernel_shape", "kernel_depth"}
)
"""Fields that ``global_pooling`` replaces."""


def _sides(param: PoolingParameter, name: str, square: str, axes: int) -> Shape:
    """Return one value per axis from ``square``, or from ``<name>_h`` and ``<name>_w``."""
    height, width = f"{name}_h", f"{name}_w"
    given = [field for field in (height, width) if param.HasField(field)]
    if name == "kernel":
        if len(given) < 2 and param.HasField("kernel_size"):
            given = []  # Caffe lets kernel_size win over one of the two
        elif not given:
            raise missing("pooling_param.kernel_size", "give kernel_size, or kernel_h and kernel_w")
    if not given:
        return (getattr(param, square),) * axes
    if param.HasField(square) or len(given) == 1:
        message = (
            f"pooling_param takes {square}, or both {height} and {width}, got "
            f"{' and '.join([square] * param.HasField(square) + given)}"
        )
        raise conflict(f"pooling_param.{square}", message)
    if axes != 2:
        message = f"pooling_param.{height} and {width} are for 2 spatial axes, there are {axes}"
        raise conflict(f"pooling_param.{height}", message)
    return getattr(param, height), getattr(param, width)
