"""Backends by name: ours and those of installed packages, each imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from demitasse.backends.base import Backend
from demitasse.core.log import get_logger
from demitasse.core.plugins import import_plugins
from demitasse.core.text import suggestion
from demitasse.errors import DeviceError, ErrorCode

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["backend_class", "backend_names", "canonical_name", "clashes", "devices_of", "register"]

BUILT_IN = {
    "cpu": "demitasse.backends.cpu:cpu_backend",
    "numpy": "demitasse.backends.numpy.backend:NumpyBackend",
    "readonly": "demitasse.backends.test_devices:ReadonlyBackend",
    "strict": "demitasse.backends.test_devices:StrictBackend",
    "cuda": "demitasse.backends.cupy:CupyBackend",
}
"""Name -> module and class there, or a function that returns the class; as entry points have it."""

GROUP = "demitasse.backends"  # entry points of packages that add backends

TORCH_DEVICES = ("mps", "xpu", "hpu", "xla")
"""Devices that PyTorch alone computes on; their names here begin with ``torch:``."""

_registered: dict[str, type[Backend]] = {}

ALIASES = {"gpu": "cuda"}
"""Further names; here, so that a name is understood before a backend is imported."""


def canonical_name(name: str) -> str:
    """Return the name of a backend that may be called by another one."""
    return ALIASES.get(name, name)


def backend_names() -> list[str]:
    """Return the names of built-in backends, then of registered and installed backends."""
    others = _registered.keys() | entry_points_by_name().keys()
    return [*BUILT_IN, *sorted(others - BUILT_IN.keys() - ALIASES.keys())]


def register(name: str) -> Callable[[type[Backend]], type[Backend]]:
    """Make a class of backends one that devices may be of: ``@register_backend("mine")``.

    Raises:
        DeviceError: The name is taken, or is none.
    """
    if not isinstance(name, str):
        message = f"got {name}, expected a name; write @register_backend('mine')"
        raise DeviceError(message, code=ErrorCode.INVALID, backend=str(name))

    def note(kind: type[Backend]) -> type[Backend]:
        if name in BUILT_IN or name in ALIASES or _registered.get(name, kind) is not kind:
            message = f"there is a backend {name!r} already; choose another name"
            raise DeviceError(message, code=ErrorCode.DUPLICATE, backend=name)
        _registered[name] = class_of(kind)
        return kind

    return note


@cache
def backend_class(name: str) -> type[Backend]:
    """Return the class of the backend called ``name``.

    Plugins and installed packages are imported only for names that are not built in.

    Raises:
        ConfigError: A module that the setting ``plugins`` names cannot be imported.
        DeviceError: There is no such backend, or the package that has it is broken.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return class_of(getattr(import_module(module), attribute))
    if name not in _registered:
        import_plugins()
    if name in _registered:
        return _registered[name]
    for clash in clashes():
        warn_once(clash)
    points = entry_points_by_name().get(name)
    if not points:
        raise DeviceError(_unknown(name), code=ErrorCode.UNKNOWN, backend=name)
    return _load(name, points)


def devices_of(name: str) -> list[str]:
    """Return the names of the present devices of one backend; errors as of ``backend_class``."""
    return [f"{name}:{i}" if i else name for i in backend_class(name).indices()]


def clashes() -> list[str]:
    """Return a warning for each installed backend that has the name of a built-in backend."""
    ours = {*BUILT_IN, *ALIASES}
    return [
        f"the backend {name!r} of {_distribution(point)} is not used: Demitasse has one "
        "of that name"
        for name, points in entry_points_by_name().items()
        if name in ours
        for point in points
    ]


def _unknown(name: str) -> str:
    known = [*backend_names(), *ALIASES]
    near = suggestion(name, known)
    if name.lower() in TORCH_DEVICES:
        near = f"; PyTorch's device is 'torch:{name.lower()}'"
    return f"there is no backend {name!r}{near}; known are {', '.join(known)}"


def entry_points_by_name() -> dict[str, list[EntryPoint]]:
    """Return the entry points by name; several if packages define one name differently."""
    from importlib.metadata import entry_points  # a slow import, only needed here

    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        same = points.setdefault(point.name, [])
        if all(other.value != point.value for other in same):
            same.append(point)
    return points


def _load(name: str, points: Sequence[EntryPoint]) -> type[Backend]:
    """Return the class of a name's only entry point; errors name the package."""
    if len(points) > 1:
        message = (
            f"{len(points)} packages have a backend {name!r}: "
            f"{', '.join(map(_distribution, points))}; uninstall all but one"
        )
        raise DeviceError(message, code=ErrorCode.DUPLICATE, backend=name)
    [point] = points
    try:
        return class_of(point.load())
    except Exception as error:  # whatever somebody else's code raises
        message = (
            f"the backend {name!r} of {_distribution(point)} cannot be loaded: its entry point "
            f"'{point.name} = {point.value}' raised {type(error).__name__}: {error}"
        )
        raise DeviceError(message, code=ErrorCode.FAILED, backend=name) from error


def class_of(entry: object) -> type[Backend]:
    """Return an entry that is a class, or the class that it returns; raise TypeError for others."""
    kind = entry() if callable(entry) and not isinstance(entry, type) else entry
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        message = f"a subclass of demitasse.backends.base.Backend is needed, not {kind!r}"
        raise TypeError(message)
    return kind


def _distribution(point: EntryPoint) -> str:
    """Return name and version of the package that an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"


@cache
def warn_once(message: str) -> None:
    """Log a warning that was not logged before."""
    get_logger(__name__).warning(message)
