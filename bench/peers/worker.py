"""One engine's process: lines of JSON in, lines of JSON out.

    python -m peers.worker ENGINE CASE SCALE FOLDER THREADS

It makes the net, says that it is ready, and then does what each line asks for: ``check``,
``run``, ``memory``. It ends with its input, or with the process that started it.
"""

import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from peers import memory
from peers.cases import Case
from peers.engines import Engine, find

__all__ = ["main"]


class Worker:
    """Answers what is asked."""

    def __init__(self, engine: Engine, folder: Path, name: str) -> None:
        self.engine, self.results = engine, folder / f"{name.replace(':', '_')}.npz"
        self.loaded = memory.peak()

    def check(self) -> dict[str, Any]:
        """Do the first pass and write what came out into a file."""
        np.savez(self.results, **self.engine.check())
        return {"results": str(self.results)}

    def run(self, repeats: int, warm: int, seconds: float) -> dict[str, Any]:
        """Time each of so many passes, after some that are not timed.

        None begins when the time is over; one there is.
        """
        for _ in range(warm):
            self.engine.run()
        clock, times = time.perf_counter, []
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        end = clock() + seconds
        while not times or (len(times) < repeats and clock() < end):
            start = clock()
            self.engine.run()
            times.append(clock() - start)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        found: dict[str, Any] = {"times": times, "faults": faults / len(times)}
        if hasattr(self.engine, "speeds"):
            found["speeds"], self.engine.speeds = self.engine.speeds[-len(times) :], []
        return found

    def memory(self, forget: bool) -> dict[str, Any]:
        """Tell the peak of memory in MiB, with the making of the net and since it was asked."""
        gc.collect()
        found = {"loading": self.loaded, "peak": memory.peak()}
        if forget:
            memory.forget_peak()
        return found


def main() -> None:
    """Serve until the input ends."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between the answers
    logging.disable(logging.INFO)
    name, case_text, scale, folder, threads = sys.argv[1:]

    def answer(work: Callable[[], dict[str, Any]]) -> bool:
        try:
            found = work()
        except Exception as error:  # whatever a peer raises belongs in the report
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(found) + "\n")
        return "error" not in found

    served: list[Worker] = []

    def make() -> dict[str, Any]:
        engine = find(name).make(Case.parse(case_text, int(scale)), Path(folder), int(threads))
        served.append(Worker(engine, Path(folder), name))
        return {"about": engine.about}

    if not answer(make):
        return
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answer(lambda r=request: getattr(served[0], r.pop("do"))(**r))


def _end_with_parent() -> None:
    """Ask the system to end this process when the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main()
