"""Run a kernel on the threads that oneDNN's primitives run on.

A second team would compete for the cores: threads spin for a while after their work. The threads
belong to the OpenMP runtime, or to its replacement (``backends/kernels/team``).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from demitasse.backends.kernels.language import later
from demitasse.errors import DeviceError

__all__ = [
    "FUNCTIONS", "WAITING", "bounded_spinning", "check_workers", "function_address", "functions",
    "openmp", "run", "use",
]  # fmt: skip

FUNCTIONS = ("omp_get_thread_num", "omp_get_num_threads")
"""Functions that kernels call."""


SPIN_COUNT = "10000"
"""Polls of a waiting thread before it sleeps: some microseconds.

By default the runtime polls for milliseconds. On shared cores this slows down busy threads.
"""

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables that configure how threads wait."""


@contextmanager
def bounded_spinning() -> Iterator[None]:
    """Bound the spinning of an OpenMP runtime loaded in the block, unless the user configured it.

    The runtime reads its environment once, when it is loaded.
    """
    if any(name in os.environ for name in WAITING):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


@cache
def openmp() -> Any:
    """Return the OpenMP runtime that oneDNN's library has loaded, or None."""
    try:
        with bounded_spinning():
            runtime = ctypes.CDLL("libgomp.so.1")
        runtime.GOMP_parallel.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
        ]  # fmt: skip
        runtime.GOMP_parallel.restype = None
        runtime.omp_set_num_threads.argtypes = [ctypes.c_int]
        runtime.omp_set_num_threads.restype = None
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


_PARALLEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
)  # fmt: skip


class _Instead:
    """Replacement of OpenMP's functions: addresses and the parallel entry point."""

    functions: Mapping[str, int] | None = None
    parallel: Any = None


def use(addresses: Mapping[str, int]) -> None:
    """Replace the OpenMP runtime's functions in kernels that are linked from now on.

    Args:
        addresses: Addresses of the new functions, by the names of the replaced functions. No kernel
            must have been linked before.
    """
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


def run(
    kernel: int,
    argument: int,
    threads: int,
    needs: object = None,
    fixed: Callable[[], tuple[int, object]] | None = None,
) -> None:
    """Run a kernel on a team of threads, now or with the deferred calls.

    One thread runs without OpenMP. Without OpenMP, the calling thread runs alone.

    Args:
        kernel: Address of the kernel, which asks the runtime for its thread number.
        argument: Argument of each thread's call.
        threads: Greatest number of threads.
        needs: Object to keep alive until the kernel has run.
        fixed: Returns a copy of the argument that later calls do not change, and the object that
            owns the copy; None if ``argument`` never changes.
    """
    runtime = openmp() if threads > 1 else None
    function = _ALONE(kernel) if runtime is None else _Instead.parallel or runtime.GOMP_parallel

    def arguments(of: int) -> tuple[int, ...]:
        return (of,) if runtime is None else (kernel, of, threads, 0)

    def later_arguments() -> tuple[tuple[int, ...], object]:
        same, more = (argument, None) if fixed is None else fixed()
        return arguments(same), more

    later.put(function, arguments(argument), needs, fixed=later_arguments)
