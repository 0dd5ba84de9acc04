"""DetectionOutput: the boxes that a single-shot detector has found.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/detection_output_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.ops import LOWEST
from demitasse.core.log import get_logger
from demitasse.io.proto import DetectionOutputParameter, PriorBoxParameter
from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import check_predictions, out_of_range, positive, unsupported
from demitasse.layers.detection.boxes import Detector
from demitasse.layers.registry import register

__all__ = ["DetectionOutput"]


@register("DetectionOutput")
class DetectionOutput(Layer):
    """Decode boxes, drop those that overlap a better one of their class, keep the best.

    How many there are is known when a pass comes here. They are read from the top; nothing is
    written to files. Works on the host. Compared with OpenCV's output.

    Shapes: bottoms location (N, P L 4), where L is 1 or, without ``share_location``, the number of
    classes, scores (N, P classes), priors (1, 2, P 4) as PriorBox makes them[, image]
    -> top (1, 1, K, 7): image, class, score, xmin, ymin, xmax, ymax. Where nothing is found, a row
    of the image's index and -1 for each image.

    Raises:
        ConfigError: ``num_classes`` is missing, a threshold is out of range, or ``visualize`` is
            asked for.
        ShapeError: Locations, scores and priors do not belong together.
        NetError: A prior is empty (a prediction is in proportion to it).
    """

    bottoms = Between(3, 4)
    tops = Exactly(1)
    dynamic_shapes = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.detection_output_param
        if p.visualize:
            message = "detection_output_param.visualize shows windows, which is not supported"
            raise unsupported("detection_output_param.visualize", message)
        if p.save_output_param.output_directory:
            get_logger(__name__).warning(
                "layer %r: detections are not written to %s; read its top",
                self.name,
                p.save_output_param.output_directory,
            )
        self.detector = detector(p)
        self.boxes = 1 if p.share_location else self.detector.classes

    def allow_force_backward(self, bottom_index: int) -> bool:
        del bottom_index
        return False

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        widths = (self.boxes * 4, self.detector.classes)
        self.sizes = check_predictions(self.type, bottom, widths)
        if top[0].shape[3:] != (7,):  # until a pass has come here
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
    """Return what a message describes.

    Raises:
        ConfigError: See ``DetectionOutput``.
    """
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
        # without a threshold every score exceeds it
        confidence=p.confidence_threshold if p.HasField("confidence_threshold") else LOWEST,
        overlap=nms.nms_threshold,
        eta=nms.eta,
        top_k=nms.top_k if nms.HasField("top_k") else -1,
        keep=p.keep_top_k,
    )
