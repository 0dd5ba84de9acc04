"""Gradients of a layer on every device: held against differences on numpy, and numpy elsewhere.

Differences take two forward passes for each element, so they are taken once, on numpy. Whatever
the device, one forward and one backward pass then give what the portable code gives on numpy, in
both precisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from tolerance import RTOL, SUM, Arrays, expect_all_near

from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import LayerParameter, NetParameter, parse_text
from demitasse.testing import SingleLayer, check_gradients, make_layer

SEED = 1
START = 0.5
"""Gradients of parameters begin with this, to see that they are added to."""


@dataclass(frozen=True, eq=False)
class _Case:
    """A layer, its bottoms, and how it is checked; equal to another of the same values.

    Attributes:
        text: The layer.
        bottoms: Their values.
        phase: "TRAIN" or "TEST".
        passes: Forward passes after which the shapes of the tops are known.
        params: What some parameters hold, by index; fillers fill the others.
        options: Of ``check_gradients``.
    """

    text: str
    bottoms: tuple[np.ndarray, ...]
    phase: str
    passes: int
    params: dict[int, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def _key(self) -> tuple[object, ...]:
        values = tuple((x.shape, x.tobytes()) for x in self.bottoms)
        return self.text, values, self.phase, self.passes, repr((self.params, self.options))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Case) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def made(self, device: str | Device, dtype: str, **options: Any) -> SingleLayer:
        """Return the layer, after its first passes."""
        one = make_layer(
            _message(self.text), self.bottoms, phase=self.phase, device=device, dtype=dtype,
            seed=SEED, **options,
        )  # fmt: skip
        for index, value in self.params.items():
            one.params[index].data = value
        for _ in range(self.passes):
            one.forward()
        return one


def expect_gradients(
    layer: str,
    *bottoms: Any,
    device: str | Device,
    phase: str = "TRAIN",
    passes: int = 0,
    params: dict[int, Any] | None = None,
    **options: Any,
) -> None:
    """Fail where a layer's gradients are not what differences say, or a device computes others.

    Args:
        layer: Prototxt of the layer.
        bottoms: Values of the bottoms.
        device: Where it runs, besides numpy.
        phase: "TRAIN" or "TEST".
        passes: Forward passes after which the shapes of the tops are known.
        params: What some parameters hold, by index.
        options: Of :func:`demitasse.testing.check_gradients`.
    """
    values = tuple(np.array(x, np.float64) for x in bottoms)
    case = _Case(layer, values, phase, passes, params or {}, options)

    _expect_differences(case)
    _expect_portable(case, device)


def expect_portable_values(
    layer: str, *bottoms: Any, device: str | Device, phase: str = "TRAIN", passes: int = 0
) -> None:
    """Fail where a device's tops are not those of portable code, in either precision."""
    values = tuple(np.array(x, np.float64) for x in bottoms)
    _expect_portable(_Case(layer, values, phase, passes, {}, {"check_bottom": []}), device)


def _expect_portable(case: _Case, device: str | Device) -> None:
    for dtype, rtol in RTOL.items():
        with settings.override(debug_fill_stale=True):  # stale sides of memories must not be read
            got = _results(case, device, dtype)
        want = _portable(case, dtype)
        expect_all_near(got, want, rtol, f"{case.text} on {device} in {dtype}")


@lru_cache(maxsize=1024)
def _message(text: str) -> LayerParameter:
    """Return a layer's message, parsed once for all devices; ``make_layer`` copies it."""
    if text.lstrip().startswith("layer"):
        [layer] = parse_text(text, NetParameter).layer
        return layer
    return parse_text(text, LayerParameter)


@lru_cache(maxsize=1024)
def _expect_differences(case: _Case) -> None:
    check_gradients(case.made("numpy", "float64"), **case.options)


@lru_cache(maxsize=2048)
def _portable(case: _Case, dtype: str) -> Arrays:
    return _results(case, "numpy", dtype, optimize=False)


def _results(case: _Case, device: str | Device, dtype: str, *, optimize: bool = True) -> Arrays:
    """Return what one pass in both directions computes, by name."""
    one = case.made(device, dtype, propagate_down=_wanted(case), optimize=optimize)
    found = {f"top {i}": y for i, y in enumerate(one.forward(*case.bottoms))}
    if not any(one.propagate_down) and not one.params:  # a layer without a gradient
        return found
    in_place = [any(blob is top for top in one.top) for blob in one.bottom]
    for blob, want, same in zip(one.bottom, one.propagate_down, in_place, strict=True):
        if not want and not same:
            blob.mutable_cpu_diff()[...] = np.nan
    for blob in one.params:
        blob.mutable_cpu_diff()[...] = START
    rng = np.random.default_rng(SEED)
    below = one.backward(*(_weights(rng, blob.shape) for blob in one.top))
    for i, (dx, blob) in enumerate(zip(below, one.bottom, strict=True)):
        if dx is not None:
            found[f"gradient of bottom {i}"] = dx
        elif not in_place[i]:
            assert np.isnan(blob.cpu_diff()).all(), f"bottom {i} got an unwanted gradient"
    for i, blob in enumerate(one.params):
        found[f"{SUM} {i}"] = np.array(blob.cpu_diff())
        found[f"parameter {i}"] = np.array(blob.cpu_data())
    return found


def _weights(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Return gradients of a top, of both signs, none of them small."""
    return rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)


def _wanted(case: _Case) -> list[bool] | None:
    """Return of which bottoms the gradient is checked; None for all that have one."""
    chosen = case.options.get("check_bottom")
    if chosen is None:
        return None
    return [i in np.atleast_1d(chosen) for i in range(len(case.bottoms))]
