"""DetectionOutput: boxes that a single-shot detector has found."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from demitasse.backends.ops import LOWEST
from demitasse.core.log import get_logger
from demitasse.io.proto import DetectionOutputParameter, PriorBoxParameter
from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import check_predictions, out_of_range, positive, unsupported
from demitasse.layers.detection.boxes import BoxCoder, suppress
from demitasse.layers.registry import register_layer

Decoded = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""Function of an image, and of classes and priors, that returns the predicted boxes."""


@dataclass(frozen=True)
class Detector:
    """Converts predictions for priors to detections; see :class:`BoxCoder`, :func:`suppress`.

    Attributes:
        background: Class of the background; -1 for none.
        confidence: Scores must be above this limit.
        top_k: Candidates of a class; -1 for all.
        keep: Most boxes of an image; -1 for all.
    """

    classes: int
    background: int
    code: str
    variance_in_target: bool
    confidence: float
    overlap: float
    eta: float
    top_k: int
    keep: int

    def __call__(self, location: np.ndarray, score: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Return rows of image, class, score and box, by image and class, the best first.

        An image without detections has no row. If no image has a detection, each image has a row of
        its index and -1.

        Shapes: location (N, P, L, 4), where L is 1 or the number of classes, score (N, P, classes),
        prior (2, P, 4): boxes and variances -> (K, 7).
        """
        code = BoxCoder(self.code, self.variance_in_target)
        code.check(prior[0])

        def decoded(image: int, label: np.ndarray, index: np.ndarray) -> np.ndarray:
            """Return the boxes of some classes and priors. Shapes: (K,), (K,) -> (K, 4)."""
            own = location[image].reshape(-1, 4)
            place = index * location.shape[2] + label if location.shape[2] > 1 else index
            some = own.take(place, 0), prior[0].take(index, 0), prior[1].take(index, 0)
            with np.errstate(all="ignore"):
                return code.decode(*some)

        found = [self._image(i, decoded, score) for i in range(len(score))]
        rows = np.concatenate([np.empty((0, 7), score.dtype), *found])
        if len(rows):
            return rows
        nothing = np.full((len(score), 7), -1, score.dtype)
        nothing[:, 0] = np.arange(len(score))
        return nothing

    def _image(self, image: int, decoded: Decoded, score: np.ndarray) -> np.ndarray:
        scores = np.ascontiguousarray(score[image].T)
        above = np.flatnonzero((scores > self.confidence).any(axis=1)).tolist()
        classes = [c for c in above if c != self.background]
        orders = [self._candidates(scores[c]) for c in classes]
        counts = [len(order) for order in orders]
        label = np.repeat(np.array(classes, np.intp), counts)
        index = np.concatenate([np.empty(0, np.intp), *orders])
        boxes, most = decoded(image, label, index), self.keep if self.keep >= 0 else None
        kept = np.array(suppress(boxes, self.overlap, self.eta, most, counts), np.intp)
        score = scores[label[kept], index[kept]]
        if 0 <= self.keep < len(kept):
            best = np.sort(np.argsort(-score, kind="stable")[: self.keep])
            kept, score = kept[best], score[best]
        rows = np.empty((len(kept), 7), scores.dtype)
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3:] = image, label[kept], score, boxes[kept]
        return rows

    def _candidates(self, score: np.ndarray) -> np.ndarray:
        """Return the indices of the candidates of one class, the best first."""
        candidates = (score > self.confidence).nonzero()[0]
        values = score.take(candidates)
        if 0 < self.top_k < len(candidates):  # most candidates need no sorting
            best = (values >= np.partition(values, -self.top_k)[-self.top_k]).nonzero()[0]
            candidates, values = candidates.take(best), values.take(best)
        order: np.ndarray = candidates.take((-values).argsort(kind="stable"))
        return order[: self.top_k] if self.top_k > -1 else order


@register_layer("DetectionOutput")
class DetectionOutput(Layer):
    """Decode boxes, drop those that overlap a better one of their class, keep the best.

    The number of detections is known only during forward. Nothing is written to files. Runs on the
    host. Compared with OpenCV's output.

    Source: SSD (weiliu89/caffe), ``src/caffe/layers/detection_output_layer.cpp``,
    ``src/caffe/util/bbox_util.cpp``.
    Shapes: bottoms location (N, P L 4), where L is 1 or, without ``share_location``, the number of
    classes, scores (N, P classes), priors (1, 2, P 4) as PriorBox makes them[, image]
    -> top (1, 1, K, 7): image, class, score, xmin, ymin, xmax, ymax. Without detections, a row
    of the index and -1 for each image.

    Raises:
        ConfigError: ``num_classes`` is missing, a threshold is out of range, or ``visualize`` is
            asked for.
        ShapeError: Locations, scores and priors do not belong together.
        NetError: A prior is empty.
    """

    bottoms = Between(3, 4)
    tops = Exactly(1)
    dynamic_shapes = True
    rows_axis = 2

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.detection_output_param
        if p.visualize:
            message = "detection_output_param.visualize shows windows, which is not supported"
            raise unsupported("detection_output_param.visualize", message)
        if p.save_output_param.output_directory:
            message = "layer %r: detections are not written to %s; read its top"
            log, folder = get_logger(__name__), p.save_output_param.output_directory
            log.warning(message, self.name, folder)
        self.detector = detector(p)
        self.boxes = 1 if p.share_location else self.detector.classes

    def allow_force_backward(self, bottom_index: int) -> bool:
        return False

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        widths = (self.boxes * 4, self.detector.classes)
        self.sizes = check_predictions(self.type, bottom, widths)
        if top[0].shape[3:] != (7,):  # before the first pass
            top[0].reshape((1, 1, 1, 7))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        n, priors = self.sizes
        rows = self.detector(
            bottom[0].cpu_data().reshape(n, priors, self.boxes, 4),
            bottom[1].cpu_data().reshape(n, priors, self.detector.classes),
            bottom[2].cpu_data().reshape(2, priors, 4),
        )
        top[0].reshape((1, 1, *rows.shape))
        top[0].mutable_cpu_data()[...] = rows


def detector(p: DetectionOutputParameter) -> Detector:
    """Return the detector of a message; errors are those of ``DetectionOutput``."""
    nms = p.nms_param
    if nms.nms_threshold < 0:
        raise out_of_range("nms_param.nms_threshold", nms.nms_threshold, "0 or more")
    if not 0 < nms.eta <= 1:
        raise out_of_range("nms_param.eta", nms.eta, "a number above 0 and at most 1")
    return Detector(
        classes=positive(p.num_classes, "detection_output_param.num_classes"),
        background=p.background_label_id,
        code=PriorBoxParameter.CodeType.Name(p.code_type),
        variance_in_target=p.variance_encoded_in_target,
        # the default keeps all scores
        confidence=p.confidence_threshold if p.HasField("confidence_threshold") else LOWEST,
        overlap=nms.nms_threshold,
        eta=nms.eta,
        top_k=nms.top_k if nms.HasField("top_k") else -1,
        keep=p.keep_top_k,
    )
