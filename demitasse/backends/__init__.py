"""Backends by name, each imported when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from demitasse.backends.base import Backend
from demitasse.errors import DeviceError

__all__ = ["backend_class", "backend_names"]

# name -> module and class there, or a function that returns the class
_PLACES = {
    "cpu": ("demitasse.backends.onednn", "cpu_backend"),
    "numpy": ("demitasse.backends.numpy.backend", "NumpyBackend"),
    "readonly": ("demitasse.backends.readonly", "ReadonlyBackend"),
    "strict": ("demitasse.backends.strict", "StrictBackend"),
    "cuda": ("demitasse.backends.cupy", "CupyBackend"),
}


def backend_names() -> list[str]:
    """Return the names a device may begin with."""
    return list(_PLACES)


@cache
def backend_class(name: str) -> type[Backend]:
    """Return the class of the backend called ``name``.

    Raises:
        DeviceError: There is no such backend, or what it needs is not installed.
    """
    try:
        module, attribute = _PLACES[name]
    except KeyError:
        message = f"there is no backend {name!r}; known are {', '.join(_PLACES)}"
        raise DeviceError(message) from None
    found = getattr(import_module(module), attribute)
    kind: type[Backend] = found if isinstance(found, type) else found()
    return kind
