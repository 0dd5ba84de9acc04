"""Detection and versions of cuDNN and its frontend.

The frontend is the Python package ``nvidia-cudnn-frontend``, imported as ``cudnn``; cuDNN itself is
a library in another package. Neither needs a GPU to be loaded.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from demitasse.backends.step import decline_if

INSTALL = 'pip install "demitasse[cudnn13]" (cudnn12 for CUDA 12) brings both'


@dataclass(frozen=True)
class Status:
    """Versions of cuDNN, e.g. ``"9.28.1"``, and its frontend; or the reason of a failed import."""

    loaded: bool
    version: str = ""
    frontend: str = ""
    reason: str = ""


@cache
def status() -> Status:
    """Load cuDNN and its frontend, once in a process; return their status. Never raises."""
    try:
        frontend = import_module("cudnn")
    except Exception as error:  # a broken installation can raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == "cudnn":
            return Status(False, reason=f"cuDNN's frontend is not installed; {INSTALL}")
        return Status(False, reason=f"cuDNN's frontend cannot be imported ({error}); {INSTALL}")
    try:
        number = int(frontend.backend_version())
        version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"  # 92801 -> 9.28.1
        return Status(True, version, str(frontend.__version__))
    except Exception as error:  # RuntimeError where the library is missing
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return Status(False, reason=f"cuDNN's library cannot be loaded ({first}); {INSTALL}")


def cudnn() -> ModuleType:
    """Return the frontend; decline if the frontend or cuDNN cannot be loaded."""
    decline_if(not status().loaded, status().reason)
    return import_module("cudnn")
