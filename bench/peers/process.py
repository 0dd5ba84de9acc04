"""An engine's process, seen from outside."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.cases import Case
from peers.engines import find
from peers.neighbours import Watch

__all__ = ["EngineError", "Process", "RegisterTile", "ask"]

BENCH = Path(__file__).resolve().parents[1]

LEFT_OUT = (
    "OPENBLAS_", "OMP_", "GOMP_", "KMP_", "MKL_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_", "MALLOC_",
    "GLIBC_TUNABLES", "LD_PRELOAD", "TORCH", "ORT_", "OPENCV_", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip
"""Variables that tune one engine or another begin with these; no process gets them from outside.

``OPENBLAS_CORETYPE``, for one, chooses slower kernels than the processor has; and Python compiles
all sources of a checkout in every process if it may not keep what it has compiled.
"""


LIMITED = {
    "native": {},
    "AVX2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}  # fmt: skip
"""Variables that limit the engines' instructions. ONNX Runtime and OpenCV have none."""

INSTRUCTIONS = "BENCH_INSTRUCTIONS"
"""The variable with a key of ``LIMITED``."""


class EngineError(Exception):
    """An engine cannot do what was asked; says why."""


@dataclass
class RegisterTile:
    """What one turn of an engine gave.

    Attributes:
        times: Of each pass, in seconds.
        others: Share of one core that other processes used.
        faults: Page faults of a pass.
        speeds: GFLOP/s and GB/s of each pass, of the engine that measures the peak.
    """

    times: list[float]
    others: float
    faults: float
    speeds: list[tuple[float, float]] = field(default_factory=list)


class Process:
    """One engine with one case, from its start to ``close``.

    Raises:
        EngineError: It cannot be made.
    """

    def __init__(self, engine: str, case: Case, folder: Path, threads: int) -> None:
        arguments = [engine, str(case), case.scale, folder, threads]
        self.engine = engine
        self._log = (folder / f"{engine.replace(':', '_')}.log").open("w")
        self._child = subprocess.Popen(
            command("peers.worker", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(threads) | find(engine).environment,
            cwd=BENCH,
            text=True,
        )
        self.about = self._answer()["about"]

    def check(self) -> Path:
        """Do the first pass; return the file with its results."""
        return Path(self._ask(do="check")["results"])

    def turn(self, repeats: int, warm: int, seconds: float) -> RegisterTile:
        """Time so many passes, fewer when the time is over, and watch others meanwhile."""
        watch = Watch(self._child.pid)
        found = self._ask(do="run", repeats=repeats, warm=warm, seconds=seconds)
        return RegisterTile(others=watch.others(), **found)

    def memory(self, *, forget: bool) -> dict[str, float]:
        """Return peaks of memory in MiB; see ``Worker.memory``."""
        return self._ask(do="memory", forget=forget)

    def close(self) -> None:
        """End it."""
        for pipe in (self._child.stdin, self._child.stdout):
            pipe.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait()
            self.close()
            message = f"its process ended with {code}; see {self._log.name}"
            raise EngineError(message)
        found = json.loads(line)
        if "error" in found:
            self.close()
            raise EngineError(found["error"])
        return found


def ask(
    module: str, *arguments: object, threads: int, more: Mapping[str, str] | None = None
) -> str:
    """Run one of our modules to its end, with more variables; return what it prints.

    Raises:
        EngineError: It fails.
    """
    done = subprocess.run(
        command(module, *arguments), env=environment(threads) | dict(more or {}), cwd=BENCH,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{module} ended with {done.returncode}"]
        raise EngineError(lines[-1])
    return done.stdout


def command(module: str, *arguments: object) -> list[str]:
    """Return the command line of one of our modules, which is run in ``BENCH``."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment(threads: int) -> dict[str, str]:
    """Return what every process is started with, instructions limited where they are to be."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LEFT_OUT)}
    kept |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return kept | LIMITED[os.environ.get(INSTRUCTIONS, "native")]
