"""Transfers between host and device: counts, and a guard against copies in the middle of a pass.

A copy in the middle of a pass makes the device wait for the host, in every pass. Causes are a
layer that runs on the host, a Python layer that takes ``.data``, or a callback that reads a blob.
Necessary copies do not count: inputs that are on the host before the pass, tops of layers without
bottoms, and reads after the pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from demitasse.core.config import settings
from demitasse.core.deprecated import warn_once
from demitasse.core.log import get_logger
from demitasse.core.text import bytes_text
from demitasse.errors import ConfigError, DeviceError, ErrorCode

if TYPE_CHECKING:
    from demitasse.memory.synced import SyncedMemory

log = get_logger(__name__)


@dataclass
class _Counts:
    """Counts of one thread."""

    to_device: int = 0
    to_host: int = 0
    reorders: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0


def _total(name: str, meaning: str) -> Any:
    """Return a property: the sum of a count over all threads."""
    return property(lambda self: sum(getattr(one, name) for one in self._all), doc=meaning)


class Transfers:
    """Counts of copies, by thread, since an interrupt could leave a lock locked."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero."""
        self._own, self._all = threading.local(), list[_Counts]()

    to_device = _total("to_device", "Copies from host to device.")
    to_host = _total("to_host", "Copies from device to host.")
    reorders = _total("reorders", "Changes of layout on one device.")
    bytes_to_device = _total("bytes_to_device", "Bytes copied from host to device.")
    bytes_to_host = _total("bytes_to_host", "Bytes copied from device to host.")

    @property
    def reorders_here(self) -> int:
        """Changes of layout by this thread."""
        counts = getattr(self._own, "counts", None)
        return 0 if counts is None else counts.reorders

    def note(self, *, up: int = 0, down: int = 0, reorders: int = 0) -> None:
        """Count a copy of ``up`` bytes to the device or ``down`` bytes to the host, or reorders."""
        counts: _Counts | None = getattr(self._own, "counts", None)
        if counts is None:
            counts = self._own.counts = _Counts()
            self._all.append(counts)
        counts.reorders += reorders
        if up:
            counts.to_device += 1
            counts.bytes_to_device += up
        if down:
            counts.to_host += 1
            counts.bytes_to_host += down


transfers = Transfers()

TransferMode = Literal["allow", "warn", "raise"]
MODES = ("allow", "warn", "raise")
OLD_MODES: dict[str, TransferMode] = {"log": "warn", "error": "raise"}

_mode: ContextVar[TransferMode | None] = ContextVar("demitasse_transfers", default=None)
_guard: ContextVar[Guard | None] = ContextVar("demitasse_guard", default=None)

VIEW = "it has a live view (.data or .diff): delete the view, or use a copy"
LAYER = "use read() and write() on the device, or permit it with transfer_guard('allow')"


@contextmanager
def transfer_guard(mode: TransferMode) -> Iterator[None]:
    """Set the reaction to copies of blobs between host and device in the middle of a pass.

    The mode holds for the passes of this thread or task in the ``with`` block; the setting
    ``transfers`` holds for all others. A net logs each layer and blob once.

    Args:
        mode: "allow" copies, "warn" copies and logs a warning with layer and blob, "raise" raises
            a DeviceError in place of the copy.

    Raises:
        ConfigError: There is no such mode.
    """
    if mode in OLD_MODES:
        warn_once(f"transfer_guard({mode!r})", f"{OLD_MODES[mode]!r}", stacklevel=5)
        mode = OLD_MODES[mode]
    if mode not in MODES:
        message = f"got transfer guard {mode!r}, expected one of {', '.join(MODES)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="transfers", got=mode)
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


def transfer_mode() -> TransferMode:
    """Return the mode for passes of this thread or task."""
    within = _mode.get()
    mode: TransferMode = settings.get_often("transfers") if within is None else within
    return mode


def current_guard() -> Guard | None:
    """Return the guard of the running pass, or None."""
    return _guard.get()


class Guard:
    """Detects copies in the middle of the passes of one net."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    @contextmanager
    def for_pass(self, mode: TransferMode) -> Iterator[None]:
        """Return a context for one pass in the mode "warn" or "raise"."""
        self._where, self._doing, self._advice, self._feeds = "", "", LAYER, False
        self._written: set[int] = set()
        self._refuses = mode == "raise"
        token = _guard.set(self)
        try:
            yield
        finally:
            _guard.reset(token)

    def at(self, where: str, doing: str = "", *, feeds: bool = False) -> None:
        """Set the place of the copies that follow; ``feeds`` marks a layer that brings in data."""
        self._where, self._doing, self._feeds = where, doing, feeds

    @property
    def place(self) -> str:
        """Name of the last place."""
        return self._where

    def after_pass(self) -> None:
        """Set the place to the end of the pass, when live views are brought up to date."""
        self.at("after the pass")
        self._advice = VIEW

    def wrote(self, memory: SyncedMemory) -> None:
        """Note that the host side of a memory becomes the newest."""
        if not self._feeds:
            self._written.add(memory.serial)

    def downloads(self, memory: SyncedMemory) -> None:
        """Log or refuse a copy to the host."""
        self._report(memory, f"from {memory.device} to the host")

    def uploads(self, memory: SyncedMemory) -> None:
        """Log or refuse a copy to the device, unless the contents are from before the pass."""
        if memory.serial in self._written:
            self._report(memory, f"from the host to {memory.device}")

    def _report(self, memory: SyncedMemory, way: str) -> None:
        size = bytes_text(memory.nbytes)
        if self._refuses:
            message = f"{memory.label} ({size}) would be copied {way}; {self._advice}"
            error = DeviceError(message, code=ErrorCode.CONFLICT, memory=memory.label)
            raise error.at(self._doing or self._where)
        where = f"{self._where}, {self._doing}" if self._doing else self._where
        key = (where, f"{memory.label} {way}")
        if key not in self._logged:
            self._logged.add(key)
            log.warning(
                "%s: %s (%s) is copied %s; %s", where, memory.label, size, way, self._advice
            )
