"""Exit codes, and how a failure ends the process."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from demitasse.cli.streams import leave_unsaid, of_stdout, stdout_failed
from demitasse.core.text import escaped
from demitasse.errors import (
    ConfigError,
    DataError,
    DemitasseError,
    DeviceError,
    LostProcessError,
    NetError,
    OutOfMemoryError,
    ParallelError,
    PrototxtError,
    ShapeError,
    SnapshotError,
    WeightsError,
)

__all__ = [
    "EXIT_CODES",
    "FAILED",
    "INTERRUPTED",
    "MODEL_OR_DATA",
    "Fault",
    "exit_code",
    "faults",
    "running",
]

FAILED, MODEL_OR_DATA, DEVICE, INTERRUPTED = 1, 3, 4, 130

EXIT_CODES: dict[type[BaseException], int] = {
    KeyboardInterrupt: INTERRUPTED,
    OutOfMemoryError: DEVICE,
    DeviceError: DEVICE,
    ConfigError: MODEL_OR_DATA,
    DataError: MODEL_OR_DATA,
    NetError: MODEL_OR_DATA,
    LostProcessError: FAILED,
    ParallelError: FAILED,
    PrototxtError: MODEL_OR_DATA,
    ShapeError: MODEL_OR_DATA,
    SnapshotError: MODEL_OR_DATA,
    WeightsError: MODEL_OR_DATA,
    DemitasseError: FAILED,
    OSError: FAILED,
    MemoryError: DEVICE,
}
"""Exception -> exit code; the first that fits counts. Wrong usage is click's own 2."""


class Fault(click.ClickException):
    """Ends the process with a message and a code, without a traceback."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance, too

    def show(self, file: object = None) -> None:
        """Print the message on standard error, if that can be written; the code says enough."""
        del file
        try:
            click.echo(f"error: {escaped(self.format_message())}", err=True)
        except OSError:
            leave_unsaid("stderr")


def exit_code(error: BaseException) -> int:
    """Return the code that the process ends with because of an exception."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), FAILED)


@contextmanager
def faults() -> Iterator[None]:
    """Turn exceptions that explain themselves into faults; at log level debug, show where from."""
    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly when nobody reads any more
    except tuple(EXIT_CODES) as error:
        if logging.getLogger("demitasse").isEnabledFor(logging.DEBUG):
            traceback.print_exception(error)
        from demitasse.cli.excerpts import with_excerpts
        from demitasse.core.config.files import working_folder

        told = "interrupted" if isinstance(error, KeyboardInterrupt) else with_excerpts(error)
        if isinstance(error, FileNotFoundError) and error.filename is None and not working_folder():
            told += ": the working directory has been deleted; change to another one"
        if stdout_failed(error):
            told = of_stdout(error)
        message = _as_flags(told)
        raise Fault(message or type(error).__name__, exit_code(error)) from error


def _as_flags(message: str) -> str:
    """Return a message that names arguments of Python, as ``keep=``, with the verb's flags."""
    context = click.get_current_context(silent=True)
    for name in context.params if context is not None else ():
        message = re.sub(rf"(?<![\w-]){name}= ", f"--{name} ", message)
        message = re.sub(rf"(?<![\w-]){name}='(\w+)'", rf"--{name} \1", message)
    return message


@contextmanager
def running() -> Iterator[None]:
    """Errors raised while running exit with 1, not 3: the files of the model are in order.

    Such as a snapshot that cannot be written, or a loss that is NaN.
    """
    try:
        yield
    except (NetError, SnapshotError) as error:
        raise DemitasseError(str(error), code=error.code, **error.details) from error
