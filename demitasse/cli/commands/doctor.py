"""doctor, device_query, trust and version: show what is installed, found and set.

Source: Caffe, ``tools/caffe.cpp`` (``device_query``) and ``Caffe::DeviceQuery``.
"""

import logging
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from demitasse import __version__
from demitasse.cli.command import Command
from demitasse.cli.errors import FAILED, echo, fail
from demitasse.cli.options import FILE, available_gpus, gpu_numbers, json_option, option, switch
from demitasse.cli.render import print_json, show, table
from demitasse.core.config import settings
from demitasse.core.host import cores, quota


@click.command(cls=Command)
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Show versions, devices, settings and problems of the installation.

    Lists libraries, devices and why others are missing, the BLAS in use, and the origin of each
    setting. Exits with 1 if there are problems.
    """
    found = examine()
    if as_json:
        print_json(found)
    else:
        show(_doctor_text(found))
    if found["problems"]:
        ctx.exit(FAILED)


def _doctor_text(found: dict[str, Any]) -> str:
    from demitasse.core.config import TABLE
    from demitasse.core.memory_info import MemoryInfo

    used = f"{found['cores']} of {found['cpus']}"
    used += "" if found["quota"] is None else f" (a quota of {found['quota']:g})"
    used += "" if found["load"] is None else f", load {found['load']:.1f}"
    blas, kernels, cudnn = (found[name] for name in ("blas", "kernels", "cudnn"))
    jit = f"none: {kernels['reason']}"
    if kernels["ready"]:
        jit = f"for {kernels['processor']}, cached in {kernels['folder'] or 'no folder'}"
    lacking = kernels["reason"] or "the processor has no AVX512_BF16"
    instructions = "AMX" if kernels["amx"] else "AVX512_BF16"
    bf16 = f"by {instructions}" if kernels["bfloat16"] else f"no: {lacking}"
    cudnn_text = f"not used: {cudnn['reason']}"
    if cudnn["loaded"]:
        cudnn_text = "{version}, by its frontend {frontend}".format(**cudnn)
    graphs = found["settings"]["cuda_graphs"]["value"]
    often = "never" if graphs == "off" else "where nothing stands in the way"
    general = [
        ("demitasse", f"{found['demitasse']} ({found['installed_at']})"),
        ("Python", found["python"]), ("platform", found["platform"]), ("cores", used),
        ("BLAS of numpy", f"{blas['name']} {blas['version']}, kernels: {blas['kernel'] or '?'}"),
        ("JIT kernels", jit), ("bfloat16 on cpu", bf16), ("cuDNN", cudnn_text),
        ("MPI", found["mpi"] or "none (pip install 'demitasse[mpi]')"),
        ("GPU passes as one launch", f"{often} (setting cuda_graphs: {graphs})"),
    ]  # fmt: skip
    libraries = []
    for name, number in found["libraries"].items():
        extra = f"  (pip install 'demitasse[{EXTRAS[name]}]')" if name in EXTRAS else ""
        libraries.append((name, number or f"not installed{extra}"))
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
        table(("", ""), general).lstrip("\n"), table(("library", "version"), libraries),
        table(("backend", "devices"), devices), table(("device", "memory"), memory),
        table(("setting", "value", "from", "environment"), settings),
    ]  # fmt: skip
    parts += [f"problem: {problem}" for problem in found["problems"]] or ["no problems found"]
    return "\n\n".join(parts)


LIBRARIES = {
    "numpy": ["numpy"], "array-api-compat": ["array-api-compat"], "protobuf": ["protobuf"],
    "llvmlite": ["llvmlite"], "lmdb": ["lmdb"], "click": ["click"],
    "h5py": ["h5py"], "Pillow": ["pillow"], "scikit-learn": ["scikit-learn"], "torch": ["torch"],
    "cupy": ["cupy-cuda13x", "cupy-cuda12x", "cupy"],
    "cuDNN": ["nvidia-cudnn-cu13", "nvidia-cudnn-cu12"],
    "cuDNN frontend": ["nvidia-cudnn-frontend"], "NCCL": ["nvidia-nccl-cu13", "nvidia-nccl-cu12"],
}  # fmt: skip
"""Library -> distributions that can contain it."""

EXTRAS = {
    "h5py": "hdf5", "Pillow": "image", "scikit-learn": "examples", "torch": "torch",
    "cupy": "cuda13", "cuDNN": "cudnn13", "cuDNN frontend": "cudnn13", "NCCL": "nccl13",
}  # fmt: skip
"""Optional library -> the extra of demitasse that installs it."""

BLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that replace OpenBLAS's choice of kernels for the processor."""


def examine() -> dict[str, Any]:
    """Return all results, for JSON."""
    from demitasse.backends.cupy.library.cudnn_library import status as cudnn_status
    from demitasse.training.distributed.mpi import library

    found = {
        **environment(),
        "cudnn": asdict(cudnn_status()),
        "mpi": library(),
        "devices": devices(),
        "memory": memory(),
        "settings": {
            name: {"value": value.value, "where": value.where}
            for name in settings.names()
            for value in [settings.find(name)]
        },
    }
    return {**found, "problems": problems(found)}


def environment() -> dict[str, Any]:
    """Return versions and libraries of a run; search no devices."""
    import platform

    from demitasse.backends.kernels.language import folder
    from demitasse.backends.kernels.language import status as kernel_status
    from demitasse.backends.kernels.language.target import has_amx, has_bf16, vector_width

    kernels = kernel_status()
    return {
        "demitasse": __version__,
        "installed_at": str(Path(__file__).parents[2]),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cores": cores(),
        "quota": quota(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "libraries": {name: _version(names) for name, names in LIBRARIES.items()},
        "blas": blas(),
        "kernels": asdict(kernels)
        | {
            "processor": kernels.processor,
            "folder": str(folder() or ""),
            "bfloat16": kernels.ready and has_bf16(vector_width()),
            "amx": kernels.ready and has_amx(vector_width()),
        },
    }


def _version(distributions: list[str]) -> str | None:
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def blas() -> dict[str, str | None]:
    """Return numpy's BLAS, and the kernels that it has chosen."""
    import numpy as np

    built: Any = np.show_config(mode="dicts")
    about = built.get("Build Dependencies", {}).get("blas", {})
    kernel = _openblas(Path(np.__file__).parent)
    return {"name": about.get("name"), "version": about.get("version"), "kernel": kernel}


def _openblas(numpy: Path) -> str | None:
    """Return the kernels that numpy's OpenBLAS has chosen."""
    import ctypes

    folders = (numpy.parent / "numpy.libs", numpy / ".dylibs")
    for path in (path for folder in folders for path in folder.glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_",
                     "scipy_openblas_get_corename", "openblas_get_corename"):  # fmt: skip
            if (ask := getattr(library, name, None)) is not None:
                ask.restype = ctypes.c_char_p
                answer = ask()
                return answer.decode(errors="replace") if answer else None
    return None


def devices() -> dict[str, list[str] | str]:
    """Return the devices of each backend, or why there are none."""
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
    """Return the memory of the host, as ``cpu``, and of devices with their own memory."""
    from demitasse.core.device import Device, available_devices
    from demitasse.errors import DeviceError

    found = {}
    for name in available_devices():
        with suppress(DeviceError):  # ``devices`` reports broken devices
            device = Device(name)
            if name == "cpu" or device.backend.memory_info() is not None:
                found[name] = asdict(device.memory_info())
    return found


def problems(found: dict[str, Any]) -> list[str]:
    """Return the problems, with their remedies."""
    from demitasse.backends import clashes
    from demitasse.backends.cpu import slow_reason
    from demitasse.backends.kernel_cache import unusable_reason
    from demitasse.core.device import Device
    from demitasse.errors import DeviceError

    notes = clashes()
    if slow := slow_reason():
        notes.append(slow)
    elif reason := unusable_reason():
        notes.append(reason)
    for name in BLAS_VARIABLES:
        if name in os.environ:
            kernel = found["blas"]["kernel"]
            now = f"; now it uses those for {kernel}" if kernel else ""
            notes.append(
                f"{name}={os.environ[name]} is set: OpenBLAS does not choose its kernels by the "
                f"processor{now}. Computation can take twice as long; unset the variable."
            )
    device = found["settings"]["device"]
    try:
        Device(device["value"])
    except DeviceError as error:
        notes.append(f"{device['where']} sets a device that cannot be used: {error}")
    return notes


PROPERTIES = {
    "id": "Device id", "major": "Major revision number", "minor": "Minor revision number",
    "name": "Name", "totalGlobalMem": "Total global memory",
    "sharedMemPerBlock": "Total shared memory per block",
    "regsPerBlock": "Total registers per block", "warpSize": "Warp size",
    "memPitch": "Maximum memory pitch", "maxThreadsPerBlock": "Maximum threads per block",
    "maxThreadsDim": "Maximum dimension of block", "maxGridSize": "Maximum dimension of grid",
    "clockRate": "Clock rate", "totalConstMem": "Total constant memory",
    "textureAlignment": "Texture alignment", "asyncEngineCount": "Concurrent copy and execution",
    "multiProcessorCount": "Number of multiprocessors",
    "kernelExecTimeoutEnabled": "Kernel execution timeout",
}  # fmt: skip
"""CUDA's name of a property -> Caffe's; newer versions of CUDA lack some."""


@click.command(cls=Command)
@option("--gpu", "GPUs to query. [default: all]", default="all", metavar="ID[,ID]|all")
@json_option
def device_query_command(gpu: str, as_json: bool) -> None:
    """Print CUDA's properties of the GPUs.

    Exits with 4 if there is no GPU, or not the given one.
    """
    from demitasse.backends.cupy.library.memory_pools import properties
    from demitasse.errors import DeviceError, ErrorCode

    there, numbers = available_gpus(), gpu_numbers(gpu)
    for number in numbers:
        if number not in there:
            message = f"unknown GPU {number}; the GPUs are {', '.join(map(str, there))}"
            raise DeviceError(message, code=ErrorCode.UNAVAILABLE, got=number, expected=there)
    devices = [{"id": number, **properties(number)} for number in numbers]
    if as_json:
        print_json(devices)
        return
    for device in devices:
        for key, label in PROPERTIES.items():
            if key not in device:
                continue
            value = device[key]
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            if key in {"asyncEngineCount", "kernelExecTimeoutEnabled"}:
                text = "Yes" if value else "No"
            echo(f"{label + ':':<31}{text}")


class _TrustCommand(Command):
    """A command that does not first advise to trust the files that it is given."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command without these warnings."""
        advice = [f"`demitasse trust {file.absolute()}`" for file in ctx.params["files"]]

        def wanted(record: logging.LogRecord) -> bool:
            return not any(text in record.getMessage() for text in advice)

        logger = logging.getLogger("demitasse.core.config.files")
        logger.addFilter(wanted)
        try:
            return super().invoke(ctx)
        finally:
            logger.removeFilter(wanted)


@click.command(cls=_TrustCommand)
@click.argument("files", type=FILE, nargs=-1, metavar="[FILE]...")
@switch("--remove", "Remove the files from the list of trusted files.")
def trust_command(files: tuple[Path, ...], remove: bool) -> None:
    """Trust settings files in their current state, or list the trusted files.

    A demitasse.toml may come from another author. So its settings that load code (plugins,
    onednn_library, python_layers, jit) or write files (kernel_dump) are ignored, unless the file is
    trusted. Every change of a file ends the trust in it.
    """
    from demitasse.core.config.files import NAMES, distrust, trust, trust_list, trusted_files
    from demitasse.core.paths import check_exists

    if not files:
        for name, digest in sorted(trusted_files().items()):
            echo(f"{digest[:12]}  {name}")
    for file in files:
        if not remove:
            check_exists(file)
            if file.name not in NAMES:
                fail(f"got {file}, expected a settings file: {' or '.join(NAMES)}")
            trust(file)
            echo(f"trusted in its current state: {file}")
        elif distrust(file):
            echo(f"no longer trusted: {file}")
        else:
            fail(f"{file} is not on the list {trust_list()}")


@click.command(cls=Command)
@json_option
def version_command(as_json: bool) -> None:
    """Print the version, as --version does."""
    if as_json:
        print_json({"demitasse": __version__})
    else:
        echo(f"demitasse {__version__}")
