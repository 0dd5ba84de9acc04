"""Boxes of single-shot detectors: priors, detections, and suppression of overlapping ones.

Host code on numpy arrays: which boxes stay depends on their values. A box is (xmin, ymin, xmax,
ymax), in units of the image's width and height.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/prior_box_layer.cpp``,
``detection_output_layer.cpp``, ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from demitasse.layers.detection.coding import BoxCode

__all__ = ["Detector", "box_sizes", "overlaps", "prior_boxes", "prior_values", "suppress"]

SAME = 1e-6  # aspect ratios that differ by less are one


def box_sizes(
    min_sizes: Sequence[float],
    max_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    *,
    flip: bool,
) -> tuple[tuple[float, float], ...]:
    """Return the (width, height) of every prior of a cell, in pixels.

    For each smallest size, whose fraction is cut off: a square of it, a square between it and its
    largest size, and one box for each aspect ratio other than 1.

    Args:
        min_sizes: Smallest sizes.
        max_sizes: Largest sizes; none, or one for each of ``min_sizes``.
        aspect_ratios: Width over height; repetitions do not count.
        flip: Whether every ratio stands for its inverse, too.
    """
    ratios: list[float] = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - known) >= SAME for known in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    sizes: list[tuple[float, float]] = []
    for i, size in enumerate(map(int, min_sizes)):
        sizes.append((size, size))
        if max_sizes:
            between = (size * int(max_sizes[i])) ** 0.5
            sizes.append((between, between))
        sizes += [(size * r**0.5, size / r**0.5) for r in ratios if abs(r - 1) >= SAME]
    return tuple(sizes)


def prior_boxes(
    cells: tuple[int, int],
    image: tuple[int, int],
    step: tuple[float, float],
    offsets: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Return boxes of all sizes around the centres of all cells of a map.

    Args:
        cells: Height and width of the map.
        image: Height and width of the image, in pixels.
        step: Height and width of a cell, in pixels.
        offsets: Where centres lie in a cell, (y, x), in steps; several make several boxes.
        sizes: (width, height) of the boxes, in pixels.

    Returns:
        Shape (height, width, boxes, 4), float64; the offsets of a size are next to each other.
    """
    centre = [
        (np.arange(n)[:, None] + np.array([offset[i] for offset in offsets])) * step[i]
        for i, n in enumerate(cells)
    ]
    y = centre[0].astype(np.float32)[:, None, None, :]  # (height, 1, 1, offsets)
    x = centre[1].astype(np.float32)[None, :, None, :]
    half = np.array(sizes, np.float32).astype(np.float64)[:, None, :] / 2  # (sizes, 1, 2)
    width, height = half[..., 0], half[..., 1]
    low = ((x - width) / image[1], (y - height) / image[0])
    high = ((x + width) / image[1], (y + height) / image[0])
    boxes = np.stack(np.broadcast_arrays(*low, *high), axis=-1)
    return boxes.reshape(*cells, len(sizes) * len(offsets), 4)


def prior_values(
    boxes: np.ndarray, variance: Sequence[float], dtype: str, *, clip: bool
) -> np.ndarray:
    """Return boxes and their variances as a detector reads them.

    Args:
        boxes: Shape (..., 4).
        variance: One for all numbers of a box, or four.
        dtype: Of the result.
        clip: Whether boxes end where the image does.

    Returns:
        Shape (1, 2, 4 * boxes).
    """
    corners = boxes.reshape(-1).astype(dtype)
    if clip:
        corners = np.minimum(np.maximum(corners, 0), 1)
    variances = np.array((list(variance) * 4)[:4], dtype)
    return np.stack([corners, np.tile(variances, corners.size // 4)])[np.newaxis]


def overlaps(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return intersection over union of boxes with others.

    Shapes: some (..., 4), others (..., 4) -> (...), broadcast over all axes but the last.
    """
    wide = np.minimum(some[..., 2], others[..., 2]) - np.maximum(some[..., 0], others[..., 0])
    high = np.minimum(some[..., 3], others[..., 3]) - np.maximum(some[..., 1], others[..., 1])
    shared = wide * high
    with np.errstate(all="ignore"):
        ratio = shared / (_areas(some) + _areas(others) - shared)
    checked: np.ndarray = np.where((wide > 0) & (high > 0), ratio, ratio.dtype.type(0))
    return checked


AT_ONCE = 128
"""Boxes whose overlaps with each other are computed at once; most are not looked at one by one."""

ETA_ABOVE = 0.5
"""A limit up to this one stays what it is."""

PAIRS = 1 << 16
"""The most overlaps that are computed at once; they stay in a cache."""


def suppress(boxes: np.ndarray, threshold: float, eta: float = 1.0) -> list[int]:
    """Return the indices of the boxes that stay, in order.

    A box goes when it overlaps one that stays by more than ``threshold``. With ``eta`` below 1, a
    threshold above a half is multiplied by it after every box that stays.

    Shapes: boxes (K, 4), the best first.
    """
    limit = boxes.dtype.type(threshold)
    if eta < 1 and limit > ETA_ABOVE:
        return _suppress_by_falling_limit(boxes, limit, eta)
    kept: list[int] = []
    rest = np.arange(len(boxes))
    while rest.size:
        best, rest = rest[:AT_ONCE], rest[AT_ONCE:]
        best = best[_greedy(~(overlaps(boxes[best, np.newaxis], boxes[best]) <= limit))]
        kept += best.tolist()
        rest = rest[_far(boxes[rest], boxes[best], limit)]
    return kept


def _greedy(near: np.ndarray) -> list[int]:
    """Return who stays where each who stays sends away those behind it that are near.

    A row is one of Python's integers, whose bits are told apart in less time than numpy's.

    Shapes: near (K, K), bool; what is NaN is near.
    """
    packed = np.packbits(near, axis=1, bitorder="little")
    size, rows = packed.shape[1], packed.tobytes()
    stay: list[int] = []
    gone = 0
    for place in range(len(near)):
        if not gone >> place & 1:
            stay.append(place)
            gone |= int.from_bytes(rows[place * size : (place + 1) * size], "little")
    return stay


def _far(boxes: np.ndarray, others: np.ndarray, limit: np.floating) -> np.ndarray:
    """Return which boxes overlap none of others by more than the limit. Shapes: (K, 4) -> (K,)."""
    far, step = np.ones(len(boxes), bool), max(1, PAIRS // len(others))
    for begin in range(0, len(boxes), step):
        part = boxes[begin : begin + step]
        far[begin : begin + step] = (overlaps(others[:, np.newaxis], part) <= limit).all(axis=0)
    return far


def _suppress_by_falling_limit(boxes: np.ndarray, limit: np.floating, eta: float) -> list[int]:
    """Return the indices of the boxes that stay where the limit falls with each of them."""
    kept: list[int] = []
    rest = np.arange(len(boxes))
    worst = np.zeros(len(boxes), boxes.dtype)  # the largest overlap with those that stay
    while rest.size:
        best, rest = int(rest[0]), rest[1:]
        kept.append(best)
        worst = np.maximum(worst[1:], overlaps(boxes[best], boxes[rest]))
        if limit > ETA_ABOVE:
            limit = boxes.dtype.type(limit * eta)
        stays = worst <= limit
        rest, worst = rest[stays], worst[stays]
    return kept


Decoded = Callable[[int, int, np.ndarray], np.ndarray]
"""Returns the boxes of an image and a class that some priors predict."""


@dataclass(frozen=True)
class Detector:
    """Turns predictions for priors into detections.

    Attributes:
        classes: Number of classes.
        background: The class that is no object; -1 for none.
        code: How boxes are predicted; see :class:`BoxCode`.
        variance_in_target: Whether predictions need not be multiplied by the priors' variances.
        confidence: A score must be above it.
        overlap: See :func:`suppress`.
        eta: See :func:`suppress`.
        top_k: Boxes of a class that are looked at; -1 for all.
        keep: Boxes of an image that stay; -1 for all.
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

        An image without detections has no row; where no image has one, each has a row of its index
        and -1.

        Shapes: location (N, P, L, 4), where L is 1 or the number of classes, score (N, P, classes),
        prior (2, P, 4): boxes and variances -> (K, 7).

        Raises:
            NetError: A prior is empty, so that nothing can be in proportion to it.
        """
        code = BoxCode(self.code, self.variance_in_target)
        code.check(prior[0])

        def decoded(image: int, label: int, index: np.ndarray) -> np.ndarray:
            """Return the boxes of some priors, which are few of them. Shapes: (K,) -> (K, 4)."""
            place = label if location.shape[2] > 1 else 0
            with np.errstate(all="ignore"):
                return code.decode(location[image, index, place], prior[0][index], prior[1][index])

        rows = [row for image in range(len(score)) for row in self._image(image, decoded, score)]
        if rows:
            return np.concatenate(rows)
        nothing = np.full((len(score), 7), -1, score.dtype)
        nothing[:, 0] = np.arange(len(score))
        return nothing

    def _image(self, image: int, decoded: Decoded, score: np.ndarray) -> Iterator[np.ndarray]:
        found = [
            (c, *self._kept(partial(decoded, image, c), score[image, :, c]))
            for c in range(self.classes)
            if c != self.background
        ]
        if 0 <= self.keep < sum(len(index) for _, index, _ in found):
            label = np.concatenate([np.full(len(index), c) for c, index, _ in found])
            index = np.concatenate([index for _, index, _ in found])
            boxes = np.concatenate([boxes for _, _, boxes in found])
            best = np.argsort(-score[image, index, label], kind="stable")[: self.keep]
            label, index, boxes = label[best], index[best], boxes[best]
            found = [(c, index[label == c], boxes[label == c]) for c, _, _ in found]
        for c, index, boxes in found:
            rows = np.empty((len(index), 7), score.dtype)
            rows[:, 0], rows[:, 1] = image, c
            rows[:, 2] = score[image, index, c]
            rows[:, 3:] = boxes
            if len(index):
                yield rows

    def _kept(
        self, decoded: Callable[[np.ndarray], np.ndarray], score: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the boxes of one class that stay, the best first, and the boxes."""
        candidates = np.flatnonzero(score > self.confidence)
        if 0 < self.top_k < len(candidates):  # most need not be put in order
            last = np.partition(score[candidates], -self.top_k)[-self.top_k]
            candidates = candidates[score[candidates] >= last]
        order = candidates[np.argsort(-score[candidates], kind="stable")]
        if self.top_k > -1:
            order = order[: self.top_k]
        boxes = decoded(order)
        kept = suppress(boxes, self.overlap, self.eta)
        return order[kept], boxes[kept]


def _areas(boxes: np.ndarray) -> np.ndarray:
    """Return the areas of boxes; 0 for those whose sides are swapped. Shapes: (..., 4) -> (...)."""
    sides = boxes[..., 2:] - boxes[..., :2]
    area = sides[..., 0] * sides[..., 1]
    checked: np.ndarray = np.where((sides < 0).any(axis=-1), area.dtype.type(0), area)
    return checked
