"""One layer run by a backend's Step beside its portable code."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tolerance import RTOL, SUM, Arrays, expect_all_near

from demitasse.backends.step import AnyStep
from demitasse.blob import Blob
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import LayerParameter, parse_text
from demitasse.plan import PlannedLayer
from demitasse.testing import SingleLayer, make_layer

NO_GRADIENT = {"labels", "marks", "regions", "state"}
"""Kinds of values that a layer has no gradient for."""

PASSES = 2
"""The second pass meets what the first has left, and adds to the parameters' gradients."""

SEED = 3


@dataclass(frozen=True)
class Case:
    """A layer and its bottoms.

    Attributes:
        layer: Type and fields, without names of bottoms and tops.
        shapes: Of the bottoms.
        tops: How many there are.
        values: What each bottom holds: "normal" numbers, "ties" (few values, many of them equal),
            "positive" ones, or what has no gradient: "marks" of 0 and 1, "labels", a "state",
            "regions" of two images. By default all are normal.
        params: What the parameters hold, "normal", "positive" or "zero".
        phase: "TRAIN" or "TEST".
    """

    layer: str
    shapes: tuple[tuple[int, ...], ...]
    tops: int = 1
    values: tuple[str, ...] = ()
    params: str = "normal"
    phase: str = "TRAIN"

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each bottom holds."""
        return self.values or ("normal",) * len(self.shapes)


@dataclass(frozen=True)
class Way:
    """How a case runs.

    Attributes:
        dtype: What it computes in.
        in_place: Whether the first top is the first bottom.
        bottoms: For each bottom whether its gradient is wanted; those after the last are not.
        params: For each parameter, the same.
    """

    dtype: str
    in_place: bool = False
    bottoms: tuple[bool, ...] = ()
    params: tuple[bool, ...] = ()


def made(case: Case, way: Way, device: str | Device, *, optimize: bool = True) -> SingleLayer:
    """Return the layer on a device, with the values of its parameters."""
    rng = np.random.default_rng(SEED)
    tops = ["x0" if way.in_place and i == 0 else f"y{i}" for i in range(case.tops)]
    names = [f'bottom: "x{i}"' for i in range(len(case.shapes))] + [f'top: "{t}"' for t in tops]
    one = make_layer(
        _message(f"{case.layer} {' '.join(names)}"),
        bottoms(case),
        phase=case.phase,
        device=device,
        dtype=way.dtype,
        propagate_down=[
            wanted and kind not in NO_GRADIENT
            for wanted, kind in zip(
                _as_many(way.bottoms, len(case.shapes)), case.kinds, strict=True
            )
        ],
        optimize=optimize,
    )
    for index, blob in enumerate(one.params):
        blob.data = values(case.params, blob.shape, rng)
        if one.layer.param_propagate_down(index):
            one.layer.set_param_propagate_down(index, _as_many(way.params, index + 1)[index])
    return one


@lru_cache(maxsize=256)
def _message(text: str) -> LayerParameter:
    return parse_text(text, LayerParameter)


@lru_cache(maxsize=64)
def bottoms(case: Case) -> list[np.ndarray]:
    """Return the values of the bottoms."""
    rng = np.random.default_rng(SEED + 1)
    return [values(kind, shape, rng) for kind, shape in zip(case.kinds, case.shapes, strict=True)]


def values(kind: str, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return values of one kind (see ``Case``), which float32 holds too."""
    match kind:
        case "ties":
            found = rng.integers(-1, 2, shape)
        case "marks":
            found = rng.integers(0, 4, shape) > 0
        case "labels":
            found = rng.integers(0, 3, shape)
        case "regions":
            sides = rng.integers(-20, 100, (*shape[:-1], 4))
            found = np.concatenate([rng.integers(0, 2, (*shape[:-1], 1)), sides], axis=-1)
        case "zero":
            found = np.zeros(shape)
        case "positive":
            found = rng.uniform(0.5, 1.5, shape)
        case _:
            found = rng.standard_normal(shape)
    return np.asarray(found, np.float32)


def run(one: SingleLayer, case: Case) -> Arrays:
    """Return everything that some passes compute, copied."""
    rng, found = np.random.default_rng(SEED + 2), {}
    for number in range(PASSES):
        found |= {f"top {i} of pass {number}": y for i, y in enumerate(one.forward(*bottoms(case)))}
        for blob, want in zip(one.bottom, one.propagate_down, strict=True):
            if not want and not _shared(blob, one):
                blob.mutable_cpu_diff()[...] = np.nan
        gradients = [values("normal", blob.shape, rng) for blob in one.top]
        below = one.backward(*gradients)
        for i, (blob, dx) in enumerate(zip(one.bottom, below, strict=True)):
            if dx is not None:
                found[f"gradient of bottom {i} of pass {number}"] = dx
            elif not _shared(blob, one):
                assert np.isnan(blob.cpu_diff()).all(), f"bottom {i} got an unwanted gradient"
    for i, blob in enumerate(one.params):
        found[f"parameter {i}"] = np.array(blob.cpu_data())
        found[f"{SUM} {i}"] = np.array(blob.cpu_diff())
    return found


@lru_cache(maxsize=4096)
def portable(case: Case, way: Way) -> Arrays:
    """Return what the layer's own code computes; every device is held against it."""
    return run(made(case, way, "numpy", optimize=False), case)


def expect_portable(
    case: Case, way: Way, device: str | Device, rtol: float | None = None
) -> SingleLayer:
    """Return the layer after its passes on a device, which computed what the portable code does."""
    with settings.override(debug_fill_stale=True):
        one = made(case, way, device)
        got, want = run(one, case), portable(case, way)

    expect_all_near(got, want, RTOL[way.dtype] if rtol is None else rtol, f"{case} as {way}")
    return one


def home(step: AnyStep | None) -> str:
    """Return the package of the backend that a Step is from: "cpu"; "" for portable code."""
    if step is None:
        return ""
    return type(step).__module__.removeprefix("demitasse.backends.").partition(".")[0]


def expect_step(
    entry: PlannedLayer, chain: Sequence[str], runs: Sequence[str], may: Sequence[str]
) -> None:
    """Hold what ran against what the table says, and its reason.

    Args:
        entry: The layer in its plan.
        chain: The packages whose Steps the device tries, in order.
        runs: Those that must take it, if it comes to them.
        may: Those that may.
    """
    first = next((i for i, package in enumerate(chain) if package in runs), len(chain))
    allowed = {package for package in chain[:first] if package in may} | {*chain[first : first + 1]}
    found = home(entry.step)

    assert found in (allowed if first < len(chain) else {*allowed, ""}), entry.why
    assert entry.why or found == chain[0], "why nothing faster runs is said"


def _shared(blob: Blob, one: SingleLayer) -> bool:
    """Whether a bottom's gradient is a top's too."""
    return any(blob.diff_memory is top.diff_memory for top in one.top)


def _as_many(flags: Sequence[bool], count: int) -> list[bool]:
    return [*flags, *[False] * count][:count]
