"""Every exception Demitasse raises on purpose.

::

    DemitasseError
     |-- ConfigError      a setting or a layer field has a value it cannot have
     |-- PrototxtError    a text message cannot be read (file:line:column)
     |-- NetError         layers do not fit together
     |-- ShapeError       a blob has a shape its reader cannot take
     |-- WeightsError     weights cannot be read or do not fit the net
     |-- DataError        a record, image or database cannot be read (source, key)
     |-- DeviceError      a device is unknown, absent or unsuitable
     |    `-- OutOfMemoryError  it has no memory left
     |-- SnapshotError    a training state cannot be written, read or resumed
     `-- ParallelError    another training process has failed, is lost or is too late
          `-- LostProcessError  it has died; the remaining processes may continue

The function that finds a fault states *what* is wrong; its callers add *where* with ``at``. A
program that handles errors reads :attr:`DemitasseError.code` and :attr:`DemitasseError.details`:
both are stable, while messages may change from one version to the next.
"""

from enum import StrEnum
from typing import Self

from demitasse.core.text import escaped

__all__ = [
    "ConfigError", "DataError", "DemitasseError", "DeviceError", "ErrorCode", "LostProcessError",
    "NetError", "OutOfMemoryError", "ParallelError", "PrototxtError", "ShapeError",
    "SnapshotError", "WeightsError",
]  # fmt: skip

LONGEST, LONGEST_PLACE = 8000, 2000
"""Characters of a message, and of a place, that are shown."""


class ErrorCode(StrEnum):
    """Kind of a fault; stable from version to version, unlike the messages."""

    MISSING = "missing"
    """A required field, argument, blob or entry is absent."""
    UNKNOWN = "unknown"
    """A name is none of the known names."""
    INVALID = "invalid"
    """A value has the wrong type or form."""
    OUT_OF_RANGE = "out-of-range"
    """A number is outside its bounds."""
    NOT_FINITE = "not-finite"
    """A number is NaN or infinite."""
    CONFLICT = "conflict"
    """Two values exclude each other."""
    DUPLICATE = "duplicate"
    """A name or key occurs twice."""
    COUNT_MISMATCH = "count-mismatch"
    """The number of blobs, parameters or values differs from what is needed."""
    SHAPE_MISMATCH = "shape-mismatch"
    """A shape, or its number of axes, differs from what is needed."""
    DTYPE_MISMATCH = "dtype-mismatch"
    """An element type differs from what is needed."""
    NOT_FOUND = "not-found"
    """A file, folder, record or data set does not exist."""
    EXISTS = "exists"
    """A file or database to be created exists already."""
    IN_USE = "in-use"
    """Another process uses the file or folder."""
    UNREADABLE = "unreadable"
    """A file or record cannot be decoded or parsed."""
    TRUNCATED = "truncated"
    """A file ends too early."""
    CORRUPT = "corrupt"
    """Stored bytes contradict each other or their checksum."""
    UNWRITABLE = "unwritable"
    """A file cannot be written."""
    READ_ONLY = "read-only"
    """The target cannot be modified."""
    UNSUPPORTED = "unsupported"
    """A documented limit: the operation is not implemented here."""
    UNAVAILABLE = "unavailable"
    """A device, library or extra is not installed or not present."""
    UNTRUSTED = "untrusted"
    """Refused for security."""
    LIMIT = "limit"
    """A size or resource limit is exceeded."""
    OUT_OF_MEMORY = "out-of-memory"
    """A memory allocation failed."""
    INCOMPATIBLE = "incompatible"
    """Weights, states or versions do not belong together."""
    BAD_STATE = "bad-state"
    """The object cannot do this now: it is closed, not started, or was interrupted."""
    NO_GRADIENT = "no-gradient"
    """A gradient is asked for that does not exist."""
    TIMEOUT = "timeout"
    """Another process or server did not answer in time."""
    LOST_PROCESS = "lost-process"
    """Another process of the group died."""
    FAILED = "failed"
    """A callback, library or system call failed."""


class DemitasseError(RuntimeError):
    """Base of all exceptions raised by Demitasse; a RuntimeError, as those of Caffe's Python are.

    Args:
        message: The fault, and what to do about it.
        code: Kind of the fault, or None.
        details: Names and values that the message is about, for programs: ``field``, ``layer``,
            ``blob``, ``param``, ``got``, ``expected``, ...

    Attributes:
        message: The fault, and what to do about it.
        code: Kind of the fault, or None.
        details: Values by name; empty where nothing was stated.
        place: Where it happened, outermost first, or an empty string.
    """

    def __init__(self, message: str, *, code: ErrorCode | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details: dict[str, object] = details
        self.place = ""
        self.origin = ""

    def at(self, place: str, **details: object) -> Self:
        """Put ``place`` in front of the place that is known already.

        Args:
            place: For instance ``layer 'conv1' (Convolution)``.
            details: Values to add; a value that is known already is kept.
        """
        self.place = f"{place}: {self.place}" if self.place else place
        self.details = {**details, **self.details}
        return self

    def from_line(self, origin: str) -> Self:
        """Name the ``file:line`` the fault was written on; the innermost one is kept."""
        self.origin = self.origin or origin
        return self

    def __str__(self) -> str:
        text = escaped(_bounded(self.message, LONGEST))
        if self.place:
            text = f"{escaped(_bounded(self.place, LONGEST_PLACE), one_line=True)}: {text}"
        if self.origin:
            text += f"  [{escaped(_bounded(self.origin, LONGEST_PLACE), one_line=True)}]"
        return text


def _bounded(text: str, most: int) -> str:
    """Return text without its middle if it is longer; names in files can have any length."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {len(text) - most} characters ... {text[-(most // 2) :]}"


class ConfigError(DemitasseError):
    """A setting, an argument or a field of a layer has a value it cannot have.

    Attributes:
        fields: The fields of a solver that the error is about, the one at fault first; by default
            the ``field`` of the details.
    """

    def __init__(
        self, message: str, *, fields: tuple[str, ...] = (), code: ErrorCode | None = None,
        **details: object,
    ) -> None:  # fmt: skip
        super().__init__(message, code=code, **details)
        field = details.get("field")
        self.fields = fields or (() if field is None else (str(field),))


class PrototxtError(DemitasseError):
    """A text message cannot be read.

    Attributes:
        source: The file, or None for a string.
        line: Line of the fault, from 1, or None.
        column: Column of the fault, from 1, or None.
    """

    def __init__(
        self, message: str, source: str | None = None, line: int | None = None,
        column: int | None = None, *, code: ErrorCode | None = None, **details: object,
    ) -> None:  # fmt: skip
        super().__init__(message, code=code, **details)
        self.source, self.line, self.column = source, line, column
        spot = [str(part) for part in (source, line, column) if part is not None]
        if spot:
            self.at(":".join(spot))


class NetError(DemitasseError):
    """Layers, blobs or parameters of a net do not fit together."""


class ShapeError(DemitasseError):
    """A blob has a shape that its reader cannot take."""


class WeightsError(DemitasseError):
    """Weights cannot be read, or do not fit the net they are loaded into."""


class DataError(DemitasseError):
    """A record, image or database cannot be read.

    Attributes:
        source: The database, list or file, or None.
        key: The record inside it, or None.
    """

    def __init__(
        self, message: str, source: str | None = None, key: str | None = None, *,
        code: ErrorCode | None = None, **details: object,
    ) -> None:  # fmt: skip
        super().__init__(message, code=code, **details)
        self.source, self.key = source, key
        if source is not None:
            self.at(source if key is None else f"{source}, record {key!r}")


class DeviceError(DemitasseError):
    """A device is unknown or absent, has no memory left, or cannot do what is asked for."""


class OutOfMemoryError(DeviceError):
    """A device has no memory left, or has reached a limit.

    Attributes:
        advice: Largest batch that would fit, by computation; empty where that is not known. The
            number is ``details["largest_batch"]``.
    """

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message, code=ErrorCode.OUT_OF_MEMORY, **details)
        self.advice = ""

    def __str__(self) -> str:
        return super().__str__() + self.advice


class SnapshotError(DemitasseError):
    """A training state cannot be written, read or continued from."""


class ParallelError(DemitasseError):
    """Another training process has failed, is lost, or does not answer in time."""


class LostProcessError(ParallelError):
    """Another training process has died; the remaining processes may continue."""
