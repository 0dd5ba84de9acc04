"""Measure cases side by side: in rounds, each of which times every case for a moment.

Other load of the machine and its clock change from second to second. Interleaved cases meet both
equally, so their ratios are stable although their times are not.
"""

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import perf_counter

from demitasse.backends.kernels.language.target import processor_name
from demitasse.benchmark.case import Case, idle_solver, load_values, with_batch
from demitasse.benchmark.peers import PEERS, PeerCase
from demitasse.core.config import settings
from demitasse.core.deprecated import renamed_arguments
from demitasse.core.device import Device
from demitasse.core.host import cores
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import DataParameter, LayerParameter, NetParameter, parse_text, read_net
from demitasse.memory.transfers import transfers
from demitasse.net import Net
from demitasse.net.memory_usage import memory_held
from demitasse.plan.report import Stopwatch, report
from demitasse.testing.comparison import random_inputs
from demitasse.training import Solver
from demitasse.version import __version__

SETTLED = 0.02
"""Relative difference of the last two passes that ends the warm-up."""

LONGEST_WARM_UP = 20
"""Limit of warm-up passes."""

LAYER_PASSES = 5
"""Number of passes with timed layers; the result is their median."""


@dataclass
class Result:
    """Measurements of a case.

    Attributes:
        case: The case.
        seconds: Time of each synchronized pass.
        rounds: Median time of the passes of each round.
        layers: Milliseconds of each layer, forward and backward together, the median of a few
            passes; empty if not measured.
        memory: Bytes of device memory: blobs, gradients, parameters, state of layers, history of
            the solver, working memory.
        moved: Bytes that a pass copies between host and device.
        multiply_adds: Multiply-adds of a pass, with backward in TRAIN.
        peak: GFLOP/s of a large matrix product on the device.
        joules: Energy that the device used in all passes; 0 if unknown.
        read: Images per second of the data layers alone; 0 if not measured.
        reading: Images per second of the net with its data layers; 0 if not measured.
        error: Why the case failed; empty after success.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    layers: dict[str, float] = field(default_factory=dict)
    memory: int = 0
    moved: int = 0
    multiply_adds: int = 0
    peak: float = 0.0
    joules: float = 0.0
    read: float = 0.0
    reading: float = 0.0
    error: str = ""

    @property
    def median(self) -> float:
        """Median time of a pass, in seconds."""
        return statistics.median(self.seconds)

    @property
    def images_per_second(self) -> float:
        """Images per second, by the median time."""
        return self.case.batch / self.median

    @property
    def images_per_joule(self) -> float:
        """Images per second and watt; 0 if the energy is unknown."""
        return self.case.batch * len(self.seconds) / self.joules if self.joules else 0.0

    @property
    def spread(self) -> float:
        """Interquartile range of the times, relative to their median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median

    @property
    def share_of_peak(self) -> float:
        """Multiplications and additions per second, relative to the device's peak."""
        return 2e-9 * self.multiply_adds / self.median / self.peak if self.peak else 0.0


def _make_net(param: NetParameter, case: Case) -> tuple[Net, Solver | None]:
    """Return the net of a case, and its solver in phase TRAIN."""
    base_dir = case.net.parent
    if case.phase != "TRAIN":
        net = Net(
            param, "TEST", device=case.device, seed=1, base_dir=base_dir, keep_blobs="outputs"
        )
        load_values(net, case.net)
        return net, None
    solver = idle_solver(param, device=case.device, base_dir=base_dir)
    if not any(solver.net.structure.blob_loss_weights):
        message = "the net has no loss to train by"
        raise NetError(message, code=ErrorCode.MISSING, field="loss")
    return solver.net, solver


def seconds_of(net: Net, run: Callable[[], object]) -> float:
    """Return the time of a call; the net's device is synchronized before and after."""
    net.synchronize()
    begin = perf_counter()
    run()
    net.synchronize()
    return perf_counter() - begin


class _TimedCase:
    """A prepared case."""

    def __init__(self, result: Result) -> None:
        self.result, case = result, result.case
        self.net, self._solver = _make_net(with_batch(case.net, case.phase, case.batch), case)
        for name, array in random_inputs(self.net, seed=0).items():
            self.net.set_input(name, array)

    def once(self) -> float:
        """Return the seconds of one pass, with inputs copied from the host."""
        for name in self.net.inputs:
            self.net.blobs[name].mutable_cpu_data()
        return seconds_of(self.net, self._run)

    def _run(self) -> None:
        if self._solver is not None:
            self._solver.step(1)
            return
        self.net.forward()
        for name in self.net.outputs:
            self.net.blobs[name].cpu_data()

    def measure_details(self, *, layers: bool) -> None:
        """Measure memory, traffic, work and peak, and the times of layers if requested."""
        net, result = self.net, self.result
        before = transfers.bytes_to_device + transfers.bytes_to_host
        self.once()
        result.moved = transfers.bytes_to_device + transfers.bytes_to_host - before
        history = self._solver.history.memories if self._solver is not None else ()
        result.memory = memory_held(net, history).total
        for layer in report(net.plan):
            result.multiply_adds += layer.multiply_adds
            if self._solver is not None:
                result.multiply_adds += layer.backward_multiply_adds
        result.peak = peak(net.device, net.dtype)
        passes = []
        for _ in range(LAYER_PASSES if layers else 0):
            with Stopwatch(net.plan, net.synchronize) as watch:
                self.once()
            passes.append([sum(both) for both in zip(watch.forward, watch.backward, strict=True)])
        for name, *times in zip(net.layer_names, *passes, strict=True):
            if any(times):
                result.layers[name] = 1e3 * statistics.median(times)

    def close(self) -> None:
        """Close the net and the solver."""
        (self._solver or self.net).close()


@renamed_arguments(tell="on_case")
def measure(
    cases: Sequence[Case], *, rounds: int = 10, seconds: float = 0.2, layers: bool = False,
    reading: bool = False, on_case: Callable[[Case], object] = lambda case: None,
) -> list[Result]:  # fmt: skip
    """Measure cases side by side.

    All cases are in memory at the same time, and run in turn in each round. A case that fails, for
    instance for lack of memory, has an error in its result.

    Args:
        cases: The cases. A peer's name in place of a device measures the peer.
        rounds: Number of rounds; each round measures every case.
        seconds: Time of a case in a round; at least one pass runs.
        layers: Measure each layer, too.
        reading: Measure the data layers, too: alone, and together with the net.
        on_case: Called with each case before its preparation.
    """
    results: list[Result] = []
    running: list[tuple[Result, _Work]] = []
    try:
        for case in cases:
            on_case(case)
            result, work = _prepare(case, layers=layers)
            results.append(result)
            running += [(result, work)] if work is not None else []
        for number in range(rounds):
            for result, work in running if number % 2 else reversed(running):
                before = _joules(work)
                times = _round(work, seconds)
                result.seconds += times
                result.rounds.append(statistics.median(times))
                result.joules += _joules(work) - before
        for result, _ in running if reading else ():
            if result.case.device not in PEERS:
                _measure_reading(result, rounds * seconds)
        for device in {result.case.device for result in results}:
            alike = [result for result in results if result.case.device == device]
            best = max(result.peak for result in alike)
            for result in alike:
                result.peak = best
    finally:
        for _, work in running:
            work.close()
    return results


def machine(devices: Sequence[str]) -> dict[str, str]:
    """Return what throughput depends on: processor, cores, load, date, versions, settings."""
    found = {"processor": processor_name() or platform.processor() or platform.machine()}
    found["cores"] = f"{cores()} of {os.cpu_count()}"
    if hasattr(os, "getloadavg"):
        found["load"] = f"{os.getloadavg()[0]:.1f}"
    found |= {"date": datetime.now(UTC).date().isoformat(), "demitasse": __version__}
    found["Python"] = platform.python_version()
    for device in devices:
        found |= Device(device).backend.environment()
    return found | {"storage": settings.get("gpu_storage_dtype")}


def _measure_reading(result: Result, seconds: float) -> None:
    """Measure a net with its data layers; not interleaved, as they prefetch during pauses."""
    case = result.case
    param = NetParameter()
    param.CopyFrom(read_net(case.net).message)
    sources = NetParameter(name=param.name)
    for layer in param.layer:
        if messages := _with_batches(layer):
            for message in messages:
                message.batch_size = case.batch
            sources.layer.append(layer)
    if not sources.layer:
        return
    base_dir = case.net.parent
    with Net(sources, case.phase, device=case.device, seed=1, base_dir=base_dir) as net:
        result.read = streaming_rate(net.forward, net, case.batch, seconds)
    net, solver = _make_net(param, case)
    with solver or net:
        work = net.forward if solver is None else partial(solver.step, 1)
        result.reading = streaming_rate(work, net, case.batch, seconds)


_Work = _TimedCase | PeerCase


def _prepare(case: Case, *, layers: bool) -> tuple[Result, _Work | None]:
    result = Result(case)
    try:
        work = PeerCase(case) if case.device in PEERS else _TimedCase(result)
        last = now = work.once()
        for _ in range(LONGEST_WARM_UP):  # plans are made, kernels compiled, times get steady
            last, now = now, work.once()
            if abs(now - last) < SETTLED * now:
                break
        if isinstance(work, _TimedCase):
            work.measure_details(layers=layers)
    except Exception as error:  # a failing case must not end the others
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Result(case, error=reason[:300]), None
    return result, work


def _joules(work: _Work) -> float:
    """Return the energy that the device of a case has used; 0 if unknown."""
    return (work.net.device.backend.joules or 0.0) if isinstance(work, _TimedCase) else 0.0


def _round(work: _Work, seconds: float) -> list[float]:
    end, times = perf_counter() + seconds, [work.once()]
    while perf_counter() < end:
        times.append(work.once())
    return times


PEAK_SIDE = 1024
"""Rows and columns of the matrices: large for busy cores, small for short runs."""

PEAK_PASSES = 5

PEAK_NET = f"""
layer {{ name: "x" type: "Input" top: "x"
        input_param {{ shape {{ dim: {PEAK_SIDE} dim: {PEAK_SIDE} }} }} }}
layer {{ name: "product" type: "InnerProduct" bottom: "x" top: "y"
        inner_product_param {{ num_output: {PEAK_SIDE} bias_term: false }} }}
"""


def peak(device: Device, dtype: str) -> float:
    """Return the GFLOP/s of a large matrix product on a device, the best of a few runs."""
    net = Net(parse_text(PEAK_NET, NetParameter), "TEST", device=device, dtype=dtype, seed=0)
    best = min(seconds_of(net, net.forward) for _ in range(PEAK_PASSES))
    return 2 * PEAK_SIDE**3 / best / 1e9


DRAIN_PASSES = 8
"""Unmeasured passes, more than the prefetched batches."""


def streaming_rate(work: Callable[[], object], net: Net, batch: int, seconds: float) -> float:
    """Return images per second of consecutive passes, ``batch`` images each."""

    def once() -> None:
        work()
        for name in net.outputs:
            net.blobs[name].cpu_data()
        net.synchronize()

    for _ in range(DRAIN_PASSES):
        once()
    passes, begin = 0, perf_counter()
    while True:
        once()
        passes += 1
        if (time := perf_counter() - begin) >= seconds:
            return batch * passes / time


def _with_batches(layer: LayerParameter) -> list[DataParameter]:
    """Return the messages of a data layer that have a batch size."""
    if layer.bottom or layer.type == "MemoryData":
        return []
    return [
        message
        for field, message in layer.ListFields()
        if field.message_type and "batch_size" in field.message_type.fields_by_name
    ]
