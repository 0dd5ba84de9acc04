"""Run kernels on the team of threads (``backends/kernels/team``)."""

import ctypes
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from demitasse.backends.kernels.language import compiler
from demitasse.backends.kernels.language.target import MACOS, WINDOWS, system
from demitasse.core.threads import Uninterrupted, no_threads, start
from demitasse.errors import DeviceError

STACK = 8 << 20
"""Bytes of the stack of a helper."""

FUNCTIONS = ("part", "parts", "parallel", "prepare", "helper")
"""Functions of the team."""

_lock = threading.RLock()
_known: dict[str, dict[str, int]] = {}

_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def own_team() -> dict[str, int]:
    """Return the addresses of the team's functions and memory; the first call creates the team.

    "prepare" starts the helpers for a number of parts; its result is 0 unless the system refuses
    threads.
    """
    with _lock:
        if "team" not in _known:
            _known["team"] = _created_team()
        return _known["team"]


def _created_team() -> dict[str, int]:
    from demitasse.backends.kernels.team.regions import write_team
    from demitasse.backends.kernels.team.runtime import allocate_teams, clear_teams

    outside, key = _system_functions()
    teams = allocate_teams(key)
    helpers: list[Any] = []
    start_helper = _CALL(lambda team: _start(helpers[0], team))
    outside |= {"state": teams, "start_helper": function_address(start_helper)}
    own = compiler.linked("team", write_team, FUNCTIONS, outside)
    helpers += _CALL(own["helper"]), start_helper  # which compiled code calls to the end
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(helpers))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(clear_teams, teams))
    own["state"] = teams
    if system() == WINDOWS:  # touches the pages of large stack frames
        own["__chkstk"] = function_address(ctypes.CDLL("ntdll")["__chkstk"])
    return own


def _start(helper: Any, address: int) -> int:
    """Start a helper of the team at an address; return 0 if the system refuses a thread."""
    with Uninterrupted():
        before = threading.stack_size(STACK)
        try:
            name = "demitasse helper"
            start(threading.Thread(target=helper, args=(address,), name=name, daemon=True))
        except (DeviceError, MemoryError):
            return 0
        finally:
            threading.stack_size(before)
    return 1


def _system_functions() -> tuple[dict[str, int], int]:
    """Return the addresses of the functions that the team calls, and the key of the members."""
    if system() == WINDOWS:
        library = ctypes.CDLL("kernelbase")
        names = ["TlsGetValue", "TlsSetValue", "SwitchToThread", "WaitOnAddress"]
        names += ["WakeByAddressAll", "WakeByAddressSingle"]
        key = library.TlsAlloc()
    else:
        library, made = ctypes.CDLL(None), ctypes.c_size_t()
        names = ["pthread_getspecific", "pthread_setspecific", "sched_yield"]
        apple = system() == MACOS
        names += ["__ulock_wait", *["__ulock_wake"] * 2] if apple else ["syscall"] * 3
        key = -1 if library.pthread_key_create(ctypes.byref(made), None) else made.value
    if key < 0:
        raise MemoryError
    functions = (function_address(library[name]) for name in names)
    ours = ("get_member", "set_member", "yield", "wait", "wake", "wake_one")
    return dict(zip(ours, functions, strict=True)), key


def function_address(function: Any) -> int:
    """Return the address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def compiled(name: str, write: Callable[[Any], None], *exports: str) -> dict[str, int]:
    """Return the addresses of a module's kernels, which stay valid until the process ends.

    The name of the module is unique in the process; ``write`` writes its kernels.
    """
    with _lock:
        if name not in _known:
            _known[name] = compiler.linked(name, write, exports, own_team())
        return _known[name]


def prepare(threads: int) -> None:
    """Start the threads of a team.

    Raises:
        DeviceError: The system refuses the threads.
    """
    if threads > 1 and _CALL(own_team()["prepare"])(threads):
        reason = f"{threads} are needed for one operation"
        raise no_threads(reason)


_ALONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def parallel_call(kernel: int, threads: int) -> tuple[Any, Callable[[int], tuple[int, ...]]]:
    """Return a function that runs a kernel on a team, and its arguments for the kernel's argument.

    One thread runs without a team.
    """
    if threads < 2:
        return _ALONE(kernel), lambda argument: (argument,)
    parallel = _PARALLEL(own_team()["parallel"])
    return parallel, lambda argument: (kernel, argument, threads, 0)
