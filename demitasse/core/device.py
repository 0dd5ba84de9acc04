"""Devices: which backend a net runs on, and which of its units.

A device stands where ``Caffe::set_mode`` and ``SetDevice`` stood. Which one is used is
configuration; strongest first: an argument, ``with use_device(...)``, ``set_device(...)``,
``DEMITASSE_DEVICE``, the solver file (``train`` only), a settings file, ``cpu``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache

from demitasse.backends import backend_class, backend_names, canonical_name, devices_of
from demitasse.backends.base import Backend
from demitasse.core.capacity import MemoryInfo, ledger
from demitasse.core.capacity.host import host_memory
from demitasse.core.capacity.ledger import HOST
from demitasse.core.config import settings
from demitasse.errors import DeviceError

__all__ = [
    "SOLVER_FILE",
    "Device",
    "available_devices",
    "choose_device",
    "current_device",
    "memory_info",
    "named_device",
    "set_device",
    "use_device",
]


class Device:
    """A backend and an index: ``cpu``, ``cuda:1``, ``numpy``, ``strict:device1``.

    Two devices of one name are the same object.

    With the setting ``gpu_fallback`` at "cpu", a machine without any GPU gives ``cpu`` for one.

    Raises:
        DeviceError: The name is unknown, or the device is not there; says what is.
    """

    _known: dict[str, Device] = {}  # noqa: RUF012 - one table for the class

    name: str
    kind: str
    index: str
    backend: Backend

    def __new__(cls, name: str | Device = "cpu") -> Device:
        """Return the device of this name, made once."""
        if isinstance(name, Device):
            return name
        kind, _, index = str(name).strip().partition(":")
        kind = canonical_name(kind)
        if (full := _join(kind, index)) in cls._known:
            return cls._known[full]
        chosen = backend_class(kind)
        if kind == "cuda" and not devices_of(kind) and settings.get("gpu_fallback") == "cpu":
            _warn_of_fallback(chosen.missing())
            return cls("cpu")
        index = index or chosen.default_index
        full = _join(kind, index)
        return cls._known.get(full) or cls._known.setdefault(full, cls._make(full, kind, index))

    @classmethod
    def _make(cls, name: str, kind: str, index: str) -> Device:
        chosen = backend_class(kind)
        there = devices_of(kind)
        if not there:
            message = f"device {name!r} is not here: {chosen.missing()}. Here are: {_here()}"
            raise DeviceError(message)
        if not chosen.has(index):
            message = f"device {name!r} is not here; {kind} has {', '.join(there)}"
            raise DeviceError(message)
        device = object.__new__(cls)
        device.name, device.kind, device.index = name, kind, index
        device.backend = chosen(index)
        return device

    @property
    def shares_host(self) -> bool:
        """Whether its arrays are host arrays."""
        return self.backend.shares_host

    def memory_info(self) -> MemoryInfo:
        """Return how much memory there is, and what nets of this process hold of it.

        Raises:
            DeviceError: The device cannot be asked.
        """
        limit = settings.get("memory_limit")
        used = ledger.used(HOST if self.shares_host else self.name)
        own = self.backend.memory_info()
        if own is None:
            host = host_memory()
            total, free, process = host.total or None, host.free, host.process
        else:
            (free, total), process = own, None
        if limit and free is not None:
            free = min(free, max(0, limit - used))
        pooled = self.backend.pooled
        return MemoryInfo(self.name, total, free, used, pooled, limit, process)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        return Device, (self.name,)


@cache
def _warn_of_fallback(reason: str) -> None:
    """Warn once in a process."""
    message = f"there is no GPU to run on, so cpu does it, which is slower: {reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _join(kind: str, index: str) -> str:
    return f"{kind}:{index}" if index else kind


def _here() -> str:
    return ", ".join(available_devices())


@cache
def available_devices() -> tuple[str, ...]:
    """Return the names of all devices that can be used on this machine."""
    found: list[str] = []
    for name in backend_names():
        with suppress(DeviceError):  # of a broken package; `demitasse doctor` says so
            found += devices_of(name)
    return tuple(found)


SOLVER_FILE = "solver file"
"""Where a choice comes from that a solver's ``solver_mode`` has made."""

ARGUMENT = "argument"
"""Where a choice comes from that the caller has made."""

_context: ContextVar[Device | None] = ContextVar("demitasse_device", default=None)
_default: list[Device] = []


def choose_device(
    argument: str | Device | None = None, solver_file: str | None = None
) -> tuple[Device, str]:
    """Return the device to use and where that choice comes from.

    Args:
        argument: What the caller named, or None.
        solver_file: What a solver file names, for the ``train`` command alone.
    """
    name, where = named_device(argument, solver_file)
    try:
        return Device(name), where
    except DeviceError as error:
        raise error if where == ARGUMENT else error.at(where) from None


def named_device(
    argument: str | Device | None = None, solver_file: str | None = None
) -> tuple[str | Device, str]:
    """Return what :func:`choose_device` chooses, which may be a name of none that is here."""
    if argument is not None:
        return argument, ARGUMENT
    within = _context.get()
    if within is not None:
        return within, "use_device"
    if _default:
        return _default[0], "set_device"
    found = settings.find("device")
    if solver_file is not None and not found.where.startswith("DEMITASSE_"):
        return solver_file, SOLVER_FILE
    return found.value, found.where


def current_device() -> Device:
    """Return the device that a net made here and now would run on."""
    return choose_device()[0]


@contextmanager
def use_device(device: str | Device) -> Iterator[Device]:
    """Make nets inside the ``with`` block, in this thread or task, use ``device``."""
    chosen = Device(device)
    token = _context.set(chosen)
    try:
        yield chosen
    finally:
        _context.reset(token)


def memory_info(device: str | Device | None = None) -> MemoryInfo:
    """Return how much memory a device has, and what nets of this process hold of it.

    Args:
        device: The device; None is the one that a net made here and now would run on.

    Raises:
        DeviceError: It is not there, or cannot be asked.
    """
    return choose_device(device)[0].memory_info()


def set_device(device: str | Device | None) -> None:
    """Set the device of the whole process; None goes back to the settings."""
    _default[:] = [] if device is None else [Device(device)]
