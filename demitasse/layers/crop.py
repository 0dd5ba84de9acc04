"""Crop: cut the first bottom to the size of the second."""

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import no_such_axis, wrong_count, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("Crop")
class Crop(Layer):
    """Crop the axes from ``axis`` on to the second bottom's sizes, starting at ``offset``.

    Source: Caffe, ``src/caffe/layers/crop_layer.cpp``.
    Shapes: bottom 0 any, bottom 1 smaller or equal from ``axis`` on -> top (*axes of bottom 0
    before ``axis``, *axes of bottom 1 from it on). The second bottom's values are not used, and
    its gradient is zero.

    Raises:
        ConfigError: ``offset`` is given neither once nor once for each cropped axis.
        ShapeError: There is no such axis, or the crop reaches beyond the first bottom.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    graph_capturable = True

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.crop_param
        source, wanted = bottom[0].shape, bottom[1].shape
        axis = bottom[0].canonical_axis(p.axis)
        cropped = len(source) - axis
        if len(wanted) < len(source):
            raise wrong_shapes("Crop", "a second bottom with the axes of the first", *bottom)
        if len(p.offset) > 1 and len(p.offset) != cropped:
            expected = f"1, or {cropped}, the number of axes from {p.axis} on"
            raise wrong_count("crop_param.offset", len(p.offset), expected)
        offsets = list(p.offset) if len(p.offset) > 1 else list(p.offset or [0]) * cropped
        index = [slice(None)] * axis
        for i, offset in enumerate(offsets, start=axis):
            if source[i] - offset < wanted[i]:
                message = (
                    f"the crop of axis {i}, {offset} to {offset + wanted[i]}, reaches beyond "
                    f"bottom {bottom[0].name!r} {source}"
                )
                raise no_such_axis(message, field="crop_param.offset", got=offset, axis=i)
            index.append(slice(offset, offset + wanted[i]))
        self.index = tuple(index)
        top[0].reshape((*source[:axis], *wanted[axis : len(source)]))
        first = (*[0] * axis, *offsets)
        self.op = ops.Crop(self.dtype, source, top[0].shape, first)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].write(bottom[0].read()[self.index])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            dx = self.zeros(bottom[0].shape)
            dx = self.device.backend.set_at(dx, self.index, top[0].read_diff())
            bottom[0].write_diff(dx)
        if propagate_down[1]:
            bottom[1].set_diff(0)
