"""Fillers: the initial values of parameters.

They run on the host in double precision with a counter-based generator, so that one seed gives the
same weights on every device and in every dtype. Caffe's own random streams are not reproduced.

Source: Caffe, ``include/caffe/filler.hpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from demitasse.backends import random
from demitasse.errors import ConfigError
from demitasse.proto import FillerParameter

__all__ = ["FILLERS", "fill"]

Draw = Callable[[int], np.ndarray]  # n -> n doubles in [0, 1)
Shape = tuple[int, ...]


def fill(shape: Shape, filler: FillerParameter, seed: int, stream: int) -> np.ndarray:
    """Return an array filled as a message says.

    Args:
        shape: Shape of the parameter; its first axis is the fan-out side, as in Caffe.
        filler: Type and constants.
        seed: Key of the random generator.
        stream: Which sequence of that key: one for each parameter.

    Returns:
        Shape ``shape``, float64.

    Raises:
        ConfigError: The type is unknown, or its constants are not allowed.
    """
    make = FILLERS.get(filler.type)
    if make is None:
        message = f"unknown filler type {filler.type!r}; known are {', '.join(FILLERS)}"
        raise ConfigError(message)
    if filler.sparse != -1 and filler.type != "gaussian":
        message = f"filler type {filler.type!r} has no 'sparse'; only gaussian does"
        raise ConfigError(message)
    drawn = 0

    def draw(n: int) -> np.ndarray:
        nonlocal drawn
        drawn += 1
        return random.uniform(seed, stream, drawn, n)

    return make(shape, filler, draw)


def _constant(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    del draw
    return np.full(shape, filler.value, np.float64)


def _uniform(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    if filler.min > filler.max:
        message = f"uniform filler: min {filler.min} is above max {filler.max}"
        raise ConfigError(message)
    return _between(shape, filler.min, filler.max, draw)


def _gaussian(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    values = filler.mean + filler.std * _normal(shape, draw)
    if filler.sparse >= 0:
        # as in Caffe, a weight is kept with probability sparse / size of the first axis
        if not shape:
            message = "a sparse gaussian filler needs at least one axis"
            raise ConfigError(message)
        keep = filler.sparse / shape[0]
        values = values * (draw(math.prod(shape)).reshape(shape) < keep)
    return values


def _positive_unitball(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    del filler
    values = _between(shape, 0.0, 1.0, draw)
    rows = values.reshape(shape[0], -1) if shape else values.reshape(1, -1)
    return np.asarray((rows / rows.sum(axis=1, keepdims=True)).reshape(shape))


def _xavier(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    limit = math.sqrt(3.0 / _fan(shape, filler))
    return _between(shape, -limit, limit, draw)


def _msra(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    return np.asarray(math.sqrt(2.0 / _fan(shape, filler)) * _normal(shape, draw))


def _bilinear(shape: Shape, filler: FillerParameter, draw: Draw) -> np.ndarray:
    del filler, draw
    if len(shape) != 4 or shape[2] != shape[3]:
        message = f"a bilinear filler needs a 4-axis shape with a square kernel, not {shape}"
        raise ConfigError(message)
    f = math.ceil(shape[3] / 2.0)
    c = (shape[3] - 1) / (2.0 * f)
    line = 1 - np.abs(np.arange(shape[3]) / f - c)
    return np.broadcast_to(np.outer(line, line), shape).copy()


def _fan(shape: Shape, filler: FillerParameter) -> float:
    count = math.prod(shape)
    fan_in = count / shape[0] if shape else 1.0
    fan_out = count / shape[1] if len(shape) > 1 else float(count)
    if filler.variance_norm == FillerParameter.AVERAGE:
        fan = (fan_in + fan_out) / 2
    elif filler.variance_norm == FillerParameter.FAN_OUT:
        fan = fan_out
    else:
        fan = fan_in
    if fan <= 0:
        message = f"filler {filler.type!r} cannot fill an empty shape {shape}"
        raise ConfigError(message)
    return fan


def _between(shape: Shape, low: float, high: float, draw: Draw) -> np.ndarray:
    return low + (high - low) * draw(math.prod(shape)).reshape(shape)


def _normal(shape: Shape, draw: Draw) -> np.ndarray:
    """Box-Muller: two uniforms make two normals."""
    count = math.prod(shape)
    half = -(-count // 2)
    radius = np.sqrt(-2.0 * np.log1p(-draw(half)))
    angle = 2.0 * np.pi * draw(half)
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].reshape(shape)


FILLERS: dict[str, Callable[[Shape, FillerParameter, Draw], np.ndarray]] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
}
