"""``batch_sampler``: random crops that cover enough, or not too much, of an object.

Every sampler draws regions until ``max_sample`` satisfy its constraint, or ``max_trials`` are
drawn. One of the found regions is cropped; without any, the whole image is kept.

Not compared with the original.

Source: SSD (weiliu89/caffe), ``src/caffe/util/sampler.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.transform.augment.draws import Choice, Draws
from demitasse.io.data.transform.boxes import WHOLE, Region, coverage
from demitasse.io.proto import BatchSampler, SampleConstraint, Sampler

__all__ = ["Sample", "cut"]

DRAWN = 4
"""Random numbers per region: scale, aspect and two coordinates."""


class Sample:
    """Draws a region of an image.

    Args:
        samplers: The layer's ``batch_sampler``.

    Raises:
        ConfigError: A range is empty or out of bounds.
    """

    def __init__(self, samplers: Sequence[BatchSampler]) -> None:
        self._samplers = [one for one in samplers if one.use_original_image]
        for one in self._samplers:
            _check(one.sampler)

    def __bool__(self) -> bool:
        """Return True if there are any samplers."""
        return bool(self._samplers)

    def region(self, boxes: np.ndarray, draws: Draws) -> Region:
        """Return a random region of an image with objects in ``boxes``. Shapes: (G, 4)."""
        found = []
        most = sum(one.max_trials for one in self._samplers)
        shares = draws.shares(Choice.SAMPLES, most * DRAWN).reshape(most, DRAWN)
        for one in self._samplers:
            parts, shares = _parts(one.sampler, shares[: one.max_trials]), shares[one.max_trials :]
            good = parts[_satisfies(one.sample_constraint, parts, boxes)]
            found.append(good[: one.max_sample] if one.HasField("max_sample") else good)
        every = np.concatenate(found) if found else np.zeros((0, 4))
        if not len(every):
            return WHOLE
        xmin, ymin, xmax, ymax = every[draws.one_of(Choice.SAMPLE, len(every))].tolist()
        return xmin, ymin, xmax, ymax


def cut(image: np.ndarray, region: Region) -> tuple[np.ndarray, Region]:
    """Crop a region, rounded to at least one pixel; return the image and the rounded region.

    SSD rounds the pixels alike, but not the boxes.

    Shapes: (C, H, W) -> (C, h, w).
    """
    H, W = image.shape[1:]
    xmin, ymin, xmax, ymax = np.clip(np.array(region), 0, 1).tolist()
    left, top = min(int(xmin * W), W - 1), min(int(ymin * H), H - 1)
    width, height = max(int((xmax - xmin) * W), 1), max(int((ymax - ymin) * H), 1)
    part = (left / W, top / H, (left + width) / W, (top + height) / H)
    return image[:, top : top + height, left : left + width], part


def _parts(sampler: Sampler, shares: np.ndarray) -> np.ndarray:
    """Return regions of an image. Shapes: shares (K, 4) from 0 to 1 -> (K, 4)."""
    scale = sampler.min_scale + (sampler.max_scale - sampler.min_scale) * shares[:, 0]
    least, most = sampler.min_aspect_ratio, sampler.max_aspect_ratio
    aspect = np.clip(least + (most - least) * shares[:, 1], scale**2, scale**-2.0)
    size = np.stack([scale * np.sqrt(aspect), scale / np.sqrt(aspect)], axis=1)
    corner = (1 - size) * shares[:, 2:]
    parts: np.ndarray = np.clip(np.concatenate([corner, corner + size], axis=1), 0, 1)
    return parts


def _satisfies(constraint: SampleConstraint, parts: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the regions that satisfy all bounds with a single box; all without bounds.

    Shapes: (K, 4), (G, 4) -> (K,).
    """
    if not constraint.ListFields():
        return np.ones(len(parts), bool)
    met = np.ones((len(parts), len(boxes)), bool)
    for name, measured in (
        ("jaccard_overlap", _overlap),
        ("sample_coverage", coverage),
        ("object_coverage", lambda part, box: coverage(box, part)),
    ):
        low, high = f"min_{name}", f"max_{name}"
        if not (constraint.HasField(low) or constraint.HasField(high)):
            continue
        for number, box in enumerate(boxes):
            value = measured(parts, box[None, :])
            if constraint.HasField(low):
                met[:, number] &= value >= getattr(constraint, low)
            if constraint.HasField(high):
                met[:, number] &= value <= getattr(constraint, high)
    some: np.ndarray = np.logical_or.reduce(met, axis=1)
    return some


def _overlap(parts: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return intersection over union. Shapes: (K, 4), (1, 4) -> (K,)."""
    area = (parts[:, 2:] - parts[:, :2]).prod(axis=1)
    shared = coverage(parts, box) * area
    union = area + (box[:, 2:] - box[:, :2]).prod(axis=1) - shared
    ratio: np.ndarray = shared / np.maximum(union, np.finfo(np.float64).tiny)
    return ratio


def _check(sampler: Sampler) -> None:
    """Refuse empty or invalid ranges."""
    if not 0 < sampler.min_scale <= sampler.max_scale <= 1:
        message = (
            f"got batch_sampler.sampler.min_scale {sampler.min_scale:g} and max_scale "
            f"{sampler.max_scale:g}; expected 0 < min_scale <= max_scale <= 1"
        )
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="min_scale")
    if not 0 < sampler.min_aspect_ratio <= sampler.max_aspect_ratio:
        message = (
            f"got batch_sampler.sampler.min_aspect_ratio {sampler.min_aspect_ratio:g} and "
            f"max_aspect_ratio {sampler.max_aspect_ratio:g}; expected 0 < min <= max"
        )
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="min_aspect_ratio")
