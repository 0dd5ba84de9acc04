"""Reshape and Flatten: other axes over the same elements; nothing is copied."""

import math

from demitasse.blob import Blob
from demitasse.core.axes import MAX_AXES
from demitasse.errors import ErrorCode, ShapeError
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import no_such_axis, out_of_range, shape_mismatch
from demitasse.layers.registry import register_layer


class ViewLayer(Layer):
    """View of the bottom's data and gradient in another shape, without a copy."""

    bottoms = tops = Exactly(1)
    in_place = False
    is_alias = True

    def top_shape(self, bottom: Blob) -> tuple[int, ...]:
        """Return the top's shape, with the bottom's count."""
        raise NotImplementedError(type(self).__name__)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape(self.top_shape(bottom[0]))
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        """Do nothing: top and bottom share the gradient."""


@register_layer("Reshape")
class Reshape(ViewLayer):
    """Replace ``num_axes`` axes from ``axis`` on by ``shape``.

    Nothing is copied. In ``shape``, 0 keeps the bottom's axis of that place and one -1 is worked
    out from the rest. A negative ``axis`` counts from the end, where -1 appends.

    Source: Caffe, ``src/caffe/layers/reshape_layer.cpp``.
    Shapes: bottom (*lead, *replaced, *rest) -> top (*lead, *shape, *rest), the same data.

    Raises:
        ConfigError: ``shape`` has several -1, or a number below it.
        ShapeError: The axes are not there, there would be more than 32, or the count of elements
            would change.
        NetError: The top is the bottom.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.dims = list(self.param.reshape_param.shape.dim)
        if self.dims.count(-1) > 1 or min(self.dims, default=0) < -1:
            raise out_of_range("reshape_param.shape", self.dims, "sizes, 0 and at most one -1")

    def top_shape(self, bottom: Blob) -> tuple[int, ...]:
        start, end = self._replaced_axes(bottom)
        lead, rest = bottom.shape[:start], bottom.shape[end:]
        dims = list(self.dims)
        for i, axis in enumerate(range(start, start + len(dims))):
            if dims[i] == 0 and axis >= bottom.num_axes:
                message = (
                    f"a 0 in reshape_param.shape copies axis {axis}, which {bottom.shape} lacks"
                )
                raise self._mismatch(message)
            dims[i] = bottom.shape[axis] if dims[i] == 0 else dims[i]
        axes = len(lead) + len(dims) + len(rest)
        if axes > MAX_AXES:
            message = f"reshape_param would make {axes} axes; a blob has at most {MAX_AXES}"
            raise ShapeError(message, code=ErrorCode.LIMIT, field="reshape_param.shape", got=axes)
        known = math.prod(d for d in (*lead, *dims, *rest) if d != -1)
        if -1 in dims:
            if known == 0 or bottom.count % known:
                message = (
                    f"the -1 in reshape_param.shape cannot be inferred: the {bottom.count} "
                    f"elements of {bottom.shape} do not divide by the other axes' {known}"
                )
                raise self._mismatch(message)
            dims[dims.index(-1)] = bottom.count // known
        shape = (*lead, *dims, *rest)
        if math.prod(shape) != bottom.count:
            message = (
                f"reshape_param would make {shape} of {math.prod(shape)} elements from "
                f"{bottom.shape} of {bottom.count}; the counts must be equal"
            )
            raise self._mismatch(message)
        return shape

    def _mismatch(self, message: str) -> ShapeError:
        return shape_mismatch(message, field="reshape_param.shape", got=self.dims)

    def _replaced_axes(self, bottom: Blob) -> tuple[int, int]:
        """Return the first replaced axis and the one after the last."""
        p = self.param.reshape_param
        axes = bottom.num_axes
        start = p.axis if p.axis >= 0 else axes + p.axis + 1
        if not 0 <= start <= axes:
            message = f"reshape_param.axis {p.axis} is not in [-{axes + 1}, {axes}]"
            raise no_such_axis(message, field="reshape_param.axis", got=p.axis)
        end = axes if p.num_axes == -1 else start + p.num_axes
        if p.num_axes < -1 or end > axes:
            message = (
                f"reshape_param.num_axes {p.num_axes} from axis {start} does not fit the {axes} "
                "axes of the bottom, expected 0 or more, or -1 for all"
            )
            raise no_such_axis(message, field="reshape_param.num_axes", got=p.num_axes)
        return start, end


@register_layer("Flatten")
class Flatten(ViewLayer):
    """Join the axes ``axis`` to ``end_axis``, both included.

    Nothing is copied.

    Source: Caffe, ``src/caffe/layers/flatten_layer.cpp``.
    Shapes: bottom (*lead, *joined, *rest) -> top (*lead, product of joined, *rest), the same data.

    Raises:
        ShapeError: There are no such axes, or the last comes before the first.
        NetError: The top is the bottom.
    """

    def top_shape(self, bottom: Blob) -> tuple[int, ...]:
        p = self.param.flatten_param
        first, last = bottom.canonical_axis(p.axis), bottom.canonical_axis(p.end_axis)
        joined = bottom.count_between(first, last + 1)
        return (*bottom.shape[:first], joined, *bottom.shape[last + 1 :])


@register_layer("Squeeze")
class Squeeze(ViewLayer):
    """Remove axes of size 1: those of ``axis``, or all. Nothing is copied.

    Not compared with the original.

    Source: Synopsys Caffe (foss-for-synopsys-dwc-arc-processors/synopsys-caffe),
    ``src/caffe/layers/squeeze_layer.cpp``.
    Shapes: bottom (..., 1, ...) -> top (..., ...), the same data.

    Raises:
        ShapeError: An axis is not there, or its size is not 1.
        NetError: The top is the bottom.
    """

    def top_shape(self, bottom: Blob) -> tuple[int, ...]:
        given = [bottom.canonical_axis(axis) for axis in self.param.squeeze_param.axis]
        for axis in given:
            if bottom.shape[axis] != 1:
                message = f"got axis {axis} of {bottom.shape} to remove, expected an axis of size 1"
                raise no_such_axis(message, field="squeeze_param.axis", got=axis)
        return tuple(
            size
            for axis, size in enumerate(bottom.shape)
            if size != 1 or (given and axis not in given)
        )
