"""What ``doctor`` finds out: versions, devices, the BLAS in use, settings, and what is amiss."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from demitasse import __version__
from demitasse.core.config import settings
from demitasse.core.host import cores, quota

__all__ = [
    "blas",
    "cudnn",
    "devices",
    "environment",
    "examine",
    "kernels",
    "libraries",
    "memory",
    "mpi",
    "onednn",
    "problems",
    "settings_table",
]

LIBRARIES = {
    "numpy": ["numpy"],
    "array-api-compat": ["array-api-compat"],
    "protobuf": ["protobuf"],
    "llvmlite": ["llvmlite"],
    "lmdb": ["lmdb"],
    "click": ["click"],
    "rich": ["rich"],
    "h5py": ["h5py"],
    "Pillow": ["pillow"],
    "scikit-learn": ["scikit-learn"],
    "torch": ["torch"],
    "cupy": ["cupy-cuda13x", "cupy-cuda12x", "cupy"],
    "cuDNN": ["nvidia-cudnn-cu13", "nvidia-cudnn-cu12"],
    "cuDNN frontend": ["nvidia-cudnn-frontend"],
    "NCCL": ["nvidia-nccl-cu13", "nvidia-nccl-cu12"],
}
"""Library -> distributions that may bring it."""

EXTRAS = {
    "h5py": "hdf5",
    "Pillow": "image",
    "scikit-learn": "examples",
    "torch": "torch",
    "cupy": "cuda13",
    "cuDNN": "cudnn13",
    "cuDNN frontend": "cudnn13",
    "NCCL": "nccl13",
}
"""Optional library -> the extra of demitasse that installs it."""

BLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that make OpenBLAS take other kernels than it would choose for the processor."""


def examine() -> dict[str, Any]:
    """Return all of it, ready for JSON."""
    found = {
        **environment(),
        "cudnn": cudnn(),
        "mpi": mpi(),
        "devices": devices(),
        "memory": memory(),
        "settings": settings_table(),
    }
    return {**found, "problems": problems(found)}


def environment() -> dict[str, Any]:
    """Return what a run is made with, without looking for devices that it does not use."""
    return {
        "demitasse": __version__,
        "installed_at": str(Path(__file__).parents[1]),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cores": cores(),
        "quota": quota(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "libraries": libraries(),
        "blas": blas(),
        "onednn": onednn(),
        "kernels": kernels(),
    }


def libraries() -> dict[str, str | None]:
    """Return the version of each library, or None where it is not installed."""
    return {name: _version(names) for name, names in LIBRARIES.items()}


def _version(distributions: list[str]) -> str | None:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def blas() -> dict[str, str | None]:
    """Return the library numpy multiplies matrices with, and the kernels it has chosen."""
    import numpy as np

    built: Any = np.show_config(mode="dicts")
    about = built.get("Build Dependencies", {}).get("blas", {})
    return {
        "name": about.get("name"),
        "version": about.get("version"),
        "kernel": _openblas(Path(np.__file__).parent),
    }


def onednn() -> dict[str, Any]:
    """Return whether the device ``cpu`` uses oneDNN, which one, or why not."""
    from demitasse.backends.onednn import status

    return asdict(status())


def kernels() -> dict[str, Any]:
    """Return whether kernels are made at run time, for which processor, or why not."""
    from demitasse.backends.kernels.language import folder, status

    found = status()
    return {**asdict(found), "processor": found.processor, "folder": str(folder() or "")}


def cudnn() -> dict[str, Any]:
    """Return whether convolutions on a GPU can run by cuDNN, which version, or why not."""
    from demitasse.backends.cupy.library.cudnn_library import status

    return asdict(status())


def mpi() -> str:
    """Return which MPI connects processes that train together; nothing where there is none."""
    from demitasse.training.distributed.mpi import library

    return library()


def _openblas(numpy: Path) -> str | None:
    """Ask the OpenBLAS that comes with numpy what kernels it has chosen."""
    folders = (numpy.parent / "numpy.libs", numpy / ".dylibs")
    for path in (path for folder in folders for path in folder.glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_",
                     "scipy_openblas_get_corename", "openblas_get_corename"):  # fmt: skip
            try:
                ask = getattr(library, name)
            except AttributeError:
                continue
            ask.restype = ctypes.c_char_p
            answer = ask()
            return answer.decode(errors="replace") if answer else None
    return None


def devices() -> dict[str, list[str] | str]:
    """Return, for each backend, the devices that are there, or why there are none."""
    from demitasse.backends import backend_class, backend_names, devices_of
    from demitasse.errors import DeviceError

    found: dict[str, list[str] | str] = {}
    for name in backend_names():
        try:
            found[name] = devices_of(name) or backend_class(name).missing()
        except DeviceError as error:
            found[name] = str(error)
    return found


def memory() -> dict[str, dict[str, Any]]:
    """Return what is known of the memory of the host, as ``cpu``, and of devices with their own."""
    from demitasse.core.device import Device, available_devices
    from demitasse.errors import DeviceError

    found = {}
    for name in available_devices():
        with suppress(DeviceError):  # one that is broken is told of elsewhere
            device = Device(name)
            if name == "cpu" or device.backend.memory_info() is not None:
                found[name] = asdict(device.memory_info())
    return found


def settings_table() -> dict[str, dict[str, Any]]:
    """Return value and origin of every setting."""
    return {
        name: {"value": value.value, "where": value.where}
        for name in settings.names()
        for value in [settings.find(name)]
    }


def problems(found: dict[str, Any]) -> list[str]:
    """Return what is amiss and what to do about it."""
    from demitasse.backends import clashes
    from demitasse.backends.onednn import status as onednn_status
    from demitasse.core.device import Device
    from demitasse.errors import DeviceError

    notes = clashes()
    missed = onednn_status()
    if missed.slow and missed.advice:
        notes.append(missed.slow)
    for name in BLAS_VARIABLES:
        if name in os.environ:
            kernel = found["blas"]["kernel"]
            now = f"; now it uses those for {kernel}" if kernel else ""
            notes.append(
                f"{name}={os.environ[name]} is set: OpenBLAS does not choose its kernels by the "
                f"processor{now}. This can make everything twice as slow; unset it."
            )
    device = found["settings"]["device"]
    try:
        Device(device["value"])
    except DeviceError as error:
        notes.append(f"{device['where']} asks for a device that cannot be used: {error}")
    return notes
