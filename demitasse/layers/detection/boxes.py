"""Boxes of detectors: overlaps, non-maximum suppression, and codes relative to priors.

Host code on numpy arrays: the boxes that stay depend on values. A box is (xmin, ymin, xmax, ymax),
in units of the image's width and height.

Source: SSD (weiliu89/caffe), ``src/caffe/util/bbox_util.cpp``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from demitasse.backends.kernels.language import has_kernels
from demitasse.errors import ErrorCode, NetError


@dataclass(frozen=True)
class BoxCoder:
    """Code of boxes relative to priors.

    Attributes:
        kind: "CORNER" (offsets of the corners), "CORNER_SIZE" (offsets in proportion to the prior)
            or "CENTER_SIZE" (offset of the centre in proportion, and logarithms of the sides).
        variance_in_target: True if codes are not divided by the priors' variances.
    """

    kind: str
    variance_in_target: bool

    def encode(self, boxes: np.ndarray, prior: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Return the codes of boxes. Shapes: (..., 4), all alike -> the same."""
        if self.kind == "CENTER_SIZE":
            size = self._size(prior)
            sides = boxes[..., 2:] - boxes[..., :2]
            self._need_sides(sides, boxes, "object")
            shift = (boxes[..., :2] + boxes[..., 2:] - prior[..., :2] - prior[..., 2:]) / 2
            code = np.concatenate([shift / size, np.log(sides / size)], axis=-1)
        else:
            code = boxes - prior
            if self.kind == "CORNER_SIZE":
                size = self._size(prior)
                code = code / np.concatenate([size, size], axis=-1)
        return code if self.variance_in_target else code / variance

    def decode(self, code: np.ndarray, prior: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Return the boxes of codes. Shapes: (..., 4) that broadcast -> (..., 4)."""
        offset = code if self.variance_in_target else variance * code
        if self.kind == "CORNER":
            corners: np.ndarray = prior + offset
            return corners
        size = self._size(prior)
        if self.kind == "CENTER_SIZE":
            boxes = np.empty(np.broadcast_shapes(offset.shape, prior.shape), offset.dtype)
            for low, high in ((0, 2), (1, 3)):  # axes of two elements make numpy slow
                side = size[..., low]
                centre = offset[..., low] * side + (prior[..., low] + prior[..., high]) / 2
                half = np.exp(offset[..., high]) * side / 2
                boxes[..., low], boxes[..., high] = centre - half, centre + half
            return boxes
        moved: np.ndarray = prior + offset * np.concatenate([size, size], axis=-1)
        return moved

    def check(self, prior: np.ndarray) -> None:
        """Raise NetError for an empty prior, if codes are relative to its size. Shape: (P, 4)."""
        good = (prior[:, 2] > prior[:, 0]) & (prior[:, 3] > prior[:, 1])
        if self.kind != "CORNER" and not good.all():
            self._size(prior)

    def _size(self, prior: np.ndarray) -> np.ndarray:
        """Return width and height of priors. Shapes: (..., 4) -> (..., 2)."""
        size: np.ndarray = prior[..., 2:] - prior[..., :2]
        self._need_sides(size, prior, "prior")
        return size

    def _need_sides(self, sides: np.ndarray, boxes: np.ndarray, what: str) -> None:
        """Raise NetError for a box whose width or height is not above 0."""
        good = sides > 0
        if not good.all():
            good = good.all(axis=-1).reshape(-1)
            wrong = int(np.argmin(good))
            message = (
                f"{what} {wrong} is {boxes.reshape(-1, 4)[wrong].tolist()}; with code_type "
                f"{self.kind} it must have a width and a height above 0"
            )
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, box=what, index=wrong)


def overlaps(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes.

    Shapes: some (..., 4), others (..., 4) -> (...), broadcast over all axes but the last.
    """
    one, other = _columns(some), _columns(others)
    wide = np.minimum(one[2], other[2]) - np.maximum(one[0], other[0])
    high = np.minimum(one[3], other[3]) - np.maximum(one[1], other[1])
    shared = wide * high
    with np.errstate(all="ignore"):
        ratio = shared / (_area(one) + _area(other) - shared)
    checked: np.ndarray = np.where(np.minimum(wide, high) > 0, ratio, ratio.dtype.type(0))
    return checked


ETA_ABOVE = 0.5
"""``eta`` applies to limits above this value only."""


def suppress(
    boxes: np.ndarray,
    threshold: float,
    eta: float = 1.0,
    most: int | None = None,
    counts: Sequence[int] | None = None,
) -> list[int]:
    """Return the indices of the boxes that stay after non-maximum suppression, in order.

    A box is dropped when it overlaps a box that stays by more than ``threshold``. With ``eta``
    below 1, a threshold above a half is multiplied by ``eta`` after every box that stays. The
    result is the first ``most`` of them. Groups of ``counts`` boxes are independent of each other.

    Shapes: boxes (K, 4), the best of each group first.
    """
    limits = [boxes.dtype.type(threshold)]
    while eta < 1 and limits[-1] > ETA_ABOVE and len(limits) <= len(boxes):
        limits.append(boxes.dtype.type(limits[-1] * eta))
    most = len(boxes) if most is None else most
    counts = [len(boxes)] if counts is None else counts
    if len(boxes) and boxes.dtype == np.float32 and has_kernels():
        from demitasse.backends.kernels.suppression import suppressed

        return suppressed(np.ascontiguousarray(boxes), np.array(limits), most, counts)
    firsts = np.cumsum([0, *counts])
    return [i for span in pairwise(firsts.tolist()) for i in portable(boxes, limits, most, *span)]


def portable(
    boxes: np.ndarray, limits: Sequence[np.floating], most: int, first: int, end: int
) -> list[int]:
    """Return the indices of the boxes of a group that stay, in numpy, as the kernel does."""
    kept: list[int] = []
    rest = np.arange(first, end)
    worst = np.zeros(len(rest), boxes.dtype)  # the largest overlap with those that stay
    while rest.size and len(kept) < most:
        best, rest = int(rest[0]), rest[1:]
        kept.append(best)
        worst = np.maximum(worst[1:], overlaps(boxes[best], boxes[rest]))
        stays = worst <= limits[min(len(kept), len(limits) - 1)]
        rest, worst = rest[stays], worst[stays]
    return kept


def just_below(value: float) -> float:
    """Return the largest float32 below a value, to compare by > where >= is meant."""
    return float(np.nextafter(np.float32(value), np.float32(-np.inf)))


def _columns(boxes: np.ndarray) -> list[np.ndarray]:
    """Return the four numbers of boxes, each side by side: numpy is twice as fast on them."""
    return [np.ascontiguousarray(boxes[..., i]) for i in range(4)]


def _area(columns: list[np.ndarray]) -> np.ndarray:
    """Return the areas of boxes; 0 for swapped corners."""
    wide, high = columns[2] - columns[0], columns[3] - columns[1]
    area = wide * high
    checked: np.ndarray = np.where((wide < 0) | (high < 0), area.dtype.type(0), area)
    return checked
