"""SPP: pooling over a pyramid of ever finer grids, whatever the size of the image."""

from demitasse.backends import ops
from demitasse.blob import Blob
from demitasse.io.proto import LayerParameter
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.pooling import Pooling
from demitasse.layers.registry import register_layer


@register_layer("SPP")
class SPP(Layer):
    """Spatial pyramid pooling: level i has 2^i by 2^i bins, and the levels are joined.

    Source: Caffe, ``src/caffe/layers/spp_layer.cpp``.
    Shapes: bottom (N, C, H, W) -> top (N, sum over levels of C * bins); (N, C, 1, 1) for
    ``pyramid_height`` 1.

    Raises:
        ConfigError: ``pyramid_height`` is missing, or a level's bins are so small that their
            padding would not be below their size.
        ShapeError: The bottom is not (N, C, H, W) with H and W above 0.
    """

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.levels = positive(self.param.spp_param.pyramid_height, "spp_param.pyramid_height")
        self.pools: list[Pooling] = []
        self.pooled: list[Blob] = []
        self._size: tuple[int, ...] = ()
        self._build(bottom[0])

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self._build(bottom[0])
        for pool, pooled in zip(self.pools, self.pooled, strict=True):
            pool.reshape(bottom, [pooled])
        n = bottom[0].shape[0]
        if self.levels == 1:
            top[0].reshape_like(self.pooled[0])
        else:
            top[0].reshape(n, sum(pooled.count_from(1) for pooled in self.pooled))
        levels = tuple(pool.op for pool in self.pools if isinstance(pool.op, ops.Pool))
        self.op = ops.SpatialPyramidPool(self.dtype, bottom[0].shape, top[0].shape, levels)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        parts = []
        for pool, pooled in zip(self.pools, self.pooled, strict=True):
            pool.run_forward(bottom, [pooled])
            parts.append(xp.reshape(pooled.read(), (pooled.shape[0], pooled.count_from(1))))
        top[0].write(xp.reshape(xp.concat(parts, axis=1), top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        dy = self.xp.reshape(top[0].read_diff(), (top[0].shape[0], top[0].count_from(1)))
        total = self.zeros(bottom[0].shape)
        first = 0
        for pool, pooled in zip(self.pools, self.pooled, strict=True):
            last = first + pooled.count_from(1)
            pooled.write_diff(self.xp.reshape(dy[:, first:last], pooled.shape))
            total = total + pool.method.backward(pooled, bottom[0])
            first = last
        bottom[0].write_diff(total)

    def internal_blobs(self) -> list[Blob]:
        inner = [blob for pool in self.pools for blob in pool.internal_blobs()]
        return super().internal_blobs() + self.pooled + inner

    def clear_constants(self) -> None:
        super().clear_constants()
        for pool in self.pools:
            pool.clear_constants()

    def _build(self, bottom: Blob) -> None:
        """Make the pooling layer of each level, again after a change of the image size."""
        if bottom.num_axes != 4 or 0 in bottom.shape[2:]:
            raise wrong_shapes("SPP", "(N, C, H, W) with H and W above 0", bottom)
        if self._size == bottom.shape[2:]:
            return
        self._size = bottom.shape[2:]
        deepest = max(self._size).bit_length() + 1  # deeper bins are smaller than a pixel
        if self.levels > deepest:
            expected = f"at most {deepest} for an image of {self._size[0]} x {self._size[1]}"
            raise out_of_range("spp_param.pyramid_height", self.levels, expected)
        if not self.pooled:
            self.pooled = [
                Blob((), self.dtype, self.device, f"{self.name}.level{i}")
                for i in range(self.levels)
            ]
        self.pools = [self._pool(level) for level in range(self.levels)]
        for pool, pooled in zip(self.pools, self.pooled, strict=True):
            pool.initialize([bottom], [pooled])

    def _pool(self, level: int) -> Pooling:
        param = LayerParameter(name=f"{self.name}/level{level}", type="Pooling")
        p = param.pooling_param
        p.pool = self.param.spp_param.pool
        bins = 2**level
        for side, size in zip("hw", self._size, strict=True):
            kernel = -(-size // bins)
            setattr(p, f"kernel_{side}", kernel)
            setattr(p, f"stride_{side}", kernel)
            setattr(p, f"pad_{side}", (kernel * bins - size + 1) // 2)
        return Pooling(param, self.phase, self.context)
