"""Detection of cupy, a driver and GPUs, and advice about missing ones.

Nothing here raises: having no GPU is no error.
"""

import os
from dataclasses import dataclass
from importlib import import_module

INSTALL = (
    'pip install "demitasse[cuda13]" (needs an NVIDIA driver of version 580 or newer) '
    'or pip install "demitasse[cuda12]" (525 or newer)'
)


@dataclass(frozen=True)
class Detection:
    """Result of ``look``.

    Attributes:
        cupy: Version of cupy, or None.
        built_for: Version of CUDA that cupy is built for, or None.
        driver: Latest version of CUDA that the driver runs, or None.
        devices: Number of GPUs.
        error: First line of the error that ended the search; empty without one.
    """

    cupy: str | None = None
    built_for: str | None = None
    driver: str | None = None
    devices: int = 0
    error: str = ""


def look() -> Detection:
    """Look for cupy, a driver and GPUs."""
    try:
        cupy = import_module("cupy")
    except Exception as error:  # a broken installation can raise anything
        absent = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        return Detection(error="" if absent else _text(error))
    version = str(getattr(cupy, "__version__", "of unknown version"))
    try:
        runtime = cupy.cuda.runtime
        built_for = _cuda_version(runtime.runtimeGetVersion())
        driver = _cuda_version(runtime.driverGetVersion())
    except Exception as error:
        return Detection(cupy=version, error=_text(error))
    try:
        return Detection(version, built_for, driver, int(runtime.getDeviceCount()))
    except Exception as error:  # no driver, no GPU, no permission, ...
        return Detection(version, built_for, driver, error=_text(error))


def advice(found: Detection) -> str:
    """Return the reason why no GPU can be used, and what to do."""
    if found.cupy is None:
        if found.error:
            return f"cupy is installed but cannot be imported ({found.error}); {INSTALL}"
        return f"cupy is not installed; {INSTALL}"
    has = f"cupy {found.cupy}"
    because = f" ({found.error})" if found.error else ""
    if found.built_for:
        has += f", built for CUDA {found.built_for}, is installed"
    if found.driver is None:
        return f"{has}, but no NVIDIA driver was found{because}"
    runs, needs = (int(text.partition(".")[0]) for text in (found.driver, found.built_for or "0"))
    if runs < needs:  # a driver runs all minor versions of its major version
        return (
            f"{has}, but the NVIDIA driver runs CUDA {found.driver} at most; "
            f"update the driver, or install the cupy that fits it: {INSTALL}"
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not found.devices:
        return f"{has}, but CUDA_VISIBLE_DEVICES is {hidden!r}, which hides every GPU"
    return f"{has}, and the driver runs CUDA {found.driver}, but no GPU was found{because}"


def _cuda_version(number: int) -> str | None:
    """Write ``13020`` as ``"13.2"``; 0 means that there is none."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _text(error: Exception) -> str:
    """Return the first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
