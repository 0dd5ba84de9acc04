"""Gradient check of a layer by central differences.

Source: Caffe, ``include/caffe/test/test_gradient_check_util.hpp``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.io.proto import LayerParameter
from demitasse.testing.single_layer import SingleLayer, make_layer

PARAM_START = 0.5
"""Initial value of parameter gradients, which backward must add to."""


class GradientError(AssertionError):
    """A gradient disagrees with central differences, or backward breaks the layer contract."""


def check_gradients(
    layer: str | LayerParameter | SingleLayer,
    *bottoms: Any,
    step: float = 1e-3,
    threshold: float = 1e-3,
    kink: float | Sequence[float] = 0.0,
    kink_range: float = -1.0,
    check_bottom: int | Sequence[int] | None = None,
    check_params: bool | Sequence[int] = True,
    exhaustive: bool = False,
    phase: str = "TRAIN",
    device: str | Device | None = None,
    seed: int = 1,
) -> float:
    """Compare the gradients of a layer with central differences of its tops.

    Every element of every checked bottom and parameter is changed by ``step`` in both directions.
    By default the objective is a sum of all tops with random weights, and backward runs once;
    ``exhaustive`` runs backward for each top element.

    The check includes the layer contract: backward overwrites bottom gradients that
    ``propagate_down`` selects, changes no others, and adds to parameter gradients.

    Args:
        layer: Prototxt or message of the layer, or a layer from ``make_layer``, which keeps its
            values unless ``bottoms`` are given.
        bottoms: Values of the bottoms, in the shapes that the layer takes.
        step: Change of an element.
        threshold: Largest allowed error, relative to the larger gradient, or absolute if both
            gradients are below 1.
        kink: Absolute values of bottom elements at which the function is not smooth.
        kink_range: Elements within this distance of a kink are not checked; negative checks all.
        check_bottom: Index or indices of the bottoms to check; None for all that the layer has a
            gradient for (``allow_force_backward``).
        check_params: True to check all parameters, or the indices to check.
        exhaustive: Check each top element separately.
        phase: "TRAIN" or "TEST".
        device: Device of the layer.
        seed: Key of the layer's random numbers and of the objective's weights.

    Returns:
        The largest relative error.

    Raises:
        GradientError: A gradient disagrees; names the blob, the element and both values.
        NetError: The layer uses tops that neither its class nor its prototxt declares.
        ValueError: Nothing to check, or the layer does not compute in float64.

    Example::

        @register_layer("Square")
        class Square(NeuronLayer):
            def forward(self, bottom, top):
                x = bottom[0].read()
                top[0].write(x * x)

            def backward(self, top, propagate_down, bottom):
                if propagate_down[0]:
                    bottom[0].write_diff(2 * bottom[0].read() * top[0].read_diff())


        check_gradients('type: "Square"', np.random.randn(2, 3))
    """
    if isinstance(layer, SingleLayer):
        single, values = layer, list(bottoms) or [np.array(b.cpu_data()) for b in layer.bottom]
    else:
        single = make_layer(layer, bottoms, phase=phase, device=device, seed=seed)
        values = list(bottoms)
    if not single.top:
        message = (
            f"{single.layer.type} has no top; declare tops in its class (tops = Exactly(1)), or "
            "name them in the prototxt (top: 'y')"
        )
        raise ValueError(message)
    if single.layer.dtype != "float64":
        message = f"got a layer in {single.layer.dtype}, expected float64"
        raise ValueError(message)
    check = _Check(single, [np.array(v, np.float64) for v in values], step)
    targets = [
        *check.params(check_params),
        *check.bottoms(check_bottom, np.atleast_1d(kink), kink_range),
    ]
    if not targets:
        message = f"{single.layer.type} has no bottom and no parameter with a gradient"
        raise ValueError(message)
    worst = 0.0
    with single.on_device():
        slopes = [check.slopes(target) for target in targets]  # each (elements, all top elements)
    check.forward()
    for what, weights in _objectives(single.top, exhaustive=exhaustive, seed=seed):
        found = check.gradients(targets, weights)
        for target, slope, gradient in zip(targets, slopes, found, strict=True):
            worst = max(worst, _compare(target, slope @ weights, gradient, threshold, what))
    return worst


@dataclass(frozen=True)
class _Target:
    """A blob to check, at the elements ``places`` of the flattened blob."""

    name: str
    blob: Blob
    places: np.ndarray
    bottom: int | None = None


class _Check:
    """Repeated runs of one layer from the same parameters."""

    def __init__(self, single: SingleLayer, values: list[np.ndarray], step: float) -> None:
        self.single, self.values, self.step = single, values, step
        self.start = [np.array(blob.cpu_data()) for blob in single.params]

    def params(self, wanted: bool | Sequence[int]) -> Iterator[_Target]:
        if isinstance(wanted, bool):
            wanted = range(len(self.single.params)) if wanted else ()
        for i in wanted:
            blob = self.single.params[i]
            yield _Target(f"parameter {i}", blob, np.arange(blob.count))

    def bottoms(
        self, wanted: int | Sequence[int] | None, kinks: np.ndarray, kink_range: float
    ) -> Iterator[_Target]:
        if wanted is None:
            wanted = [i for i, can in enumerate(self.single.differentiable()) if can]
        for index in [wanted] if isinstance(wanted, int) else wanted:
            i = range(len(self.values))[index]  # -1 is the last
            size = np.abs(self.values[i]).reshape(-1)
            near = (np.abs(size[:, None] - kinks) <= kink_range).any(axis=1)
            blob = self.single.bottom[i]
            yield _Target(f"bottom {i} ({blob.name!r})", blob, np.flatnonzero(~near), bottom=i)

    def slopes(self, target: _Target) -> np.ndarray:
        """Return central differences of all top elements. Shape: (places, top elements)."""
        rows = []
        for place in target.places:
            up = self.forward(target, place, +self.step)
            down = self.forward(target, place, -self.step)
            rows.append((up - down) / (2 * self.step))
        return np.array(rows).reshape(len(target.places), -1)

    def gradients(self, targets: list[_Target], weights: np.ndarray) -> list[np.ndarray]:
        """Return the gradient of each target, flattened, for these top gradients."""
        self.forward()
        single = self.single
        wanted = [t.bottom for t in targets if t.bottom is not None]
        for blob in single.bottom:
            blob.mutable_cpu_diff()[...] = np.nan
        for blob in single.params:
            blob.mutable_cpu_diff()[...] = PARAM_START
        ends = np.cumsum([blob.count for blob in single.top])
        parts = np.split(weights, ends[:-1])
        single.backward(
            *(part.reshape(blob.shape) for part, blob in zip(parts, single.top, strict=True)),
            propagate_down=[i in wanted for i in range(len(single.bottom))],
        )
        for i, blob in enumerate(single.bottom):
            in_place = any(blob is top for top in single.top)
            if i not in wanted and not in_place and not np.isnan(blob.cpu_diff()).all():
                message = (
                    f"backward wrote a gradient of bottom {i} ({blob.name!r}), whose "
                    "propagate_down is False"
                )
                raise GradientError(message)
        return [
            np.array(target.blob.cpu_diff()).reshape(-1)[target.places]
            - (PARAM_START if target.bottom is None else 0.0)
            for target in targets
        ]

    def forward(
        self, target: _Target | None = None, place: int = 0, change: float = 0.0
    ) -> np.ndarray:
        """Run forward with one element changed; return all top elements in a row."""
        for blob, value in zip(self.single.params, self.start, strict=True):
            blob.mutable_cpu_data()[...] = value
        values = self.values
        if target is not None and target.bottom is None:
            target.blob.mutable_cpu_data().reshape(-1)[place] += change
        elif target is not None and target.bottom is not None:
            values = [v.copy() if i == target.bottom else v for i, v in enumerate(values)]
            values[target.bottom].reshape(-1)[place] += change
        return np.concatenate([top.reshape(-1) for top in self.single.forward(*values)])


def _objectives(
    tops: Sequence[Blob], *, exhaustive: bool, seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a description of each objective, and its weights of all top elements."""
    count = sum(blob.count for blob in tops)
    if not exhaustive:
        weights = np.random.default_rng(seed).uniform(0.5, 1.5, count)
        weights[1::2] *= -1
        yield "a weighted sum of the tops", weights
        return
    places = [(blob, place) for blob in tops for place in range(blob.count)]
    for i, (blob, place) in enumerate(places):
        yield f"top {blob.name!r}{_index(place, blob.shape)}", np.eye(1, count, i)[0]


def _compare(
    target: _Target, expected: np.ndarray, found: np.ndarray, threshold: float, what: str
) -> float:
    scale = np.maximum(1.0, np.maximum(np.abs(expected), np.abs(found)))
    error = np.abs(found - expected) / scale
    wrong = ~(error <= threshold)  # NaN is wrong
    if wrong.any():
        first = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        place = int(target.places[first])
        unset = "; backward did not write it" if np.isnan(found[first]) else ""
        message = (
            f"the gradient of {what} with respect to {target.name} at "
            f"{_index(place, target.blob.shape)} is {found[first]:.9g}, expected "
            f"{expected[first]:.9g} by central differences{unset} ({wrong.sum()} of {wrong.size} "
            "elements differ)"
        )
        raise GradientError(message)
    return float(error.max(initial=0.0))


def _index(place: int, shape: tuple[int, ...]) -> str:
    return str([int(i) for i in np.unravel_index(place, shape)]) if shape else "[]"
