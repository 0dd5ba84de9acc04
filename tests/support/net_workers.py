"""Child processes that run cases one after the other, so that a crash is that of one case.

Run as a program, this file is such a child: it reads cases as lines of JSON and writes a line for
each outcome.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import guarded_arrays
from net_case import Case, case_from_json, case_to_json

__all__ = ["Worker", "run_cases"]

TIMEOUT = 400
"""Seconds after which a case hangs."""

MOST = 100
"""Cases that one child runs; then another begins, with new memory."""


class Worker:
    """A child process that runs cases; begins again when it has died.

    Attributes:
        ran: Cases that the present child has run.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self.ran: list[Case] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker
        self._count = 0

    def run(self, case: Case) -> dict[str, Any]:
        """Return the outcome of a case, as ``net_oracle.summary`` gives it."""
        if self._child is None or len(self.ran) >= MOST:
            self._end()
            self._begin()
        self.ran.append(case)
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(case_to_json(case).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return self._died()
        ready, _, _ = select.select([child.stdout], [], [], self.timeout)
        if not ready:
            self._end()
            return _failed("hang", f"no result after {self.timeout} s")
        line = child.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else self._died()

    def close(self) -> None:
        """End the child."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what it has not read
                        pipe.close()
        self._child = None

    def _begin(self) -> None:
        self.ran = []
        self._count += 1
        at_start = ["--at-start"] if self._count % 4 == 0 else []
        settings = {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "4",
            "MALLOC_PERTURB_": "165",  # what malloc gives, and frees, is filled with numbers
            "PYTHONFAULTHANDLER": "1",
        }
        left_out = ("OPENBLAS_CORETYPE", "DEMITASSE_THREADS", "LD_PRELOAD")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        self._errors.seek(0)
        self._errors.truncate()
        self._child = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, *at_start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=kept | settings,
        )

    def _died(self) -> dict[str, Any]:
        assert self._child is not None
        code = self._child.wait()
        self._end()
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        return _failed(f"died {how}", text[-1500:])


def run_cases(
    cases: Iterable[Case], jobs: int = 1, wanted: Callable[[], bool] = lambda: True
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Run cases in child processes, and yield each with its outcome.

    A case during which the child dies is run again alone; where it lives then, those that ran
    before it in that child are named.

    Args:
        cases: The cases.
        jobs: Number of children.
        wanted: Whether to go on; asked before each case.
    """
    source, lock, done = iter(cases), threading.Lock(), Queue()

    def work() -> None:
        worker = Worker()
        try:
            while wanted():
                with lock:
                    case = next(source, None)
                if case is None:
                    break
                outcome = worker.run(case)
                if outcome["failure"] and outcome["failure"][0].startswith("died"):
                    outcome = _alone(case, outcome, worker.ran)
                done.put((case, outcome))
        finally:
            worker.close()
            done.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    running = jobs
    while running:
        found = done.get()
        if found is None:
            running -= 1
        else:
            yield found


def _alone(case: Case, outcome: dict[str, Any], ran: list[Case]) -> dict[str, Any]:
    """Run a case again, alone, then behind 1, 2, 4, ... of those that ran before it."""
    before = ran[:-1]
    for count in (0, 1, 2, 4, 8, 16, 32, 64):
        worker = Worker()
        suspects = before[len(before) - count :] if count else []
        for suspect in suspects:
            found = worker.run(suspect)
            if found["failure"] and found["failure"][0].startswith("died"):
                break
        else:
            found = worker.run(case)
        worker.close()
        if found["failure"] and found["failure"][0].startswith("died"):
            if count:
                names = ", ".join(one.name for one in suspects)
                found["failure"][0] += " behind others"
                found["failure"][1] += f"\nafter: {names}"
            return found
        if count >= len(before):
            break
    outcome["failure"][0] += " once"
    outcome["failure"][1] += "\nafter: " + ", ".join(one.name for one in before)
    return outcome


def _failed(kind: str, text: str) -> dict[str, Any]:
    return {"failure": [kind, text], "refused": "", "arrays": 0, "explained": 0, "unclear": 0}


def main() -> None:
    """Run the cases that standard input gives."""
    guarded_arrays.start(at_start="--at-start" in sys.argv)
    from net_oracle import check, summary

    gc.freeze()  # what was loaded stays, so it need not be looked at again
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print does not get between the results
    for line in sys.stdin:
        try:
            outcome = summary(check(case_from_json(line)))
        except Exception as error:
            outcome = _failed(f"oracle {type(error).__name__}", traceback.format_exc()[-2000:])
        results.write(json.dumps(outcome).encode() + b"\n")
        results.flush()
    os._exit(0)  # arrays may outlive the functions that free them


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
