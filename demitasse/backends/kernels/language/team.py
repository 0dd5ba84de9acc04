"""Run a kernel on all threads, those that oneDNN's primitives run on as well.

A second team would fight with that one: its threads keep spinning for a while after their work. The
threads are OpenMP's, or those of a team that has taken its place (``backends/kernels/team``).
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
"""Polls of a waiting thread before it sleeps: some microseconds. By default the
runtime polls for milliseconds, which slows down threads that have work to do where other programs
use the cores too."""

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables by which a user says how threads wait."""


@contextmanager
def bounded_spinning() -> Iterator[None]:
    """Let an OpenMP runtime that is loaded here spin for a bounded time, unless the user chose.

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
"""``omp_pause_hard``: end the threads; they are made again when they are needed."""


class _Fork:
    """True if this process was forked from one whose threads could not be ended before."""

    workers_ended = True
    lost_workers = False


def _end_workers(runtime: Any) -> None:
    """End the workers of the thread that is about to fork.

    The child would have the runtime's notes of them, but not them, and wait for them for ever.
    """
    try:
        _Fork.workers_ended = runtime.omp_pause_resource_all(HARD) == 0
    except AttributeError:  # before OpenMP 5
        _Fork.workers_ended = False


def _note_fork() -> None:
    _Fork.lost_workers = _Fork.lost_workers or not _Fork.workers_ended


def check_workers() -> None:
    """Refuse to begin what would wait for threads that a fork has left behind.

    Raises:
        DeviceError: Says what to do.
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
    """Run kernels by other functions than the OpenMP runtime's, from now on.

    Args:
        addresses: Theirs, by the names of those that they take the place of. No kernel must have
            been linked before.
    """
    _Instead.parallel = _PARALLEL(addresses["GOMP_parallel"])
    _Instead.functions = addresses


_ALONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)
_SUBSTITUTES = _NUMBER(lambda: 0), _NUMBER(lambda: 1)


@cache
def functions() -> dict[str, int]:
    """Return the addresses of what kernels call."""
    if _Instead.functions is not None:
        return {name: _Instead.functions[name] for name in FUNCTIONS}
    runtime = openmp()
    found = [getattr(runtime, name) for name in FUNCTIONS] if runtime is not None else _SUBSTITUTES
    return {
        name: function_address(function) for name, function in zip(FUNCTIONS, found, strict=True)
    }


def function_address(function: Any) -> int:
    """Return the address of a function that ctypes knows."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def run(
    kernel: int,
    argument: int,
    threads: int,
    needs: object = None,
    fixed: Callable[[], tuple[int, object]] | None = None,
) -> None:
    """Run a kernel on a team of at most so many threads, now or with what is put off.

    One thread is this one, which needs no OpenMP; without it there are no others.

    Args:
        kernel: Its address. It learns from the runtime which thread it is, and of how many.
        argument: What each thread calls it with.
        threads: How many are asked for.
        needs: Is kept alive until the kernel has run.
        fixed: Returns an argument that means the same for good, and what it needs; None where
            this one does.
    """
    runtime = openmp() if threads > 1 else None
    function = _ALONE(kernel) if runtime is None else _Instead.parallel or runtime.GOMP_parallel

    def arguments(of: int) -> tuple[int, ...]:
        return (of,) if runtime is None else (kernel, of, threads, 0)

    def later_arguments() -> tuple[tuple[int, ...], object]:
        same, more = (argument, None) if fixed is None else fixed()
        return arguments(same), more

    later.put(function, arguments(argument), needs, fixed=later_arguments)
