"""ROIPooling and PSROIPooling: pooling over regions of interest.

The bins of the regions are computed on the host, which synchronizes with the device.
"""

import math
from typing import Any

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.regions import Region, bins, bins_between, grid_samples, widened
from demitasse.layers.base import Blobs, Exactly, Flags, Layer, not_computed
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.registry import register_layer


class RegionPooling(Layer):
    """Base class of pooling over the bins of regions of a map.

    Regions get no gradient, whatever ``propagate_down`` is, as in the originals.

    Shapes: bottoms map (N, C, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in pixels of the
    image -> top (R, D, height, width).
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    in_place = False
    differentiable = (0,)
    strict_propagate_down = False
    dynamic_shapes = True  # the host computes the bins

    saved_regions: list[Any] | None = None
    """Regions of the last forward pass with their bins, or pixels and weights, for backward."""

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        """Return channels, height and width of the top."""
        raise NotImplementedError(type(self).__name__)

    def regions_of(self, bottom: Blobs) -> list[Region]:
        """Return the regions with their bins."""
        raise NotImplementedError(type(self).__name__)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        rois = bottom[1]
        if bottom[0].num_axes != 4 or not rois.num_axes or rois.count != 5 * rois.shape[0]:
            raise wrong_shapes(self.type, "a map (N, C, H, W) and regions (R, 5)", *bottom)
        top[0].reshape((rois.shape[0], *self.top_shape(bottom)))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.saved_regions = self.regions_of(bottom)
        if self.saved_regions:
            self.pool(self.saved_regions, bottom, top)
        else:
            top[0].write(self.zeros(top[0].shape))

    def pool(self, regions: list[Region], bottom: Blobs, top: Blobs) -> None:
        """Compute the top from regions, at least one."""
        raise NotImplementedError(type(self).__name__)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            if self.saved_regions is None:
                raise not_computed("regions")
            self.write_map_diff(self.saved_regions, bottom, top)

    def write_map_diff(self, saved: list[Any], bottom: Blobs, top: Blobs) -> None:
        """Write the gradient of the map, by ``saved_regions``."""
        raise NotImplementedError(type(self).__name__)


class ROILayer(RegionPooling):
    """Base class of the layers with ``roi_pooling_param``."""

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p, path = self.param.roi_pooling_param, "roi_pooling_param"
        sides = positive(p.pooled_h, f"{path}.pooled_h"), positive(p.pooled_w, f"{path}.pooled_w")
        self.pooled, self.scale, self.pad_ratio = sides, p.spatial_scale, p.pad_ratio
        if p.pad_ratio < 0:
            raise out_of_range(f"{path}.pad_ratio", p.pad_ratio, "0 or more")


@register_layer("ROIPooling")
class ROIPooling(ROILayer):
    """Convert regions of any size to maps of one size, by maxima.

    The largest value in each bin of a region of interest. A region has pooled_h x pooled_w bins,
    which overlap where its size does not divide. An empty bin gives 0. With ``pad_ratio``, of
    Cascade R-CNN, regions are wider on each side. The gradient goes to the first of equal values.
    Not compared with the original.

    Source: Fast R-CNN (rbgirshick/caffe-fast-rcnn), ``src/caffe/layers/roi_pooling_layer.cpp``.
    Shapes: bottoms map (N, C, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in pixels of the
    image, of which ``spatial_scale`` make one of the map -> top (R, C, pooled_h, pooled_w).

    Raises:
        ConfigError: ``pooled_h`` or ``pooled_w`` is missing or 0, or ``pad_ratio`` below 0.
        ShapeError: The bottoms do not have these shapes, or a region's image is not in the batch.
        NetError: The top is a bottom.
    """

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        shapes = bottom[0].shape, top[0].shape
        self.op = ops.ROIPool(self.dtype, *shapes, self.scale, self.pad_ratio)

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        return (bottom[0].shape[1], *self.pooled)

    def regions_of(self, bottom: Blobs) -> list[Region]:
        n, _, height, width = bottom[0].shape
        rois = widened(bottom[1].cpu_data().reshape(-1, 5), self.pad_ratio)
        return bins(rois, self.scale, self.pooled, n, (height, width)).each()

    def pool(self, regions: list[Region], bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].read()
        top[0].write(self.xp.stack([self._one(x[r.item, ...], r) for r in regions]))

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

    def write_map_diff(self, saved: list[Any], bottom: Blobs, top: Blobs) -> None:
        xp, x, dy = self.xp, bottom[0].read(), top[0].read_diff()
        total = self.zeros(x.shape)
        for number, region in enumerate(saved):
            for i, (y0, y1) in enumerate(region.rows):
                for j, (x0, x1) in enumerate(region.columns):
                    if y0 == y1 or x0 == x1:
                        continue
                    seen = x[region.item, :, y0:y1, x0:x1]
                    flat = xp.reshape(seen, (seen.shape[0], math.prod(seen.shape[1:])))
                    best = xp.expand_dims(xp.argmax(flat, axis=1), axis=1)  # (C, 1)
                    chosen = self.cast(best == self.arange(flat.shape[1]))
                    share = chosen * xp.expand_dims(dy[number, :, i, j], axis=1)
                    at = region.item, slice(None), slice(y0, y1), slice(x0, x1)
                    share = xp.reshape(share, seen.shape)
                    total = self.device.backend.add_at(total, at, share)
        bottom[0].write_diff(total)


@register_layer("ROIAlign")
class ROIAlign(ROILayer):
    """Interpolate the map at the corners of the bins of regions of interest.

    A region has pooled_h x pooled_w bins, whose corners make a grid of one row and one column more.
    Each value is interpolated between four pixels; mean pooling with ``kernel_size: 2`` and
    ``stride: 1`` then gives the mean of each bin. A corner outside of the map is 0, and so is all
    of an empty region. With ``pad_ratio``, regions are wider on each side. This is the layer of
    Cascade R-CNN; that of Mask R-CNN has a message of its own. Not compared with the original.

    Source: Cascade R-CNN (zhaoweicai/cascade-rcnn), ``src/caffe/layers/roi_align_layer.cpp``.
    Shapes: bottoms map (N, C, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in pixels of the
    image, of which ``spatial_scale`` make one of the map -> top (R, C, pooled_h + 1, pooled_w + 1).

    Raises:
        ConfigError: ``pooled_h`` or ``pooled_w`` is missing or 0, or ``pad_ratio`` below 0.
        ShapeError: The bottoms do not have these shapes, or a region's image is not in the batch.
        NetError: The top is a bottom.
    """

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        return (bottom[0].shape[1], *(bins + 1 for bins in self.pooled))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        n, channels, *size = bottom[0].shape
        rois = widened(bottom[1].cpu_data().reshape(-1, 5), self.pad_ratio)
        pixels, weights = grid_samples(rois, self.scale, self.pooled, n, (size[0], size[1]))
        upload, xp = self.device.backend.asarray, self.xp
        self.saved_regions = samples = [
            (upload(place), xp.expand_dims(upload(weight), axis=1))
            for place, weight in zip(pixels, weights, strict=True)
        ]
        if not len(rois):
            top[0].write(self.zeros(top[0].shape))
            return
        rows = xp.reshape(xp.permute_dims(bottom[0].read(), (0, 2, 3, 1)), (-1, channels))
        values = [xp.take(rows, place, axis=0) * weight for place, weight in samples]
        regions, channels, *grid_size = top[0].shape
        grid = xp.reshape(sum(values[1:], start=values[0]), (regions, *grid_size, channels))
        top[0].write(xp.permute_dims(grid, (0, 3, 1, 2)))

    def write_map_diff(self, saved: list[Any], bottom: Blobs, top: Blobs) -> None:
        xp, (n, channels, height, width) = self.xp, bottom[0].shape
        total = self.zeros((n * height * width, channels))
        if top[0].shape[0]:
            dy = xp.reshape(xp.permute_dims(top[0].read_diff(), (0, 2, 3, 1)), (-1, channels))
            for place, weight in saved:
                share = self.device.backend.scatter_add(dy * weight, place, n * height * width)
                total = total + share
        image = xp.reshape(total, (n, height, width, channels))
        bottom[0].write_diff(xp.permute_dims(image, (0, 3, 1, 2)))


@register_layer("PSROIPooling")
class PSROIPooling(RegionPooling):
    """Average the bins of regions of position-sensitive score maps.

    The mean of each bin of a region of interest, each bin from channels of its own. Bin (i, j) of
    channel d is taken from channel (d G + i) G + j of the map, where G is ``group_size``. An empty
    bin gives 0. Not compared with the original, which runs on GPUs only.

    Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/psroi_pooling_layer.cpp``, ``.cu``.
    Shapes: bottoms map (N, output_dim G G, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in
    pixels of the image -> top (R, output_dim, G, G). ``spatial_scale`` is that of the map.

    Raises:
        ConfigError: A field is missing, or not above 0.
        ShapeError: The bottoms do not have these shapes, or a region's image is not in the batch.
        NetError: The top is a bottom.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.psroi_pooling_param
        self.dim = positive(p.output_dim, "psroi_pooling_param.output_dim")
        self.group = positive(p.group_size, "psroi_pooling_param.group_size")
        self.scale = p.spatial_scale
        if self.scale <= 0:
            raise out_of_range("psroi_pooling_param.spatial_scale", self.scale, "a number above 0")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        self.op = ops.PSROIPool(self.dtype, bottom[0].shape, top[0].shape, self.scale)

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        channels = self.dim * self.group * self.group
        if bottom[0].shape[1] != channels:
            expected = f"{channels} channels, output_dim {self.dim} x group_size {self.group}^2"
            raise wrong_shapes("PSROIPooling", expected, bottom[0])
        return self.dim, self.group, self.group

    def regions_of(self, bottom: Blobs) -> list[Region]:
        n, _, height, width = bottom[0].shape
        rois = bottom[1].cpu_data().reshape(-1, 5)
        return bins_between(rois, self.scale, (self.group, self.group), n, (height, width)).each()

    def pool(self, regions: list[Region], bottom: Blobs, top: Blobs) -> None:
        xp, nothing = self.xp, self.zeros((self.dim,))
        x = xp.reshape(bottom[0].read(), self._parts(bottom))
        means = [
            nothing
            if y0 == y1 or x0 == x1
            else xp.mean(x[region.item, :, i, j, y0:y1, x0:x1], axis=(1, 2))
            for region in regions
            for i, (y0, y1) in enumerate(region.rows)
            for j, (x0, x1) in enumerate(region.columns)
        ]
        bins = xp.reshape(xp.stack(means), (len(regions), self.group, self.group, self.dim))
        top[0].write(xp.permute_dims(bins, (0, 3, 1, 2)))

    def write_map_diff(self, saved: list[Any], bottom: Blobs, top: Blobs) -> None:
        xp, dy = self.xp, top[0].read_diff()
        total = self.zeros(self._parts(bottom))
        for number, region in enumerate(saved):
            for i, (y0, y1) in enumerate(region.rows):
                for j, (x0, x1) in enumerate(region.columns):
                    share = dy[number, :, i, j] / max(1, (y1 - y0) * (x1 - x0))
                    share = xp.reshape(share, (self.dim, 1, 1))
                    at = region.item, slice(None), i, j, slice(y0, y1), slice(x0, x1)
                    total = self.device.backend.add_at(total, at, share)
        bottom[0].write_diff(xp.reshape(total, bottom[0].shape))

    def _parts(self, bottom: Blobs) -> tuple[int, ...]:
        """Return the map's shape with an axis each for channels, rows and columns of bins."""
        n, _, height, width = bottom[0].shape
        return n, self.dim, self.group, self.group, height, width
