"""ROIPooling: the largest value in each bin of a region of interest.

Source: Fast R-CNN (rbgirshick/caffe-fast-rcnn), ``src/caffe/layers/roi_pooling_layer.cpp``.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.regions import Region, bins
from demitasse.layers.base import Blobs
from demitasse.layers.checks import positive
from demitasse.layers.region_pooling import RegionPooling
from demitasse.layers.registry import register

__all__ = ["ROIPooling"]


@register("ROIPooling")
class ROIPooling(RegionPooling):
    """Turn regions of any size into maps of one size, by maxima.

    A region has pooled_h x pooled_w bins, which overlap where its size does not divide. An empty
    bin gives 0. The gradient goes to the first of equal values. Not compared with the original.

    Shapes: bottoms map (N, C, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in pixels of the
    image, of which ``spatial_scale`` make one of the map -> top (R, C, pooled_h, pooled_w).

    Raises:
        ConfigError: ``pooled_h`` or ``pooled_w`` is missing or 0.
        ShapeError: The bottoms do not have these shapes, or a region's image is not in the batch.
        NetError: The top is a bottom.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.roi_pooling_param
        self.pooled = (
            positive(p.pooled_h, "roi_pooling_param.pooled_h"),
            positive(p.pooled_w, "roi_pooling_param.pooled_w"),
        )
        self.scale = p.spatial_scale

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = ops.RegionPool(
            dtype=self.dtype, bottom=bottom[0].shape, top=top[0].shape, scale=self.scale
        )

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        return (bottom[0].shape[1], *self.pooled)

    def look(self, bottom: Blobs) -> list[Region]:
        n, _, height, width = bottom[0].shape
        rois = bottom[1].cpu_data().reshape(-1, 5)
        return bins(rois, self.scale, self.pooled, n, (height, width)).each()

    def pool(self, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        top[0].write(self.xp.stack([self._one(x[r.item, ...], r) for r in self.found]))

    def _one(self, x: Array, region: Region) -> Array:
        """Return the maxima of one region, rows first. Shapes: (C, H, W) -> (C, height, width)."""
        xp, nothing = self.xp, self.zeros((x.shape[0],))
        pooled = []
        for top, bottom in region.rows:
            strip = xp.max(x[:, top:bottom, :], axis=1) if top < bottom else None  # (C, W)
            bins = [
                nothing if strip is None or left >= right else xp.max(strip[:, left:right], axis=1)
                for left, right in region.columns
            ]
            pooled.append(xp.stack(bins, axis=1))
        return xp.stack(pooled, axis=1)

    def spread(self, bottom: Blobs, top: Blobs) -> None:
        xp, x, dy = self.xp, bottom[0].read(), top[0].read_diff()
        total = self.zeros(x.shape)
        for number, region in enumerate(self.found):
            for i, (y0, y1) in enumerate(region.rows):
                for j, (x0, x1) in enumerate(region.columns):
                    if y0 == y1 or x0 == x1:
                        continue
                    seen = x[region.item, :, y0:y1, x0:x1]
                    flat = xp.reshape(seen, (seen.shape[0], math.prod(seen.shape[1:])))
                    best = xp.expand_dims(xp.argmax(flat, axis=1), axis=1)  # (C, 1)
                    chosen = self.cast(best == self.arange(flat.shape[1]))
                    share = chosen * xp.expand_dims(dy[number, :, i, j], axis=1)
                    total[region.item, :, y0:y1, x0:x1] += xp.reshape(share, seen.shape)
        bottom[0].write_diff(total)
