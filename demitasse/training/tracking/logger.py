"""Loggers of training runs: their protocol, JSON lines, and a group that cannot end a run."""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from demitasse.core.log import get_logger, json_ready
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.training.tracking.services import MlflowRun, TensorBoard, WeightsAndBiases

log = get_logger(__name__)

MOST_FAILURES = 3  # consecutive failures after which a logger is not called any more

Facts = Mapping[str, object]


class Logger(Protocol):
    """Receives numbers and events of a run, in ``solver.loggers``.

    Iterations can repeat: a run that resumes continues from its snapshot. The last values count.
    """

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Log numbers by name.

        Args:
            iteration: Number of updates made before.
            values: ``loss``, ``smoothed_loss``, ``learning_rate``, ``iterations_per_second``,
                ``images_per_second``, ``data_wait`` (a share, 0 to 1), ``train/NAME`` for outputs
                of the net, ``test0/NAME`` for those of the first test net, ``gradient_norm``. A
                call has some of these.
        """

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Log an event.

        Args:
            iteration: Number of updates made before.
            kind: ``begin`` when a run starts or resumes, ``snapshot``, ``environment``, and
                ``distributions`` with histograms of ``parameters``.
            facts: Values of JSON's types: text, numbers, lists, mappings.
        """

    def close(self) -> None:
        """Write all that is buffered; no call follows."""


@dataclass
class _LoggerState:
    """A logger, which is kept so that its ``id`` stays unique, and its history of calls."""

    logger: Logger
    begun: bool = False  # the event ``begin`` was sent
    reported: bool = False  # a failure was reported
    failures: int = 0  # consecutive ones


class LoggerGroup:
    """Calls the loggers that the function ``loggers`` returns at the time of a call.

    The first failure of a logger is reported. A logger that fails again and again is not called any
    more. ``metadata`` returns the facts of the event ``begin``.
    """

    def __init__(
        self, loggers: Callable[[], Sequence[Logger]], metadata: Callable[[], Facts]
    ) -> None:
        self._loggers, self._metadata = loggers, metadata
        self._states: dict[int, _LoggerState] = {}  # by id: a logger need not be hashable

    def begin(self) -> None:
        """Send ``begin`` before the next call: the run resumes from another place."""
        for state in self._states.values():
            state.begun = False

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Send numbers to every logger."""
        self._each(iteration, lambda logger: logger.scalars(iteration, values))

    def event(self, iteration: int, kind: str, facts: Facts) -> None:
        """Send an event to every logger."""
        self._each(iteration, lambda logger: logger.event(iteration, kind, facts))

    def close(self) -> None:
        """Close every logger."""
        for state in self._current():
            self._try(state, lambda logger: logger.close())

    def _each(self, iteration: int, send: Callable[[Logger], None]) -> None:
        for state in self._current():
            if not state.begun:
                state.begun = True
                self._try(state, lambda logger: logger.event(iteration, "begin", self._metadata()))
            self._try(state, send)

    def _current(self) -> list[_LoggerState]:
        return [self._states.setdefault(id(one), _LoggerState(one)) for one in self._loggers()]

    def _try(self, state: _LoggerState, send: Callable[[Logger], None]) -> None:
        if state.failures >= MOST_FAILURES:
            return
        try:
            send(state.logger)
        except Exception as error:  # clients of services raise errors of any type
            state.failures += 1
            if not state.reported:
                state.reported = True
                log.error(
                    "%s failed, and its record of this run has gaps; training continues: %s: %s",
                    state.logger, type(error).__name__, error,
                )  # fmt: skip
        else:
            state.failures = 0


class JsonLines:
    """Appends one JSON object in a line for every call.

    Each line is one system call: when the process is killed, the file contains all earlier lines. A
    run that resumes appends to the same file.

    Args:
        path: The file; created with its folder if it does not exist.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.is_fifo():  # opening a pipe waits for a reader
            message = "got a pipe, expected a regular file"
            raise OSError(errno.EINVAL, message, os.fspath(path))
        self._file: BinaryIO = self._path.open("ab", buffering=0)
        with self._path.open("rb") as file:  # a kill can leave half a line
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            self._incomplete = file.read() not in {b"", b"\n"}

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Append a line with ``values``."""
        self._append({"kind": "scalars", "iteration": iteration, "values": values})

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Append a line with ``facts``."""
        self._append({"kind": kind, "iteration": iteration, "facts": facts})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __repr__(self) -> str:
        return f"the file of JSON lines {str(self._path)!r}"

    def _append(self, entry: Mapping[str, object]) -> None:
        """Write a line, after a newline if the line before is incomplete."""
        timed = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        line = f"{json.dumps(json_ready(timed))}\n".encode()
        data = b"\n" + line if self._incomplete else line
        self._incomplete = True
        written = self._file.write(data)
        if written != len(data):
            message = f"only {written} of {len(data)} bytes could be written"
            raise OSError(message)
        self._incomplete = False


MAKERS: dict[str, Callable[[str], Logger]] = {
    "jsonl": JsonLines, "tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MlflowRun,
}  # fmt: skip

FORMS = "jsonl:PATH, tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT"


def check_target(target: str) -> tuple[str, str]:
    """Return kind and place of a target; ConfigError for an unknown kind, or without a place."""
    kind, _, place = target.partition(":")
    if kind not in MAKERS or not place:
        near = "" if kind in MAKERS else suggestion(kind, MAKERS)
        message = f"got logger {target!r}{near}, expected {FORMS}"
        code = ErrorCode.INVALID if kind in MAKERS else ErrorCode.UNKNOWN
        raise ConfigError(message, code=code, got=target)
    return kind, place


def open_logger(target: str) -> Logger:
    """Return the logger of a target.

    Args:
        target: ``jsonl:PATH``, ``tensorboard:DIR``, ``wandb:PROJECT`` or ``mlflow:EXPERIMENT``.

    Raises:
        ConfigError: The kind is unknown, or its place is missing; the library of the kind is not
            installed, or fails, e.g. because a service cannot be reached.
        OSError: A file or folder cannot be written.
    """
    kind, place = check_target(target)
    try:
        return MAKERS[kind](place)
    except (DemitasseError, OSError):
        raise
    except Exception as error:  # clients of services raise errors of any type
        message = f"the logger {target!r} failed: {type(error).__name__}: {error}"
        raise ConfigError(message, code=ErrorCode.FAILED, got=target) from error
