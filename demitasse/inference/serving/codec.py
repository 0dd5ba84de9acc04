"""Processes that parse and write large messages, and decode images.

Python's JSON and base64, and some image formats, keep the interpreter's lock for as long as they
run: with a body of 20 MB for seconds. In the server's own process this work would delay all other
requests.
"""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from demitasse.core.log import get_logger
from demitasse.errors import DataError, DemitasseError, ErrorCode

log = get_logger(__name__)

T = TypeVar("T")
Work = tuple[Callable[..., Any], tuple[object, ...]]

CODECS = 2
"""Number of processes."""

NICENESS = 5
"""The processes yield to the server's event loop and to the nets."""


class CodecError(Exception):
    """A process ended before its result; the log contains the cause."""


class Codecs:
    """Calls functions in other processes, which start when they are first needed."""

    def __init__(self) -> None:
        self._all = [_Codec() for _ in range(CODECS)]
        self._idle = [*self._all]
        # threads that wait for a process, and compute nothing
        self._threads = ThreadPoolExecutor(CODECS, "codec")
        self._end = weakref.finalize(self, _kill_all, self._all)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Return a function's result; the process is killed if the caller is cancelled.

        Args:
            function: A function of a module.
            arguments: Its arguments, which are pickled.

        Raises:
            DemitasseError: As the function.
            CodecError: The process ended.
        """
        work, loop = (function, arguments), asyncio.get_running_loop()
        try:
            result: T = await loop.run_in_executor(self._threads, self._run, work)
        except asyncio.CancelledError:
            for codec in self._all:
                codec.interrupt(work)
            raise
        return result

    def start(self) -> None:
        """Start the processes, which takes each about a second."""
        for codec in self._all:
            codec.start()

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _run(self, work: Work) -> Any:
        codec = self._idle.pop()  # one for each thread
        try:
            return codec.run(work)
        finally:
            self._idle.append(codec)


class _Codec:
    """One process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._work: Work | None = None
        self._lock = threading.Lock()  # of the work

    def start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = module_command(__name__)
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        return self._process

    def run(self, work: Work) -> Any:
        """Return a function's result; a process that has ended is started again."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            self._work = work
        try:
            _write(process.stdin, work)
            done, value = _read(process.stdout)
        except (OSError, EOFError) as error:
            self.kill()
            log.warning("A process for large messages ended, and is started again when needed")
            message = "a process for large messages ended"
            raise CodecError(message) from error
        finally:
            with self._lock:
                self._work = None
        if not done:
            raise value
        return value

    def interrupt(self, work: Work) -> None:
        """Kill the process if it does this work, which then ends with an error."""
        with self._lock:
            if self._work is work and self._process is not None:
                self._process.kill()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # bytes that the process did not read
                    if pipe is not None:
                        pipe.close()
            process.wait()


def _kill_all(codecs: Sequence[_Codec]) -> None:
    for codec in codecs:
        codec.kill()


def module_command(module: str, *arguments: float) -> list[str]:
    """Return the command line that calls the function ``main`` of a module with numbers.

    The process imports from the folders of this one, whatever the environment and the present
    folder are.
    """
    paths = [path for path in sys.path if path]
    code = (
        f"import sys; sys.path[:] = sys.argv[1:]; from {module} import main; "
        f"main(*map(float, {[*map(str, arguments)]}))"
    )
    return [sys.executable, "-I", "-c", code, *paths]


def main() -> NoReturn:
    """Call functions for another process, until its end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches this process
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)
    with suppress(OSError):  # on Linux, a lack of memory ends this process before the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            function, arguments = _read(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        try:
            answer: tuple[bool, object] = True, function(*arguments)
        except DemitasseError as error:
            answer = False, error
        except MemoryError:
            message = "the message needs more memory than there is"
            answer = False, DataError(message, code=ErrorCode.LIMIT)
        del arguments
        _write(answers, answer)


def _write(pipe: IO[bytes], value: object) -> None:
    content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    pipe.write(len(content).to_bytes(8, "little"))
    pipe.write(content)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    length = int.from_bytes(pipe.read(8), "little")  # 0 at the end, and no value is so short
    content = pipe.read(length)
    if not 0 < length == len(content):
        raise EOFError
    return pickle.loads(content)
