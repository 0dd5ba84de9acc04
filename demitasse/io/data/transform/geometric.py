"""Geometric augmentation: ``expand_param``, ``resize_param``, ``batch_sampler``, and boxes.

A region is (xmin, ymin, xmax, ymax) of the new image, relative to the old image; it may extend
beyond the old image. Boxes are relative to their image.

``resize_param``: ``height_scale`` and ``width_scale`` are read and ignored: in SSD they scale the
boxes of FIT_SMALL_SIZE. ``prob`` below 1 keeps some images unchanged; SSD reads ``prob`` without
using it.

``batch_sampler``: every sampler draws regions until ``max_sample`` satisfy its constraint, or
``max_trials`` are drawn. One of the found regions is cropped; without any, the whole image is kept.

Not compared with the original; ``interpolate`` is compared with OpenCV.

Source: SSD (weiliu89/caffe), ``src/caffe/data_transformer.cpp`` (``ExpandImage``),
``src/caffe/util/im_transforms.cpp`` (``ApplyResize``), ``src/caffe/util/sampler.cpp``,
``src/caffe/util/bbox_util.cpp`` (``ProjectBBox``, ``MeetEmitConstraint``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.images.colors import to_uint8
from demitasse.io.data.images.resize import interpolate
from demitasse.io.data.transform.mean import check_channel_values
from demitasse.io.data.transform.random import Choice, Draws
from demitasse.io.proto import (
    BatchSampler,
    EmitConstraint,
    ExpansionParameter,
    RandomResizeParameter,
    ResizeParameter,
    SampleConstraint,
    Sampler,
)

Region = tuple[float, float, float, float]

WHOLE: Region = (0.0, 0.0, 1.0, 1.0)  # region of an unchanged image

BOX = slice(2, 6)
"""Columns of the box in a row of objects; see ``demitasse.io.data.databases.datum``."""


@dataclass(frozen=True)
class EmitFilter:
    """Filter of objects in a part of an image (``emit_constraint``).

    ``emit`` is "CENTER" (the centre is visible), "MIN_OVERLAP" (more than ``share`` of the box is
    visible), or empty: any part is visible.
    """

    emit: str = ""
    share: float = 0.0

    @classmethod
    def of(cls, param: EmitConstraint) -> Self:
        """Return the filter of a message."""
        return cls(EmitConstraint.EmitType.Name(param.emit_type), param.emit_overlap)

    def project(self, rows: np.ndarray, region: Region) -> np.ndarray:
        """Return the visible objects, clipped to the new image. Shapes: (G, 7) -> (kept, 7)."""
        if region == WHOLE and not self.emit:
            return rows
        edges = np.array(region, rows.dtype)
        boxes = rows[:, BOX]
        kept = np.ones(len(rows), bool)
        if self.emit == "CENTER":
            centre = (boxes[:, :2] + boxes[:, 2:]) / 2
            kept = ((centre >= edges[:2]) & (centre <= edges[2:])).all(axis=1)
        elif self.emit == "MIN_OVERLAP":
            kept = coverage(boxes, edges[None, :]) > self.share
        low, size = np.tile(edges[:2], 2), np.tile(edges[2:] - edges[:2], 2)
        shown = np.clip((boxes - low) / size, 0, 1)
        kept &= (shown[:, 2:] > shown[:, :2]).all(axis=1)
        rows = rows[kept]
        rows[:, BOX] = shown[kept]
        return rows


def mirrored(rows: np.ndarray) -> np.ndarray:
    """Return the objects of a horizontally flipped image. Shapes: (G, 7) -> the same."""
    turned = rows.copy()
    turned[:, 2], turned[:, 4] = 1 - rows[:, 4], 1 - rows[:, 2]
    return turned


def coverage(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the share of each box that another box covers. Shapes: (G, 4), (G or 1, 4) -> (G,)."""
    sides = np.minimum(boxes[:, 2:], others[:, 2:]) - np.maximum(boxes[:, :2], others[:, :2])
    shared = np.maximum(sides, 0).prod(axis=1)
    area = np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1)
    share: np.ndarray = np.divide(shared, area, out=np.zeros_like(shared), where=shared > 0)
    return share


MOST = 100  # largest ratio of the canvas to the image, per side


class Expand:
    """Places images on a larger canvas, of the colours ``mean`` or black."""

    def __init__(self, param: ExpansionParameter, mean: Sequence[float]) -> None:
        self._probability, self._most = param.prob, param.max_expand_ratio
        if not 1 <= self._most <= MOST:
            field, code = "expand_param.max_expand_ratio", ErrorCode.OUT_OF_RANGE
            message = f"got {field} {self._most:g}, expected 1 to {MOST}"
            raise ConfigError(message, code=code, field=field, got=self._most)
        self._color = to_uint8(np.array(mean or [0.0]))

    @property
    def changes_size(self) -> bool:
        """Return True if images may become larger."""
        return self._probability > 0 and self._most - 1 >= 1e-2

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the image, perhaps on a canvas. Shapes: (C, H, W), uint8."""
        if not self._happens(draws):
            return image
        C, H, W = image.shape
        check_channel_values("mean_value", len(self._color), C)
        height, width, top, left = self._canvas(H, W, draws)
        return _on_canvas(image, (height, width), top, left, self._color)

    def region(self, size: tuple[int, int], draws: Draws) -> Region:
        """Return the region of the canvas, relative to an image of this height and width."""
        if not self._happens(draws):
            return WHOLE
        H, W = size
        height, width, top, left = self._canvas(H, W, draws)
        return -left / W, -top / H, (width - left) / W, (height - top) / H

    def _happens(self, draws: Draws) -> bool:
        return self.changes_size and draws.happens(Choice.EXPAND, self._probability)

    def _canvas(self, H: int, W: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return height and width of the canvas, and the offset of the image: top, left."""
        ratio = draws.between(Choice.EXPAND_RATIO, 1, self._most)
        height, width = int(H * ratio), int(W * ratio)
        top = int(draws.between(Choice.EXPAND_TOP, 0, height - H))
        left = int(draws.between(Choice.EXPAND_LEFT, 0, width - W))
        return height, width, top, left


def _on_canvas(
    image: np.ndarray, size: tuple[int, int], top: int, left: int, color: np.ndarray
) -> np.ndarray:
    """Return an image on a larger canvas of one color. Shapes: (C, H, W) -> (C, *size)."""
    C, H, W = image.shape
    canvas = np.empty((C, *size), np.uint8)
    canvas[...] = color.reshape(-1, 1, 1)
    canvas[:, top : top + H, left : left + W] = image
    return canvas


FLOAT = np.float32  # SSD's precision of aspects, which decides the rounding of sizes

Size = tuple[int, int]  # height and width, in pixels


class Resize:
    """Resizes images."""

    def __init__(self, param: ResizeParameter) -> None:
        self._param = param
        self.size: Size = (param.height, param.width)
        self._mode = ResizeParameter.Resize_mode.Name(param.resize_mode)
        self._ways = [ResizeParameter.Interp_mode.Name(way) for way in param.interp_mode]
        if not min(self.size):
            message = (
                f"got resize_param height {param.height} and width {param.width}, "
                "expected both above 0"
            )
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="resize_param.height")

    @property
    def always(self) -> bool:
        """Return True if every image is resized."""
        return self._param.prob >= 1

    @property
    def to_one_size(self) -> bool:
        """Return True if all results have the same size."""
        return self.always and self._mode != "FIT_SMALL_SIZE"

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the image, perhaps resized. Shapes: (C, H, W), uint8."""
        if not draws.happens(Choice.RESIZE, self._param.prob):
            return image
        way = "LINEAR"
        if self._ways:
            way = self._ways[draws.one_of(Choice.INTERPOLATION, len(self._ways))]
        height, width = self._fitted(image.shape[1], image.shape[2])
        image = interpolate(image, height, width, way)
        return self._padded(image) if self._mode == "FIT_LARGE_SIZE_AND_PAD" else image

    def region(self, size: Size, draws: Draws) -> Region:
        """Return the region of the result, relative to an image of this height and width."""
        if self._mode != "FIT_LARGE_SIZE_AND_PAD" or not draws.happens(
            Choice.RESIZE, self._param.prob
        ):
            return WHOLE
        (height, width), (H, W) = self.size, self._fitted(*size)
        above, beside = (height - H) // 2, (width - W) // 2
        return -beside / W, -above / H, (width - beside) / W, (height - above) / H

    def _fitted(self, H: int, W: int) -> Size:
        """Return the size of the resized image, without padding."""
        height, width = self.size
        if self._mode == "WARP":
            return height, width
        aspect, wanted = FLOAT(W) / FLOAT(H), FLOAT(width) / FLOAT(height)
        covers = self._mode == "FIT_SMALL_SIZE"
        if (aspect < wanted) if covers else (aspect > wanted):
            height = int(FLOAT(width) / aspect)
        else:
            width = int(aspect * FLOAT(height))
        if not min(height, width):
            field, code = "resize_param", ErrorCode.OUT_OF_RANGE
            message = f"an image of {H} x {W} pixels is too narrow for {field} {self.size}"
            raise ShapeError(message, code=code, field=field, got=(H, W), expected=self.size)
        return height, width

    def _padded(self, image: np.ndarray) -> np.ndarray:
        """Pad an image on both sides to the full size."""
        C, H, W = image.shape
        height, width = self.size
        above, beside = (height - H) // 2, (width - W) // 2
        pad = ((0, 0), (above, height - H - above), (beside, width - W - beside))
        mode = ResizeParameter.Pad_mode.Name(self._param.pad_mode)
        if mode == "REPEAT_NEAREST":
            return np.pad(image, pad, "edge")
        if mode == "MIRRORED":
            return np.pad(image, pad, "reflect" if min(H, W) > 1 else "edge")
        values = self._param.pad_value or [0.0]
        check_channel_values("resize_param.pad_value", len(values), C)
        return _on_canvas(image, self.size, above, beside, to_uint8(np.array(values)))


class RandomResize:
    """Resizes the shorter side to a random length, as Intel Caffe's ``RandomResizeImage``."""

    def __init__(self, param: RandomResizeParameter) -> None:
        self._least, self._most = param.min_size, param.max_size
        ways = param.resize_param.interp_mode
        self._ways = [ResizeParameter.Interp_mode.Name(way) for way in ways] or ["LINEAR"]
        if 0 < self._most < self._least:
            field, code = "random_resize_param.max_size", ErrorCode.OUT_OF_RANGE
            message = f"got min_size {self._least} and max_size {self._most}; exchange the two"
            raise ConfigError(message, code=code, field=field)

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return a resized image. Shapes: (C, H, W) -> (C, height, width), uint8."""
        H, W = image.shape[1:]
        least, most = self._least or min(H, W), self._most or max(H, W)
        side = least + draws.one_of(Choice.RANDOM_SIZE, max(1, most - least + 1))
        height = side if H < W else int(FLOAT(H) / FLOAT(W) * FLOAT(side))
        width = int(FLOAT(W) / FLOAT(H) * FLOAT(side)) if H < W else side
        way = self._ways[draws.one_of(Choice.RANDOM_INTERPOLATION, len(self._ways))]
        return interpolate(image, height, width, way)


DRAWN = 4  # random numbers per region: scale, aspect and two coordinates


class Sample:
    """Draws a region of an image, by the layer's ``batch_sampler``."""

    def __init__(self, samplers: Sequence[BatchSampler]) -> None:
        self._samplers = [one for one in samplers if one.use_original_image]
        for one in self._samplers:
            for name, most in (("scale", 1), ("aspect_ratio", math.inf)):
                low, high = getattr(one.sampler, f"min_{name}"), getattr(one.sampler, f"max_{name}")
                if not 0 < low <= high <= most:
                    bound = f" <= {most}" if most == 1 else ""
                    message = (
                        f"got batch_sampler.sampler.min_{name} {low:g} and max_{name} {high:g}; "
                        f"expected 0 < min_{name} <= max_{name}{bound}"
                    )
                    raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field=f"min_{name}")

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
    """Return the regions that satisfy all bounds with one box. Shapes: (K, 4), (G, 4) -> (K,)."""
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
