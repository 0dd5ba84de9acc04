"""Backends by name: ours and those of installed packages, each imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from demitasse.backends import packages
from demitasse.backends.base import Backend
from demitasse.core.plugins import import_plugins
from demitasse.core.text import suggestion
from demitasse.errors import DeviceError, ErrorCode

__all__ = ["backend_class", "backend_names", "canonical_name", "clashes", "devices_of", "register"]

BUILT_IN = {
    "cpu": "demitasse.backends.onednn:cpu_backend",
    "numpy": "demitasse.backends.numpy.backend:NumpyBackend",
    "readonly": "demitasse.backends.test_devices:ReadonlyBackend",
    "strict": "demitasse.backends.test_devices:StrictBackend",
    "cuda": "demitasse.backends.cupy:CupyBackend",
}
"""Name -> module and class there, or a function that returns the class; as entry points have it."""

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
    others = _registered.keys() | packages.entry_points_by_name().keys()
    return [*BUILT_IN, *sorted(others - BUILT_IN.keys() - ALIASES.keys())]


def register(name: str) -> Callable[[type[Backend]], type[Backend]]:
    """Make a class of backends one that devices may be of: ``@register_backend("mine")``.

    Args:
        name: What the names of its devices begin with.

    Raises:
        DeviceError: The name is taken.
    """

    def note(kind: type[Backend]) -> type[Backend]:
        if name in BUILT_IN or name in ALIASES or _registered.get(name, kind) is not kind:
            message = f"there is a backend {name!r} already; choose another name"
            raise DeviceError(message, code=ErrorCode.DUPLICATE, backend=name)
        _registered[name] = packages.class_of(kind)
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
        return packages.class_of(getattr(import_module(module), attribute))
    if name not in _registered:
        import_plugins()
    if name in _registered:
        return _registered[name]
    for clash in clashes():
        packages.warn_once(clash)
    points = packages.entry_points_by_name().get(name)
    if not points:
        raise DeviceError(_unknown(name), code=ErrorCode.UNKNOWN, backend=name)
    return packages.load(name, points)


def devices_of(name: str) -> list[str]:
    """Return the names of the present devices of one backend.

    Raises:
        DeviceError: There is no such backend, or the package that has it is broken.
    """
    return [f"{name}:{i}" if i else name for i in backend_class(name).indices()]


def clashes() -> list[str]:
    """Return a warning for each installed backend that has the name of a built-in backend."""
    ours = {*BUILT_IN, *ALIASES}
    return [
        f"the backend {name!r} of {packages.distribution(point)} is not used: Demitasse has one "
        "of that name"
        for name, points in packages.entry_points_by_name().items()
        if name in ours
        for point in points
    ]


def _unknown(name: str) -> str:
    known = [*backend_names(), *ALIASES]
    near = suggestion(name, known)
    if name.lower() in TORCH_DEVICES:
        near = f"; PyTorch's device is 'torch:{name.lower()}'"
    return f"there is no backend {name!r}{near}; known are {', '.join(known)}"
