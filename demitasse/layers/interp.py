"""Interp: resize an image by bilinear interpolation; corner pixels stay at the corners."""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.errors import ErrorCode, NetError
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import missing, out_of_range, wrong_shapes
from demitasse.layers.registry import register_layer


@register_layer("Interp")
class Interp(Layer):
    """Resize every channel to ``height`` and ``width``, or by ``zoom_factor``, ``shrink_factor``.

    A factor f makes n pixels n + (n - 1)(f - 1), or (n - 1) / f + 1, rounded down; two factors
    shrink first, and a size wins over two. Negative ``pad_beg`` and ``pad_end`` cut pixels off all
    sides before that. With ``use_blob_size`` the size is that of a second bottom, of which nothing
    else matters. Positions are computed exactly, where DeepLab rounds them to float32. Not
    compared with the original.

    Source: DeepLab (also in yjxiong/caffe), ``src/caffe/layers/interp_layer.cpp``,
    ``src/caffe/util/interp.cpp``.
    Shapes: bottom (N, C, H, W)[, bottom (*, *, height, width)] -> top (N, C, height, width).

    Raises:
        ConfigError: A pad is above 0, a factor or a size below 1, or the size is not given.
        ShapeError: A bottom does not have four axes, or nothing of the first is left.
        NetError: The top is the bottom, or there is a second bottom without ``use_blob_size``, or
            the other way round.
    """

    bottoms, tops = Between(1, 2), Exactly(1)
    in_place = False
    differentiable = (0,)
    strict_propagate_down = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.interp_param
        if p.pad_beg > 0 or p.pad_end > 0:
            raise out_of_range("interp_param.pad_beg", (p.pad_beg, p.pad_end), "pads up to 0")
        for name in ("height", "width", "zoom_factor", "shrink_factor"):
            if p.HasField(name) and getattr(p, name) < 1:
                raise out_of_range(f"interp_param.{name}", getattr(p, name), "a number above 0")
        if p.use_blob_size != (len(bottom) > 1):
            message = "Interp takes a second bottom with interp_param.use_blob_size, and only then"
            raise NetError(message, code=ErrorCode.CONFLICT, field="interp_param.use_blob_size")
        if p.use_blob_size:
            return
        factor = p.HasField("zoom_factor") or p.HasField("shrink_factor")
        if not factor and not (p.HasField("height") and p.HasField("width")):
            advice = "give height and width, zoom_factor or shrink_factor"
            raise missing("interp_param.height", advice)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        p, shape = self.param.interp_param, bottom[0].shape
        for blob in bottom:
            if blob.num_axes != 4:
                raise wrong_shapes("Interp", "(N, C, H, W)", blob)
        self.inside = tuple(slice(-p.pad_beg, max(0, n + p.pad_end)) for n in shape[2:])
        self.sizes = shape[2] + p.pad_beg + p.pad_end, shape[3] + p.pad_beg + p.pad_end
        if min(self.sizes) <= 0:
            expected = f"pixels between the pads of {p.pad_beg} and {p.pad_end}"
            raise wrong_shapes("Interp", expected, bottom[0])
        size = p.height, p.width
        self.out = tuple(self._size(n, given) for n, given in zip(self.sizes, size, strict=True))
        if p.use_blob_size:
            self.out = bottom[1].shape[2:]
        top[0].reshape((*shape[:2], *self.out))
        cut = -p.pad_beg, -p.pad_beg
        self.op = ops.Interpolation(self.dtype, shape, top[0].shape, cut, self.sizes)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()[:, :, *self.inside]
        for axis in (2, 3):
            low, high, share = self._neighbours(axis)
            below = self.xp.take(x, low, axis=axis)
            above = self.xp.take(x, high, axis=axis)
            x = below * (1 - share) + above * share
        top[0].write(x)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        xp, dy = self.xp, top[0].read_diff()
        dx = xp.matmul(xp.matmul(xp.matrix_transpose(self._matrix(2)), dy), self._matrix(3))
        inside = (slice(None), slice(None), *self.inside)
        total = self.device.backend.set_at(self.zeros(bottom[0].shape), inside, dx)
        bottom[0].write_diff(total)

    def _size(self, n: int, given: int) -> int:
        p = self.param.interp_param
        zoom, shrink = p.HasField("zoom_factor"), p.HasField("shrink_factor")
        if zoom == shrink and p.HasField("height") and p.HasField("width"):
            return given
        n = (n - 1) // p.shrink_factor + 1
        return n + (n - 1) * (p.zoom_factor - 1)

    def _neighbours(self, axis: int) -> tuple[Array, Array, Array]:
        """Return the neighbours of the top's pixels along an axis, and the second's weight.

        Shapes: (n,), (n,), (n, 1) for rows or (n,) for columns.
        """
        size, out = self.sizes[axis - 2], self.out[axis - 2]

        def make() -> tuple[Array, Array, Array]:
            scaled = self.arange(out) * (size - 1)  # in units of 1 / (out - 1) pixels
            step = max(1, out - 1)
            low = scaled // step
            high = self.xp.minimum(low + 1, size - 1)
            share = self.cast(scaled - low * step) / step
            return low, high, self.xp.reshape(share, (out, 1)) if axis == 2 else share

        places: tuple[Array, Array, Array] = self.constant(f"neighbours {axis}", (size, out), make)
        return places

    def _matrix(self, axis: int) -> Array:
        """Return the weights of the bottom's pixels for the top's pixels. Shape: (top, bottom)."""
        xp, size = self.xp, self.sizes[axis - 2]
        low, high, share = self._neighbours(axis)
        pixels = xp.reshape(self.arange(size), (1, size))
        share = xp.reshape(share, (-1, 1))
        below = self.cast(xp.reshape(low, (-1, 1)) == pixels)
        above = self.cast(xp.reshape(high, (-1, 1)) == pixels)
        return below * (1 - share) + above * share
