"""Fillers: the initial values of parameters.

Fillers run on the host in double precision with a counter-based generator: one seed gives the same
weights on every device and in every dtype. Caffe's own random streams are not reproduced.

Source: Caffe, ``include/caffe/filler.hpp``.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np

from demitasse.backends import random
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import FillerParameter

Draw = Callable[[int], np.ndarray]  # n -> n doubles in [0, 1)
Shape = tuple[int, ...]
Make = Callable[[Draw], np.ndarray]


def filling(
    shape: Shape, filler: FillerParameter, seed: int, stream: int
) -> Callable[[], np.ndarray]:
    """Check a message now, and return a function that returns an array filled by the message.

    The first axis of the shape is the fan-out side, as in Caffe. Each parameter is a ``stream`` of
    random numbers under the key ``seed``. The array, float64, is the same at each call.

    Raises:
        ConfigError: The type is unknown, or a constant is out of range.
    """
    prepare = FILLERS.get(filler.type)
    if prepare is None:
        message = (
            f"unknown filler type {filler.type!r}{suggestion(filler.type, FILLERS)}; "
            f"known are {', '.join(FILLERS)}"
        )
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="type", got=filler.type)
    if filler.sparse != -1 and filler.type != "gaussian":
        message = f"filler type {filler.type!r} has no 'sparse'; only gaussian does"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="sparse", got=filler.type)
    make = prepare(shape, filler)

    def filled() -> np.ndarray:
        if 0 in shape:
            return np.zeros(shape)
        calls = itertools.count(1)
        return make(lambda n: random.uniform(seed, stream, next(calls), n))

    return filled


def _constant(shape: Shape, filler: FillerParameter) -> Make:
    value = filler.value
    return lambda draw: np.full(shape, value, np.float64)


def _uniform(shape: Shape, filler: FillerParameter) -> Make:
    if filler.min > filler.max:
        message = f"uniform filler: min {filler.min} is above max {filler.max}"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="min", got=filler.min)
    return partial(_between, shape, filler.min, filler.max)


def _gaussian(shape: Shape, filler: FillerParameter) -> Make:
    mean, std, sparse = filler.mean, filler.std, filler.sparse
    if sparse >= 0 and not shape:
        message = "a sparse gaussian filler needs a parameter with at least one axis"
        raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, field="sparse", got=shape)

    def make(draw: Draw) -> np.ndarray:
        values = mean + std * _normal(shape, draw)
        if sparse >= 0:
            # as in Caffe, a weight is kept with probability sparse / size of the first axis
            values = values * (draw(math.prod(shape)).reshape(shape) < sparse / shape[0])
        return values

    return make


def _positive_unitball(shape: Shape, filler: FillerParameter) -> Make:
    def make(draw: Draw) -> np.ndarray:
        values = _between(shape, 0.0, 1.0, draw)
        rows = values.reshape(shape[0], -1) if shape else values.reshape(1, -1)
        return np.asarray((rows / rows.sum(axis=1, keepdims=True)).reshape(shape))

    return make


def _xavier(shape: Shape, filler: FillerParameter) -> Make:
    limit = math.sqrt(3.0 / _fan(shape, filler))
    return partial(_between, shape, -limit, limit)


def _msra(shape: Shape, filler: FillerParameter) -> Make:
    deviation = math.sqrt(2.0 / _fan(shape, filler))
    return lambda draw: np.asarray(deviation * _normal(shape, draw))


def _bilinear(shape: Shape, filler: FillerParameter) -> Make:
    if len(shape) != 4 or shape[2] != shape[3]:
        message = f"a bilinear filler needs 4 axes and a square kernel, got shape {shape}"
        raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, field="type", got=shape)
    side = shape[3]

    def make(draw: Draw) -> np.ndarray:
        f = math.ceil(side / 2.0)
        c = (side - 1) / (2.0 * f)
        line = 1 - np.abs(np.arange(side) / f - c)
        return np.broadcast_to(np.outer(line, line), shape).copy()

    return make


def _fan(shape: Shape, filler: FillerParameter) -> float:
    if 0 in shape:
        message = f"filler {filler.type!r} cannot fill an empty shape {shape}"
        raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, field="type", got=shape)
    fan_in, fan_out = math.prod(shape[1:]), math.prod(shape[:1] + shape[2:])
    if filler.variance_norm == FillerParameter.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if filler.variance_norm == FillerParameter.FAN_OUT else fan_in


def _between(shape: Shape, low: float, high: float, draw: Draw) -> np.ndarray:
    return low + (high - low) * draw(math.prod(shape)).reshape(shape)


def _normal(shape: Shape, draw: Draw) -> np.ndarray:
    """Return normal numbers by Box-Muller: two uniforms make two normals."""
    count = math.prod(shape)
    half = -(-count // 2)
    radius = np.sqrt(-2.0 * np.log1p(-draw(half)))
    angle = 2.0 * np.pi * draw(half)
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].reshape(shape)


FILLERS: dict[str, Callable[[Shape, FillerParameter], Make]] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
}
