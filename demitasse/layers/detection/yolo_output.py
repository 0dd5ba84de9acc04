"""YoloDetectionOutput and Yolov3DetectionOutput: detections from the maps of YOLO v2 and v3.

Each position of a map has several anchors, of five numbers and the scores of the classes: centre,
logarithms of width and height, and objectness.

Source: MobileNet-YOLO (eric612/MobileNet-YOLO),
``src/caffe/layers/yolo_detection_output_layer.cpp``, ``yolov3_detection_output_layer.cpp``.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import YoloDetectionOutputParameter, Yolov3DetectionOutputParameter
from demitasse.layers.base import AtLeast, Blobs, Exactly, Layer
from demitasse.layers.checks import (
    missing,
    out_of_range,
    positive,
    unsupported,
    wrong_count,
    wrong_shapes,
)
from demitasse.layers.detection.boxes import suppress
from demitasse.layers.registry import register_layer

BOX = 5
"""Numbers of an anchor before the scores of the classes."""


def _sigmoid(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        result: np.ndarray = 1 / (1 + np.exp(-values))
    return result


class YoloOutput(Layer):
    """Base class of the layers that read detections from maps of anchors. Runs on the host."""

    bottoms = AtLeast(1)
    tops = Exactly(1)
    in_place = False
    dynamic_shapes = True
    rows_axis = 2
    differentiable = ()
    strict_propagate_down = False

    anchors: list[np.ndarray]
    """Width and height of the anchors of each bottom, in the units of ``units``. Shape: (A, 2)."""
    passes: ClassVar[np.ufunc]
    """Compares scores with the threshold."""

    def read_fields(
        self, p: YoloDetectionOutputParameter | Yolov3DetectionOutputParameter, path: str
    ) -> np.ndarray:
        """Read the fields of both layers; return all anchors. Shape: (anchors, 2)."""
        self.classes = positive(p.num_classes, f"{path}.num_classes")
        self.confidence, self.overlap = p.confidence_threshold, p.nms_threshold
        if not p.HasField("num_classes"):
            raise missing(f"{path}.num_classes", "give the number of classes")
        if self.overlap <= 0:
            raise out_of_range(f"{path}.nms_threshold", self.overlap, "a number above 0")
        if not p.biases or len(p.biases) % 2 or min(p.biases) <= 0:
            expected = "pairs of width and height above 0"
            raise out_of_range(f"{path}.biases", list(p.biases), expected)
        return np.array(p.biases).reshape(-1, 2)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob, anchors in zip(bottom, self.anchors, strict=True):
            channels = len(anchors) * (BOX + self.classes)
            if blob.num_axes != 4 or blob.shape[:2] != (bottom[0].shape[0], channels):
                expected = f"maps (N, {channels}, H, W): {len(anchors)} anchors of {BOX} + "
                raise wrong_shapes(self.type, f"{expected}{self.classes} numbers", *bottom)
        if top[0].shape[3:] != (7,):  # before the first pass
            top[0].reshape((1, 1, 1, 7))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        n, parts = bottom[0].shape[0], []
        for blob, anchors, units in zip(bottom, self.anchors, self.units(bottom), strict=True):
            shape = (n, len(anchors), BOX + self.classes, *blob.shape[2:])
            parts.append(self._candidates(blob.cpu_data().reshape(shape), anchors / units))
        boxes, numbers = (np.concatenate(one) for one in zip(*parts, strict=True))
        image, _, scores = numbers.T
        rows = [np.empty((0, 7), boxes.dtype)]
        for i in range(n):
            own = np.flatnonzero(image == i)
            order = own[np.argsort(-scores[own], kind="stable")]
            below = np.nextafter(boxes.dtype.type(self.overlap), boxes.dtype.type(-1))
            order = order[suppress(boxes[order], below)]  # equal overlaps drop, too
            rows.append(np.column_stack([numbers[order], boxes[order]]))
        every = np.concatenate(rows)
        if not len(every):
            every = np.full((n, 7), -1.0)
            every[:, 0] = np.arange(n)
        top[0].reshape((1, 1, *every.shape))
        top[0].mutable_cpu_data()[...] = every

    def _candidates(self, values: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the candidates of a map whose scores pass the threshold.

        Boxes are (xmin, ymin, xmax, ymax), in units of the image. The objectness bounds the scores,
        which are computed where it passes.
        Shapes: predictions (N, A, 5 + classes, H, W), width and height of the anchors, in units of
        the image, (A, 2) -> boxes (K, 4), and image, class and score (K, 3).
        """
        kind, (height, width) = values.dtype.type, values.shape[3:]
        least, places = kind(self.confidence), values.transpose(0, 3, 4, 1, 2)
        image, row, column, anchor = np.nonzero(self.passes(_sigmoid(places[..., 4]), least))
        found = places[image, row, column, anchor]
        corner, size = np.array([column, row], kind), np.array([width, height], kind)
        centre = (corner.T + _sigmoid(found[:, :2])) / size
        with np.errstate(over="ignore"):
            half = np.exp(found[:, 2:4]) * anchors.astype(kind)[anchor] / kind(2)
        scores = self.scores(found)
        passed = np.nonzero(self.passes(scores, least))
        i, classes = passed[0], self.classes_of(found)
        numbers = [image[i], classes[passed] + 1, scores[passed]]
        return np.hstack([centre - half, centre + half])[i], np.column_stack(numbers)

    def units(self, bottom: Blobs) -> Sequence[np.ndarray]:
        """Return width and height of the image for each bottom, in the anchors' units."""
        raise NotImplementedError(type(self).__name__)

    def scores(self, values: np.ndarray) -> np.ndarray:
        """Return the scores of the candidates of anchors, none above the objectness.

        Shapes: (anchors, 5 + classes) -> (anchors, candidates).
        """
        raise NotImplementedError(type(self).__name__)

    def classes_of(self, values: np.ndarray) -> np.ndarray:
        """Return the classes of the candidates; shapes as of ``scores``."""
        raise NotImplementedError(type(self).__name__)


@register_layer("YoloDetectionOutput")
class YoloDetectionOutput(YoloOutput):
    """Read detections from the maps of YOLO v2: the best class of each anchor.

    The score is the objectness times the largest softmax of the classes. Boxes that overlap a
    better one of any class are dropped. The original suppresses all images of a batch together and
    calls all of them image 0; here each image has detections of its own. Not compared with the
    original.

    Source: MobileNet-YOLO (eric612), ``src/caffe/layers/yolo_detection_output_layer.cpp``.
    Shapes: bottoms maps (N, num_box (5 + num_classes), H, W), one or more -> top (1, 1, K, 7):
    image, class from 1 on, score, xmin, ymin, xmax, ymax in units of the image. Without detections,
    a row of the index and -1 for each image.

    Raises:
        ConfigError: ``num_classes`` or ``biases`` is missing, ``biases`` has no pair for each of
            ``num_box``, or ``coords`` is not 4.
        ShapeError: A bottom is no map of the anchors.
    """

    passes = np.greater_equal

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p, path = self.param.yolo_detection_output_param, "yolo_detection_output_param"
        anchors = self.read_fields(p, path)
        if p.coords != 4:
            raise out_of_range(f"{path}.coords", p.coords, "4")
        count = positive(p.num_box, f"{path}.num_box")
        if len(anchors) < count:
            expected = f"{2 * count}, a width and a height for each of {count} anchors"
            raise wrong_count(f"{path}.biases", len(p.biases), expected)
        self.anchors = [anchors[:count]] * len(bottom)

    def units(self, bottom: Blobs) -> Sequence[np.ndarray]:
        return [np.array([blob.shape[3], blob.shape[2]]) for blob in bottom]

    def scores(self, values: np.ndarray) -> np.ndarray:
        raw = values[:, BOX:]
        shares = np.exp(raw - raw.max(axis=1, keepdims=True))
        best = shares.max(axis=1, keepdims=True) / shares.sum(axis=1, keepdims=True)
        result: np.ndarray = _sigmoid(values[:, 4:5]) * best
        return result

    def classes_of(self, values: np.ndarray) -> np.ndarray:
        best: np.ndarray = np.argmax(values[:, BOX:], axis=1, keepdims=True)
        return best


@register_layer("Yolov3DetectionOutput")
class Yolov3DetectionOutput(YoloOutput):
    """Read detections from the maps of YOLO v3: every class of each anchor.

    The score is the objectness times the class's logistic function. Each bottom has its own
    anchors: ``mask`` lists their indices, those of the first bottom first. A map is
    ``anchors_scale`` times smaller than the image. Boxes that overlap a better one of any class are
    dropped, for each image of a batch. Not compared with the original.

    Source: MobileNet-YOLO (eric612), ``src/caffe/layers/yolov3_detection_output_layer.cpp``.
    Shapes: bottoms maps (N, num_box (5 + num_classes), H, W), ``mask_group_num`` of them -> top
    (1, 1, K, 7): image, class from 1 on, score, xmin, ymin, xmax, ymax in units of the image.
    Without detections, a row of the index and -1 for each image.

    Raises:
        ConfigError: A field is missing, the lists have no entries for each bottom, or
            ``gaussian_box`` is asked for.
        ShapeError: A bottom is no map of the anchors.
        NetError: The number of bottoms is not ``mask_group_num``.
    """

    passes = np.greater

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p, path = self.param.yolov3_detection_output_param, "yolov3_detection_output_param"
        anchors = self.read_fields(p, path)
        if p.gaussian_box:
            message = f"{path}.gaussian_box is not supported; use a net without it"
            raise unsupported(f"{path}.gaussian_box", message)
        if len(bottom) != p.mask_group_num:
            message = f"got {len(bottom)} bottoms, expected mask_group_num {p.mask_group_num}"
            raise NetError(message, code=ErrorCode.COUNT_MISMATCH, got=len(bottom))
        count, groups = positive(p.num_box, f"{path}.num_box"), len(bottom)
        if len(p.mask) != count * groups:
            expected = f"{count * groups}, {count} for each bottom"
            raise wrong_count(f"{path}.mask", len(p.mask), expected)
        if max(p.mask) >= len(anchors):
            raise out_of_range(f"{path}.mask", list(p.mask), f"indices below {len(anchors)}")
        if len(p.anchors_scale) != groups or min(p.anchors_scale) <= 0:
            expected = f"{groups} numbers above 0, one for each bottom"
            raise out_of_range(f"{path}.anchors_scale", list(p.anchors_scale), expected)
        self.scale = list(p.anchors_scale)
        self.anchors = [anchors[list(p.mask[i * count : (i + 1) * count])] for i in range(groups)]

    def units(self, bottom: Blobs) -> Sequence[np.ndarray]:
        pairs = zip(bottom, self.scale, strict=True)
        return [np.array([blob.shape[3], blob.shape[2]]) * scale for blob, scale in pairs]

    def scores(self, values: np.ndarray) -> np.ndarray:
        result: np.ndarray = _sigmoid(values[:, BOX:]) * _sigmoid(values[:, 4:5])
        return result

    def classes_of(self, values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.arange(self.classes), (len(values), self.classes))
