"""The largest batch that fits into a device's memory: computed, then confirmed by trials.

The memory of a net is linear in the batch size; two small batches give the line. Temporary arrays
and a library's choices for large batches are not on the line, so nearby sizes are run. Each trial
runs in a process with limited memory, so that the machine does not swap and the caller survives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demitasse import errors
from demitasse.benchmark.case import idle_solver, with_batch
from demitasse.core.config import settings
from demitasse.core.deprecated import renamed_arguments
from demitasse.core.device import Device, choose_device
from demitasse.core.host import host_memory, limited_to, process_peak
from demitasse.core.text import bytes_text, read_size
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, NetError, OutOfMemoryError
from demitasse.io.proto import NetParameter, read_solver_params
from demitasse.net import Net
from demitasse.net.memory_usage import MemoryUse, memory_held
from demitasse.plan.liveness import Keep
from demitasse.testing.comparison import random_inputs
from demitasse.training.update_rules import RULES

SMALL = (8, 16)
"""Batch sizes that define the line; above 1, as im2col buffers depend on the batch size."""

MARGIN = 0.9
"""Share of the free memory that is the default limit."""

MAX_BATCH = 65536
"""Default limit of the batch size."""

PRECISION = 32
"""The result may be too small by one part in this many."""

FARTHER = 4
"""Largest ratio of a trial to the last batch that fitted."""

MOST_TRIALS = 16
"""Limit of trials; fewer suffice unless memory grows in jumps."""


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch of a net that a device's memory suffices for.

    Attributes:
        batch: The batch size.
        computed: The batch size by computation alone.
        confirmed: True if ``batch`` was run, and a larger batch did not fit or was not allowed.
        refused: Smallest batch size that was run and did not fit, or None.
        why: Why ``refused`` did not fit.
        use: Memory of the net at ``batch``, by part, in bytes.
        per_item: Memory of each further item, in bytes.
        limit: Memory limit, in bytes.
        device: Name of the device.
        phase: "TRAIN" or "TEST".
        solver: Type of the solver; empty for none.
    """

    batch: int
    computed: int
    confirmed: bool
    refused: int | None
    why: str
    use: MemoryUse
    per_item: int
    limit: int
    device: str
    phase: str
    solver: str


@renamed_arguments(at_most="max_batch", tell="on_trial", keep="keep_blobs")
def largest_batch(
    net: str | os.PathLike[str],
    *,
    device: str | Device | None = None,
    phase: str = "TRAIN",
    limit: int | str | None = None,
    keep_blobs: Keep = "outputs",
    solver: str | os.PathLike[str] | None = None,
    confirm: bool = True,
    max_batch: int = MAX_BATCH,
    on_trial: Callable[[int], object] = lambda batch: None,
) -> LargestBatch:
    """Find the largest batch that fits into memory, to a precision of 1/32.

    The net runs in separate processes, with inputs in place of data layers, as in ``demitasse
    bench``. For devices in host memory, Linux keeps these processes within the limit, which is at
    most the free memory; on other systems only small batches are run for such devices.

    Args:
        net: The net's prototxt.
        device: The device; None for that of the settings.
        phase: "TRAIN" runs forward and backward, "TEST" forward only.
        limit: Memory limit, in bytes or as ``"8GiB"``; None for nine tenths of the free memory.
        keep_blobs: Blobs to keep in addition to inputs and outputs, as in ``Net``; None for all.
        solver: Type of a solver, such as "SGD", or a solver's prototxt: also update parameters.
        confirm: Run the computed batch, and batches around it.
        max_batch: Limit of the batch size.
        on_trial: Called with each batch size before its trial.

    Raises:
        ConfigError: The solver or the limit is invalid.
        NetError: The net has no inputs, or a fixed batch size.
        OutOfMemoryError: A batch of 1 does not fit.
    """
    where = choose_device(device)[0]
    path, phase = Path(net), phase.upper()
    keep = keep_blobs if keep_blobs is None or isinstance(keep_blobs, str) else tuple(keep_blobs)
    trial = Trial(
        with_batch(path, phase, 1), _batch_inputs(path, phase), phase, where.name, keep,
        _solver_type(solver), str(path.parent.absolute()),
    )  # fmt: skip
    if trial.solver and phase != "TRAIN":
        message = f"got phase {phase} with a solver, expected TRAIN"
        code = ErrorCode.CONFLICT
        raise ConfigError(message, code=code, field="phase", got=phase, expected="TRAIN")
    search = _Search(trial, *_limits(where, limit), max_batch, on_trial)
    line = search.line()
    computed = max(0, min(max_batch, line.batch_within(search.limit)))
    if confirm and search.may_try(line.at(computed)):
        search.around(computed)
    if search.confirmed:
        if search.fits is None:
            message = f"a batch of 1 does not fit in {bytes_text(search.limit)}: {search.why}"
            raise OutOfMemoryError(message)
        batch, use = search.fits.batch, search.fits.use or MemoryUse()
    else:
        if not computed:
            message = (
                f"a batch of 1 takes {bytes_text(line.at(1).total)} by computation, more than "
                f"{bytes_text(search.limit)}"
            )
            raise OutOfMemoryError(message)
        batch, use = computed, line.at(computed)
    return LargestBatch(
        batch, computed, search.confirmed, search.refused, search.why, use, line.per_item,
        search.limit, where.name, phase, trial.solver,
    )  # fmt: skip


@dataclass(frozen=True)
class _MemoryModel:
    """Memory of a net as a linear function of the batch size, from two measurements."""

    sizes: tuple[int, int]
    few: MemoryUse
    many: MemoryUse

    @property
    def per_item(self) -> int:
        """Memory of each further item."""
        return max(0, self.many.total - self.few.total) // (self.sizes[1] - self.sizes[0])

    def at(self, batch: int) -> MemoryUse:
        """Return the memory of a batch size."""
        steps, more = self.sizes[1] - self.sizes[0], batch - self.sizes[0]
        pairs = zip(asdict(self.few).items(), asdict(self.many).values(), strict=True)
        sizes = {name: few + (many - few) * more // steps for (name, few), many in pairs}
        return MemoryUse(**{name: max(0, size) for name, size in sizes.items()})

    def batch_within(self, limit: int) -> int:
        """Return the largest batch size within a limit."""
        room = limit - self.few.total
        return self.sizes[0] + room // self.per_item if self.per_item else MAX_BATCH


class _Search:
    """Search for the largest batch size by trials.

    ``free`` is the memory that trials can use without harm to other processes, if known. ``fits``
    is the result of the largest batch that fitted, ``refused`` the smallest batch that did not.
    """

    def __init__(
        self, trial: Trial, limit: int, free: int | None, max_batch: int,
        on_trial: Callable[[int], object],
    ) -> None:  # fmt: skip
        self.trial, self.limit, self.max_batch = trial, limit, max_batch
        self._free, self._on_trial = free, on_trial
        self._known: list[TrialResult] = []
        self.fits: TrialResult | None = None
        self.refused: int | None = None
        self.why = ""
        self.confirmed = False

    def line(self) -> _MemoryModel:
        """Run two small batches; halve them until they fit."""
        few, many = SMALL
        while True:
            answers = self._run(few, many)
            uses = [answer.use for answer in answers if answer.use is not None]
            if len(uses) == 2:
                self._known = answers
                return _MemoryModel((few, many), *uses)
            if few == 1:
                lacks = answers[-1].lacks
                message = f"a batch of {many} does not fit in {bytes_text(self.limit)}: {lacks}"
                raise OutOfMemoryError(message)
            few, many = few // 2, many // 2

    def may_try(self, use: MemoryUse) -> bool:
        """Return True if a trial with this memory does not harm other processes."""
        return self._free is not None and use.total <= self._free

    def around(self, batch: int) -> None:
        """Find the largest batch that fits, starting from an estimate."""
        low, high = 0, self.max_batch + 1
        batch = max(1, min(batch, self.max_batch))
        back = PRECISION // 4
        for _ in range(MOST_TRIALS):
            [answer] = self._run(batch)
            if answer.use is not None:
                low, self.fits, back = batch, answer, PRECISION
                self._known = [self._known[-1], answer]
                # the size at the limit, on the line through the last two fitting trials
                before, last = self._known
                more, grown = last.batch - before.batch, last.peak - before.peak
                if more > 0 and grown > 0:
                    expected = last.batch + (self.limit - last.peak) * more // grown
                    batch = min(expected, FARTHER * low)
                else:
                    batch = FARTHER * low
            else:
                high, self.refused, self.why = batch, batch, answer.lacks
                batch, back = high - max(1, high // back), max(2, back // 2)
            if high - low <= max(1, high // PRECISION):
                break
            # the next larger distinct size, or the middle if that size was refused
            batch = max(batch, low + max(1, low // PRECISION))
            batch = batch if batch < high else (low + high) // 2
        self.confirmed = True

    def _run(self, *batches: int) -> list[TrialResult]:
        self._on_trial(batches[-1])
        most = self.limit if self._free is None else min(self.limit, self._free)
        return self.trial.run(batches, most)


def _batch_inputs(path: Path, phase: str) -> tuple[str, ...]:
    """Return the inputs with the batch as first axis."""
    pairs = zip(with_batch(path, phase, 1).layer, with_batch(path, phase, 2).layer, strict=True)
    grows = tuple(one.top[0] for one, two in pairs if one.input_param != two.input_param)
    if not grows:
        message = f"{path} has a fixed batch size: no input has the batch as first axis"
        raise NetError(message, code=ErrorCode.UNSUPPORTED)
    return grows


def _solver_type(solver: str | os.PathLike[str] | None) -> str:
    if solver is None:
        return ""
    known = {name.lower(): name for name in RULES}
    name = os.fspath(solver)
    if name.lower() in known:
        return known[name.lower()]
    param = read_solver_params(name)
    if param.type not in RULES:
        message = f"{name} has the unknown type {param.type!r}; the types are {', '.join(RULES)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="type", got=param.type)
    return param.type


def _limits(device: Device, limit: int | str | None) -> tuple[int, int | None]:
    """Return the memory limit, and the memory for trials, or None where it is unknown."""
    info = device.memory_info()
    free = None if info.free is None else int(MARGIN * info.free)
    if limit is not None:
        try:
            most = read_size(limit)
        except ValueError as error:
            message = f"limit: {error}"
            raise ConfigError(message, code=ErrorCode.INVALID, field="limit") from None
        return most, free
    if free is None:
        message = f"the free memory of {device} is unknown; give a limit, such as limit='8GiB'"
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE, field="limit")
    return free, free


PASSES = 2
"""Passes of each batch size: from the second pass on, memory does not change."""

CHILD = "import demitasse; demitasse.Net; from demitasse.benchmark.largest import main; main()"


@dataclass(frozen=True)
class TrialResult:
    """Result of one batch size.

    Attributes:
        lacks: Why the batch did not fit; empty if it fitted.
        use: Memory of the net, by part; None if the batch did not fit.
        peak: Peak memory of the net with temporary arrays, in bytes; where the peak is unknown, the
            memory of the net.
    """

    batch: int
    lacks: str = ""
    use: MemoryUse | None = None
    peak: int = 0


@dataclass(frozen=True)
class Trial:
    """A net to run at several batch sizes, in a separate process.

    Attributes:
        net: The net, with batch size 1, without data layers.
        grows: Inputs with the batch as first axis.
        keep: Blobs to keep, as in ``Net``.
        solver: Type of the solver that updates the parameters; empty for none.
        base_dir: Folder of relative file names in the net.
    """

    net: NetParameter
    grows: tuple[str, ...]
    phase: str
    device: str
    keep: str | tuple[str, ...] | None
    solver: str = ""
    base_dir: str = "."

    def run(self, batches: Sequence[int], limit: int) -> list[TrialResult]:
        """Run batch sizes, within a limit of the net's bytes, up to the first that does not fit."""
        found_settings = ((name, settings.find(name)) for name in settings.names())
        ask = {
            **vars(self),
            "net": b64encode(self.net.SerializeToString()).decode(),
            "batches": list(batches),
            "limit": limit,
            "settings": {
                name: one.value for name, one in found_settings if one.where == "set by the program"
            },
        }
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-P", "-c", CHILD], input=json.dumps(ask), capture_output=True,
            text=True, check=False, env=environment,
        )  # fmt: skip
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = [_parse_result(one) for one in answers]
        if len(found) < len(batches) and not (found and found[-1].lacks):
            # a library without memory can end the process
            last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            if done.returncode > 0:
                message = f"the trial of a batch of {batches[len(found)]} failed: {last}"
                raise DemitasseError(message, code=ErrorCode.FAILED, got=batches[len(found)])
            found.append(TrialResult(batches[len(found)], lacks=last))
        return found


def _parse_result(line: dict[str, Any]) -> TrialResult:
    if "error" in line:
        raise getattr(errors, line["kind"], DemitasseError)(line["error"])
    return TrialResult(**line | {"use": MemoryUse(**line["use"]) if line["use"] else None})


# -- in the child ----------------------------------------------------------------------------------


def main() -> None:
    """Run the trial on standard input; print a line of JSON for each batch size."""
    ask = json.load(sys.stdin)
    try:
        for name, value in ask.pop("settings").items():
            settings.set(name, value)
        _run_batches(ask)
    except DemitasseError as error:
        _print_json({"error": str(error), "kind": type(error).__name__})


def _run_batches(ask: dict[str, Any]) -> None:
    batch = 1
    with ExitStack() as limits:
        try:
            running = _TrialRun(ask)
            running.run(batch)  # load libraries, start threads, compile kernels
            for batch in ask["batches"]:
                if batch == ask["batches"][0]:
                    limits.enter_context(running.limited(ask["limit"]))
                running.run(batch)
                use = running.use()
                _print_json(asdict(TrialResult(batch, "", use, running.peak(use))))
        except (OutOfMemoryError, MemoryError, OSError) as error:
            limits.close()
            if isinstance(error, OutOfMemoryError):
                error.advice = ""  # no advice: the search is computing it
            lacks = str(error) or type(error).__name__
            _print_json(asdict(TrialResult(max(batch, ask["batches"][0]), lacks)))


def _print_json(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class _TrialRun:
    """A net, or a solver with its net, of a request."""

    def __init__(self, ask: dict[str, Any]) -> None:
        self.ask, self.solver = ask, None
        self.rest: int | None = None
        """Memory of the process besides the net; None where it does not matter."""
        param = NetParameter.FromString(b64decode(ask["net"]))
        options = {"device": ask["device"], "base_dir": ask["base_dir"], "keep_blobs": ask["keep"]}
        if ask["solver"]:
            self.solver = idle_solver(param, ask["solver"], **options)
            self.net = self.solver.net
        else:
            self.net = Net(param, ask["phase"], seed=1, **options)
        self.samples = random_inputs(self.net, seed=0)

    def limited(self, limit: int) -> Any:
        """Return a context manager that limits the memory of the net."""
        if self.net.device.backend.memory_info() is not None:
            return settings.override(memory_limit=limit)
        held, now = self.use().total, host_memory().process
        self.rest = None if now is None else now - held
        return limited_to(max(0, limit - held))

    def peak(self, use: MemoryUse) -> int:
        """Return the peak memory of the net, which uses ``use`` permanently."""
        most = process_peak()
        return use.total if self.rest is None or most is None else max(use.total, most - self.rest)

    def run(self, batch: int) -> None:
        """Run a batch size until its memory does not change."""
        net = self.net
        for name, sample in self.samples.items():
            grows = name in self.ask["grows"]
            net.blobs[name].reshape((batch, *sample.shape[1:]) if grows else sample.shape)
        for _ in range(PASSES):
            for name, sample in self.samples.items():
                net.blobs[name].mutable_cpu_data()[...] = sample
            if self.solver is not None:
                self.solver.step(1)
            elif self.ask["phase"] == "TRAIN":
                net.forward_backward()
            else:
                net.forward()
        net.synchronize()

    def use(self) -> MemoryUse:
        """Return the current memory of the net."""
        return memory_held(self.net, self.solver.history.memories if self.solver else ())
