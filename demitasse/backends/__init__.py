"""Backends by name: ours and those of installed packages, each imported when first asked for."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module

from demitasse.backends import packages
from demitasse.backends.base import Backend
from demitasse.errors import DeviceError

__all__ = ["backend_class", "backend_names", "canonical_name", "clashes", "devices_of"]

BUILT_IN = {
    "cpu": "demitasse.backends.onednn:cpu_backend",
    "numpy": "demitasse.backends.numpy.backend:NumpyBackend",
    "readonly": "demitasse.backends.readonly:ReadonlyBackend",
    "strict": "demitasse.backends.strict:StrictBackend",
    "cuda": "demitasse.backends.cupy:CupyBackend",
}
"""Name -> module and class there, or a function that returns the class; as entry points have it."""

ALIASES = {"gpu": "cuda"}
"""Further names; here, so that a name is understood before a backend is imported."""


def canonical_name(name: str) -> str:
    """Return the name of a backend that may be called by another one."""
    return ALIASES.get(name, name)


def backend_names() -> list[str]:
    """Return the names a device may begin with: ours, then those of installed packages."""
    return [*BUILT_IN, *sorted(packages.found().keys() - BUILT_IN.keys() - ALIASES.keys())]


@cache
def backend_class(name: str) -> type[Backend]:
    """Return the class of the backend called ``name``.

    Installed packages are searched only for names that are not ours.

    Raises:
        DeviceError: There is no such backend, or the package that has it is broken.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return packages.class_of(getattr(import_module(module), attribute))
    for clash in clashes():
        packages.warn_once(clash)
    points = packages.found().get(name)
    if not points:
        raise DeviceError(_unknown(name))
    return packages.load(name, points)


def devices_of(name: str) -> list[str]:
    """Return the names of the devices of one backend that are there.

    Raises:
        DeviceError: There is no such backend, or the package that has it is broken.
    """
    return [f"{name}:{i}" if i else name for i in backend_class(name).indices()]


def clashes() -> list[str]:
    """Say which backends of installed packages are not used, since the name is ours."""
    ours = {*BUILT_IN, *ALIASES}
    return [
        f"the backend {name!r} of {packages.distribution(point)} is not used: Demitasse has one "
        "of that name"
        for name, points in packages.found().items()
        if name in ours
        for point in points
    ]


def _unknown(name: str) -> str:
    known = [*backend_names(), *ALIASES]
    near = difflib.get_close_matches(name.casefold(), known, n=1)
    parts = [f"there is no backend {name!r}"]
    if near:
        parts.append(f"did you mean {near[0]}?")
    parts.append(f"known are {', '.join(known)}")
    return "; ".join(parts)
