"""Measure cases side by side: in rounds, each of which times every case for a moment.

What the machine does beside it, and its clock, change from second to second. Cases that take turns
meet the same of both, so their ratios hold although their times do not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from demitasse.benchmark.case import Case, with_batch
from demitasse.benchmark.peak import peak
from demitasse.benchmark.reading import alone, rate, reads, with_own_data
from demitasse.core.deprecated import renamed_arguments
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter
from demitasse.memory.transfers import transfers
from demitasse.net import Net
from demitasse.net.memory_usage import memory_held
from demitasse.plan.report import report
from demitasse.plan.stopwatch import Stopwatch
from demitasse.testing.comparison import random_inputs
from demitasse.training import Solver

__all__ = ["Result", "measure"]

SETTLED = 0.02
"""Warm-up ends when the last passes differ by less than this part of their time, or after
``LONGEST_WARM_UP`` passes."""

LONGEST_WARM_UP = 20

LAYER_PASSES = 5
"""Passes in which each layer is timed; the median counts."""


@dataclass
class Result:
    """What was measured of a case.

    Attributes:
        case: The case.
        seconds: Time of each pass, device waited for.
        layers: Milliseconds of each layer, forward and backward together, if they were asked for:
            the median of a few passes.
        memory: Bytes of the device's memory: blobs, gradients, parameters, what layers keep, a
            solver's history and working memory.
        moved: Bytes that a pass copies between host and device.
        multiply_adds: Of a pass, backward included where there is one.
        peak: Multiplications and additions per second that the device has reached in a large
            product of matrices, in 1e9.
        read: Images per second that the net's layers of data read by themselves, if that was asked
            for; 0 where nothing is read.
        reading: Images per second of the net when it reads them itself, if that was asked for.
        error: Why it could not be measured; empty if it could.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    layers: dict[str, float] = field(default_factory=dict)
    memory: int = 0
    moved: int = 0
    multiply_adds: int = 0
    peak: float = 0.0
    read: float = 0.0
    reading: float = 0.0
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


def _made(param: NetParameter, case: Case) -> tuple[Net, Solver | None]:
    """Return a case's net, and in phase TRAIN its solver.

    Raises:
        NetError: There is no loss to train by.
    """
    if case.phase != "TRAIN":
        return Net(param, "TEST", device=case.device, seed=1, keep="outputs"), None
    # a rate at which weights stay as they are, and the arithmetic of an update
    fields = SolverParameter(
        base_lr=1e-12, lr_policy="fixed", momentum=0.9, snapshot_after_train=False
    )
    fields.net_param.CopyFrom(param)
    solver = Solver(fields, device=case.device, seed=1)
    if not any(solver.net.structure.blob_loss_weights):
        message = "it has no loss, so there is nothing to train it by"
        raise NetError(message, code=ErrorCode.MISSING, field="loss")
    return solver.net, solver


class _Running:
    """A case that is ready to be timed."""

    def __init__(self, case: Case) -> None:
        self.result = Result(case)
        self.net, self._solver = _made(with_batch(case.net, case.phase, case.batch), case)
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
            passes = [self._times_of_layers() for _ in range(LAYER_PASSES)]
            for name, *times in zip(net.layer_names, *passes, strict=True):
                if any(times):
                    result.layers[name] = 1e3 * statistics.median(times)

    def _times_of_layers(self) -> list[float]:
        """Return the seconds of each layer in one pass, forward and backward together."""
        with Stopwatch(self.net.plan, self.net.synchronize) as watch:
            self.once()
        return [watch.forward[i] + watch.backward[i] for i in range(len(self.net.layer_names))]

    def close(self) -> None:
        """Let go of net and solver."""
        (self._solver or self.net).close()


@renamed_arguments(tell="on_case")
def measure(
    cases: Sequence[Case],
    *,
    rounds: int = 10,
    seconds: float = 0.2,
    layers: bool = False,
    reading: bool = False,
    on_case: Callable[[Case], object] = lambda case: None,
) -> list[Result]:
    """Measure cases side by side.

    All of them are held ready at the same time, so that they can take turns. One that cannot be
    made or run, as when the memory does not suffice, has an error in its result.

    Args:
        cases: What to measure.
        rounds: How often every case gets its turn.
        seconds: Time of a turn; it has one pass at least.
        layers: Whether each layer is timed, too.
        reading: Whether reading the net's data is measured, too: alone, and while the net runs.
        on_case: Called with each case before it is made ready.
    """
    results, running = [], []
    try:
        for case in cases:
            on_case(case)
            result, one = _prepared(case, layers=layers)
            results.append(result)
            running += [one] if one is not None else []
        for number in range(rounds):
            for one in running if number % 2 else reversed(running):
                one.result.seconds += _turn(one, seconds)
        for one in running if reading else ():
            _measure_reading(one.result, rounds * seconds)
    finally:
        for one in running:
            one.close()
    return results


def _measure_reading(result: Result, seconds: float) -> None:
    """Measure a net that reads its own data: not in turns, during which it would read ahead."""
    case = result.case
    param = with_own_data(case.net, case.batch)
    if not reads(param):
        return
    with Net(alone(param), case.phase, device=case.device, seed=1) as net:
        result.read = rate(net.forward, net, case.batch, seconds)
    net, solver = _made(param, case)
    with solver or net:
        work = net.forward if solver is None else partial(solver.step, 1)
        result.reading = rate(work, net, case.batch, seconds)


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
