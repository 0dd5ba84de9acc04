"""A process that ends its parent if the parent cannot end itself.

A process may block where none of its own threads can help: in a library that keeps the interpreter
while it starts or ends, in memory that a dead process has left half written, or because a signal
has stopped the process. The watchdog is armed with a time limit and a message for each step. After
the limit it prints the message, and some seconds later it kills a process that has not ended. It
also kills a process whose launcher is gone: the run may have been started again meanwhile, and
writes the same files.

A watchdog that is stopped itself, as by a scheduler that suspends a job, does not count that time.

The watchdog process runs this file as its program, so the file imports the standard library alone.
"""

import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LATER = 6.0  # seconds from the message until the watchdog kills the process
TICK = 0.5  # seconds between checks

LIMIT = struct.Struct("d")
"""End of the present time limit, by the monotonic clock of the machine; 0 if there is none.

It is the beginning of the page that process and watchdog share; the message follows it.
"""

ANY = 0  # number of a launcher that may end without consequences

STOPPED = "T"
"""State of a process that a signal has stopped, in Linux and ps; under a debugger it is t."""

LAUNCHER_PREFIXES = ("OMPI_", "PMI", "PRTE_", "PRRTE_")
"""Prefixes of the variables that launchers set, which the watchdog must not inherit."""

IGNORED_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""Signals that ask the process to end: it may write a snapshot first, so the watchdog stays."""


class Watchdog:
    """The watchdog of this process, which ends with it; messages call the process ``name``.

    A signal may stop this process for ``stop_limit`` seconds. If ``launched``, this process must
    end with the process that started it.
    """

    def __init__(self, stop_limit: float, name: str, *, launched: bool = False) -> None:
        launcher = os.getppid() if launched else ANY
        far, self._held = os.pipe()  # the system closes this end when this process is gone
        environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
        with _new_page() as (key, self._page, inherited):
            arguments = map(str, (os.getpid(), launcher, key, stop_limit, name))
            command = [sys.executable, "-I", "-S", __file__, *arguments]
            started = subprocess.Popen(
                command, stdin=far, stdout=subprocess.DEVNULL, env=environment, **inherited
            )
        os.close(far)
        started.returncode = 0  # no ResourceWarning: the watchdog outlives this object

    def arm(self, seconds: float, message: str) -> None:
        """Print a message and end this process, unless the watchdog is disarmed or armed again.

        The message names the step that did not finish within so many seconds, and the remedy.
        """
        text = message.encode()[: mmap.PAGESIZE - LIMIT.size - 1]
        self._page[LIMIT.size : LIMIT.size + len(text) + 1] = text + b"\0"
        LIMIT.pack_into(self._page, 0, time.monotonic() + seconds)

    def disarm(self) -> None:
        """Remove the time limit."""
        LIMIT.pack_into(self._page, 0, 0.0)

    @property
    def armed(self) -> bool:
        """True while there is a time limit."""
        return LIMIT.unpack_from(self._page) != (0.0,)

    @contextmanager
    def timeout(self, seconds: float, message: str) -> Iterator[None]:
        """Limit the time of a block; inside another block, that block's limit alone counts."""
        if self.armed:
            yield
            return
        self.arm(seconds, message)
        try:
            yield
        finally:
            self.disarm()


@contextmanager
def _new_page() -> Iterator[tuple[str, mmap.mmap, dict[str, Any]]]:
    """Make the shared page; yield its key, the page, and arguments of Popen that pass it on."""
    if sys.platform == "win32":  # no descriptors are handed on there; a page has a name instead
        key = f"demitasse-{os.getpid()}-{time.monotonic_ns()}"
        yield key, _page_of(key), {}
        return
    with tempfile.TemporaryFile() as shared:
        shared.truncate(mmap.PAGESIZE)
        key = str(shared.fileno())
        yield key, _page_of(key), {"pass_fds": [shared.fileno()]}


def _page_of(key: str) -> mmap.mmap:
    """Return a page by its key."""
    if sys.platform == "win32":
        return mmap.mmap(-1, mmap.PAGESIZE, tagname=key)
    return mmap.mmap(int(key), mmap.PAGESIZE)


class _Monitor:
    """The checks that the watchdog process makes."""

    def __init__(
        self, process: int, launcher: int, page: mmap.mmap, stop_limit: float, name: str
    ) -> None:
        self._process, self._launcher, self._page = process, launcher, page
        self._stop_limit, self._name = stop_limit, name
        self._until = self._suspended = self._stopped = 0.0
        self._reported = False

    def run(self) -> None:
        """Check until the process is gone."""
        last, gone = time.monotonic(), threading.Event()

        def read() -> None:  # until the process is gone, and its end of the pipe with it
            os.read(0, 1)
            gone.set()

        threading.Thread(target=read, daemon=True).start()
        while not gone.wait(TICK) and os.getppid() == self._process:
            now = time.monotonic()
            passed, last = now - last, now
            self._check(now, min(passed, 2 * TICK), max(0.0, passed - 2 * TICK))

    def _check(self, now: float, passed: float, suspended: float) -> None:
        """Check once, ``passed`` seconds after the last check.

        The watchdog itself did not run for ``suspended`` further seconds.
        """
        [until] = LIMIT.unpack_from(self._page)
        if until != self._until:
            self._until, self._suspended, self._reported = until, 0.0, False
        self._suspended += suspended
        late = now - self._suspended - until if until else -1.0
        if late > 0 and not self._reported:
            self._reported = True
            self._print(bytes(self._page[LIMIT.size :]).split(b"\0", 1)[0].decode())
        state, parent = _state(self._process)
        self._stopped = self._stopped + passed if state == STOPPED else 0.0
        if self._stopped > self._stop_limit:
            self._kill(f"a signal has stopped it for {self._stop_limit:g} s; it is killed")
        elif parent not in {self._launcher, ANY} and self._launcher != ANY:
            self._kill("its launcher is gone; it is killed. --resume auto continues the run")
        elif late > LATER:
            self._kill()

    def _kill(self, reason: str = "") -> None:
        if reason:
            self._print(reason)
        os.kill(self._process, getattr(signal, "SIGKILL", signal.SIGTERM))

    def _print(self, text: str) -> None:
        with suppress(OSError):  # no reader is left
            os.write(2, f"error: {self._name}: {text}\n".encode())


def _state(process: int) -> tuple[str, int]:
    """Return the state of a process, as one letter, and its parent; ANY if it is gone."""
    try:
        if Path("/proc/self/stat").exists():
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        else:
            command = ["ps", "-o", "state=", "-o", "ppid=", "-p", str(process)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            fields = done.stdout.split()
    except OSError:
        fields = []
    return (fields[0][0], int(fields[1])) if len(fields) > 1 else ("", ANY)


def _main(process: str, launcher: str, key: str, stop_limit: str, name: str) -> None:
    for ignored in IGNORED_SIGNALS:
        if hasattr(signal, ignored):  # some systems lack some
            signal.signal(getattr(signal, ignored), signal.SIG_IGN)
    _Monitor(int(process), int(launcher), _page_of(key), float(stop_limit), name).run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
