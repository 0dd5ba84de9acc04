"""A process beside this one that ends it where it cannot do so itself.

A process may stand where none of its own threads can help: in a library that keeps the interpreter
while it begins or ends, in memory that a dead process has left half written, or because a signal
has stopped it. Its watchdog is told how long each step may take. When that is over it says what has
not happened, and kills a process that has not ended by itself a moment later. It also kills one
whose launcher is gone: the run may have been started again meanwhile, and writes the same files.

A watchdog that is stopped itself, as by a scheduler that suspends a job, does not count that time.

This file is also the program that the watchdog runs, so it imports nothing but Python's own.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["LATER", "Watchdog"]

LATER = 6.0
"""Seconds from what the watchdog says until it kills."""

TICK = 0.5
"""Seconds between looks."""

LIMIT = struct.Struct("d")
"""When the present step is late, by the clock that all processes of a machine share; 0 for never.

It lies at the beginning of the page that process and watchdog share; what is to be said, behind it.
"""

ANY = 0
"""In the place of a launcher's number, where it does not matter whether it is there."""

STOPPED = "T"
"""How Linux and ps call the state of a process that a signal has stopped; a debugger's is t."""

LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "PRRTE_")
"""How the variables begin that tell a process that a launcher has started it, not its watchdog."""

DEAF_TO = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""What asks a program to end: the process may write a snapshot first, so its watchdog stays."""


class Watchdog:
    """The watchdog of this process, which ends with it.

    Args:
        patience: Seconds that this process may be stopped by a signal.
        name: How this process is called where something is said of it.
        launched: Whether it is to end with the process that started it.

    Raises:
        OSError: The system starts no further process.
    """

    def __init__(self, patience: float, name: str, *, launched: bool = False) -> None:
        launcher = os.getppid() if launched else ANY
        far, self._held = os.pipe()  # this end is closed by the system, when this process is gone
        around = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        with tempfile.TemporaryFile() as shared:
            shared.truncate(mmap.PAGESIZE)
            number = shared.fileno()
            self._page = mmap.mmap(number, mmap.PAGESIZE)
            started = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    __file__,
                    *map(str, (os.getpid(), launcher, number, patience, name)),
                ],
                stdin=far,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
                env=around,
            )
        os.close(far)
        started.returncode = 0  # it outlives this object, of which Python would warn

    def expect(self, seconds: float, what: str) -> None:
        """Say what has not happened, and end this process, unless more is heard in time.

        Args:
            seconds: How long it may take.
            what: What has not happened then, and what to do.
        """
        text = what.encode()[: mmap.PAGESIZE - LIMIT.size - 1]
        self._page[LIMIT.size : LIMIT.size + len(text) + 1] = text + b"\0"
        LIMIT.pack_into(self._page, 0, time.monotonic() + seconds)

    def relax(self) -> None:
        """Expect nothing."""
        LIMIT.pack_into(self._page, 0, 0.0)

    @property
    def expecting(self) -> bool:
        """Whether there is anything that this process has to do in time."""
        return LIMIT.unpack_from(self._page) != (0.0,)

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Expect the end of a block; inside another one, of that one alone."""
        if self.expecting:
            yield
            return
        self.expect(seconds, what)
        try:
            yield
        finally:
            self.relax()


class _Watch:
    """What the watchdog does.

    Args:
        process: The process that it looks after.
        launcher: The process that has started that one, or ANY.
        page: What it shares with it.
        patience: Seconds that it may be stopped.
        name: How it is called.
    """

    def __init__(
        self, process: int, launcher: int, page: mmap.mmap, patience: float, name: str
    ) -> None:
        self._process, self._launcher, self._page = process, launcher, page
        self._patience, self._name = patience, name
        self._until = self._suspended = self._stopped = 0.0
        self._said = False

    def run(self) -> None:
        """Look until the process is gone."""
        last = time.monotonic()
        while not select.select([0], [], [], TICK)[0] and os.getppid() == self._process:
            now = time.monotonic()
            passed, last = now - last, now
            self._look(now, min(passed, 2 * TICK), max(0.0, passed - 2 * TICK))

    def _look(self, now: float, passed: float, suspended: float) -> None:
        """Look once.

        Args:
            now: The time.
            passed: Seconds since the last look.
            suspended: Further ones, in which the watchdog itself did not run.
        """
        [until] = LIMIT.unpack_from(self._page)
        if until != self._until:
            self._until, self._suspended, self._said = until, 0.0, False
        self._suspended += suspended
        late = now - self._suspended - until if until else -1.0
        if late > 0 and not self._said:
            self._said = True
            self._say(bytes(self._page[LIMIT.size :]).split(b"\0", 1)[0].decode())
        state, parent = _state(self._process)
        self._stopped = self._stopped + passed if state == STOPPED else 0.0
        if self._stopped > self._patience:
            self._kill(f"a signal has stopped it for {self._patience:g} s; it is killed")
        elif parent not in {self._launcher, ANY} and self._launcher != ANY:
            self._kill("its launcher is gone; it is killed. --resume auto goes on with the run")
        elif late > LATER:
            self._kill()

    def _kill(self, why: str = "") -> None:
        if why:
            self._say(why)
        os.kill(self._process, signal.SIGKILL)

    def _say(self, what: str) -> None:
        with suppress(OSError):  # nobody reads any more
            os.write(2, f"error: {self._name}: {what}\n".encode())


def _state(process: int) -> tuple[str, int]:
    """Return the state of a process, as one letter, and its parent; ANY where it is gone."""
    try:
        if Path("/proc/self/stat").exists():
            found = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        else:
            asked = ["ps", "-o", "state=", "-o", "ppid=", "-p", str(process)]
            found = subprocess.run(
                asked, capture_output=True, text=True, check=False
            ).stdout.split()
    except OSError:
        found = []
    return (found[0][0], int(found[1])) if len(found) > 1 else ("", ANY)


def _main(process: str, launcher: str, number: str, patience: str, name: str) -> None:
    for one in DEAF_TO:
        signal.signal(getattr(signal, one), signal.SIG_IGN)
    page = mmap.mmap(int(number), mmap.PAGESIZE)
    _Watch(int(process), int(launcher), page, float(patience), name).run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
