"""Exit codes, errors as messages, and standard streams that cannot be written."""

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NoReturn

import click

from demitasse import errors
from demitasse.core.extras import lacks_extra
from demitasse.core.text import escaped
from demitasse.errors import ConfigError, DataError, DemitasseError, DeviceError, ErrorCode

LEAST_MEMORY = (("RLIMIT_AS", "ulimit -v", 320 << 20), ("RLIMIT_DATA", "ulimit -d", 128 << 20))
"""Limits of the process, and bytes that Python, NumPy and a small net take."""

FAILED, MODEL_OR_DATA, DEVICE, INTERRUPTED = 1, 3, 4, 130

EXIT_CODES: dict[type[BaseException], int] = {
    KeyboardInterrupt: INTERRUPTED, DeviceError: DEVICE, errors.OutOfMemoryError: DEVICE,
    ConfigError: MODEL_OR_DATA, DataError: MODEL_OR_DATA, errors.NetError: MODEL_OR_DATA,
    errors.PrototxtError: MODEL_OR_DATA, errors.ShapeError: MODEL_OR_DATA,
    errors.SnapshotError: MODEL_OR_DATA, errors.WeightsError: MODEL_OR_DATA,
    errors.LostProcessError: FAILED, errors.ParallelError: FAILED, DemitasseError: FAILED,
    OSError: FAILED, MemoryError: DEVICE,
}  # fmt: skip
"""Exception -> exit code; the first match counts. Wrong usage is click's own 2."""

CAUGHT: tuple[type[BaseException], ...] = (*EXIT_CODES, RuntimeError)
"""Exceptions that may have a message; libraries raise RuntimeErrors for lack of threads."""

_broken: list[str] = []
"""Parts of the command line that contain line breaks, longest first."""


def note_arguments(args: Sequence[str]) -> None:
    """Note the command line, whose line breaks are escaped in all output.

    A file whose name contains a line break could otherwise forge a line of the output.
    """
    found = {part for arg in args for part in (arg, arg.partition("=")[2], *Path(arg).parts)}
    parts = {part.strip() for part in found}  # a line break at an end forges nothing
    _broken[:] = sorted((part for part in parts if "\n" in part), key=len, reverse=True)


def printable(text: str) -> str:
    """Return text for a terminal: control characters, and line breaks of arguments, are escaped."""
    text = escaped(text)
    for part in _broken:
        text = text.replace(escaped(part), escaped(part, one_line=True))
    return text


def echo(text: str) -> None:
    """Print text on standard output."""
    click.echo(printable(text))


class CliError(click.ClickException):
    """Exit with a message and a code, without a traceback."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance, too

    def show(self, file: object = None) -> None:
        """Print the message on standard error, if the stream can be written."""
        del file
        try:
            click.echo(f"error: {printable(self.format_message())}", err=True)
        except OSError:
            discard_stream("stderr")


def fail(message: str) -> NoReturn:
    """Exit with an error about the usage of a command."""
    raise click.UsageError(message)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an exception."""
    if lacks_extra(error):
        return MODEL_OR_DATA
    if isinstance(error, DemitasseError) and error.code is ErrorCode.UNWRITABLE:
        return FAILED
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), FAILED)


def lack_of_threads(error: BaseException) -> BaseException:
    """Return an error; for one that comes from lack of threads, the error that says so."""
    from demitasse.core.threads import check_interrupt, no_threads

    if type(error) is RuntimeError and "start new thread" in str(error):  # of any library
        return no_threads(error)
    if isinstance(error, KeyboardInterrupt):
        try:
            check_interrupt()
        except DeviceError as lack:
            return lack
    return error


@contextmanager
def handle_errors() -> Iterator[None]:
    """Turn exceptions with a message into CLI errors; print tracebacks at log level debug."""
    try:
        yield
    except BrokenPipeError:
        raise  # click exits quietly when the reader has closed the pipe
    except CAUGHT as caught:
        if os.name == "nt" and stdout_failed(caught) and caught.args[0] == errno.EINVAL:
            discard_stream("stdout")
            raise BrokenPipeError(errno.EPIPE, "closed") from None  # Windows' number is another
        error = lack_of_threads(caught)
        if not isinstance(error, tuple(EXIT_CODES)):
            raise
        if logging.getLogger("demitasse").isEnabledFor(logging.DEBUG):
            traceback.print_exception(error)
        message = _as_flags(_message(error) + _named_limit(error))
        raise CliError(message or type(error).__name__, exit_code(error)) from error


def _message(error: BaseException) -> str:
    from demitasse.cli.excerpts import with_excerpts
    from demitasse.core.config.files import working_folder

    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if stdout_failed(error):
        return stdout_message(error)
    if isinstance(error, OSError):
        deleted = isinstance(error, FileNotFoundError) and error.filename is None
        if deleted and not working_folder():
            return f"{error}: the working directory has been deleted; change to another one"
        return error_text(error)
    text = with_excerpts(error)
    return "the host has no memory left" if isinstance(error, MemoryError) and not text else text


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn errors of files and values into DataError and ConfigError: they are wrong input."""
    from demitasse.core.paths import code_of

    try:
        yield
    except OSError as error:
        raise DataError(error_text(error), code=code_of(error)) from error
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error), code=ErrorCode.INVALID) from error


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Turn errors of the values of flags into errors about the usage of a command."""
    try:
        yield
    except ConfigError as error:
        fail(str(error))


def error_text(error: OSError) -> str:
    """Return the message of an error of the system: its file and its reason."""
    name = None if error.filename is None else os.fsdecode(error.filename)
    return str(error) if name is None or not error.strerror else f"{name}: {error.strerror}"


LIMITS = {
    errno.EAGAIN: "ulimit -u", errno.EMFILE: "ulimit -n", errno.EFBIG: "ulimit -f",
    errno.ENOMEM: "ulimit -v",
}  # fmt: skip
"""Error of the system -> the limit of the process that it comes from."""


def _named_limit(error: BaseException | None) -> str:
    """Return the limit of the process that an error comes from, as the end of its message."""
    if isinstance(error, MemoryError):
        return f"; the process's limit is {LIMITS[errno.ENOMEM]}, or the container's"
    while error is not None:
        if isinstance(error, OSError) and error.errno in LIMITS:
            return f"; the process's limit is {LIMITS[error.errno]}"
        error = error.__cause__
    return ""


def check_memory_limits() -> None:
    """Check the limits of memory: with too little, libraries end the process without an error."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for name, option, least in LEAST_MEMORY:
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY and limit < least:
            message = (
                f"got a memory limit of {limit >> 20} MiB ({option}), expected at least "
                f"{least >> 20} MiB; raise the limit"
            )
            raise DeviceError(message, code=ErrorCode.LIMIT, resource="memory")


def _as_flags(message: str) -> str:
    """Replace names of Python arguments, as ``keep_blobs=``, by those of the command."""
    context = click.get_current_context(silent=True)
    for param in context.command.params if context is not None else ():
        name, flag = param.name or "", param.opts[0]
        if isinstance(param, click.Argument):
            flag = param.human_readable_name
        message = re.sub(rf"(?<![\w-]){name}= ", f"{flag} ", message)
        message = re.sub(rf"(?<![\w-]){name}='(\w+)'", rf"{flag} \1", message)
        for found in re.finditer(rf"(?<![\w-]){name}=\[([^\]]*)\]", message):
            values = found[1].replace("'", "").replace(" ", "")
            message = message.replace(found[0], f"{flag} {values}")
    return message


@contextmanager
def as_run_failures() -> Iterator[None]:
    """Let errors of a run, e.g. a loss of NaN, exit with 1, not 3: the files are correct."""
    try:
        yield
    except (errors.NetError, errors.SnapshotError) as error:
        raise DemitasseError(str(error), code=error.code, **error.details) from error


def print_stderr(text: str) -> None:
    """Print text on standard error; ignore a stream that cannot be written."""
    with suppress(OSError):
        click.echo(printable(text), err=True)


def discard_stream(name: Literal["stdout", "stderr"]) -> None:
    """Discard the buffer of a stream: Python would fail at exit when it flushes the buffer."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, getattr(sys, name).fileno())
        os.close(nowhere)


def stdout_failed(error: BaseException) -> bool:
    """Return True if ``click`` could not write to standard output; ``print_stderr`` never fails."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code is click.echo.__code__


def stdout_message(error: BaseException) -> str:
    """Return the message for standard output that cannot be written; discard its buffer."""
    discard_stream("stdout")
    return f"standard output cannot be written to: {getattr(error, 'strerror', None) or error}"
