"""The stand-in as a package called ``cupy``, and how it is put in the place of the real one."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from cudnn_standin import Frontend

from demitasse.backends.cupy.library.cudnn_library import status
from gpu import blas, errors, functions, graphs, kernels, machine, memory, nccl, pinned, streams

VERSION = "14.2.0"
"""Of the cupy that it stands in for."""


def runtime() -> ModuleType:
    """Return what ``cupy.cuda.runtime`` has of what we call."""

    def getDeviceProperties(device: int) -> dict[str, Any]:  # noqa: N802
        gpu = machine.gpus[device]
        return {
            "name": b"NVIDIA stand-in", "multiProcessorCount": 132, "major": 9, "minor": 0,
            "totalGlobalMem": gpu.total, "warpSize": 32, "maxThreadsPerBlock": 1024,
            "sharedMemPerBlock": 48 << 10, "maxGridSize": (2**31 - 1, 65535, 65535),
        }  # fmt: skip

    def pointerGetAttributes(ptr: int) -> Any:  # noqa: N802
        gpu = machine.owner_of(ptr)
        kind = 2 if gpu is not None else int(pinned.is_memory_pinned(ptr))
        return SimpleNamespace(
            type=kind, device=gpu.number if gpu else 0, devicePointer=ptr, hostPointer=ptr
        )

    def getDeviceCount() -> int:  # noqa: N802
        machine.begin()
        return len(machine.gpus)

    def memGetInfo() -> tuple[int, int]:  # noqa: N802
        return streams.Device().mem_info

    return _module(
        "cupy.cuda.runtime",
        CUDARuntimeError=errors.CUDARuntimeError,
        getDeviceCount=getDeviceCount,
        getDevice=lambda: machine.current().number,
        setDevice=machine.make_current,
        getDeviceProperties=getDeviceProperties,
        runtimeGetVersion=lambda: 13020,
        driverGetVersion=lambda: 13020,
        pointerGetAttributes=pointerGetAttributes,
        memGetInfo=memGetInfo,
        deviceCanAccessPeer=lambda device, peerDevice: 0,  # noqa: N803
        eventQuery=streams.eventQuery,
        deviceSynchronize=lambda: machine.current().synchronize(),
        streamCaptureModeGlobal=0,
        streamCaptureModeThreadLocal=1,
        streamCaptureModeRelaxed=2,
    )


def modules() -> dict[str, ModuleType]:
    """Return the modules by name, as ``sys.modules`` has them."""
    parts = {
        "runtime": runtime(),
        "memory": _module("cupy.cuda.memory", OutOfMemoryError=errors.OutOfMemoryError,
                          MemoryPool=memory.MemoryPool, MemoryPointer=memory.MemoryPointer,
                          alloc=memory.alloc),
        "memory_hook": _module("cupy.cuda.memory_hook", MemoryHook=memory.MemoryHook),
        "compiler": _module("cupy.cuda.compiler", CompileException=errors.CompileException),
        "driver": _module("cupy.cuda.driver", CUDADriverError=errors.CUDADriverError),
        "stream": _module("cupy.cuda.stream", Event=streams.Event, Stream=streams.Stream,
                          get_current_stream=streams.get_current_stream),
        "device": _module("cupy.cuda.device", Device=streams.Device),
        "graph": _module("cupy.cuda.graph", Graph=graphs.Graph),
        "nccl": _module("cupy.cuda.nccl", **{name: getattr(nccl, name) for name in NCCL}),
        "pinned_memory": _module("cupy.cuda.pinned_memory",
                                 alloc_pinned_memory=pinned.alloc_pinned_memory,
                                 is_memory_pinned=pinned.is_memory_pinned,
                                 PinnedMemory=pinned.PinnedMemory,
                                 PinnedMemoryPointer=pinned.PinnedMemoryPointer),
    }  # fmt: skip
    cuda = _module(
        "cupy.cuda",
        **parts,
        Device=streams.Device, Event=streams.Event, Stream=streams.Stream, Graph=graphs.Graph,
        ExternalStream=streams.ExternalStream, get_current_stream=streams.get_current_stream,
        get_elapsed_time=streams.get_elapsed_time, MemoryPointer=memory.MemoryPointer,
        MemoryPool=memory.MemoryPool, MemoryHook=memory.MemoryHook, alloc=memory.alloc,
        using_allocator=memory.using_allocator, PinnedMemoryPool=pinned.PinnedMemoryPool,
        PinnedMemory=pinned.PinnedMemory, PinnedMemoryPointer=pinned.PinnedMemoryPointer,
        alloc_pinned_memory=pinned.alloc_pinned_memory, is_available=lambda: True, __path__=[],
    )  # fmt: skip
    empty = {name: _module(f"cupy.{name}") for name in ("linalg", "fft")}
    for module in empty.values():
        module.__getattr__ = _refusing(module.__name__)  # type: ignore[method-assign]
        module.__all__ = []  # type: ignore[attr-defined]
    cupy = _module(
        "cupy",
        **functions.names(),
        **empty,
        cuda=cuda,
        RawModule=kernels.RawModule,
        RawKernel=kernels.RawKernel,
        get_default_memory_pool=memory.get_default_memory_pool,
        get_default_pinned_memory_pool=pinned.get_default_pinned_memory_pool,
        __version__=VERSION,
        __path__=[],
    )
    cupy.__getattr__ = _refusing("cupy")  # type: ignore[method-assign]
    pathfinder = _module("cuda.pathfinder", load_nvidia_dynamic_lib=_load)
    found = {"cupy": cupy, "cupy.cuda": cuda, "cuda.pathfinder": pathfinder}
    found["cuda"] = _module("cuda", pathfinder=pathfinder, __path__=[])
    found |= {f"cupy.{name}": module for name, module in empty.items()}
    return found | {f"cupy.cuda.{name}": module for name, module in parts.items()}


NCCL = (
    "NCCL_FLOAT16", "NCCL_FLOAT32", "NCCL_FLOAT64", "NCCL_SUM", "NcclCommunicator", "NcclError",
    "available", "get_unique_id", "get_version", "groupEnd", "groupStart",
)  # fmt: skip


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def _refusing(where: str) -> Any:
    """Return what a module does about names it lacks: functions that refuse when called.

    ``array_api_compat`` refers to most of cupy; what we never call need not be there.
    """

    def find(name: str) -> Any:
        if name.startswith("_") or name in ("annotations", "vecdot", "unstack", "vector_norm"):
            raise AttributeError(name)

        def refuse(*args: object, **kwargs: object) -> Any:
            message = f"the stand-in has no {where}.{name}"
            raise NotImplementedError(message)

        return refuse

    return find


def _load(libname: str) -> Any:
    """As ``cuda.pathfinder.load_nvidia_dynamic_lib``."""
    if libname not in {"cublas", "cublasLt"}:
        message = f"the stand-in has no library {libname!r}"
        raise RuntimeError(message)
    return SimpleNamespace(abs_path=str(blas.path()))


_made: dict[str, ModuleType] = {}
_before: dict[str, ModuleType | None] = {}
OURS = ("cupy", "cupyx", "cuda", "array_api_compat.cupy")


BELOW_OURS = tuple(f"{name}." for name in OURS)


def _theirs() -> list[str]:
    return [n for n in sys.modules if n in OURS or n.startswith(BELOW_OURS)]


def put_in() -> None:
    """Put the stand-in in the place of cupy, for this process."""
    _before.update({name: sys.modules.pop(name) for name in _theirs()})
    sys.modules.update(_made or modules())
    _hide_cudnn()
    import array_api_compat.cupy  # noqa: F401 - the real one, over the stand-in

    _made.update({name: sys.modules[name] for name in _theirs()})
    _forget_devices()


def take_out() -> None:
    """Give cupy its place back."""
    for name in _theirs():
        del sys.modules[name]
    if "cudnn" in _before:
        del sys.modules["cudnn"]
        status.cache_clear()
    sys.modules.update({name: module for name, module in _before.items() if module is not None})
    _before.clear()
    _forget_devices()


def _hide_cudnn() -> None:
    """Let no library of a real GPU be found, which would follow the stand-in's addresses."""
    present = sys.modules.get("cudnn")
    if not isinstance(present, Frontend):
        _before["cudnn"] = present
        sys.modules["cudnn"] = None  # type: ignore[assignment]
        status.cache_clear()


@contextmanager
def in_place() -> Any:
    """Have the stand-in in the place of cupy within a block."""
    if is_in():
        yield
        return
    put_in()
    try:
        yield
    finally:
        take_out()


def is_in() -> bool:
    return bool(_made) and sys.modules.get("cupy") is _made["cupy"]


def settle() -> None:
    """Do all that waits; raises what is wrong with it."""
    for number in range(len(machine.gpus)):
        streams.Device(number).synchronize()


_devices: dict[bool, dict[str, Any]] = {}


def _forget_devices() -> None:
    """Let GPUs be looked for anew; those of the stand-in are kept for the next time."""
    from demitasse.core.device import Device, available_devices

    gone = {n: Device._known.pop(n) for n in list(Device._known) if n.startswith("cuda")}
    _devices[not is_in()] = gone
    Device._known.update(_devices.get(is_in(), {}))
    available_devices.cache_clear()
