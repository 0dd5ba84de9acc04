"""Resize float images with any number of channels, for ``demitasse.compat.pycaffe.io``.

Caffe's scripts use two libraries with different pixel grids. scikit-image treats pixels as squares
that fill the image, with zeros outside. SciPy treats pixels as points, and aligns the outermost
ones. Neither averages when an image shrinks. Both are separable: weighted sums of a few neighbours
along each axis.

Source: scikit-image before 0.15, ``transform.resize`` with ``mode="constant"``; SciPy,
``ndimage.zoom``.
"""

from collections.abc import Callable
from math import comb, factorial

import numpy as np

Taps = tuple[np.ndarray, np.ndarray]
"""Indices of the source pixels of each new pixel, perhaps outside of the image, and weights.
Shapes: (new, n), (new, n)."""

MAX_ORDER = 5


def resize_squares(
    image: np.ndarray, height: int, width: int, order: int, *, mode: str = "constant",
    cval: float = 0.0, clip: bool = True,
) -> np.ndarray:  # fmt: skip
    """Resize an image (H, W, C), float64, like scikit-image before 0.15.

    ``order`` is the order of the spline: 0 for the nearest pixel, 1 for linear, 2 to 5. ``mode``
    extends beyond the edges: ``"constant"``, the value ``cval``; ``"edge"``, the outermost pixels;
    ``"symmetric"`` and ``"reflect"``, the mirror image with and without the outermost pixels;
    ``"wrap"``, the opposite side. ``clip`` clips results to the range of the image.

    Raises:
        ValueError: The order or the mode is unknown.
    """
    _need_order(order)
    if mode != "constant" and mode not in AROUND:
        message = f"mode is {mode!r}, but must be one of constant, {', '.join(AROUND)}"
        raise ValueError(message)
    result = image - cval if cval else image
    for axis, wanted in enumerate((height, width)):
        size = image.shape[axis]
        place = (np.arange(wanted) + 0.5) * (size / wanted) - 0.5
        result = _across(result, axis, place, order, mode)
    result = result + cval if cval else result
    if clip and order > 1:  # splines overshoot
        result = result.clip(image.min(), image.max())
    return result


def _across(image: np.ndarray, axis: int, place: np.ndarray, order: int, mode: str) -> np.ndarray:
    """Interpolate an image at positions along an axis; a constant extension is 0."""
    size = image.shape[axis]
    if order in LOCAL:
        index, weight = LOCAL[order](place)
        if mode == "constant":
            weight = np.where((index >= 0) & (index < size), weight, 0.0)
        around = AROUND.get(mode, AROUND["edge"])
        return _sum(image, axis, (around(index, size), weight))
    if mode == "constant":
        index, weight = _spline(place, size, order)
        inside = (place >= 0) & (place <= size - 1)
        return _sum(_coefficients(image, axis, order), axis, (index, weight * inside[:, None]))
    if mode == "edge":
        pads = [(0, 0)] * image.ndim
        pads[axis] = (FAR, FAR)
        return _across(np.pad(image, pads, "edge"), axis, place + FAR, order, "reflect")
    around = AROUND[mode]
    taps = _spline(place, size, order, around)
    return _sum(_coefficients(image, axis, order, around), axis, taps)


def resize_points(image: np.ndarray, height: int, width: int, order: int) -> np.ndarray:
    """Resize like SciPy, by interpolating splines; see ``resize_squares``."""
    _need_order(order)
    result = image
    for axis, wanted in enumerate((height, width)):
        size = image.shape[axis]
        place = np.arange(wanted) * ((size - 1) / max(wanted - 1, 1))
        place = place.clip(0, size - 1)  # rounding may exceed the last index
        result = _sum(_coefficients(result, axis, order), axis, _spline(place, size, order))
    return result


def _need_order(order: int) -> None:
    if order not in range(MAX_ORDER + 1):
        message = f"interp_order is {order}, but must be 0 (nearest), 1 (linear) or up to 5"
        raise ValueError(message)


def _sum(image: np.ndarray, axis: int, taps: Taps) -> np.ndarray:
    """Return the weighted sums of source pixels along an axis."""
    index, weight = taps
    across = (slice(None), *[None] * (image.ndim - 1 - axis))
    total = np.zeros(())
    for tap in range(index.shape[1]):
        total = total + image.take(index[:, tap], axis) * weight[:, tap][across]
    return total


# -- weights of scikit-image ---------------------------------------------------------------------


def _nearest(place: np.ndarray) -> Taps:
    index = np.floor(place + 0.5).astype(np.intp)[:, None]
    return index, np.ones(index.shape)


def _linear(place: np.ndarray) -> Taps:
    first = np.floor(place)
    share = place - first
    return _from(first, 0, 2), np.stack([1 - share, share], 1)


def _catmull_rom(place: np.ndarray) -> Taps:
    """Catmull-Rom: a cubic with slopes from the neighbours."""
    first = np.floor(place)
    x = place - first
    weights = [
        ((2 - x) * x - 1) * x / 2,
        ((3 * x - 5) * x * x + 2) / 2,
        ((4 - 3 * x) * x + 1) * x / 2,
        (x - 1) * x * x / 2,
    ]
    return _from(first, 1, 4), np.stack(weights, 1)


LOCAL: dict[int, Callable[[np.ndarray], Taps]] = {0: _nearest, 1: _linear, 3: _catmull_rom}
"""Weights by order; scikit-image uses SciPy's splines for the other orders."""


def _from(first: np.ndarray, before: int, count: int) -> np.ndarray:
    """Return the indices of ``count`` neighbours, starting ``before`` pixels earlier."""
    return first.astype(np.intp)[:, None] - before + np.arange(count)


# -- splines of SciPy ---------------------------------------------------------------------------


def _mirrored(index: np.ndarray, size: int) -> np.ndarray:
    period = max(2 * size - 2, 1)
    index = index % period
    return np.asarray(np.minimum(index, period - index))


def _doubled(index: np.ndarray, size: int) -> np.ndarray:
    index = index % (2 * size)
    return np.asarray(np.minimum(index, 2 * size - 1 - index))


Around = Callable[[np.ndarray, int], np.ndarray]
"""Maps indices beyond the edges to pixels, given the number of pixels."""

AROUND: dict[str, Around] = {
    "edge": lambda index, size: np.clip(index, 0, size - 1),
    "symmetric": _doubled,
    "reflect": _mirrored,
    "wrap": lambda index, size: index % size,
}

FAR = 12
"""Distance in pixels beyond which an edge does not affect a spline's coefficients."""


def _spline(place: np.ndarray, size: int, order: int, around: Around = _mirrored) -> Taps:
    """Return the nonzero B-splines at each position."""
    first = np.floor(place if order % 2 else place + 0.5)
    index = _from(first, order // 2, order + 1)
    return around(index, size), _b_spline(place[:, None] - index, order)


def _b_spline(x: np.ndarray, order: int) -> np.ndarray:
    """Return the centered B-spline, by differences of truncated powers."""
    if order == 0:
        return np.ones_like(x)
    total = np.zeros_like(x)
    for k in range(order + 2):
        ramp = np.maximum(x + (order + 1) / 2 - k, 0.0)
        total += (-1) ** k * comb(order + 1, k) * ramp**order
    return total / factorial(order)


def _coefficients(
    image: np.ndarray, axis: int, order: int, around: Around = _mirrored
) -> np.ndarray:
    """Return the B-spline coefficients that interpolate all pixels along an axis."""
    size = image.shape[axis]
    if order < 2 or size < 2:
        return image
    index, weight = _spline(np.arange(float(size)), size, order, around)
    through = np.zeros((size, size))
    np.add.at(through, (np.arange(size)[:, None], index), weight)
    lines = np.moveaxis(image, axis, 0)
    solved = np.linalg.solve(through, lines.reshape(size, -1)).reshape(lines.shape)
    return np.moveaxis(solved, 0, axis)
