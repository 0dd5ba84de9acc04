"""DecodeBBox and BoxGroupOutput: the regions of Cascade R-CNN.

Boxes are (x1, y1, x2, y2) in pixels, the last ones included. Host code: the regions that stay
depend on values.

Source: Cascade R-CNN (zhaoweicai/cascade-rcnn), ``src/caffe/layers/decode_bbox_layer.cpp``,
``box_group_output_layer.cpp``, ``src/caffe/util/bbox_util.cpp``.
"""

import math

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import BBoxRegParameter
from demitasse.layers.base import AtLeast, Between, Blobs, Exactly, Layer
from demitasse.layers.checks import (
    conflict,
    out_of_range,
    positive,
    unsupported,
    wrong_count,
    wrong_shapes,
)
from demitasse.layers.detection.boxes import suppress
from demitasse.layers.registry import register_layer


def statistics(p: BBoxRegParameter) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of box regression. Shapes: (4,)."""
    if not p.bbox_mean or not p.bbox_std:
        return np.zeros(4), np.ones(4)
    for name, values in (("bbox_mean", p.bbox_mean), ("bbox_std", p.bbox_std)):
        if len(values) != 4:
            raise wrong_count(f"bbox_reg_param.{name}", len(values), "4")
    if min(p.bbox_std) <= 0:
        raise out_of_range("bbox_reg_param.bbox_std", list(p.bbox_std), "numbers above 0")
    return np.array(p.bbox_mean), np.array(p.bbox_std)


class CascadeLayer(Layer):
    """Base class of layers that make regions; no gradient passes, as in Cascade R-CNN."""

    in_place = False
    dynamic_shapes = True
    differentiable = ()
    strict_propagate_down = False


@register_layer("DecodeBBox")
class DecodeBBox(CascadeLayer):
    """Move regions by the predictions of a stage of Cascade R-CNN. Runs on the host.

    A prediction has eight numbers, four for the background and four for the object: the shift of
    the centre in proportion, and logarithms of the factors. They are multiplied by ``bbox_std``,
    and ``bbox_mean`` is added. In TRAIN, regions with swapped corners are left out, and those that
    overlap an object by ``gt_iou_thr`` or more. Not compared with the original.

    Source: Cascade R-CNN (zhaoweicai/cascade-rcnn), ``src/caffe/layers/decode_bbox_layer.cpp``.
    Shapes: bottoms predictions (R, 8), regions of R x 5 values: image, x1, y1, x2, y2 in pixels[,
    objects (R, ...), whose last value is the overlap] -> top regions (K, 5, 1, 1).

    Raises:
        ConfigError: ``bbox_mean`` or ``bbox_std`` is not four numbers.
        ShapeError: The bottoms do not have these shapes.
        NetError: A third bottom outside of TRAIN, or no region is left.
    """

    bottoms = Between(2, 3)
    tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.mean, self.std = statistics(self.param.bbox_reg_param)
        self.limit = self.param.decode_bbox_param.gt_iou_thr
        if len(bottom) > 2 and self.phase != "TRAIN":
            message = "a third bottom, the objects, belongs in phase TRAIN only; remove it"
            raise NetError(message, code=ErrorCode.CONFLICT, field="bottom")

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        rows = bottom[0].shape[0] if bottom[0].num_axes else -1
        counts = [blob.count == rows * width for blob, width in zip(bottom, (8, 5), strict=False)]
        if rows < 0 or not all(counts) or any(blob.shape[:1] != (rows,) for blob in bottom):
            raise wrong_shapes("DecodeBBox", "predictions (R, 8) and regions (R, 5)", *bottom)
        top[0].reshape((rows, 5, 1, 1))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        deltas, regions = (blob.cpu_data() for blob in bottom[:2])
        kind = deltas.dtype.type
        codes = deltas.reshape(-1, 8)[:, 4:] * self.std.astype(kind) + self.mean.astype(kind)
        regions = regions.reshape(-1, 5)
        size = regions[:, 3:] - regions[:, 1:3] + kind(1)
        centre = (regions[:, 3:] + regions[:, 1:3]) * kind(0.5) + codes[:, :2] * size
        with np.errstate(over="ignore"):
            sides = size * np.exp(codes[:, 2:])
        low = centre - (sides - kind(1)) / kind(2)
        boxes = np.concatenate([regions[:, :1], low, low + sides - kind(1)], axis=1)
        if self.phase == "TRAIN":
            stays = ~(boxes[:, 1:3] > boxes[:, 3:]).any(axis=1)
            if len(bottom) > 2:
                stays &= bottom[2].cpu_data().reshape(len(boxes), -1)[:, -1] < kind(self.limit)
            if not stays.any():
                message = "got regions that all have swapped corners or are objects, expected one"
                raise NetError(message, code=ErrorCode.OUT_OF_RANGE, layer=self.name)
            boxes = boxes[stays]
        top[0].reshape((*boxes.shape, 1, 1))
        top[0].mutable_cpu_data().reshape(boxes.shape)[...] = boxes


NOTHING = (0.0, 1.0, 1.0, 10.0, 10.0)
"""The region of a batch without regions."""


@register_layer("BoxGroupOutput")
class BoxGroupOutput(CascadeLayer):
    """Collect the regions of several maps, drop those that overlap a better one, keep the best.

    Runs on the host. Each map is about anchors of some sizes: an item of the map for each image and
    anchor. The score is 1 minus the first channel, the background. A prediction is the shift of the
    centre in proportion to the anchor, and logarithms of the factors, limited by ``field_xyr`` and
    ``field_whr``. Equal scores stay in order. Not compared with the original.

    Source: Cascade R-CNN (zhaoweicai/cascade-rcnn),
    ``src/caffe/layers/box_group_output_layer.cpp``.
    Shapes: for each map, bottoms scores (N A, classes, H, W) and predictions (N A, 4, H, W), with A
    anchors -> top[0] regions (R, 5, 1, 1): image, x1, y1, x2, y2 in pixels; top[1], if there is
    one, regions and their scores (R, 6, 1, 1). Without regions, one region from 1 to 10, and a row
    of zeros.

    Raises:
        ConfigError: There is no ``box_group_param`` for each map, a size or stride is missing, or
            ``nms_type`` is not IOU.
        ShapeError: The bottoms do not have these shapes.
        NetError: The number of bottoms is odd.
    """

    bottoms = AtLeast(2)
    tops = Between(1, 2)
    rows_axis = 0

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p, path = self.param.box_group_output_param, "box_group_output_param"
        self.mean, self.std = statistics(self.param.bbox_reg_param)
        if len(bottom) % 2:
            message = f"got {len(bottom)} bottoms, expected scores and predictions for each map"
            raise NetError(message, code=ErrorCode.COUNT_MISMATCH, got=len(bottom))
        if len(p.box_group_param) != len(bottom) // 2:
            expected = f"{len(bottom) // 2}, one for each map"
            raise wrong_count(f"{path}.box_group_param", len(p.box_group_param), expected)
        if p.nms_type != "IOU":
            message = f"{path}.nms_type is {p.nms_type!r}, only IOU is supported"
            raise unsupported(f"{path}.nms_type", message)
        for name, value in (("field_whr", p.field_whr), ("field_xyr", p.field_xyr)):
            if value <= 0:
                raise out_of_range(f"{path}.{name}", value, "a number above 0")
        self.fields, self.strides = [], []
        for group in p.box_group_param:
            sizes = (list(group.field_w), list(group.field_h))
            if not sizes[0] or len(sizes[0]) != len(sizes[1]) or min(*sizes[0], *sizes[1]) <= 0:
                message = "box_group_param takes as many field_h as field_w, above 0"
                raise conflict(f"{path}.box_group_param.field_h", message)
            self.fields.append(np.array(sizes).T)  # (A, 2)
            self.strides.append(positive(group.stride, f"{path}.box_group_param.stride"))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shapes = [blob.shape for blob in bottom]
        n = shapes[0][0] // len(self.fields[0]) if len(shapes[0]) == 4 else 0
        for scores, boxes, fields in zip(shapes[::2], shapes[1::2], self.fields, strict=True):
            items = n * len(fields)
            fits = len(scores) == 4 and scores[0] == items and scores[1] >= 1
            if not fits or boxes != (items, 4, *scores[2:]):
                expected = "scores (N A, classes, H, W) and predictions (N A, 4, H, W) of each map"
                raise wrong_shapes("BoxGroupOutput", expected, *bottom)
        for blob, width in zip(top, (5, 6), strict=False):
            if blob.shape[1:] != (width, 1, 1):  # before the first pass
                blob.reshape((1, width, 1, 1))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        parts = [
            self._candidates(scores.cpu_data(), boxes.cpu_data(), fields, stride)
            for scores, boxes, fields, stride in zip(
                bottom[::2], bottom[1::2], self.fields, self.strides, strict=True
            )
        ]
        boxes, scores = (np.concatenate(one, axis=1) for one in zip(*parts, strict=True))
        rows = [np.empty((0, 6), boxes.dtype)]
        for i in range(len(boxes)):
            kept = self._best_regions(boxes[i], scores[i])
            found = np.column_stack([boxes[i, kept], scores[i, kept]])
            rows.append(np.insert(found, 0, i, axis=1))
        every = np.concatenate(rows)
        tops = [every[:, :5], every] if len(every) else [np.array([NOTHING]), np.zeros((1, 6))]
        for blob, values in zip(top, tops, strict=False):
            blob.reshape((*values.shape, 1, 1))
            blob.mutable_cpu_data().reshape(values.shape)[...] = values

    def _candidates(
        self, scores: np.ndarray, codes: np.ndarray, fields: np.ndarray, stride: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes and scores of a map, anchors first. Shapes: (N, K, 4), (N, K)."""
        p, kind = self.param.box_group_output_param, codes.dtype.type
        count, (height, width) = len(fields), codes.shape[2:]
        n = len(codes) // count
        codes = codes.reshape(n, count, 4, height, width).transpose(0, 1, 3, 4, 2)
        codes = codes * self.std.astype(kind) + self.mean.astype(kind)
        shift = np.clip(codes[..., :2], kind(-1 / p.field_xyr), kind(1 / p.field_xyr))
        factor = np.clip(codes[..., 2:], kind(-math.log(p.field_whr)), kind(math.log(p.field_whr)))
        size = fields.astype(kind)[:, None, None, :]  # (A, 1, 1, 2)
        y, x = np.meshgrid(*((np.arange(n) + 0.5) * stride for n in (height, width)), indexing="ij")
        sides = size * np.exp(factor)
        low = shift * size + np.stack([x, y], axis=-1).astype(kind) - sides / kind(2)
        high = low + sides - kind(1)
        low = np.maximum(low, kind(0))
        high = np.minimum(high, np.array([width * stride, height * stride], kind))
        boxes = np.concatenate([low, high], axis=-1).reshape(n, count * height * width, 4)
        return boxes, kind(1) - scores[:, 0].reshape(boxes.shape[:2])

    def _best_regions(self, boxes: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the indices of an image's regions, the best first."""
        p = self.param.box_group_output_param
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= boxes.dtype.type(p.min_size)).all(axis=1)
        chosen = np.flatnonzero(large & (scores >= scores.dtype.type(p.fg_thr)))
        order = chosen[np.argsort(-scores[chosen], kind="stable")][: p.max_nms_num or None]
        ends = boxes[order] + np.array([0, 0, 1, 1], boxes.dtype)  # the ends are exclusive
        return order[suppress(ends, p.iou_thr)][: p.max_post_nms_num or None]
