"""Decode a net's outputs into predictions, one function for each task."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.card import OUTPUT_CHANNELS, Anchors, Card, Detect
from demitasse.inference.cards.predictions import (
    Box,
    Boxes,
    Classes,
    Features,
    Image,
    Prediction,
    Segments,
)
from demitasse.inference.cards.preprocessing import View
from demitasse.io.data.images.colors import bgr_to_lab, lab_to_bgr, to_uint8, with_luma
from demitasse.io.data.images.resize import resize_bicubic, resize_image, resize_values
from demitasse.layers.detection.detection_output import Detector
from demitasse.layers.detection.prior_box import prior_boxes

FAR = 1e6
"""Value beyond all pixels, to which values are clipped so that conversions stay finite."""

Outputs = Mapping[str, np.ndarray]

Decoder = Callable[[Outputs, Sequence[View]], list[Prediction]]
"""Decodes the outputs of a batch, given the view of each image."""


def output_decoder(card: Card, *, softmax: bool, threshold: float | None = None) -> Decoder:
    """Return the decoder of a card's outputs; the threshold is the lowest score of a box."""
    lowest = card.detect.threshold if threshold is None else threshold

    def decode(outputs: Outputs, views: Sequence[View]) -> list[Prediction]:
        match card.task:
            case "features":
                return _features(outputs, len(views))
            case "detect" if card.detect.boxes:
                rows = _rows_of_anchors(outputs, views[0].input, card.detect, lowest)
                return _boxes(rows, views, card.labels, lowest)
            case "detect":
                return _boxes(_rows(_only(outputs)), views, card.labels, lowest)
            case "classify":
                return _classes(_only(outputs), len(views), card.labels, softmax=softmax)
            case "segment":
                return _segments(_only(outputs), views, card.labels)
            case _:
                return _images(_only(outputs), views, card)

    return decode


def _refuse(task: str, output: np.ndarray, needed: str) -> NoReturn:
    message = f"the output is {output.shape}; for task {task} it must {needed}"
    raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, task=task, got=output.shape)


def _only(outputs: Outputs) -> np.ndarray:
    if len(outputs) != 1:
        message = (
            f"the net has the outputs {', '.join(outputs) or 'none'}; [model] output of the card "
            "names the one to read"
        )
        raise ConfigError(message, code=ErrorCode.COUNT_MISMATCH, field="output", got=list(outputs))
    return next(iter(outputs.values()))


def _classes(
    scores: np.ndarray, count: int, labels: Sequence[str], *, softmax: bool
) -> list[Prediction]:
    """Shapes: scores (N, classes, 1...)."""
    if scores.ndim < 2 or len(scores) != count or scores[0].size != scores.shape[1]:
        _refuse("classify", scores, f"have a score for each class: ({count}, classes)")
    rows = scores.reshape(count, -1)
    if labels and len(labels) != rows.shape[1]:
        got, expected = len(labels), rows.shape[1]
        message, code = f"got {got} labels for {expected} classes", ErrorCode.COUNT_MISMATCH
        raise ConfigError(message, code=code, field="labels", got=got, expected=expected)
    if softmax:
        rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        rows /= rows.sum(axis=1, keepdims=True)
    return [Classes(row, labels) for row in rows]


def _rows(found: np.ndarray) -> np.ndarray:
    """Return the rows of a DetectionOutput layer. Shapes: (1, 1, K, 7) -> (K, 7)."""
    if found.ndim < 2 or found.shape[-1] != 7:
        needed = "be (1, 1, K, 7), of a DetectionOutput; or [detect] names boxes, scores, anchors"
        _refuse("detect", found, needed)
    return found.reshape(-1, 7)


def _rows_of_anchors(
    outputs: Outputs, size: tuple[int, int], detect: Detect, threshold: float
) -> np.ndarray:
    """Return the boxes detected relative to anchors. Shape: (K, 7)."""
    assert detect.anchors is not None
    prior = anchor_boxes(detect.anchors, size)
    codes, scores = outputs[detect.boxes], outputs[detect.scores]
    count = prior.shape[1]
    if codes.ndim < 2 or codes[0].size != count * 4 or scores[0].size % count or codes.shape[0] < 1:
        message = (
            f"[detect.anchors] make {count} boxes for an input of {size[0]} x {size[1]} pixels, "
            f"but output {detect.boxes!r} is {codes.shape} and {detect.scores!r} {scores.shape}"
        )
        raise ConfigError(
            message, code=ErrorCode.SHAPE_MISMATCH, task="detect", got=codes.shape, anchors=count
        )
    n, classes = len(codes), scores[0].size // count
    confidence = float(np.nextafter(np.float32(threshold), np.float32(-1)))
    found = Detector(
        classes=classes, background=detect.background, code="CENTER_SIZE",
        variance_in_target=False, confidence=confidence, overlap=detect.overlap, eta=1.0,
        top_k=400, keep=200,
    )  # fmt: skip
    return found(codes.reshape(n, count, 1, 4), scores.reshape(n, count, classes), prior)


def _boxes(
    rows: np.ndarray, views: Sequence[View], labels: Sequence[str], threshold: float
) -> list[Prediction]:
    """Shapes: rows (K, 7): image, class, score, box; class -1 for an image without objects."""
    answers: list[Prediction] = []
    for image, view in enumerate(views):
        mine = rows[(rows[:, 0] == image) & (rows[:, 1] >= 0) & (rows[:, 2] >= threshold)]
        mine = mine[np.argsort(-mine[:, 2], kind="stable")]
        boxes = []
        for row, edges in zip(mine, view.boxes_in_image(mine[:, 3:]), strict=True):
            index = int(row[1])
            label = labels[index] if index < len(labels) else str(index)
            corners = (round(float(edge), 2) for edge in edges)
            boxes.append(Box(index, label, float(row[2]), *corners))
        answers.append(Boxes(boxes))
    return answers


def _segments(scores: np.ndarray, views: Sequence[View], labels: Sequence[str]) -> list[Prediction]:
    """Shapes: scores (N, classes, h, w)."""
    if scores.ndim != 4 or len(scores) != len(views) or scores.shape[1] < 2:
        _refuse("segment", scores, "have a score for each class and place: (N, classes, h, w)")
    best = scores.argmax(axis=1).astype(np.int32)
    pairs = zip(best, views, strict=True)
    return [Segments(view.mask_in_image(mask), labels) for mask, view in pairs]


def _images(values: np.ndarray, views: Sequence[View], card: Card) -> list[Prediction]:
    """Shapes: values (N, C, h, w)."""
    channels = OUTPUT_CHANNELS[card.image.channels]
    if values.ndim != 4 or len(values) != len(views) or values.shape[1] != channels:
        needed = f'be (N, {channels}, h, w) for channels = "{card.image.channels}"'
        _refuse("image", values, needed)
    scale, mean = (
        np.array(numbers or 0, np.float32).reshape(-1, 1, 1)
        for numbers in (card.image.scale, card.image.mean)
    )
    with np.errstate(over="ignore"):
        finite = np.nan_to_num(values / scale + mean, posinf=FAR, neginf=-FAR).clip(-FAR, FAR)
    return [_image(one, view, card) for one, view in zip(finite, views, strict=True)]


def _image(values: np.ndarray, view: View, card: Card) -> Image:
    """Return an image, of the size that the net makes of the whole image.

    Shapes: values (C, h, w), in units of pixels, or of Lab.
    """
    size = (values.shape[1], values.shape[2])
    if card.preprocess.resize in {"warp", "short side"}:
        sides = zip(view.image, size, view.input, strict=True)
        size = tuple(max(1, round(image * out / given)) for image, out, given in sides)
    match card.image.channels:
        case "ab":
            assert view.pixels is not None
            lightness = bgr_to_lab(view.pixels)[:1]
            colors = resize_values(values, *view.image)
            planes = lab_to_bgr(np.concatenate([lightness, colors]))
        case "y":
            assert view.pixels is not None
            luma = resize_values(values, *size)[0]
            planes = with_luma(resize_bicubic(view.pixels, *size), luma)
        case order:
            planes = resize_image(to_uint8(values), *size)
            planes = planes[::-1] if order == "rgb" else planes
    pixels = planes[0] if len(planes) == 1 else planes[::-1].transpose(1, 2, 0)
    return Image(np.ascontiguousarray(pixels))


def _features(outputs: Outputs, count: int) -> list[Prediction]:
    for name, array in outputs.items():
        if array.ndim < 1 or len(array) != count:
            message = (
                f"output {name!r} is {array.shape} for {count} images; for task features its first "
                "axis is that of the images"
            )
            code = ErrorCode.SHAPE_MISMATCH
            raise ConfigError(message, code=code, task="features", blob=name, got=array.shape)
    return [Features({name: a[i].copy() for name, a in outputs.items()}) for i in range(count)]


def anchor_boxes(anchors: Anchors, input_size: tuple[int, int]) -> np.ndarray:
    """Return the anchor boxes and their variances, for the input's height and width in pixels.

    Each feature map has one cell per step of the input; the last cell may exceed the input. Each
    cell has one centered square per size, clipped to the input's sides. Boxes are xmin, ymin, xmax,
    ymax in units of the input's sides. Shape: (2, P, 4), float32.
    """
    height, width = input_size
    maps = [
        prior_boxes(
            (math.ceil(height / step), math.ceil(width / step)), input_size, (step, step),
            [(0.5, 0.5)], [(min(side, width), min(side, height)) for side in sides],
        ).reshape(-1, 4)
        for sides, step in zip(anchors.sizes, anchors.steps, strict=True)
    ]  # fmt: skip
    boxes = np.concatenate(maps)
    return np.stack([boxes, np.broadcast_to(anchors.variance, boxes.shape)]).astype(np.float32)
