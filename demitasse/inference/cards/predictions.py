"""Predictions for an image: classes, boxes, class maps, images or blobs; and their drawing."""

from __future__ import annotations

import base64
import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from demitasse.core.extras import needs_extra
from demitasse.errors import DataError
from demitasse.io.data.images.codecs import encode_image

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

HUE_STEP = 0.618034
"""Difference of hues of neighbouring classes, as a fraction of the circle: the golden ratio."""

OPACITY = 0.5
"""Opacity of a mask over its image."""

Color = tuple[int, int, int]


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if 0 <= index < len(labels) else str(index)


@dataclass(frozen=True)
class Classes:
    """Scores of all classes.

    Attributes:
        scores: float32. Shape: (classes,).
        labels: Names of the classes; empty if unknown.
    """

    scores: np.ndarray
    labels: Sequence[str] = field(default=(), repr=False)

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return labels and scores of the best classes, best first."""
        return [(label, score) for _, label, score in self._best(count)]

    def as_dict(self, top: int = 5) -> dict[str, object]:
        """Return the best classes for JSON."""
        best = self._best(top)
        return {"classes": [{"index": i, "label": label, "score": s} for i, label, s in best]}

    def _best(self, count: int) -> list[tuple[int, str, float]]:
        """Return index, label and score of the best classes, best first."""
        best = np.argsort(-self.scores, kind="stable")[:count].tolist()
        return [(i, _label(self.labels, i), float(self.scores[i])) for i in best]


@dataclass(frozen=True)
class Box:
    """A detected object.

    Attributes:
        index: Index of the class.
        label: Name of the class.
        score: Confidence, usually from 0 to 1.
        xmin: Left edge, in pixels of the image.
        ymin: Upper edge.
        xmax: Right edge.
        ymax: Lower edge.
    """

    index: int
    label: str
    score: float
    xmin: float
    ymin: float
    xmax: float
    ymax: float


@dataclass(frozen=True)
class Boxes:
    """Detected objects.

    Attributes:
        boxes: The objects, best first.
    """

    boxes: Sequence[Box]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return the best objects for JSON; None for all."""
        return {"boxes": [dict(vars(box)) for box in self.boxes[:top]]}


@dataclass(frozen=True)
class Segments:
    """Class of every pixel.

    Attributes:
        mask: Class indices. Shape: (H, W) of the image, int32.
        labels: Names of the classes; empty if unknown.
    """

    mask: np.ndarray
    labels: Sequence[str] = field(default=(), repr=False)

    def shares(self) -> list[tuple[int, str, int]]:
        """Return index, label and pixel count of the classes in the mask, largest first."""
        indices, counts = np.unique(self.mask, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [
            (int(indices[i]), _label(self.labels, int(indices[i])), int(counts[i])) for i in order
        ]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return the largest classes, without the mask, for JSON; None for all."""
        size = max(self.mask.size, 1)
        found = [
            {"index": index, "label": label, "pixels": pixels, "share": pixels / size}
            for index, label, pixels in self.shares()[:top]
        ]
        return {"segments": found}


@dataclass(frozen=True)
class Image:
    """An image that the net made.

    Attributes:
        pixels: uint8, RGB of shape (H, W, 3) or gray of shape (H, W).
    """

    pixels: np.ndarray

    @property
    def planes(self) -> np.ndarray:
        """Pixels, BGR or gray. Shape: (C, H, W)."""
        return self.pixels.reshape(*self.pixels.shape[:2], -1).transpose(2, 0, 1)[::-1]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return the size and a PNG file in base64, for JSON."""
        del top
        height, width = self.pixels.shape[:2]
        png = base64.b64encode(encode_image(self.planes, "png")).decode()
        return {"result": {"width": width, "height": height, "png": png}}


@dataclass(frozen=True)
class Features:
    """Values of blobs.

    Attributes:
        values: Array by name of the blob, without the batch axis.
    """

    values: Mapping[str, np.ndarray]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return all values for JSON."""
        del top
        blobs = {
            name: {"shape": list(array.shape), "values": array.ravel().tolist()}
            for name, array in self.values.items()
        }
        return {"features": blobs}


Prediction = Classes | Boxes | Segments | Image | Features


def draw_prediction(image: np.ndarray, prediction: Prediction) -> np.ndarray:
    """Draw a prediction on its image, with Pillow.

    Args:
        image: Pixels, uint8, BGR or gray. Shape: (C, H, W).
        prediction: Boxes with labels, a mask, or the best class in a corner; an image replaces
            this one; blobs are not drawn.

    Returns:
        The pixels, BGR, of an image also gray. Shape: (C, H, W), uint8.

    Raises:
        DataError: Pillow is not installed.
    """
    if isinstance(prediction, Image):
        return prediction.planes
    with needs_extra(DataError, "drawing", "Pillow", "image"):
        import PIL.Image
        import PIL.ImageDraw
    colored = np.repeat(image, 3, axis=0) if len(image) == 1 else image
    pixels = colored[::-1].transpose(1, 2, 0)  # (H, W, 3), RGB
    if isinstance(prediction, Segments):
        mask = prediction.mask  # classes are blended in, except 0, the background
        colors = np.array([_color(index) for index in range(int(mask.max(initial=0)) + 1)])
        mixed = pixels * (1 - OPACITY) + colors[mask] * OPACITY
        pixels = np.where((mask > 0)[:, :, None], mixed, pixels).astype(np.uint8)
    picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    draw = PIL.ImageDraw.Draw(picture)
    if isinstance(prediction, Boxes):
        for box in reversed(prediction.boxes):  # the best on top
            color, width = _color(box.index), max(1, min(picture.size) // 200)
            corners = (box.xmin, box.ymin, max(box.xmax, box.xmin), max(box.ymax, box.ymin))
            draw.rectangle(corners, outline=color, width=width)
            _write(draw, f"{box.label} {box.score:.2f}", (box.xmin, box.ymin), color)
    elif isinstance(prediction, Classes):
        for label, score in prediction.top(1):
            _write(draw, f"{label} {score:.2f}", (0, 0), _color(0))
    return np.asarray(picture).transpose(2, 0, 1)[::-1]


def _color(index: int) -> Color:
    red, green, blue = colorsys.hsv_to_rgb(index * HUE_STEP % 1, 0.8, 1.0)
    return int(red * 255), int(green * 255), int(blue * 255)


def _write(draw: ImageDraw, text: str, corner: tuple[float, float], color: Color) -> None:
    """Write a line of text on a filled box, above a corner if there is room."""
    from PIL import ImageFont

    size = max(10, min(draw.im.size) // 40)
    font = ImageFont.load_default(size)
    text = text.encode("latin-1", "replace").decode("latin-1")  # the font has these characters only
    left, top = corner[0], max(0.0, corner[1] - size * 1.3)
    draw.rectangle(draw.textbbox((left, top), text, font=font), fill=color)
    draw.text((left, top), text, fill=(0, 0, 0), font=font)
