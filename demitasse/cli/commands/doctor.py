"""doctor, device_query, trust and version: show what is installed, found and set.

Source: Caffe, ``tools/caffe.cpp`` (``device_query``) and ``Caffe::DeviceQuery``.
"""

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

import click

from demitasse import __version__
from demitasse.cli.command import Command
from demitasse.cli.errors import FAILED
from demitasse.cli.options import FILE, gpu_numbers, gpus_there, json_option
from demitasse.cli.render import print_json, show, table
from demitasse.core.config import settings
from demitasse.core.host import cores, quota


@click.command(cls=Command)
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Tell what is installed, found, set, and amiss.

    Versions, devices and why others are missing, the BLAS in use, and where each setting comes
    from. Exits with 1 when something is amiss.
    """
    found = examine()
    if as_json:
        print_json(found)
    else:
        show(_doctor_text(found))
    if found["problems"]:
        ctx.exit(FAILED)


def _cores(found: dict[str, Any]) -> str:
    """Say how many cores are used, why not all, and how many programs wanted one of late."""
    text = f"{found['cores']} of {found['cpus']}"
    if found["quota"] is not None:
        text += f" (a quota of {found['quota']:g})"
    return text if found["load"] is None else f"{text}, load {found['load']:.1f}"


def _doctor_text(found: dict[str, Any]) -> str:
    from demitasse.core.config import TABLE
    from demitasse.core.memory_info import MemoryInfo

    general = [
        ("demitasse", f"{found['demitasse']} ({found['installed_at']})"),
        ("Python", found["python"]),
        ("platform", found["platform"]),
        ("cores", _cores(found)),
    ]
    libraries = []
    for name, number in found["libraries"].items():
        extra = f"  (pip install 'demitasse[{EXTRAS[name]}]')" if name in EXTRAS else ""
        libraries.append((name, number or f"not installed{extra}"))
    blas = found["blas"]
    general.append(
        ("BLAS of numpy", f"{blas['name']} {blas['version']}, kernels: {blas['kernel'] or '?'}")
    )
    onednn = found["onednn"]
    general.append(
        (
            "oneDNN",
            "{version} ({threading} threads, {instruction_set}) from {path}".format(**onednn)
            if onednn["loaded"]
            else f"not used: {onednn['reason']}",
        )
    )
    if onednn["loaded"]:
        teams = f"OpenMP's: {onednn['openmp']}" if onednn["openmp"] else "ours"
        general.append(("threads of cpu", teams))
    kernels = found["kernels"]
    general.append(
        (
            "kernels made here",
            f"for {kernels['processor']}, kept in {kernels['folder'] or 'no folder'}"
            if kernels["ready"]
            else f"none: {kernels['reason']}",
        )
    )
    cudnn = found["cudnn"]
    general.append(
        (
            "cuDNN",
            "{version}, by its frontend {frontend}".format(**cudnn)
            if cudnn["loaded"]
            else f"not used: {cudnn['reason']}",
        )
    )
    general.append(("MPI", found["mpi"] or "none (pip install 'demitasse[mpi]')"))
    graph = found["settings"]["cuda_graphs"]["value"]
    often = "never" if graph == "off" else "where nothing stands in the way"
    general.append(("GPU passes as one launch", f"{often} (setting cuda_graphs: {graph})"))
    devices = [
        (name, ", ".join(there) if isinstance(there, list) else f"none: {there}")
        for name, there in found["devices"].items()
    ]
    memory = [(name, str(MemoryInfo(**about))) for name, about in found["memory"].items()]
    settings = [
        (name, str(entry["value"]), entry["where"], TABLE[name].variable)
        for name, entry in found["settings"].items()
    ]
    parts = [
        table(("", ""), general).lstrip("\n"),
        table(("library", "version"), libraries),
        table(("backend", "devices"), devices),
        table(("device", "memory"), memory),
        table(("setting", "value", "from", "environment"), settings),
    ]
    parts += [f"problem: {problem}" for problem in found["problems"]] or ["no problems found"]
    return "\n\n".join(parts)


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


PROPERTIES = {
    "id": "Device id",
    "major": "Major revision number",
    "minor": "Minor revision number",
    "name": "Name",
    "totalGlobalMem": "Total global memory",
    "sharedMemPerBlock": "Total shared memory per block",
    "regsPerBlock": "Total registers per block",
    "warpSize": "Warp size",
    "memPitch": "Maximum memory pitch",
    "maxThreadsPerBlock": "Maximum threads per block",
    "maxThreadsDim": "Maximum dimension of block",
    "maxGridSize": "Maximum dimension of grid",
    "clockRate": "Clock rate",
    "totalConstMem": "Total constant memory",
    "textureAlignment": "Texture alignment",
    "asyncEngineCount": "Concurrent copy and execution",
    "multiProcessorCount": "Number of multiprocessors",
    "kernelExecTimeoutEnabled": "Kernel execution timeout",
}
"""CUDA's name of a property -> Caffe's; newer versions of CUDA lack some."""


@click.command(cls=Command)
@click.option(
    "--gpu", default="all", metavar="ID[,ID]|all", help="Which GPUs; by default all there are."
)
@json_option
def device_query_command(gpu: str, as_json: bool) -> None:
    """Print what CUDA says of the GPUs.

    Exits with 4 where there is no GPU, or not the one that was asked for.
    """
    from demitasse.backends.cupy.library.properties import properties

    devices = [{"id": number, **properties(number)} for number in _existing_gpus(gpu)]
    if as_json:
        print_json(devices)
        return
    for device in devices:
        click.echo("\n".join(_property_lines(device)))


def _existing_gpus(gpu: str) -> list[int]:
    from demitasse.errors import DeviceError, ErrorCode

    there = gpus_there()
    numbers = gpu_numbers(gpu)
    for number in numbers:
        if number not in there:
            message = f"there is no GPU {number}; there are {', '.join(map(str, there))}"
            raise DeviceError(message, code=ErrorCode.UNAVAILABLE, got=number, expected=there)
    return numbers


def _property_lines(device: dict[str, Any]) -> list[str]:
    lines = []
    for key, label in PROPERTIES.items():
        if key in device:
            value = device[key]
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            if key in {"asyncEngineCount", "kernelExecTimeoutEnabled"}:
                text = "Yes" if value else "No"
            lines.append(f"{label + ':':<31}{text}")
    return lines


@click.command(cls=Command)
@click.argument("files", type=FILE, nargs=-1, metavar="[FILE]...")
@click.option("--remove", is_flag=True, help="Take the files off the list of those you trust.")
def trust_command(files: tuple[Path, ...], remove: bool) -> None:
    """Trust settings files as they are now, or list those that are trusted.

    A demitasse.toml may be somebody else's. So what it says about code (plugins, onednn_library,
    python_layers, jit) and about files to write (kernel_dump) is ignored, unless you trust it. When
    the file changes, it is trusted no longer.
    """
    from demitasse.core.config.files import distrust, trust, trust_list, trusted_files

    if not files:
        for name, digest in sorted(trusted_files().items()):
            click.echo(f"{digest[:12]}  {name}")
    for file in files:
        if not remove:
            trust(file)
            click.echo(f"trusted, as it is now: {file}")
        elif distrust(file):
            click.echo(f"no longer trusted: {file}")
        else:
            message = f"{file} is not on the list {trust_list()}"
            raise click.UsageError(message)


@click.command(cls=Command)
@json_option
def version_command(as_json: bool) -> None:
    """Print the version, as --version does."""
    if as_json:
        print_json({"demitasse": __version__})
    else:
        click.echo(f"demitasse {__version__}")
