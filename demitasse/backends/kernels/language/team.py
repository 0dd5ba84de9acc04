"""Run a kernel on the threads that oneDNN's primitives run on.

A second team would compete for the cores: threads spin for a while after their work. The threads
belong to the OpenMP runtime, or to its replacement (``backends/kernels/team``).
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from demitasse.core.threads import check_startable, no_threads
from demitasse.errors import DeviceError, ErrorCode

FUNCTIONS = ("omp_get_thread_num", "omp_get_num_threads")
"""Functions that kernels call."""


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


@cache
def openmp() -> Any:
    """Return the OpenMP runtime that oneDNN's library has loaded, or None."""
    try:
        with runtime_environment():
            runtime = ctypes.CDLL("libgomp.so.1")
        runtime.GOMP_parallel.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
        ]  # fmt: skip
        runtime.GOMP_parallel.restype = None
        runtime.omp_set_num_threads.argtypes = [ctypes.c_int]
        runtime.omp_set_num_threads.restype = None
        runtime.omp_set_dynamic.argtypes = [ctypes.c_int]
        runtime.omp_set_max_active_levels.argtypes = [ctypes.c_int]
    except (OSError, AttributeError):
        return None
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=partial(_end_workers, runtime), after_in_child=_note_fork)
    return runtime


HARD = 2
"""``omp_pause_hard``: end the threads; the runtime creates new threads on demand."""


class _Fork:
    """Flags of a fork: whether workers ended before it, and whether a child has lost workers."""

    workers_ended = True
    lost_workers = False


def _end_workers(runtime: Any) -> None:
    """End the workers of the thread that is about to fork.

    A child has the runtime's records of its workers but no workers, and would wait for ever.
    """
    try:
        _Fork.workers_ended = runtime.omp_pause_resource_all(HARD) == 0
    except AttributeError:  # before OpenMP 5
        _Fork.workers_ended = False


def _note_fork() -> None:
    _Fork.lost_workers = _Fork.lost_workers or not _Fork.workers_ended


def check_workers() -> None:
    """Raise an error if OpenMP would wait for threads that a fork did not copy.

    Raises:
        DeviceError: This process was forked from a process with running OpenMP threads.
    """
    if _Fork.lost_workers:
        message = (
            "this process was forked from one that has run nets on 'cpu', and the OpenMP runtime "
            "here (libgomp before version 9) cannot go on in such a child; start processes with "
            "multiprocessing's 'spawn' or 'forkserver'"
        )
        raise DeviceError(message)


_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_PREPARE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class _Instead:
    """Replacement of OpenMP's functions: addresses and the parallel entry point."""

    functions: Mapping[str, int] | None = None
    parallel: Any = None
    prepare: Any = None


def use(addresses: Mapping[str, int], prepare: int) -> None:
    """Replace the OpenMP runtime's functions in kernels; none must have been linked before.

    The addresses are those of the new functions, by the names of the replaced functions, and of
    the function that starts the threads of a team.
    """
    _Instead.prepare = _PREPARE(prepare)
    _Instead.parallel = _PARALLEL(addresses["GOMP_parallel"])
    _Instead.functions = addresses


_ALONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)
_SUBSTITUTES = _NUMBER(lambda: 0), _NUMBER(lambda: 1)


@cache
def functions() -> dict[str, int]:
    """Return the addresses of :data:`FUNCTIONS`, by name."""
    if _Instead.functions is not None:
        return {name: _Instead.functions[name] for name in FUNCTIONS}
    runtime = openmp()
    found = [getattr(runtime, name) for name in FUNCTIONS] if runtime is not None else _SUBSTITUTES
    return {
        name: function_address(function) for name, function in zip(FUNCTIONS, found, strict=True)
    }


def function_address(function: Any) -> int:
    """Return the address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def prepare(threads: int) -> None:
    """Set the number of the calling thread's OpenMP threads, and start them.

    Operations are divided for this number, and some of their parts wait for others. A team that
    is smaller would leave parts out.

    Raises:
        DeviceError: The system refuses the threads, or OpenMP's runtime gives fewer.
    """
    runtime = openmp()
    if runtime is None:
        return
    runtime.omp_set_num_threads(threads)
    if threads < 2:
        return
    if _Instead.prepare is not None:
        if _Instead.prepare(threads):
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


def parallel_call(kernel: int, threads: int) -> tuple[Any, Callable[[int], tuple[int, ...]]]:
    """Return a function that runs a kernel on a team, and its arguments for the kernel's argument.

    One thread runs without OpenMP. Without OpenMP, the calling thread runs alone.
    """
    runtime = openmp() if threads > 1 else None
    if runtime is None:
        return _ALONE(kernel), lambda argument: (argument,)
    parallel = _Instead.parallel or runtime.GOMP_parallel
    return parallel, lambda argument: (kernel, argument, threads, 0)
