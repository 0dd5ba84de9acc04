"""Every exception Demitasse raises on purpose.

::

    DemitasseError
     |-- ConfigError      a setting or a layer field has a value it cannot have
     |-- PrototxtError    a text message cannot be read (file:line:column)
     |-- NetError         layers do not fit together
     |-- ShapeError       a blob has a shape its reader cannot take
     |-- WeightsError     weights cannot be read or do not fit the net
     |-- DataError        a record, image or database cannot be read (source, key)
     |-- DeviceError      a device is unknown, absent or not to be used so
     |    `-- OutOfMemoryError  it has no memory left
     |-- SnapshotError    a training state cannot be written, read or resumed
     `-- ParallelError    another process that trains along has failed, is lost or is too late
          `-- LostProcessError  it has died, and those that are left may go on

The code that finds a fault says *what* is wrong; whoever called it adds *where* with ``at``.
"""

from __future__ import annotations

from typing import Self

from demitasse.escapes import escaped

__all__ = [
    "ConfigError",
    "DataError",
    "DemitasseError",
    "DeviceError",
    "LostProcessError",
    "NetError",
    "OutOfMemoryError",
    "ParallelError",
    "PrototxtError",
    "ShapeError",
    "SnapshotError",
    "WeightsError",
]

LONGEST, LONGEST_PLACE = 8000, 2000
"""Characters of a message, and of a place, that are shown."""


class DemitasseError(RuntimeError):
    """Base of all exceptions raised by Demitasse; a RuntimeError, as those of Caffe's Python are.

    Attributes:
        message: What is wrong and what to do about it.
        place: Where it happened, outermost first, or an empty string.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = ""
        self.origin = ""

    def at(self, place: str) -> Self:
        """Put ``place`` in front of what is already known of where this happened."""
        self.place = f"{place}: {self.place}" if self.place else place
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
    """Return text without its middle where it is longer than this, as names in files can be."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {len(text) - most} characters ... {text[-(most // 2) :]}"


class ConfigError(DemitasseError):
    """A setting, an argument or a field of a layer has a value it cannot have.

    Attributes:
        fields: The fields of a solver that it is about, where it is, the one at fault first.
    """

    def __init__(self, message: str, *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class PrototxtError(DemitasseError):
    """A text message cannot be read.

    Attributes:
        source: The file, or None for a string.
        line: Line of the fault, from 1, or None.
        column: Column of the fault, from 1, or None.
    """

    def __init__(
        self,
        message: str,
        source: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message)
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

    def __init__(self, message: str, source: str | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.source, self.key = source, key
        if source is not None:
            self.at(source if key is None else f"{source}, record {key!r}")


class DeviceError(DemitasseError):
    """A device is unknown or not there, has no memory left, or cannot reach what is elsewhere."""


class OutOfMemoryError(DeviceError):
    """A device has no memory left, or no more than a limit lets it have.

    Attributes:
        advice: Which batch would fit, by computation; empty where that is not known.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.advice = ""

    def __str__(self) -> str:
        return super().__str__() + self.advice


class SnapshotError(DemitasseError):
    """A training state cannot be written, read or continued from."""


class ParallelError(DemitasseError):
    """Another process that trains along has failed, is lost, or does not answer in time."""


class LostProcessError(ParallelError):
    """Another process that trains along has died, and those that are left may go on."""
