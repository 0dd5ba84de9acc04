"""PSROIPooling: the mean of each bin of a region of interest, each bin from channels of its own.

Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/psroi_pooling_layer.cpp``, ``.cu``.
"""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.regions import Region, bins_between
from demitasse.layers.base import Blobs
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.region_pooling import RegionPooling
from demitasse.layers.registry import register

__all__ = ["PSROIPooling"]


@register("PSROIPooling")
class PSROIPooling(RegionPooling):
    """Average the bins of regions of position-sensitive score maps.

    Bin (i, j) of channel d is taken from channel (d G + i) G + j of the map, where G is
    ``group_size``. An empty bin gives 0. Not compared with the original, which runs on GPUs only.

    Shapes: bottoms map (N, output_dim G G, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in
    pixels of the image -> top (R, output_dim, G, G). ``spatial_scale`` is that of the map.

    Raises:
        ConfigError: A field is missing, or not above 0.
        ShapeError: The bottoms do not have these shapes, or a region's image is not in the batch.
        NetError: The top is a bottom.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.psroi_pooling_param
        self.dim = positive(p.output_dim, "psroi_pooling_param.output_dim")
        self.group = positive(p.group_size, "psroi_pooling_param.group_size")
        self.scale = p.spatial_scale
        if self.scale <= 0:
            raise out_of_range("psroi_pooling_param.spatial_scale", self.scale, "a number above 0")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = ops.RegionMeans(
            dtype=self.dtype, bottom=bottom[0].shape, top=top[0].shape, scale=self.scale
        )

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        channels = self.dim * self.group * self.group
        if bottom[0].shape[1] != channels:
            expected = f"{channels} channels, output_dim {self.dim} x group_size {self.group}^2"
            raise wrong_shapes("PSROIPooling", expected, bottom[0])
        return self.dim, self.group, self.group

    def look(self, bottom: Blobs) -> list[Region]:
        n, _, height, width = bottom[0].shape
        rois = bottom[1].cpu_data().reshape(-1, 5)
        return bins_between(rois, self.scale, (self.group, self.group), n, (height, width)).each()

    def pool(self, bottom: Blobs, top: Blobs) -> None:
        xp, nothing = self.xp, self.zeros((self.dim,))
        x = xp.reshape(bottom[0].read(), self._parts(bottom))
        means = [
            nothing
            if y0 == y1 or x0 == x1
            else xp.mean(x[region.item, :, i, j, y0:y1, x0:x1], axis=(1, 2))
            for region in self.found
            for i, (y0, y1) in enumerate(region.rows)
            for j, (x0, x1) in enumerate(region.columns)
        ]
        bins = xp.reshape(xp.stack(means), (len(self.found), self.group, self.group, self.dim))
        top[0].write(xp.permute_dims(bins, (0, 3, 1, 2)))

    def spread(self, bottom: Blobs, top: Blobs) -> None:
        xp, dy = self.xp, top[0].read_diff()
        total = self.zeros(self._parts(bottom))
        for number, region in enumerate(self.found):
            for i, (y0, y1) in enumerate(region.rows):
                for j, (x0, x1) in enumerate(region.columns):
                    share = dy[number, :, i, j] / max(1, (y1 - y0) * (x1 - x0))
                    share = xp.reshape(share, (self.dim, 1, 1))
                    total[region.item, :, i, j, y0:y1, x0:x1] += share
        bottom[0].write_diff(xp.reshape(total, bottom[0].shape))

    def _parts(self, bottom: Blobs) -> tuple[int, ...]:
        """Return the map's shape with an axis each for channels, rows and columns of bins."""
        n, _, height, width = bottom[0].shape
        return n, self.dim, self.group, self.group, height, width
