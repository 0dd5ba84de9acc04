"""Upsample: pixels repeated, or put back where pooling took them from."""

import math
from itertools import product

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import check_indices, conflict, out_of_range, pair, wrong_shapes
from demitasse.layers.registry import register_layer

AT_ONCE = 1 << 18
"""Most elements of the top in one scatter, so that they fit a core's cache."""


@register_layer("Upsample")
class Upsample(Layer):
    """Enlarge by whole factors, or scatter values by the mask of a MAX pooling.

    Without a mask every pixel becomes a block of equal ones, ``scale`` times as high and wide. With
    a mask, values go to its indices, and all other values are 0; of several values for one index
    the last is kept. The mask gets no gradient, whatever ``propagate_down`` is, as in SegNet. The
    size is then ``upsample_h``, ``upsample_w``, or ``scale`` (or ``scale_h``, ``scale_w``) times
    the bottom's, less one with ``pad_out_h``, ``pad_out_w``. Not compared with the originals.

    Source: repeated: MobileNet-YOLO (eric612), ``src/caffe/layers/upsample_layer.cpp``; put back:
    SegNet (alexgkendall/caffe-segnet), ``src/caffe/layers/upsample_layer.cpp``.
    Shapes: bottoms (*lead, H, W)[, mask the same] -> top (*lead, height, width). A mask needs
    (N, C, H, W).

    Raises:
        ConfigError: The size is given in several ways, not completely, or is too small; ``pad_out``
            with a scale other than 2; fields that need a mask, without one.
        ShapeError: The bottoms do not have these shapes, or the mask names a place that is not
            there (checked unless it is on a device only).
        NetError: The top is a bottom.
    """

    bottoms = Between(1, 2)
    tops = Exactly(1)
    in_place = False
    differentiable = (0,)
    strict_propagate_down = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.upsample_param
        masked = len(bottom) > 1
        given = [field.name for field, _ in p.ListFields() if field.name != "scale"]
        if given and not masked:
            message = f"upsample_param.{given[0]} needs a second bottom, the mask of a pooling"
            raise conflict(f"upsample_param.{given[0]}", message)
        self.size = pair(p, "upsample_param", "upsample_h", "upsample_w")
        scale = p.scale if p.HasField("scale") else 1 + masked
        self.scale = (scale, scale)
        if self.size is None:
            scales = pair(p, "upsample_param", "scale_h", "scale_w")
            if scales is not None and p.HasField("scale"):
                message = "upsample_param takes scale, or scale_h and scale_w; not both"
                raise conflict("upsample_param.scale", message)
            self.scale = scales or self.scale
        fewest = 2 if masked else 1
        if min(self.size or self.scale) < fewest:
            field = "upsample_h" if self.size else "scale"
            got = self.size or self.scale
            raise out_of_range(f"upsample_param.{field}", got, f"{fewest} or more")
        for name, factor in (("pad_out_h", self.scale[0]), ("pad_out_w", self.scale[1])):
            if getattr(p, name) and self.size is None and factor != 2:
                message = f"upsample_param.{name} needs a scale of 2, got {factor}"
                raise conflict(f"upsample_param.{name}", message)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shape, p = bottom[0].shape, self.param.upsample_param
        if len(bottom) > 1 and (len(shape) != 4 or bottom[1].shape != shape):
            raise wrong_shapes("Upsample", "(N, C, H, W) and a mask like it", *bottom)
        if len(shape) < 2:
            raise wrong_shapes("Upsample", "(..., H, W)", bottom[0])
        height = shape[-2] * self.scale[0] - p.pad_out_h
        width = shape[-1] * self.scale[1] - p.pad_out_w
        top[0].reshape((*shape[:-2], *(self.size or (height, width))))
        if len(bottom) == 1:
            self.op = ops.Repeat(self.dtype, shape, top[0].shape, *self.scale)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x, shape = self.xp, bottom[0].read(), top[0].shape
        if len(bottom) > 1:
            plane = shape[2] * shape[3]
            check_indices(bottom[1], plane, "places in a plane of the top")
            mask, y = bottom[1].read(), top[0].buffer()
            step = max(1, AT_ONCE // max(1, plane))  # planes that fit a cache
            for image, first in product(range(shape[0]), range(0, shape[1], step)):
                at = image, slice(first, min(first + step, shape[1])), ...
                values, places = x[at], self._flat_indices(mask[at], x[at].shape[0], plane)
                flat = xp.reshape(values, (places.shape[0],))
                flat = self.device.backend.scatter(flat, places, values.shape[0] * plane)
                y[at] = xp.reshape(flat, (values.shape[0], *shape[2:]))
            return
        blocks = xp.broadcast_to(xp.reshape(x, self._blocks(bottom, 1)), self._blocks(bottom))
        top[0].write(xp.reshape(blocks, shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        xp, dy, shape = self.xp, top[0].read_diff(), bottom[0].shape
        if len(bottom) > 1:
            lead, plane = math.prod(top[0].shape[:2]), math.prod(top[0].shape[2:])
            places = self._flat_indices(bottom[1].read(), lead, plane)
            dx = xp.take(xp.reshape(dy, (top[0].count,)), places, axis=0)
        else:
            lead = len(shape) - 2
            dx = xp.sum(xp.reshape(dy, self._blocks(bottom)), axis=(lead + 1, lead + 3))
        bottom[0].write_diff(xp.reshape(dx, shape))

    def _blocks(self, bottom: Blobs, size: int | None = None) -> tuple[int, ...]:
        """Return the shape of the top with an axis for the rows and the columns of the blocks."""
        *lead, height, width = bottom[0].shape
        scale = self.scale if size is None else (size, size)
        return (*lead, height, scale[0], width, scale[1])

    def _flat_indices(self, mask: Array, planes: int, size: int) -> Array:
        """Return the flat index of each element of a mask in consecutive planes.

        Shapes: mask (..., h, w), ``planes`` of (h, w) -> (count,), int64.
        """
        xp = self.xp
        index = xp.reshape(self.cast(mask, "int64"), (planes, math.prod(mask.shape[-2:])))
        index = xp.minimum(xp.maximum(index, 0), size - 1)
        starts = xp.reshape(self.arange(planes) * size, (planes, 1))
        return xp.reshape(index + starts, (-1,))
