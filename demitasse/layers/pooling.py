"""Pooling: one value for each window: the largest, the mean, or one drawn at random.

Source: Caffe, ``src/caffe/layers/pooling_layer.cpp``, ``pooling_layer.cu``.
"""

from __future__ import annotations

from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.windows import Shape, Window
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import PoolingParameter
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import conflict, missing, out_of_range, wrong_shapes
from demitasse.layers.helpers.columns import Canvas
from demitasse.layers.pooling_methods import METHODS, Method
from demitasse.layers.registry import register

__all__ = ["Pooling"]

LEAD = 2
"""Axes before the spatial ones: images and channels."""


@register("Pooling")
class Pooling(Layer):
    """Summarise every window of every channel.

    Sizes are rounded up by default; with padding, a window that would start beyond the image and
    its first pad is dropped. The mean divides by the part of the window that lies on the image or
    its pads. A window that holds no element gives the lowest float32 (MAX). Its mean is Caffe's
    quotient: NaN (0 / 0) where it begins at the image's end along some axis, and 0 where it begins
    beyond it, of either sign, as each such axis counts below 0.

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
        self.kind = PoolingParameter.PoolMethod.Name(p.pool)
        if len(top) > 1 and self.kind != "MAX":
            message = f"a second top, the mask, comes with pool: MAX only, got {self.kind}"
            raise NetError(
                message, code=ErrorCode.CONFLICT, field="pooling_param.pool", got=self.kind
            )
        _check_axes(bottom)
        self.window_of(bottom[0].shape[LEAD:])

    def window_of(self, spatial: Shape) -> Window:
        """Return the window for a bottom of this size, all of it with ``global_pooling``."""
        return pooling_window(self.param.pooling_param, spatial)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        _check_axes(bottom)
        shape = bottom[0].shape
        spatial = shape[LEAD:]
        window = self.window_of(spatial)
        ceil = self.param.pooling_param.round_mode == PoolingParameter.CEIL
        out = window.pooled(spatial, ceil=ceil)
        for blob in top:
            blob.reshape((*shape[:LEAD], *out))
        # beyond the image it matters whether a window begins at its end or later, not how far
        stride = tuple(
            min(step, size + pad + 1)
            for step, size, pad in zip(window.stride, spatial, window.pad, strict=True)
        )
        window = replace(window, stride=stride)
        self.method = METHODS[self.kind](self, Canvas(self, window, spatial, out))
        self.op = ops.Pool(
            dtype=self.dtype,
            method=self.kind,  # type: ignore[arg-type]
            bottom=shape,
            top=top[0].shape,
            kernel=window.kernel,
            stride=window.stride,
            pad=window.pad,
            tops=len(top),
            train=self.phase == "TRAIN",
        )

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.method.forward(bottom[0], top)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            self.refuse_overwritten(bottom, top, propagate_down)
            bottom[0].write_diff(self.method.backward(top[0], bottom[0]))


def pooling_window(param: PoolingParameter, spatial: Shape) -> Window:
    """Read the window of a pooling layer over a bottom of this size.

    Raises:
        ConfigError: See ``Pooling``.
    """
    axes = len(spatial)
    if param.global_pooling:
        if any(map(param.HasField, ("kernel_size", "kernel_h", "kernel_w"))):
            message = "pooling_param has global_pooling and a kernel_size; remove one"
            raise conflict("pooling_param.global_pooling", message)
        kernel = spatial
    else:
        kernel = _sides(param, "kernel", "kernel_size", axes)
    stride = _sides(param, "stride", "stride", axes)
    pad = _sides(param, "pad", "pad", axes)
    for name, values in (("kernel_size", kernel), ("stride", stride)):
        if min(values) <= 0:
            raise out_of_range(f"pooling_param.{name}", values, "numbers above 0")
    if param.global_pooling and (any(pad) or set(stride) != {1}):
        message = f"global_pooling takes pad 0 and stride 1, got pad {pad} and stride {stride}"
        raise conflict("pooling_param.global_pooling", message)
    if any(pad):
        if param.pool == PoolingParameter.STOCHASTIC:
            raise conflict("pooling_param.pad", f"pool: STOCHASTIC takes no pad, got {pad}")
        if any(p >= k for p, k in zip(pad, kernel, strict=True)):
            raise out_of_range("pooling_param.pad", pad, f"less than the kernel {kernel}")
    return Window(kernel, stride, pad, (1,) * axes)


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


def _check_axes(bottom: Blobs) -> None:
    if bottom[0].num_axes <= LEAD:
        raise wrong_shapes("Pooling", "(N, C, H, W), or another number of spatial axes", bottom[0])
