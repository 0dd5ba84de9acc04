"""DetectionEvaluate: which detections are right, for the mean average precision of a test.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/detection_evaluate_layer.cpp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from demitasse.core.paths import read_text, resolve_path
from demitasse.errors import DataError, ErrorCode, NetError
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.detection.judgement import Judge, in_pixels
from demitasse.layers.detection.truth import COLUMNS, objects_of
from demitasse.layers.registry import register

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DetectionEvaluate"]

MOST_IMAGES = 100_000
"""In a batch; what is larger is no number of an image."""


@register("DetectionEvaluate")
class DetectionEvaluate(Layer):
    """Compare detections with objects; a solver with ``eval_type: "detection"`` averages.

    Works on the host. With ``name_size_file`` boxes are compared in pixels of the images, of which
    that file names height and width in the order of the records; the next batch goes on behind the
    last image of this one that has a detection or an object. Not compared with the original.

    Shapes: bottoms detections (1, 1, K, 7) as DetectionOutput makes them, objects (1, 1, G, 8) as
    AnnotatedData does -> top (1, 1, M, 5): for each class but the background -1, class, number of
    objects, -1, -1; then for each detection image, class, score, right (1 or 0), wrong (1 or 0).

    Raises:
        ConfigError: ``num_classes`` is missing, or ``overlap_threshold`` is not above 0.
        DataError: The file of sizes cannot be read, or names fewer images than there are.
        ShapeError: The bottoms do not have these shapes.
        NetError: A detection or an object is of no class there is.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    dynamic_shapes = True
    differentiable = ()

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.detection_evaluate_param
        if p.overlap_threshold <= 0:
            raise out_of_range(
                "detection_evaluate_param.overlap_threshold",
                p.overlap_threshold,
                "a number above 0",
            )
        self.judge = Judge(
            classes=positive(p.num_classes, "detection_evaluate_param.num_classes"),
            background=p.background_label_id,
            overlap=p.overlap_threshold,
            difficult=p.evaluate_difficult_gt,
        )
        self.sizes: list[tuple[int, int]] = []
        if p.name_size_file:
            self.sizes = _read_sizes(resolve_path(p.name_size_file, self.context.base_dir))
        self.resized = p.resize_param if p.HasField("resize_param") else None
        self.seen = 0  # images, of those that the file names

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob, width in ((bottom[0], 7), (bottom[1], COLUMNS)):
            if blob.num_axes != 4 or blob.shape != (1, 1, blob.shape[2], width):
                raise wrong_shapes("DetectionEvaluate", f"(1, 1, K, {width})", blob)
        if top[0].shape[3:] != (5,):  # until a pass has come here
            top[0].reshape((1, 1, 1, 5))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        detections = bottom[0].cpu_data()[0, 0]
        rows = bottom[1].cpu_data()[0, 0]
        images = 1 + _last_image(detections, rows)
        objects = objects_of(rows, images, self.judge.classes, self.judge.background)
        judged = self.judge(detections, objects, self._place)
        if self.sizes:
            self.seen = (self.seen + images) % len(self.sizes)
        top[0].reshape((1, 1, *judged.shape))
        top[0].mutable_cpu_data()[...] = judged

    def _place(self, boxes: np.ndarray, image: int) -> np.ndarray:
        """Return boxes as they are compared. Shapes: (K, 4) -> the same."""
        if not self.sizes:
            return boxes
        if self.seen + image >= len(self.sizes):
            source = self.param.detection_evaluate_param.name_size_file
            number = self.seen + image
            message = f"image {number} has no line; the file has {len(self.sizes)}"
            raise DataError(message, source, code=ErrorCode.COUNT_MISMATCH, got=len(self.sizes))
        return in_pixels(boxes, self.sizes[self.seen + image], self.resized)


def _last_image(*tables: np.ndarray) -> int:
    """Return the largest number of an image, the first value of a row; -1 where there are none."""
    last = max(float(table[:, 0].max(initial=-1)) for table in tables)
    if not last < MOST_IMAGES:
        message = f"a row is in image {last:g}, expected at most {MOST_IMAGES} images in a batch"
        raise NetError(message, code=ErrorCode.LIMIT, image=last)
    return int(last)


def _read_sizes(source: Path) -> list[tuple[int, int]]:
    """Read lines ``name height width``."""
    try:
        words = read_text(source).split()
    except OSError as error:
        message = f"the file of sizes cannot be read: {error.strerror}"
        raise DataError(message, str(source), code=ErrorCode.UNREADABLE) from error
    try:
        sizes = [
            (int(height), int(width))
            for height, width in zip(words[1::3], words[2::3], strict=True)
        ]
    except ValueError as error:
        message = "the file of sizes must have lines 'name height width'"
        raise DataError(message, str(source), code=ErrorCode.INVALID) from error
    if not sizes:
        message = "the file of sizes is empty"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    return sizes
