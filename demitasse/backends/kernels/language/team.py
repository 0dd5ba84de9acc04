"""Run a kernel on the threads that oneDNN's primitives run on.

A second team would compete for the cores: threads spin for a while after their work. The threads
belong to the OpenMP runtime, or to its replacement (``backends/kernels/team``).
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from demitasse.backends.kernels.language import compiler
from demitasse.backends.kernels.language.target import MACOS, WINDOWS, system
from demitasse.core.threads import Uninterrupted, check_startable, no_threads, start
from demitasse.errors import DeviceError, ErrorCode

STACK = 8 << 20
"""Bytes of the stack of a helper, as of a thread of OpenMP's runtime."""

_lock = threading.RLock()
_known: dict[str, dict[str, int]] = {}

FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
"""Functions of the OpenMP runtime that run kernels, and that kernels call."""

SPIN_COUNT = "10000"
"""Polls of a waiting thread before it sleeps: some microseconds.

By default the runtime polls for milliseconds. On shared cores this slows down busy threads.
"""

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables that configure how threads wait."""

SMALLER = (
    "GOMP_STACKSIZE", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_STACKSIZE",
    "OMP_THREAD_LIMIT",
)  # fmt: skip
"""Environment variables that make teams or stacks smaller than the operations need."""

STACK_SIZE = "8M"
"""Size of the stacks of the runtime's threads."""


@contextmanager
def runtime_environment() -> Iterator[None]:
    """Set the environment in which an OpenMP runtime is loaded in the block.

    The runtime reads its environment once, when it is loaded. Operations are divided for a number
    of threads, and need as many: variables that allow the runtime fewer are ignored. The spinning
    of waiting threads is bounded unless the user configured it.
    """
    ignored = {
        name: os.environ.pop(name) for name in [*os.environ] if name.startswith(SMALLER)
    }  # with suffixes: OMP_DYNAMIC_ALL
    added = {"OMP_STACKSIZE": STACK_SIZE}
    if not any(name in os.environ for name in WAITING):
        added["GOMP_SPINCOUNT"] = SPIN_COUNT
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update(ignored)


class Library:
    """OpenMP runtime of oneDNN's library.

    Attributes:
        runtime: The runtime; None without the library.
        regions: True if the runtime runs the library's regions, and the kernels.
        kept_workers: Number of the process whose workers did not end before a fork; 0 for none.
    """

    runtime: Any = None
    regions = False
    kept_workers = 0


@cache
def openmp() -> Any:
    """Return the OpenMP runtime that oneDNN's library has loaded, or None."""
    try:
        with runtime_environment():
            runtime = ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=partial(_end_workers, runtime))
    return runtime


HARD = 2
"""``omp_pause_hard``: end the threads; the runtime creates new threads on demand."""


def _end_workers(runtime: Any) -> None:
    """End the workers of the thread that is about to fork.

    A child has the runtime's records of its workers but no workers, and would wait for ever.
    """
    pause = getattr(runtime, "omp_pause_resource_all", None)  # from OpenMP 5 on
    if pause is None or pause(HARD):
        Library.kept_workers = os.getpid()


def check_workers() -> None:
    """Raise an error if OpenMP would wait for threads that a fork did not copy.

    Raises:
        DeviceError: This process was forked from a process with running OpenMP threads.
    """
    if Library.kept_workers not in (0, os.getpid()):
        message = (
            "this process was forked from one that has run nets on 'cpu', and the OpenMP runtime "
            "here (libgomp before version 9) cannot go on in such a child; start processes with "
            "multiprocessing's 'spawn' or 'forkserver'"
        )
        raise DeviceError(message)


_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def own_team() -> dict[str, int]:
    """Return the addresses of the team's functions and memory; the first call creates the team.

    Functions of OpenMP have their names there. "prepare" starts the helpers for a number of parts;
    its result is 0 unless the system refuses threads.
    """
    with _lock:
        if "team" not in _known:
            _known["team"] = _created_team()
        return _known["team"]


def _created_team() -> dict[str, int]:
    from demitasse.backends.kernels.team.regions import write_team
    from demitasse.backends.kernels.team.runtime import OURS, allocate_teams, clear_teams

    outside, key = _system_functions()
    teams = allocate_teams(key)
    helpers: list[Any] = []
    start_helper = _CALL(lambda team: _start(helpers[0], team))
    outside |= {"state": teams, "start_helper": function_address(start_helper)}
    own = compiler.linked("team", write_team, (*OURS.values(), "prepare", "helper"), outside)
    helpers += _CALL(own["helper"]), start_helper  # which compiled code calls to the end
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(helpers))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(clear_teams, teams))
    own |= {name: own[ours] for name, ours in OURS.items()} | {"state": teams}
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


@cache
def functions() -> dict[str, int]:
    """Return the addresses of the functions that kernels call, by name."""
    if Library.regions:
        return {name: function_address(getattr(Library.runtime, name)) for name in FUNCTIONS}
    return own_team()


def function_address(function: Any) -> int:
    """Return the address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def compiled(name: str, write: Callable[[Any], None], *exports: str) -> dict[str, int]:
    """Return the addresses of a module's kernels, which stay valid until the process ends.

    The name of the module is unique in the process; ``write`` writes its kernels.
    """
    with _lock:
        if name not in _known:
            _known[name] = compiler.linked(name, write, exports, functions())
        return _known[name]


def prepare(threads: int) -> None:
    """Set the number of the calling thread's OpenMP threads, and start them.

    Operations are divided for this number, and some of their parts wait for others. A team that
    is smaller would leave parts out.

    Raises:
        DeviceError: The system refuses the threads, or OpenMP's runtime gives fewer.
    """
    runtime = Library.runtime
    if runtime is not None:
        runtime.omp_set_num_threads(threads)
    if threads < 2:
        return
    if not Library.regions:
        if _CALL(own_team()["prepare"])(threads):
            reason = f"{threads} are needed for one operation"
            raise no_threads(reason)
        return
    check_startable(threads - 1)  # the runtime ends the process if a thread does not start
    runtime.omp_set_dynamic(0)
    runtime.omp_set_max_active_levels(max(1, runtime.omp_get_max_active_levels()))
    there = ctypes.cast(runtime.omp_get_num_threads, ctypes.c_void_p)
    runtime.GOMP_parallel_start(there, None, ctypes.c_uint(threads))
    present = runtime.omp_get_num_threads()
    runtime.GOMP_parallel_end()
    if present < threads:
        message = (
            f"OpenMP's runtime gives an operation {present} of {threads} threads; set the setting "
            f"'threads' to {present}, or raise the runtime's limit (OMP_THREAD_LIMIT)"
        )
        raise DeviceError(message, code=ErrorCode.LIMIT, resource="threads")


_ALONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def parallel_call(kernel: int, threads: int) -> tuple[Any, Callable[[int], tuple[int, ...]]]:
    """Return a function that runs a kernel on a team, and its arguments for the kernel's argument.

    One thread runs without a team.
    """
    if threads < 2:
        return _ALONE(kernel), lambda argument: (argument,)
    parallel = _PARALLEL(functions()["GOMP_parallel"])
    return parallel, lambda argument: (kernel, argument, threads, 0)
