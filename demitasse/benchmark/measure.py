"""Measure cases side by side: in rounds, each of which times every case for a moment.

What the machine does beside it, and its clock, change from second to second. Cases that take turns
meet the same of both, so their ratios hold although their times do not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from demitasse.benchmark.case import Case, with_batch
from demitasse.benchmark.peak import peak
from demitasse.errors import NetError
from demitasse.memory.transfers import transfers
from demitasse.net import Net
from demitasse.net.memory_use import memory_held
from demitasse.plan.report import report
from demitasse.plan.stopwatch import Stopwatch
from demitasse.proto import SolverParameter
from demitasse.solvers import Solver
from demitasse.testing.inputs import random_inputs

__all__ = ["Result", "measure"]

SETTLED = 0.02
"""Warm-up ends when the last passes differ by less than this part of their time, or after
``LONGEST_WARM_UP`` passes."""

LONGEST_WARM_UP = 20


@dataclass
class Result:
    """What was measured of a case.

    Attributes:
        case: The case.
        seconds: Time of each pass, device waited for.
        layers: Milliseconds of each layer, forward and backward together, if they were asked for.
        memory: Bytes of the device's memory: blobs, gradients, parameters, what layers keep, a
            solver's history and working memory.
        moved: Bytes that a pass copies between host and device.
        multiply_adds: Of a pass, backward included where there is one.
        peak: Multiplications and additions per second that the device has reached in a large
            product of matrices, in 1e9.
        error: Why it could not be measured; empty if it could.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    layers: dict[str, float] = field(default_factory=dict)
    memory: int = 0
    moved: int = 0
    multiply_adds: int = 0
    peak: float = 0.0
    error: str = ""

    @property
    def median(self) -> float:
        """Median time of a pass, in seconds."""
        return statistics.median(self.seconds)

    @property
    def images_per_second(self) -> float:
        """How many images go through in a second, by the median."""
        return self.case.batch / self.median

    @property
    def spread(self) -> float:
        """Interquartile range of the times, as a part of their median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median

    @property
    def share_of_peak(self) -> float:
        """Multiplications and additions per second, as a part of the device's peak."""
        return 2e-9 * self.multiply_adds / self.median / self.peak if self.peak else 0.0


class _Running:
    """A case that is ready to be timed."""

    def __init__(self, case: Case) -> None:
        self.result = Result(case)
        param = with_batch(case.net, case.phase, case.batch)
        if case.phase == "TRAIN":
            # a rate at which weights stay as they are, and the arithmetic of an update
            fields = SolverParameter(
                base_lr=1e-12, lr_policy="fixed", momentum=0.9, snapshot_after_train=False
            )
            fields.net_param.CopyFrom(param)
            self._solver: Solver | None = Solver(fields, device=case.device, seed=1)
            self.net = self._solver.net
            if not any(self.net.structure.blob_loss_weights):
                message = "it has no loss, so there is nothing to train it by"
                raise NetError(message)
        else:
            self._solver = None
            self.net = Net(param, "TEST", device=case.device, seed=1, keep="outputs")
        for name, array in random_inputs(self.net, seed=0).items():
            self.net.set_input(name, array)

    def once(self) -> float:
        """Return the seconds of one pass, over inputs that are new on the host."""
        for name in self.net.inputs:
            self.net.blobs[name].mutable_cpu_data()
        self.net.synchronize()
        begin = perf_counter()
        if self._solver is not None:
            self._solver.step(1)
        else:
            self.net.forward()
            for name in self.net.outputs:
                self.net.blobs[name].cpu_data()
        self.net.synchronize()
        return perf_counter() - begin

    def warm_up(self) -> None:
        """Run until plans are made, kernels compiled and times steady."""
        last = self.once()
        for _ in range(LONGEST_WARM_UP):
            now = self.once()
            if abs(now - last) < SETTLED * now:
                return
            last = now

    def look(self, *, layers: bool) -> None:
        """Note what does not change from pass to pass, and the time of each layer if asked for."""
        net, result = self.net, self.result
        before = _bytes_moved()
        self.once()
        result.moved = _bytes_moved() - before
        history = self._solver.history.memories if self._solver is not None else ()
        result.memory = memory_held(net, history).total
        for layer in report(net.plan):
            result.multiply_adds += layer.multiply_adds
            if self._solver is not None:
                result.multiply_adds += layer.backward_multiply_adds
        result.peak = peak(net.device, net.dtype)
        if layers:
            with Stopwatch(net.plan, net.synchronize) as watch:
                self.once()
            for index, name in enumerate(net.layer_names):
                time = watch.forward[index] + watch.backward[index]
                if time:
                    result.layers[name] = 1e3 * time

    def close(self) -> None:
        """Let go of net and solver."""
        (self._solver or self.net).close()


def measure(
    cases: Sequence[Case],
    *,
    rounds: int = 10,
    seconds: float = 0.2,
    layers: bool = False,
    tell: Callable[[Case], object] = lambda case: None,
) -> list[Result]:
    """Measure cases side by side.

    All of them are held ready at the same time, so that they can take turns. One that cannot be
    made or run, as when the memory does not suffice, has an error in its result.

    Args:
        cases: What to measure.
        rounds: How often every case gets its turn.
        seconds: Time of a turn; it has one pass at least.
        layers: Whether each layer is timed, too.
        tell: Called with each case before it is made ready.
    """
    results, running = [], []
    try:
        for case in cases:
            tell(case)
            result, one = _prepared(case, layers=layers)
            results.append(result)
            running += [one] if one is not None else []
        for number in range(rounds):
            for one in running if number % 2 else reversed(running):
                one.result.seconds += _turn(one, seconds)
    finally:
        for one in running:
            one.close()
    return results


def _bytes_moved() -> int:
    return transfers.bytes_to_device + transfers.bytes_to_host


def _prepared(case: Case, *, layers: bool) -> tuple[Result, _Running | None]:
    try:
        one = _Running(case)
        one.warm_up()
        one.look(layers=layers)
    except Exception as error:  # one that does not fit must not end the others
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Result(case, error=reason[:300]), None
    return one.result, one


def _turn(one: _Running, seconds: float) -> Iterator[float]:
    end = perf_counter() + seconds
    while True:
        yield one.once()
        if perf_counter() >= end:
            return
