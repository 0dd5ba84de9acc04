"""DetectionEvaluate: true and false positives, for the mean average precision of a test."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from demitasse.core.paths import read_text, resolve_path
from demitasse.errors import DataError, ErrorCode, NetError
from demitasse.io.proto import ResizeParameter
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.detection.boxes import overlaps
from demitasse.layers.detection.matching import COLUMNS, GroundTruth, parse_ground_truth
from demitasse.layers.registry import register_layer


def in_pixels(
    boxes: np.ndarray, size: tuple[int, int], param: ResizeParameter | None
) -> np.ndarray:
    """Return boxes in pixels of the image before the resize; the last pixels are included.

    Boxes (K, 4) are in units of the resized image; ``size`` is height and width in pixels.
    """
    height, width = size
    low, shown = np.zeros(4), np.ones(4)  # position of the image in the resized image
    if param is not None and param.resize_mode == ResizeParameter.FIT_LARGE_SIZE_AND_PAD:
        aspect, wanted = width / height, param.width / param.height
        used = np.array([1.0, wanted / aspect] if aspect > wanted else [aspect / wanted, 1.0])
        low, shown = np.tile((1 - used) / 2, 2), np.tile(used, 2)
    scale = np.array([width, height] * 2, float)
    placed: np.ndarray = np.clip((boxes - low) / shown, 0, 1) * scale
    if param is not None and param.resize_mode == ResizeParameter.FIT_SMALL_SIZE:
        units = np.array([param.width_scale, param.height_scale] * 2, float)
        if units.all():
            placed = np.clip(boxes * units, 0, scale)
    placed[:, 2:] += 1
    return placed


MOST_IMAGES = 100_000
"""Most images in a batch."""


@register_layer("DetectionEvaluate")
class DetectionEvaluate(Layer):
    """Find true and false positives; a solver with ``eval_type: "detection"`` averages.

    Runs on the host. With ``name_size_file`` boxes are compared in pixels of the images. The file
    has height and width in the order of the records; the next batch begins after the last image
    with a detection or an object. Not compared with the original.

    Source: SSD (weiliu89/caffe), ``src/caffe/layers/detection_evaluate_layer.cpp`` and
    ``OutputBBox`` in ``src/caffe/util/bbox_util.cpp``.
    Shapes: bottoms detections (1, 1, K, 7) as DetectionOutput makes them, objects (1, 1, G, 8) as
    AnnotatedData does -> top (1, 1, M, 5): for each class but the background -1, class, number of
    objects, -1, -1; then for each detection image, class, score, right (1 or 0), wrong (1 or 0).

    Raises:
        ConfigError: ``num_classes`` is missing, or ``overlap_threshold`` is not above 0.
        DataError: The file of sizes cannot be read, or names fewer images than there are.
        ShapeError: The bottoms do not have these shapes.
        NetError: The class of a detection or an object is out of range.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    dynamic_shapes = True
    differentiable = ()

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.detection_evaluate_param
        if p.overlap_threshold <= 0:
            field = "detection_evaluate_param.overlap_threshold"
            raise out_of_range(field, p.overlap_threshold, "a number above 0")
        self.classes = positive(p.num_classes, "detection_evaluate_param.num_classes")
        self.background, self.overlap = p.background_label_id, p.overlap_threshold
        self.counts_difficult = p.evaluate_difficult_gt
        self.sizes: list[tuple[int, int]] = []
        if p.name_size_file:
            self.sizes = _read_sizes(resolve_path(p.name_size_file, self.context.base_dir))
        self.resized = p.resize_param if p.HasField("resize_param") else None
        self.seen = 0  # images of the file, so far

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob, width in ((bottom[0], 7), (bottom[1], COLUMNS)):
            if blob.num_axes != 4 or blob.shape != (1, 1, blob.shape[2], width):
                raise wrong_shapes("DetectionEvaluate", f"(1, 1, K, {width})", blob)
        if top[0].shape[3:] != (5,):  # before the first pass
            top[0].reshape((1, 1, 1, 5))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        detections = bottom[0].cpu_data()[0, 0]
        rows = bottom[1].cpu_data()[0, 0]
        last = max(float(table[:, 0].max(initial=-1)) for table in (detections, rows))
        if not last < MOST_IMAGES:
            message = (
                f"a row is in image {last:g}, expected at most {MOST_IMAGES} images in a batch"
            )
            raise NetError(message, code=ErrorCode.LIMIT, image=last)
        images = 1 + int(last)
        objects = parse_ground_truth(rows, images, self.classes, self.background)
        matches = self._matches(detections[detections[:, 1] != -1], objects)
        if self.sizes:
            self.seen = (self.seen + images) % len(self.sizes)
        top[0].reshape((1, 1, *matches.shape))
        top[0].mutable_cpu_data()[...] = matches

    def state(self) -> dict[str, int]:
        """Return the position in the file of sizes."""
        return {"seen": self.seen} if self.sizes else {}

    def set_state(self, state: dict[str, int]) -> None:
        self.seen = state.get("seen", 0)

    @property
    def has_counters(self) -> bool:
        return bool(self.sizes)

    def _matches(self, detections: np.ndarray, objects: Sequence[GroundTruth]) -> np.ndarray:
        """Return the rows of the top. Shapes: (K, 7) -> (classes + K, 5)."""
        labels, images = detections[:, 1], detections[:, 0]
        good = (labels >= 0) & (labels < self.classes) & (labels != self.background)
        if not good.all():
            message = (
                f"a detection is of class {labels[~good][0]:g}, expected one of the "
                f"{self.classes} classes except the background, {self.background}"
            )
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, label=float(labels[~good][0]))
        good = images > -1
        if not good.all():
            message = f"a detection is in image {images[~good][0]:g}, expected 0 or more"
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, image=float(images[~good][0]))
        rows = [np.empty((0, 5))]
        for kind in range(self.classes):
            if kind != self.background:
                own = (
                    (some.labels == kind) & (self.counts_difficult | ~some.difficult)
                    for some in objects
                )
                count = sum(int(np.count_nonzero(mask)) for mask in own)
                rows.append(np.array([[-1, kind, count, -1, -1]]))
        for number in np.unique(detections[:, 0]).astype(int):
            found = detections[detections[:, 0] == number]
            truth = objects[number] if number < len(objects) else None
            for kind in np.unique(found[:, 1]).astype(int):
                rows.append(self._image(found[found[:, 1] == kind], truth, kind, number))
        return np.concatenate(rows)

    def _image(
        self, found: np.ndarray, truth: GroundTruth | None, kind: int, number: int
    ) -> np.ndarray:
        """Return the rows of one image's detections of one class. Shapes: (K, 7) -> (K, 5)."""
        found = found[np.argsort(-found[:, 2], kind="stable")]
        rows = np.concatenate([found[:, :3], np.zeros((len(found), 2))], axis=1)
        rows[:, 4] = 1
        some = None if truth is None else truth.where(truth.labels == kind)
        if some is None or not len(some):
            return rows
        boxes, wanted = self._place(found[:, 3:], number), self._place(some.boxes, number)
        taken = np.zeros(len(some), bool)
        for row, box in zip(rows, boxes, strict=True):
            share = overlaps(box, wanted)
            best = int(np.argmax(share))
            if share[best] < self.overlap:
                continue
            if some.difficult[best] and not self.counts_difficult:
                row[4] = 0  # neither right nor wrong
            elif not taken[best]:
                row[3], row[4], taken[best] = 1, 0, True
        return rows

    def _place(self, boxes: np.ndarray, image: int) -> np.ndarray:
        """Return boxes in the units of comparison. Shapes: (K, 4) -> the same."""
        if not self.sizes:
            return boxes
        if self.seen + image >= len(self.sizes):
            source = self.param.detection_evaluate_param.name_size_file
            number = self.seen + image
            message = f"image {number} has no line; the file has {len(self.sizes)}"
            raise DataError(message, source, code=ErrorCode.COUNT_MISMATCH, got=len(self.sizes))
        return in_pixels(boxes, self.sizes[self.seen + image], self.resized)


def _read_sizes(source: Path) -> list[tuple[int, int]]:
    """Read lines ``name height width``."""
    try:
        words = read_text(source).split()
    except OSError as error:
        message = f"the file of sizes cannot be read: {error.strerror}"
        raise DataError(message, str(source), code=ErrorCode.UNREADABLE) from error
    try:
        pairs = zip(words[1::3], words[2::3], strict=True)
        sizes = [(int(height), int(width)) for height, width in pairs]
    except ValueError as error:
        message = "the file of sizes must have lines 'name height width'"
        raise DataError(message, str(source), code=ErrorCode.INVALID) from error
    if not sizes:
        message = "the file of sizes is empty"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    return sizes
