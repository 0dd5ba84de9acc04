"""Devices: the backend that a net runs on, and the index of its processor.

Devices replace ``Caffe::set_mode`` and ``SetDevice``. Sources of the choice, strongest first: an
argument, ``with use_device(...)``, ``set_device(...)``, ``DEMITASSE_DEVICE``, the solver file
(``train`` only), a settings file, ``cpu``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache

from demitasse.backends import backend_class, backend_names, canonical_name, devices_of
from demitasse.backends.base import Backend
from demitasse.core.config import settings
from demitasse.core.host import host_memory
from demitasse.core.memory_info import HOST, MemoryInfo, ledger
from demitasse.errors import DeviceError, ErrorCode

__all__ = [
    "SOLVER_FILE", "Device", "available_devices", "choose_device", "current_device", "devices",
    "memory_info", "named_device", "set_device", "use_device",
]  # fmt: skip


class Device:
    """A backend and an index: ``cpu``, ``cuda:1``, ``numpy``, ``strict:device1``.

    Devices of equal names are the same object. With the setting ``gpu_fallback`` at "cpu", a GPU's
    name gives ``cpu`` on a machine without GPUs.

    Raises:
        DeviceError: The name is unknown, or the device is not present.
    """

    _known: dict[str, Device] = {}  # noqa: RUF012 - one table for the class

    name: str
    kind: str
    index: str
    backend: Backend

    def __new__(cls, name: str | Device = "cpu") -> Device:
        """Return the one device of this name."""
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
            present = ", ".join(available_devices())
            message = f"device {name!r} is not here: {chosen.missing()}. Here are: {present}"
            raise DeviceError(message, code=ErrorCode.UNAVAILABLE, device=name)
        if not chosen.has(index):
            message = f"device {name!r} is not here; {kind} has {', '.join(there)}"
            raise DeviceError(message, code=ErrorCode.UNAVAILABLE, device=name)
        device = object.__new__(cls)
        device.name, device.kind, device.index = name, kind, index
        device.backend = chosen(index)
        return device

    @property
    def shares_host(self) -> bool:
        """True if the device computes on host arrays."""
        return self.backend.shares_host

    def functional(self) -> Device:
        """Return this device for pure functions: memories replace their arrays, no Step runs."""
        from demitasse.backends.functional import functional_class

        name = f"{self.name} (function)"
        if name not in self._known:
            device = object.__new__(Device)
            device.name, device.kind, device.index = name, self.kind, self.index
            device.backend = functional_class(type(self.backend))(self.index)
            return self._known.setdefault(name, device)
        return self._known[name]

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory and its use by nets of this process.

        Raises:
            DeviceError: The query failed.
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
    """Warn once per process."""
    message = f"no GPU is present, so the net runs on cpu, which is slower: {reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _join(kind: str, index: str) -> str:
    return f"{kind}:{index}" if index else kind


@cache
def available_devices() -> tuple[str, ...]:
    """Return the names of all usable devices of this machine."""
    found: list[str] = []
    for name in backend_names():
        with suppress(DeviceError):  # a broken package, which `demitasse doctor` reports
            found += devices_of(name)
    return tuple(found)


def devices() -> tuple[str, ...]:
    """Return the names of all usable devices of this machine, e.g. ``("cpu", "numpy")``."""
    return available_devices()


SOLVER_FILE = "solver file"
"""Source of a device that a solver's ``solver_mode`` chose."""

ARGUMENT = "argument"
"""Source of a device that the caller chose."""

_context: ContextVar[Device | None] = ContextVar("demitasse_device", default=None)
_default: list[Device] = []


def choose_device(
    argument: str | Device | None = None, solver_file: str | None = None
) -> tuple[Device, str]:
    """Return the device to use and the source of the choice.

    Args:
        argument: The caller's device, or None.
        solver_file: The solver file's device, for the ``train`` command only.
    """
    name, where = named_device(argument, solver_file)
    try:
        return Device(name), where
    except DeviceError as error:
        raise error if where == ARGUMENT else error.at(where) from None


def named_device(
    argument: str | Device | None = None, solver_file: str | None = None
) -> tuple[str | Device, str]:
    """Return the choice of :func:`choose_device` by name, even if the device is not present."""
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
    """Return the device of a net that is constructed without a ``device`` argument."""
    return choose_device()[0]


@contextmanager
def use_device(device: str | Device) -> Iterator[Device]:
    """Use ``device`` for nets constructed in the ``with`` block, in this thread or task."""
    chosen = Device(device)
    token = _context.set(chosen)
    try:
        yield chosen
    finally:
        _context.reset(token)


def memory_info(device: str | Device | None = None) -> MemoryInfo:
    """Return a device's memory and its use by nets of this process.

    Args:
        device: The device; defaults to :func:`current_device`.

    Raises:
        DeviceError: The device is not present, or the query failed.
    """
    return choose_device(device)[0].memory_info()


def set_device(device: str | Device | None) -> None:
    """Set the device of the whole process; None restores the settings' choice."""
    _default[:] = [] if device is None else [Device(device)]
