"""Have oneDNN's primitives and kernels of our own run on our team."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from typing import Any, NamedTuple

from demitasse.backends.kernels.language import compiler, team
from demitasse.backends.kernels.language.linker import NotLinkableError
from demitasse.backends.kernels.team.imports import Imports
from demitasse.backends.kernels.team.state import State

__all__ = ["Team", "install", "obstacle", "own_team"]

CHOSEN = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND", *team.WAITING)
"""Variables by which a user says what the OpenMP runtime's own threads do."""

NAMES = {
    "GOMP_parallel_start": "start",
    "GOMP_parallel_end": "end",
    "GOMP_parallel": "parallel",
    "GOMP_barrier": "barrier",
    "GOMP_loop_static_start": "loop_start",
    "GOMP_loop_static_next": "loop_next",
    "GOMP_loop_end_nowait": "loop_end",
    "omp_get_thread_num": "part",
    "omp_get_num_threads": "parts",
    "omp_in_parallel": "in_parallel",
}
"""The functions of the OpenMP runtime that ours take the place of."""

HARMLESS = {
    "GOMP_atomic_end", "GOMP_atomic_start", "GOMP_critical_end", "GOMP_critical_name_end",
    "GOMP_critical_name_start", "GOMP_critical_start", "omp_get_max_threads",
    "omp_get_num_procs", "omp_get_wtime", "omp_set_num_threads",
}  # fmt: skip
"""Those that do the same for threads that are not its own."""

SYSTEM = (
    "pthread_create", "pthread_detach", "pthread_getspecific", "pthread_setspecific", "syscall",
)  # fmt: skip


def install(library: Any) -> str:
    """Have a library's regions run on our team, and kernels of our own, too.

    Args:
        library: oneDNN's, loaded by ctypes.

    Returns:
        Why they go on running on the OpenMP runtime's threads; nothing where they do not.
    """
    reason = obstacle()
    if reason:
        return reason
    try:
        imports = Imports(library)
        unknown = {name for name in imports.places if name.startswith(("GOMP_", "omp_"))}
        unknown -= NAMES.keys() | HARMLESS
        if unknown:
            return f"the library calls {', '.join(sorted(unknown))}"
        functions = own_team().functions
        imports.replace(functions)
    except (OSError, LookupError, AttributeError, MemoryError, NotLinkableError) as error:
        return repr(error)
    team.use(functions)
    return ""


def obstacle() -> str:
    """Say why there can be no team of our own here; nothing where there can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it is written for Linux on x86-64"
    chosen = [name for name in CHOSEN if name in os.environ]
    if chosen:
        return f"{', '.join(chosen)} says how OpenMP's threads behave"
    if not compiler.status().ready:
        return str(compiler.status())
    if team.functions.cache_info().currsize:
        return "kernels know the OpenMP runtime's functions already"
    return "there is no OpenMP runtime" if team.openmp() is None else ""


class Team(NamedTuple):
    """Our team.

    Attributes:
        functions: Addresses, by the names of the functions that these take the place of.
        state: What its threads share.
    """

    functions: dict[str, int]
    state: State


@cache
def own_team() -> Team:
    """Return our team, which is made when it is first asked for."""
    runtime, system = team.openmp(), ctypes.CDLL(None)
    state = State()
    outside = {"state": state.address}
    outside |= {name: _address(getattr(system, name)) for name in SYSTEM}
    for name in (*NAMES, "omp_get_max_threads"):
        outside[f"libgomp_{name}"] = _address(getattr(runtime, name))
    own = compiler.linked("team", _write, tuple(NAMES.values()), outside)
    os.register_at_fork(after_in_child=state.clear)
    return Team({name: own[ours] for name, ours in NAMES.items()}, state)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _write(module: Any) -> None:
    from demitasse.backends.kernels.team.members import write_members
    from demitasse.backends.kernels.team.regions import write_regions

    write_regions(module)
    write_members(module)
