"""What a model says of an image: classes, boxes, a map of classes, or the values of blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Answer", "Box", "Boxes", "Classes", "Features", "Segments"]


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if 0 <= index < len(labels) else str(index)


@dataclass(frozen=True)
class Classes:
    """The scores of all classes.

    Attributes:
        scores: float32. Shape: (classes,).
        labels: Names of the classes; empty where they are not known.
    """

    scores: np.ndarray
    labels: Sequence[str] = field(default=(), repr=False)

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the labels and scores of the best classes, the best first."""
        return [(_label(self.labels, i), float(self.scores[i])) for i in self._best(count)]

    def as_dict(self, top: int = 5) -> dict[str, object]:
        """Return the best classes as JSON has them."""
        best = [
            {"index": i, "label": _label(self.labels, i), "score": float(self.scores[i])}
            for i in self._best(top)
        ]
        return {"classes": best}

    def _best(self, count: int) -> list[int]:
        return [int(i) for i in np.argsort(-self.scores, kind="stable")[:count]]


@dataclass(frozen=True)
class Box:
    """An object.

    Attributes:
        index: Number of its class.
        label: Name of its class.
        score: How sure the model is, usually from 0 to 1.
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
    """The objects that were found.

    Attributes:
        boxes: The best first.
    """

    boxes: Sequence[Box]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return the best objects as JSON has them; None: all."""
        return {"boxes": [dict(vars(box)) for box in self.boxes[:top]]}


@dataclass(frozen=True)
class Segments:
    """The class of every pixel.

    Attributes:
        mask: Numbers of classes. Shape: (H, W) of the image, int32.
        labels: Names of the classes; empty where they are not known.
    """

    mask: np.ndarray
    labels: Sequence[str] = field(default=(), repr=False)

    def shares(self) -> list[tuple[int, str, int]]:
        """Return number, label and pixels of the classes that are there, the largest first."""
        indices, counts = np.unique(self.mask, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [
            (int(indices[i]), _label(self.labels, int(indices[i])), int(counts[i])) for i in order
        ]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return the largest classes as JSON has them; None: all. The mask itself is not there."""
        size = max(self.mask.size, 1)
        found = [
            {"index": index, "label": label, "pixels": pixels, "share": pixels / size}
            for index, label, pixels in self.shares()[:top]
        ]
        return {"segments": found}


@dataclass(frozen=True)
class Features:
    """The values of blobs.

    Attributes:
        values: Name -> array, without the axis of the batch.
    """

    values: Mapping[str, np.ndarray]

    def as_dict(self, top: int | None = None) -> dict[str, object]:
        """Return all values as JSON has them."""
        del top
        blobs = {
            name: {"shape": list(array.shape), "values": array.ravel().tolist()}
            for name, array in self.values.items()
        }
        return {"features": blobs}


Answer = Classes | Boxes | Segments | Features
