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
from demitasse.backends.kernels.team.names import HARMLESS, OURS, SYSTEM, original
from demitasse.backends.kernels.team.state import State

__all__ = ["Team", "install", "obstacle", "own_team"]

CHOSEN = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND", *team.WAITING)
"""Variables by which a user says what the OpenMP runtime's own threads do."""


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
        unknown -= OURS.keys() | HARMLESS
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
    outside |= {name: team.function_address(getattr(system, name)) for name in SYSTEM}
    for name in (*OURS, "omp_get_max_threads"):
        outside[original(name)] = team.function_address(getattr(runtime, name))
    own = compiler.linked("team", _write, tuple(OURS.values()), outside)
    os.register_at_fork(after_in_child=state.clear)
    return Team({name: own[ours] for name, ours in OURS.items()}, state)


def _write(module: Any) -> None:
    from demitasse.backends.kernels.team.members import write_members
    from demitasse.backends.kernels.team.regions import write_regions

    write_regions(module)
    write_members(module)
