"""State, members and generated functions of the thread team.

Sources of the system's calls: ``futex(2)``; Microsoft, ``WaitOnAddress``; LLVM's libc++,
``src/atomic.cpp``, for macOS.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from llvmlite import ir

from demitasse.backends.kernels.language import target
from demitasse.backends.kernels.language.kernel import INDEX, Routine
from demitasse.backends.kernels.language.words import (
    INT,
    WORD,
    Condition,
    Word,
    call_function,
    declared,
)

ORDER = "seq_cst"
WAIT, WAKE = 128, 129
"""Operations of Linux's futex within one process."""

COMPARE_AND_WAIT, WAKE_ALL = 5, 0x100
"""Operation of macOS's ``ulock`` on 64 bits, and its flag to wake all threads."""

MILLISECOND, ENDLESS = 1_000_000, 0xFFFFFFFF
"""Unit of Windows's timeouts in nanoseconds; the timeout that never ends."""

TICKS = 3_000_000_000
"""Ticks of a second, about those of x86-64's counter."""


class Loop:
    """Endless loop under construction."""

    def __init__(self, builder: Any, head: Any, after: Any) -> None:
        self._b, self._head, self._after = builder, head, after

    def repeat(self) -> None:
        self._b.branch(self._head)

    def leave(self) -> None:
        self._b.branch(self._after)


class Function(Routine):
    """Function of ``count`` words with a word as its result, under construction."""

    def __init__(self, module: ir.Module, name: str, count: int) -> None:
        super().__init__(module, declared(module, name, ir.FunctionType(WORD, [WORD] * count)))
        self.team: Word | None = None
        """Address of the team whose fields are meant; None for the first."""

    # -- memory that the team shares -----------------------------------------------------------

    def get(self, field: Field) -> Word:
        """Load a shared field atomically."""
        return Word(self._b, self._b.load_atomic(self._shared(field), ORDER, INT))

    def set(self, field: Field, value: Word | int) -> None:
        """Store a shared field atomically."""
        self._b.store_atomic(self.word(value).llvm, self._shared(field), ORDER, INT)

    def add(self, field: Field, value: int) -> Word:
        """Add to a shared field atomically; return the old value."""
        constant = self.word(value).llvm
        return Word(self._b, self._b.atomic_rmw("add", self._shared(field), constant, ORDER))

    def replace(self, field: Field, old: Word | int, new: Word | int) -> Condition:
        """Compare and swap a shared field; return whether its value was ``old``."""
        place = self._shared(field)
        found = self._b.cmpxchg(place, self.word(old).llvm, self.word(new).llvm, ORDER, ORDER)
        return Condition(self._b, self._b.extract_value(found, 1))

    def shared(self, field: Field) -> Word:
        return (self.first_team() if self.team is None else self.team) + int(field)

    def first_team(self) -> Word:
        place = self.module.globals.get("first_team")
        if place is None:
            place = ir.GlobalVariable(self.module, WORD, "first_team")
            place.linkage = "internal"
            state = declared(self.module, "state", ir.FunctionType(ir.VoidType(), []))
            place.initializer = state.ptrtoint(WORD)
        return Word(self._b, self._b.load(place))

    def sleep(self, field: Field, value: Word, nanoseconds: int = 0) -> None:
        """Sleep until the field's sleepers are woken, if the field is ``value``.

        The timeout is below a second; 0 for none.
        """
        place = self.shared(field)
        if target.system() == target.WINDOWS:
            compared = self.local(0)
            self.store(value, compared)
            self.call("wait", place, compared, INT, -(-nanoseconds // MILLISECOND) or ENDLESS)
        elif target.system() == target.MACOS:
            self.call("wait", COMPARE_AND_WAIT, place, value, nanoseconds // 1000)
        else:
            until = self.local(0, nanoseconds) if nanoseconds else 0
            self.call("wait", self._futex, place, WAIT, value, until, 0, 0)

    def wake(self, field: Field, count: Word | int) -> None:
        """Wake up to ``count`` threads that sleep on a field, or all if ``count`` varies."""
        place, one = self.shared(field), count == 1
        if target.system() == target.WINDOWS:
            self.call("wake_one" if one else "wake", place)
        elif target.system() == target.MACOS:
            self.call("wake", COMPARE_AND_WAIT | (0 if one else WAKE_ALL), place, 0)
        else:
            self.call("wake", self._futex, place, WAKE, count, 0, 0, 0)

    @property
    def _futex(self) -> int:
        return target.ARCHITECTURES[target.architecture()].futex

    def ring(self, count: Word | int) -> None:
        """Wake up to ``count`` sleeping helpers."""
        self.add(Field.BELL, 1)
        self.wake(Field.BELL, count)

    def wait_until(
        self, field: Field, over: Callable[[Word], Condition], sleepers: Field, patience: Word | int
    ) -> None:
        """Wait until a field meets a condition: spin first, then sleep.

        A thread that changes the field must then wake the sleepers. The system refuses to sleep if
        the field has changed since the last read. ``sleepers`` counts the sleepers; ``patience`` is
        the number of ticks to spin.
        """
        start = self.now()
        with self.forever() as loop:
            value = self.get(field)
            with self.when(over(value)):
                loop.leave()
            with self.when(self.now() - start < patience):
                self.pause()
                loop.repeat()
            self.add(sleepers, 1)
            self.sleep(field, value)
            self.add(sleepers, -1)

    def _shared(self, field: Field) -> Any:
        return self._b.inttoptr(self.shared(field).llvm, WORD.as_pointer())

    # -- memory of the thread ------------------------------------------------------------------

    def local(self, *values: int) -> Word:
        """Return the address of words on the thread's stack, with initial values."""
        kind = ir.ArrayType(WORD, len(values))
        with self._b.goto_entry_block():
            place = Word(self._b, self._b.ptrtoint(self._b.alloca(kind), WORD))
        for index, value in enumerate(values):
            self.store(value, place, INT * index)
        return place

    def load(self, place: Word, offset: Member | int = 0) -> Word:
        return self.load_word(place + int(offset))

    def store(self, value: Word | int, place: Word, offset: Member | int = 0) -> None:
        self.store_word(self.word(value), place + int(offset))

    # -- values --------------------------------------------------------------------------------

    def equal(self, a: Word, b: Word | int) -> Condition:
        return Condition(self._b, self._b.icmp_signed("==", a.llvm, self.word(b).llvm))

    def unequal(self, a: Word, b: Word | int) -> Condition:
        return Condition(self._b, self._b.icmp_signed("!=", a.llvm, self.word(b).llvm))

    def quotient(self, a: Word, b: Word) -> Word:
        """Return a / b, rounded towards 0; either may be negative."""
        return Word(self._b, self._b.sdiv(a.llvm, b.llvm))

    def doubled(self, value: int, times: Word) -> Word:
        return Word(self._b, self._b.shl(self.word(value).llvm, times.llvm))

    def now(self) -> Word:
        """Return the time in ticks."""
        if target.is_x86():
            return Word(self._b, call_function(self._b, "llvm.readcyclecounter", WORD))
        count, frequency = (self._register(name) for name in ("CNTVCT_EL0", "CNTFRQ_EL0"))
        return count * (self.word(TICKS) // frequency)

    def _register(self, name: str) -> Word:
        """Read a system register of AArch64."""
        register = self.module.add_metadata([ir.MetaDataString(self.module, name)])
        return Word(
            self._b, call_function(self._b, "llvm.read_volatile_register.i64", WORD, register)
        )

    # -- control -------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Word | int) -> Word:
        """Call a function by its name; return its result, whose upper bits may be anything."""
        words = [self.word(value).llvm for value in arguments]
        return Word(self._b, call_function(self._b, name, WORD, *words))

    def give(self, result: Word | int = 0) -> None:
        self._b.ret(self.word(result).llvm)

    def pause(self) -> None:
        """Write the processor's spin-wait hint."""
        if target.is_x86():
            call_function(self._b, "llvm.x86.sse2.pause", ir.VoidType())
        else:
            call_function(self._b, "llvm.aarch64.isb", ir.VoidType(), ir.Constant(INDEX, 15))

    @contextmanager
    def forever(self) -> Iterator[Loop]:
        """Write an endless loop, which its body leaves."""
        head, after = (self.function.append_basic_block(name) for name in ("again", "after"))
        self._b.branch(head)
        self._b.position_at_end(head)
        yield Loop(self._b, head, after)
        if not self._b.block.is_terminated:
            self._b.branch(head)
        self._b.position_at_end(after)


def member(f: Function) -> Word:
    """Return the address of this thread's :class:`Member`; 0 outside a region."""
    return f.call("get_member", f.get(Field.KEY))


def take_member(f: Function, place: Word | int) -> None:
    """Set the address of this thread's :class:`Member`; 0 for none."""
    f.call("set_member", f.get(Field.KEY), place)


def write_members(module: ir.Module) -> None:
    """Write the functions."""
    f = Function(module, "part", 0)
    f.give(_part_and_parts(f, _member_or(f, 0))[0])
    f = Function(module, "parts", 0)
    f.give(_part_and_parts(f, _member_or(f, 1))[1])


def _member_or(f: Function, result: int) -> Word:
    """Return this thread's Member; outside a region, return ``result`` from the function."""
    me = member(f)
    with f.when(f.equal(me, 0)):
        f.give(result)
    return me


def _part_and_parts(f: Function, me: Word) -> tuple[Word, Word]:
    """Return the part's number and the number of parts; nested regions have one part."""
    part, parts = f.local(0), f.local(1)
    with f.when(f.equal(f.load(me, Member.DEPTH), 0)):
        f.store(f.load(me, Member.PART), part)
        f.store(f.load(me, Member.PARTS), parts)
    return f.load(part), f.load(parts)


class Field(IntEnum):
    """Byte offsets of a team's words; words that threads write concurrently are 64 bytes apart.

    A region is a function that each member of the team calls with its part. ``TICKET`` has the
    region's number, its number of parts, and the number of taken parts: 32, 16 and 16 bits.
    """

    BUSY = 0
    """True if some thread leads a region."""
    KEY = 8
    """Key of the thread-specific pointer to a :class:`Member`."""
    TICKET = 64
    WORK = 128
    """The region's function."""
    ARGUMENT = 136
    """Argument of the function."""
    DONE = 192
    """Number of parts that helpers have finished."""
    WAITING = 200
    """Number of leaders that sleep until ``DONE`` changes: 0 or 1."""
    BELL = 256
    """Counter of wake-ups of sleeping helpers."""
    ASLEEP = 264
    """Number of helpers that sleep."""
    RESTING = 272
    """Number of helpers that sleep without a timeout."""
    HELPERS = 320
    ALONE = 328
    """Number of further regions that do not wake helpers."""
    LEVEL = 336
    """Recent hits of the timed sleep; each one doubles the number of regions."""
    GOOD = 344
    """Number of regions since the last miss."""
    BEGUN = 352
    """Start time of the region."""
    CALLED = 360
    """True if the region woke helpers, so that a helper may be late."""
    LEADER = 384
    """The leader's :class:`Member`."""
    END = 512


class Member(IntEnum):
    """Byte offsets of a thread's words while the thread computes a part."""

    PART = 0
    """Thread number."""
    PARTS = 8
    """Number of threads."""
    DEPTH = 16
    """Depth of nested regions, which have one part each."""
    TEAM = 24
    """Address of the thread's team."""
    END = 32


TEAMS = 64
"""Number of teams: threads that lead regions at the same time have a team each."""

LINE = 64
"""Bytes of a cache line."""

REGION, PARTS = 1 << 32, 1 << 16
"""Increments of ``TICKET`` for a region and for a part."""

STATE_WAIT = 400_000
"""Ticks that the leader spins before it sleeps."""


def allocate_teams(key: int) -> int:
    """Return the address of the memory that all teams share, given the key of their members.

    The memory is never freed: helpers read it until the process ends.
    """
    memory = (ctypes.c_char * (TEAMS * Field.END + LINE))()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    first = -(-ctypes.addressof(memory) // LINE) * LINE
    for team in range(TEAMS):
        ctypes.c_int64.from_address(first + team * Field.END + Field.KEY).value = key
    return first


def clear_teams(first: int) -> None:
    """Reset to no helpers and no region, in a forked child."""
    for team in range(first, first + TEAMS * Field.END, Field.END):
        ctypes.memset(team, 0, Field.KEY)
        ctypes.memset(team + Field.TICKET, 0, Field.END - Field.TICKET)
