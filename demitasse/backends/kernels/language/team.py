"""Thread team that runs the parts of kernels (``team_code.py``): its functions and threads."""

import ctypes
import os
import threading
from functools import partial
from typing import Any, NamedTuple

from demitasse.backends.kernels.language import compiler
from demitasse.backends.kernels.language.target import MACOS, WINDOWS, system
from demitasse.backends.kernels.language.values import LINE_BYTES
from demitasse.core.threads import Uninterrupted, no_threads, start
from demitasse.errors import DeviceError

STACK = 8 << 20
"""Bytes of the stack of a helper."""

_created: list["Team"] = []

_WORD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_PLAY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class Team(NamedTuple):
    """Functions and memory of the team.

    Attributes:
        state: Address of the memory; see ``team_code.Field``.
        run: Runs a kernel on a number of threads: takes its address, its argument, the number.
        play: Runs the kernels of a table: takes an array of such arguments, their count.
        prepare: Starts the helpers for a number of threads; returns 0 if they are there.
    """

    state: int
    run: Any
    play: Any
    prepare: Any


def own_team() -> Team:
    """Return the team of this process; the first call creates it."""
    if not _created:
        with compiler.lock, Uninterrupted():
            if not _created:
                _created.append(_create())
    return _created[0]


def _create() -> Team:
    from demitasse.backends.kernels.language.team_code import FUNCTIONS, TEAMS, Field, write_team

    helpers: list[Any] = []
    start_helper = _WORD(lambda team: _start(helpers[0], team))
    memory = (ctypes.c_char * (TEAMS * Field.END + LINE_BYTES))()
    state = -(-ctypes.addressof(memory) // LINE_BYTES) * LINE_BYTES
    teams = [state + team * Field.END for team in range(TEAMS)]
    functions = [function_address(one) for one in (*_system_functions(), start_helper)]
    for team in teams:
        (ctypes.c_int64 * 4).from_address(team + Field.YIELD)[:] = functions  # type: ignore[assignment]
    own = compiler.linked("team", write_team, FUNCTIONS, {"state": state})
    # helpers run compiled code and read this memory until the process ends
    helpers += _WORD(own["helper"]), start_helper, memory
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(helpers))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_clear, teams, Field.TICKET, Field.END))
    return Team(state, _RUN(own["parallel"]), _PLAY(own["play"]), _WORD(own["prepare"]))


def _clear(teams: list[int], first: int, end: int) -> None:
    """Reset to no helpers and no region, in a forked child."""
    for team in teams:
        ctypes.memset(team, 0, ctypes.sizeof(ctypes.c_int64))
        ctypes.memset(team + first, 0, end - first)


def _start(helper: Any, team: int) -> int:
    """Start a helper of the team at an address; return 0 if the system refuses a thread."""
    with Uninterrupted():
        before = threading.stack_size(STACK)
        try:
            name = "demitasse helper"
            start(threading.Thread(target=helper, args=(team,), name=name, daemon=True))
        except (DeviceError, MemoryError):
            return 0
        finally:
            threading.stack_size(before)
    return 1


def _system_functions() -> list[Any]:
    """Return the functions that the team calls: to yield, to wait, and to wake."""
    if system() == WINDOWS:
        library = ctypes.CDLL("kernelbase")
        names = ["SwitchToThread", "WaitOnAddress", "WakeByAddressAll"]
    else:
        library = ctypes.CDLL(None)
        apple = ["__ulock_wait", "__ulock_wake"]
        names = ["sched_yield", *(apple if system() == MACOS else ["syscall"] * 2)]
    return [library[name] for name in names]


def function_address(function: Any) -> int:
    """Return the address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def prepare(threads: int) -> None:
    """Start the threads of a team.

    Raises:
        DeviceError: The system refuses the threads.
    """
    if threads > 1 and own_team().prepare(threads):
        reason = f"{threads} are needed for one operation"
        raise no_threads(reason)
