"""oneDNN on the CPU: prepared primitives over the layouts they choose themselves.

``Device("cpu")`` uses this backend if the library is found. Without the library, the device uses
the kernels of the package and numpy; without llvmlite, numpy alone. :func:`status` says which and
why. Importing this loads nothing; asking for the device does.
"""

from functools import cache

from demitasse.backends.base import Backend
from demitasse.backends.onednn.library.library import Status, kernels_alone, load, status
from demitasse.core.log import get_logger

__all__ = ["Status", "cpu_backend", "kernels_alone", "status"]


@cache
def _tell_slow(found: Status) -> None:
    """Warn once if the library is missing and no setting disables it."""
    if found.slow:
        get_logger(__name__).warning("%s", found.slow)


def cpu_backend() -> type[Backend]:
    """Return the backend of ``Device("cpu")``."""
    if load() is not None:
        from demitasse.backends.onednn.backend import OnednnBackend

        return OnednnBackend
    _tell_slow(status())
    if kernels_alone():
        from demitasse.backends.onednn.backend import KernelsBackend

        return KernelsBackend
    from demitasse.backends.numpy.backend import NumpyBackend

    return NumpyBackend
