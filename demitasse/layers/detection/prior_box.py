"""PriorBox: prior boxes of a single-shot detector, for every cell of a map."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.io.proto import PriorBoxParameter
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import conflict, missing, out_of_range, pair, wrong_count, wrong_shapes
from demitasse.layers.registry import register_layer

SAME = 1e-6  # least difference of two aspect ratios


def box_sizes(
    min_sizes: Sequence[float],
    max_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    *,
    flip: bool,
    truncate: bool = True,
) -> tuple[tuple[float, float], ...]:
    """Return (width, height) of every prior of a cell, in pixels.

    Each smallest size has a square and, with a largest size, a square between the two. Each aspect
    ratio (width over height) other than 1 adds a box. With ``flip``, inverse ratios are added; with
    ``truncate``, sizes are cut to whole pixels.
    """
    least, most = (map(int, sizes) if truncate else sizes for sizes in (min_sizes, max_sizes))
    largest = list(most)
    ratios: list[float] = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - known) >= SAME for known in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    sizes: list[tuple[float, float]] = []
    for i, size in enumerate(least):
        sizes.append((size, size))
        if largest:
            between = (size * largest[i]) ** 0.5
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

    The map, the image and a cell have height and width, ``image`` and ``step`` in pixels. There is
    a box for each offset (y, x) in steps, and each size (width, height) in pixels. The offsets of a
    size are next to each other. Shape: (height, width, boxes, 4), float64.
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


@register_layer("PriorBox")
class PriorBox(Layer):
    """Place boxes of several sizes and aspect ratios around the centre of every cell.

    The boxes depend on the shapes of the bottoms only, so the gradients are 0. ``min_size`` and
    ``max_size`` are truncated to whole pixels, as in SSD; ``truncate_sizes: false`` keeps their
    fractions, as OpenCV 4 does. Compared with OpenCV's output.

    Source: SSD (weiliu89/caffe), ``src/caffe/layers/prior_box_layer.cpp``; ``offset_h`` and
    ``offset_w``: OpenCV, ``modules/dnn/src/layers/prior_box_layer.cpp``.
    Shapes: bottoms map (N, C, H, W), image (N, C, height, width) -> top (1, 2, H W K 4): corners of
    K boxes for each cell, in units of the image, and their variances.

    Raises:
        ConfigError: A size, step or variance is missing or not above 0, there are not as many
            ``max_size`` as ``min_size``, or a field is given in two ways.
        ShapeError: A bottom does not have four axes, or the map is empty.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.prior_box_param
        if not p.min_size:
            raise missing("prior_box_param.min_size", "give the sizes of the boxes, in pixels")
        _above_0("min_size", p.min_size)
        _above_0("aspect_ratio", p.aspect_ratio)
        if p.max_size and len(p.max_size) != len(p.min_size):
            expected = f"0, or {len(p.min_size)}, one for each min_size"
            raise wrong_count("prior_box_param.max_size", len(p.max_size), expected)
        for small, large in zip(p.min_size, p.max_size, strict=False):
            if not small < large < math.inf:
                expected = f"a number above its min_size {small:g}"
                raise out_of_range("prior_box_param.max_size", large, expected)
        self.sizes = box_sizes(
            p.min_size, p.max_size, p.aspect_ratio, flip=p.flip, truncate=p.truncate_sizes
        )
        self.clip = p.clip
        self.variance = list(p.variance) or [0.1]
        if len(self.variance) not in {1, 4}:
            raise wrong_count("prior_box_param.variance", len(self.variance), "1 or 4")
        _above_0("variance", self.variance)
        self.image = _sides(p, "img_size", "img_h", "img_w")
        self.step = _sides(p, "step", "step_h", "step_w")
        self.offsets: Sequence[tuple[float, float]] = [(p.offset, p.offset)]  # (y, x), in steps
        if p.offset_h or p.offset_w:
            if p.HasField("offset") or len(p.offset_h) != len(p.offset_w):
                message = "prior_box_param takes offset, or as many offset_h as offset_w"
                raise conflict("prior_box_param.offset", message)
            self.offsets = list(zip(p.offset_h, p.offset_w, strict=True))
        self.made: tuple[tuple[int, int], tuple[int, int]] | None = None

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob in bottom:
            if blob.num_axes != 4:
                raise wrong_shapes("PriorBox", "(N, C, H, W)", blob)
        height, width = bottom[0].shape[2:]
        if not height * width:
            raise wrong_shapes("PriorBox", "a map with cells", bottom[0])
        each = len(self.sizes) * len(self.offsets)
        top[0].reshape((1, 2, height * width * each * 4))
        high, wide = self.image or bottom[1].shape[2:]
        image = (int(high), int(wide))
        made = (height, width), image
        if made != self.made:
            step = self.step or (image[0] / height, image[1] / width)
            boxes = prior_boxes(made[0], image, step, self.offsets, self.sizes)
            corners = boxes.reshape(-1).astype(self.dtype)
            if self.clip:
                corners = np.minimum(np.maximum(corners, 0), 1)
            variances = np.array((self.variance * 4)[:4], self.dtype)
            self.values = np.stack([corners, np.tile(variances, corners.size // 4)])[np.newaxis]
            self.op = ops.Constant(dtype=self.dtype, values=self.values.tobytes())
            self.made = made

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        make = partial(self.device.backend.asarray, self.values)
        top[0].write(self.constant("priors", self.made, make))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                blob.set_diff(0)


def _sides(p: PriorBoxParameter, square: str, high: str, wide: str) -> tuple[float, float] | None:
    """Return (height, width) from one field or two; None if no field is given."""
    sides: tuple[float, float] | None
    if p.HasField(square):
        if p.HasField(high) or p.HasField(wide):
            message = f"prior_box_param takes {square}, or {high} and {wide}; not both"
            raise conflict(f"prior_box_param.{square}", message)
        sides = (getattr(p, square),) * 2
    else:
        sides = pair(p, "prior_box_param", high, wide)
    if sides is not None:
        _above_0(square, sides)
    return sides


def _above_0(name: str, values: Sequence[float]) -> None:
    if not all(0 < value < math.inf for value in values):
        raise out_of_range(f"prior_box_param.{name}", list(values), "numbers above 0")
