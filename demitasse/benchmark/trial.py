"""One try of some batch sizes, in a process of its own that gets so much memory and no more.

Whatever happens in there, the machine does not swap and the caller's process goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from demitasse import errors
from demitasse.core.config import settings
from demitasse.core.host import host_memory, limited_to, process_peak
from demitasse.errors import DemitasseError, ErrorCode, OutOfMemoryError
from demitasse.io.proto import NetParameter, SolverParameter
from demitasse.net import Net
from demitasse.net.memory_usage import MemoryUse, memory_held
from demitasse.testing.comparison import random_inputs
from demitasse.training import Solver

__all__ = ["Answer", "Trial", "main"]

PASSES = 2
"""How often each batch size is run: what the second pass finds is what all later ones do."""

CHILD = "from demitasse.benchmark.trial import main; main()"


@dataclass(frozen=True)
class Answer:
    """How it went with one batch size.

    Attributes:
        batch: The size.
        lacks: What did not fit; empty where all did.
        use: What the net held then, by part; None where it did not fit.
        peak: The most that the process had for the net at a time, temporary arrays included; where
            that cannot be asked, what the net held. In bytes.
    """

    batch: int
    lacks: str = ""
    use: MemoryUse | None = None
    peak: int = 0


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        net: The net, with a batch of one, all its data from inputs.
        grows: The inputs whose first axis is the batch.
        phase: "TRAIN" runs forward and backward, "TEST" forward.
        device: Where.
        keep: The blobs that are kept, as for ``Net``.
        solver: Type of the solver that updates the parameters; empty for none.
        base_dir: Folder where files are looked for that the net names.
    """

    net: NetParameter
    grows: tuple[str, ...]
    phase: str
    device: str
    keep: str | tuple[str, ...] | None
    solver: str = ""
    base_dir: str = "."

    def run(self, batches: Sequence[int], limit: int) -> list[Answer]:
        """Run batch sizes one after the other, up to the first that does not fit.

        Args:
            batches: The sizes.
            limit: Bytes that the net may take.

        Raises:
            DemitasseError: It fails for another reason than a lack of memory.
        """
        ask = {
            **{name: value for name, value in vars(self).items() if name != "net"},
            "net": b64encode(self.net.SerializeToString()).decode(),
            "batches": list(batches),
            "limit": limit,
            "settings": _settings_of_program(),
        }
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps(ask),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = [_answer(one) for one in answers]
        if len(found) < len(batches) and not (found and found[-1].lacks):
            # a library that finds no memory may end the process
            last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            if done.returncode > 0:
                message = f"a batch of {batches[len(found)]} could not be tried: {last}"
                raise DemitasseError(message, code=ErrorCode.FAILED, got=batches[len(found)])
            found.append(Answer(batches[len(found)], lacks=last))
        return found


def _settings_of_program() -> dict[str, Any]:
    """Return what this program has set, which its child would not know."""
    found = {name: settings.find(name) for name in settings.names()}
    return {name: one.value for name, one in found.items() if one.where == "set by the program"}


def _answer(told: dict[str, Any]) -> Answer:
    if "error" in told:
        raise getattr(errors, told["kind"], DemitasseError)(told["error"])
    use = told["use"]
    if use is None:
        return Answer(told["batch"], told["lacks"])
    return Answer(told["batch"], "", MemoryUse(**use), told["peak"])


# -- in the child ----------------------------------------------------------------------------------


def main() -> None:
    """Try what standard input says, and tell how it went, a line of JSON for each batch size."""
    ask = json.load(sys.stdin)
    try:
        for name, value in ask.pop("settings").items():
            settings.set(name, value)
        _try_all(ask)
    except DemitasseError as error:
        _tell({"error": str(error), "kind": type(error).__name__})


def _try_all(ask: dict[str, Any]) -> None:
    batch = 1
    with ExitStack() as limits:
        try:
            running = _Running(ask)
            running.run(batch)  # libraries are loaded, threads begun, kernels compiled
            for batch in ask["batches"]:
                if batch == ask["batches"][0]:
                    limits.enter_context(running.limited(ask["limit"]))
                running.run(batch)
                use = running.use()
                _tell({"batch": batch, "use": asdict(use), "peak": running.peak(use)})
        except (OutOfMemoryError, MemoryError, OSError) as error:
            limits.close()
            if isinstance(error, OutOfMemoryError):
                error.advice = ""  # this is how it is found out
            lacks = str(error) or type(error).__name__
            _tell({"batch": max(batch, ask["batches"][0]), "lacks": lacks, "use": None})


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


@dataclass
class _Running:
    """A net, or a solver with its net, made as a request says."""

    ask: dict[str, Any]
    solver: Solver | None = field(init=False, default=None)
    net: Net = field(init=False)
    rest: int | None = field(init=False, default=None)
    """What the process has in memory besides the net; None where that does not matter."""

    def __post_init__(self) -> None:
        ask = self.ask
        param = NetParameter.FromString(b64decode(ask["net"]))
        keep = ask["keep"]
        options = {"device": ask["device"], "base_dir": ask["base_dir"], "seed": 1, "keep": keep}
        if ask["solver"]:
            # a rate at which weights stay as they are, and the arithmetic of an update
            fields = SolverParameter(
                type=ask["solver"], base_lr=1e-12, lr_policy="fixed", snapshot_after_train=False
            )
            if ask["solver"] not in {"AdaGrad", "RMSProp"}:  # which have no momentum
                fields.momentum = 0.9
            fields.net_param.CopyFrom(param)
            self.solver = Solver(fields, **options)
            self.net = self.solver.net
        else:
            self.net = Net(param, ask["phase"], **options)
        self.samples = random_inputs(self.net, seed=0)

    def limited(self, limit: int) -> Any:
        """Return a context manager in which the net gets no more than a limit."""
        if self.net.device.backend.memory_info() is not None:
            return settings.override(memory_limit=limit)
        held, now = self.use().total, host_memory().process
        self.rest = None if now is None else now - held
        return limited_to(max(0, limit - held))

    def peak(self, use: MemoryUse) -> int:
        """Return the most that was needed for the net at a time, which holds ``use``."""
        most = process_peak()
        return use.total if self.rest is None or most is None else max(use.total, most - self.rest)

    def run(self, batch: int) -> None:
        """Run a batch size as often as shows all that it needs."""
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
        """Return what is held now."""
        return memory_held(self.net, self.solver.history.memories if self.solver else ())
