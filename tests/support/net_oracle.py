"""Oracle of generated nets: the results of fast code on ``cpu`` against portable code in float64.

Portable code runs the same passes from the same parameters and inputs, and each array of results
is compared relative to its largest value. Rounding is 1e-7 of that; nets amplify it, and gradients
jump where an activation or the maximum of a window switches. So what differs by more than ``RTOL``
is compared with evidence of what rounding does to this net: portable code in float32, and in
float64 with inputs, parameters and the top of each layer changed a little more than rounding
changes them. A result is wrong where it is further off than ``FACTOR`` times the evidence, in its
largest error or in the root of its mean square; evidence with larger changes counts for gradients
alone, and for what was trained with them, since outputs are continuous functions.
"""

import gc
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guarded_arrays
import numpy as np
from net_case import Case
from net_run import Arrays, Log, Runs

__all__ = ["Failure", "Verdict", "check", "summary"]

RTOL, GRADIENT_RTOL = 3e-5, 1e-4
"""Differences that need no explanation, over the largest value of an array."""

FACTOR = 8
"""How much further off than the evidence a result may be."""

FACTOR_OF_SUMS = 24
"""The same for gradients, beside portable code in float32, which adds up in pairs: sums that cancel
are as far off as their order makes them."""

SMALL_CHANGE, LARGE_CHANGE = 3e-6, 3e-5
"""Relative changes of inputs and parameters; the larger one shows which gradients may jump."""

MOST_SEEDS = 12
"""Changes of either size that are tried at most: how far a single element is off varies much where
a few nearly equal values are normalised."""

LEAST = 1e-6
"""Scale of arrays whose values are all smaller."""

LEAST_LOSS = 2e-3
"""Scale of smaller losses: the probability that a loss takes the logarithm of rounds by 6e-8, which
is ``RTOL`` of this scale."""

LOG_LOSSES = {"InfogainLoss", "MultinomialLogisticLoss", "SoftmaxWithLoss"}
"""Layers whose losses are logarithms of probabilities."""

LEAST_SHARE = 1e-2
"""Scale of gradients that are smaller, as a share of the pass's largest: sums may cancel."""

CANCELLED = 1e3
"""What that scale is multiplied with where the sum is 0 but for float64's rounding, as the gradient
of a bias before a normalisation is: what float32 leaves of it follows from no other number."""

HUGE = 1e12
"""Values beyond which nothing is compared, nor in later steps; their products overflow."""


@dataclass(frozen=True)
class Failure:
    """A fault: its kind ("differs", "error TypeError", "died SIGSEGV", ...) and what was seen."""

    kind: str
    text: str


@dataclass
class Verdict:
    """Outcome of a case.

    Attributes:
        failure: The fault, or None.
        refused: Message with which portable code refuses the net; "" where it does not.
        arrays: How many arrays were compared.
        explained: How many were off by more than ``RTOL``, as the evidence is.
        unclear: How many of those the evidence says nothing about: it is off by 10 % itself.
    """

    failure: Failure | None = None
    refused: str = ""
    arrays: int = 0
    explained: int = 0
    unclear: int = 0


def check(case: Case) -> Verdict:
    """Run a case and compare it."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(case, Path(folder))
        want = runs.portable("float64")
        if want.error is not None and want.where == "construction":
            return Verdict(refused=str(want.error))
        with guarded_arrays.guarded():
            got = runs.fast(want)
        gc.collect()
        return _judge(runs, want, got)


def _judge(runs: Runs, want: Log, got: Log) -> Verdict:
    verdict = Verdict()
    if got.error is not None and (want.error is None or got.where != want.where):
        notes = "\n".join(getattr(got.error, "__notes__", []))
        kind = f"error {type(got.error).__name__}"
        verdict.failure = Failure(kind, f"{got.where}: {got.error}\n{notes}")
        return verdict
    if want.error is not None and got.error is None:
        kind = f"refused by portable code alone {type(want.error).__name__}"
        verdict.failure = Failure(kind, f"{want.where}: {want.error}")
        return verdict
    doubtful, overflows = [], False
    scales = [_least_of(expected) for _, expected in want.steps]
    for number, ((where, expected), (_, found)) in enumerate(
        zip(want.steps, got.steps, strict=False)
    ):
        overflows = overflows or any(map(_overflows, expected.values()))
        for name, array in found.items():
            verdict.arrays += 1
            wanted = expected[name]
            if array.shape != wanted.shape:
                text = f"{where}: {name} has shape {array.shape}, expected {wanted.shape}"
                verdict.failure = Failure("shape", text)
                return verdict
            is_gradient = name.startswith("d ")
            scale = scales[number] if is_gradient else _least_value(runs.case, name)
            if is_gradient and _cancels(wanted, scale):
                scale *= CANCELLED
            if overflows:
                verdict.unclear += 1
            elif not _largest(array, wanted, scale) <= (GRADIENT_RTOL if is_gradient else RTOL):
                doubtful.append((number, where, name))
    if doubtful:
        _weigh(runs, want, got, doubtful, verdict)
    return verdict


def _overflows(array: np.ndarray) -> bool:
    return not np.isfinite(array).all() or np.abs(array).max(initial=0) > HUGE


def _weigh(runs, want, got, doubtful, verdict) -> None:
    """Compare what is off with what rounding does."""
    evidence = _Evidence(runs, want)
    trained = any(action == "train" for action, _ in runs.case.scenario.steps)
    lines = []
    for number, where, name in doubtful:
        wanted, array = want.steps[number][1][name], got.steps[number][1][name]
        is_gradient = name.startswith("d ")
        least = _least_of(want.steps[number][1]) if is_gradient else _least_value(runs.case, name)
        least *= CANCELLED if is_gradient and _cancels(wanted, least) else 1
        error = _largest(array, wanted, least), _root_mean_square(array, wanted, least)
        place = number, name, wanted, least
        for allowed in evidence.allowances(place, may_jump=trained or is_gradient):
            is_off = _exceeds(error, allowed)
            if not is_off or not np.isfinite(error[0]):
                break
        if is_off:
            lines.append(
                f"{where}: {name} {array.shape} is off by {error[0]:.2g} of "
                f"{_scale(wanted, least):.2g}, rms {error[1]:.2g}; "
                f"rounding explains {allowed[0]:.2g}, rms {allowed[1]:.2g}; "
                f"{_places(array, wanted, least)}"
            )
        else:
            verdict.explained += 1
            verdict.unclear += allowed[0] > 0.1 * FACTOR
    if lines:
        more = f"\n... and {len(lines) - 12} more" if len(lines) > 12 else ""
        verdict.failure = Failure("differs", "\n".join(lines[:12]) + more)


class _Evidence:
    """Passes that show what rounding does to a net, made when they are needed."""

    def __init__(self, runs: Runs, want: Log) -> None:
        self._runs, self._want = runs, want
        self._made: dict[tuple[float, int], Log] = {}

    def allowances(self, place, *, may_jump: bool) -> Iterator[tuple[float, float]]:
        """Yield the error that evidence explains, of more and more passes.

        Args:
            place: Step, name, expected array and least scale.
            may_jump: Whether large changes count.
        """
        factor = FACTOR_OF_SUMS if may_jump else FACTOR
        allowed = _allowed([self._run(0, 0)], *place, factor)
        for seeds in (range(1, 3), range(3, MOST_SEEDS)):
            for change in (SMALL_CHANGE, LARGE_CHANGE)[: 1 + may_jump]:
                logs = [self._run(change, seed) for seed in seeds]
                allowed = _either(allowed, _allowed(logs, *place, FACTOR))
                yield allowed

    def _run(self, change: float, seed: int) -> Log:
        key = change, seed
        if key not in self._made:
            dtype = "float64" if change else "float32"
            self._made[key] = self._runs.portable(dtype, change, seed, self._want)
        return self._made[key]


def _exceeds(error: tuple[float, float], allowed: tuple[float, float]) -> bool:
    return np.isfinite(allowed[0]) and not (error[0] <= allowed[0] and error[1] <= allowed[1])


def _either(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def _allowed(
    logs: list[Log], number: int, name: str, wanted: np.ndarray, least: float, factor: float
) -> tuple[float, float]:
    """Return the largest error, and the root of the mean square, that evidence explains."""
    largest = mean = 0.0
    for log in logs:
        found = log.steps[number][1].get(name) if len(log.steps) > number else None
        if found is None or not np.isfinite(found).all():
            return np.inf, np.inf  # rounding, or an overflow, ends this run or makes NaN of it
        largest = max(largest, _largest(found, wanted, least))
        mean = max(mean, _root_mean_square(found, wanted, least))
    rtol = GRADIENT_RTOL if name.startswith("d ") else RTOL
    return rtol + factor * largest, rtol + factor * mean


def _least_value(case: Case, name: str) -> float:
    """Return the least scale of an array that is no gradient."""
    nets = [net for net in (case.net, case.other) if net is not None]
    losses = {
        top for net in nets for one in net.layers if one.type in LOG_LOSSES for top in one.tops
    }
    is_loss = name == "loss" and bool(losses)
    return LEAST_LOSS if is_loss or name.rsplit(maxsplit=1)[-1] in losses else LEAST


def _least_of(arrays: Arrays) -> float:
    """Return the least scale of gradients of a pass."""
    gradients = (np.abs(a).max(initial=0) for name, a in arrays.items() if name.startswith("d "))
    return max(LEAST, LEAST_SHARE * float(max(gradients, default=0)))


def _cancels(wanted: np.ndarray, least: float) -> bool:
    return np.abs(wanted).max(initial=0) < 1e-8 * least


def _scale(wanted: np.ndarray, least: float) -> float:
    return max(least, float(np.abs(wanted).max(initial=0)))


def _largest(array: np.ndarray, wanted: np.ndarray, least: float) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.abs(array - wanted).max(initial=0)) / _scale(wanted, least)


def _root_mean_square(array: np.ndarray, wanted: np.ndarray, least: float) -> float:
    if not array.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.sqrt(((array - wanted) ** 2).mean())) / _scale(wanted, least)


def _places(array: np.ndarray, wanted: np.ndarray, least: float) -> str:
    """Say how many elements are off, and where the first ones are."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = ~(np.abs(array - wanted) <= 10 * RTOL * _scale(wanted, least))
    places = list(_first(np.argwhere(off), 3))
    return f"{int(off.sum())} of {off.size} elements, at {places}"


def _first(found: np.ndarray, count: int) -> Iterator[tuple[int, ...]]:
    for place in found[:count]:
        yield tuple(int(i) for i in place)


def summary(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain values."""
    failure = verdict.failure
    return {
        "failure": None if failure is None else [failure.kind, failure.text],
        "refused": verdict.refused,
        "arrays": verdict.arrays,
        "explained": int(verdict.explained),
        "unclear": int(verdict.unclear),
    }
