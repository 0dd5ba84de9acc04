"""Guard: copies of blobs between host and device in the middle of a pass, told of or refused.

Such a copy makes the device wait for the host, in every pass: a layer that works on the host, a
Python layer that takes ``.data``, a callback that looks at a blob. What is on the host before the
pass, and what layers without bottoms bring in, has to be copied and is not meant; nor is what is
read after the pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

from demitasse.core.config import settings
from demitasse.core.deprecated import warn_once
from demitasse.core.log import get_logger
from demitasse.core.text import bytes_text
from demitasse.errors import ConfigError, DeviceError, ErrorCode

__all__ = ["Guard", "TransferMode", "transfer_guard", "transfer_mode", "watching"]

TransferMode = Literal["allow", "warn", "raise"]
MODES = ("allow", "warn", "raise")
OLD_MODES: dict[str, TransferMode] = {"log": "warn", "error": "raise"}

log = get_logger(__name__)

_mode: ContextVar[TransferMode | None] = ContextVar("demitasse_transfers", default=None)
_watching: ContextVar[Guard | None] = ContextVar("demitasse_guard", default=None)

VIEW = "somebody holds a live view of it (.data or .diff): let go of it, or take a copy"
LAYER = "work on the device, with read() and write(), or let it pass with transfer_guard('allow')"


@contextmanager
def transfer_guard(mode: TransferMode) -> Iterator[None]:
    """Say what becomes of copies of blobs between host and device in the middle of a pass.

    For the passes that this thread or task runs in the ``with`` block; the setting ``transfers``
    says it for all others. Each layer and blob is logged once for a net.

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
        message = f"a transfer guard is one of {', '.join(MODES)}, not {mode!r}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="transfers", got=mode)
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


def transfer_mode() -> TransferMode:
    """Return what becomes of such copies in passes that are run here and now."""
    within = _mode.get()
    mode: TransferMode = settings.get_often("transfers") if within is None else within
    return mode


def watching() -> Guard | None:
    """Return the guard of the pass that is under way, or None."""
    return _watching.get()


class Guarded(Protocol):
    """A memory that is copied (``SyncedMemory``)."""

    @property
    def called(self) -> str:
        """What it is called in messages."""

    @property
    def device(self) -> object:
        """Where its device side is."""

    @property
    def nbytes(self) -> int:
        """Size of one side, in bytes."""

    @property
    def serial(self) -> int:
        """Tells it from every other memory."""


class Guard:
    """Watches the passes of one net."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self._refuses = False
        self._begin()

    def _begin(self) -> None:
        self._where, self._doing, self._reason, self._feeds = "", "", LAYER, False
        self._written: set[int] = set()

    @contextmanager
    def watch(self, mode: TransferMode) -> Iterator[None]:
        """Watch the pass within the block.

        Args:
            mode: "warn" or "raise".
        """
        self._begin()
        self._refuses = mode == "raise"
        token = _watching.set(self)
        try:
            yield
        finally:
            _watching.reset(token)

    def at(self, where: str, doing: str = "", *, feeds: bool = False) -> None:
        """Note what runs from now on.

        Args:
            where: What it is, as messages name it.
            doing: What a layer does, "forward" or "backward"; who runs it names it in errors.
            feeds: Whether it brings data in, which comes from the host.
        """
        self._where, self._doing, self._feeds = where, doing, feeds

    def after_pass(self) -> None:
        """Note that the pass is done, and live views are brought up to date."""
        self.at("after the pass")
        self._reason = VIEW

    def wrote(self, memory: Guarded) -> None:
        """Note that the host side of a memory becomes the newest."""
        if not self._feeds:
            self._written.add(memory.serial)

    def downloads(self, memory: Guarded) -> None:
        """Tell of a copy to the host that is about to be made.

        Raises:
            DeviceError: It is to be refused.
        """
        self._tell(memory, f"from {memory.device} to the host")

    def uploads(self, memory: Guarded) -> None:
        """Tell of a copy to the device, unless it is of what came from the host before.

        Raises:
            DeviceError: It is to be refused.
        """
        if memory.serial in self._written:
            self._tell(memory, f"from the host to {memory.device}")

    def _tell(self, memory: Guarded, way: str) -> None:
        size = bytes_text(memory.nbytes)
        if self._refuses:
            message = f"{memory.called} ({size}) would be copied {way}; {self._reason}"
            error = DeviceError(message, code=ErrorCode.CONFLICT, memory=memory.called)
            raise error.at(self._doing or self._where)
        where = f"{self._where}, {self._doing}" if self._doing else self._where
        key = (where, f"{memory.called} {way}")
        if key not in self._told:
            self._told.add(key)
            log.warning(
                "%s: %s (%s) is copied %s; %s", where, memory.called, size, way, self._reason
            )
