"""Code of the thread team: its memory, and functions that run the parts of kernels.

The threads of a region take its parts one by one, and the region waits only for parts that run.
With a fixed part for each thread, all threads would wait for the thread without a core on busy
machines: milliseconds in an operation that takes microseconds.

Sources of the system's calls: ``futex(2)``; Microsoft, ``WaitOnAddress``; LLVM's libc++,
``src/atomic.cpp``, for macOS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from demitasse.backends.kernels.language import target
from demitasse.backends.kernels.language.instructions import WORD, Block, Code, Module
from demitasse.backends.kernels.language.kernel import Routine
from demitasse.backends.kernels.language.values import (
    INDEX,
    INT,
    Condition,
    Value,
    Word,
    call_function,
    choose,
)

ORDER = "seq_cst"
WAIT, WAKE = 128, 129
"""Operations of Linux's futex within one process."""

COMPARE_AND_WAIT, WAKE_ALL = 5, 0x100
"""Operation of macOS's ``ulock`` on 64 bits, and its flag to wake all threads."""

ZERO_SUBNORMALS = 0x8040
"""Bits of x86-64's MXCSR: subnormal results are 0 (FTZ), and subnormal operands (DAZ)."""

MILLISECOND, ENDLESS = 1_000_000, 0xFFFFFFFF
"""Unit of Windows's timeouts in nanoseconds; the timeout that never ends."""

TICKS = 3_000_000_000
"""Ticks of a second, about those of x86-64's counter."""

TEAMS = 64
"""Number of teams: threads that lead regions at the same time have a team each."""

REGION, PARTS = 1 << 32, 1 << 16
"""Increments of ``Field.TICKET`` for a region and for a part."""

SPIN, LEADER_SPIN = 800_000, 400_000
"""Ticks that a helper and a leader spin before they sleep; a pass seldom pauses longer."""

BUSY_SHIFT = 4
"""Halvings of the ticks that threads spin after helpers were late, when cores are busy."""

LATE = 1_500_000
"""Least wait, in ticks, that counts as a late helper. The helper had no core if the wait also
exceeds the leader's own work."""

ALONE_AT_FIRST, LEVELS = 16, 5
"""Regions without wake-ups after a late helper, and how often this number doubles."""

GOOD_ENOUGH = 8
"""Consecutive regions without a late helper that halve the number."""

NAP, NAPS = 100_000, 50
"""Nanoseconds of a helper's timed sleep, and how many it takes before it sleeps without a timeout.
After a nap, a helper joins a region that is still running, so that long regions are shared."""


class Field(IntEnum):
    """Byte offsets of a team's words; words that threads write concurrently are 64 bytes apart.

    A region is a kernel that threads call with its parts. ``TICKET`` has the region's number, its
    number of parts, and the number of taken parts: 32, 16 and 16 bits.
    """

    BUSY = 0
    """True if some thread leads a region."""
    YIELD = 8
    """Address of the system's function, as the following ones."""
    WAIT = 16
    WAKE = 24
    START_HELPER = 32
    """Address of a function that starts a helper of a team, and returns 0 if it cannot."""
    TICKET = 64
    WORK = 128
    """The region's kernel."""
    ARGUMENT = 136
    """Argument of the kernel."""
    DONE = 192
    """Number of parts that helpers have finished."""
    WAITING = 200
    """Number of leaders that sleep until ``DONE`` changes: 0 or 1."""
    BELL = 256
    """Counter of wake-ups of sleeping helpers."""
    ASLEEP = 264
    """Number of helpers that sleep without a timeout."""
    HELPERS = 320
    ALONE = 328
    """Number of further regions that do not wake helpers from their naps."""
    LEVEL = 336
    """Recent late helpers; each one doubles the number of regions."""
    GOOD = 344
    """Number of regions since the last late helper."""
    END = 384


class Variable:
    """Word on the thread's stack."""

    def __init__(self, f: Function, value: Word | int) -> None:
        self._f, self._at = f, f.local(value)

    @property
    def value(self) -> Word:
        """The present value."""
        return self._f.load_word(self._at)

    @value.setter
    def value(self, value: Word | int) -> None:
        self._f.store_word(value, self._at)


class EndlessLoop:
    """Endless loop under construction."""

    def __init__(self, code: Code, head: Block, after: Block) -> None:
        self._code, self._head, self._after = code, head, after

    def repeat(self) -> None:
        self._code.jump(self._head)

    def leave(self) -> None:
        self._code.jump(self._after)


class Function(Routine):
    """Function of ``count`` words with a word as its result, under construction.

    Attributes:
        team: Address of the team whose fields are meant.
    """

    team: Word

    def __init__(self, module: Module, name: str, count: int) -> None:
        super().__init__(Code(module, name, count, WORD))

    # -- memory --------------------------------------------------------------------------------

    def get(self, field: Field) -> Word:
        """Load a field atomically."""
        return self._result(f"load atomic {WORD}, ptr {self._place(field)} {ORDER}, align {INT}")

    def set(self, field: Field, value: Word | int) -> None:
        """Store a field atomically."""
        typed = self.word(value).typed
        self.code.write(f"store atomic {typed}, ptr {self._place(field)} {ORDER}, align {INT}")

    def add(self, field: Field, value: int) -> Word:
        """Add to a field atomically; return the old value."""
        return self._result(f"atomicrmw add ptr {self._place(field)}, {WORD} {value} {ORDER}")

    def replace(self, field: Field, old: Word | int, new: Word | int) -> Condition:
        """Compare and swap a field; return whether its value was ``old``."""
        values = ", ".join(self.word(value).typed for value in (old, new))
        found = self.code.result(f"cmpxchg ptr {self._place(field)}, {values} {ORDER} {ORDER}")
        was_old = self.code.result(f"extractvalue {{ {WORD}, i1 }} {found}, 1")
        return Condition(self.code, "i1", was_old)

    def _place(self, field: Field) -> str:
        return self._pointer(self.team + int(field))

    def _result(self, instruction: str) -> Word:
        return Word(self.code, self.code.result(instruction))

    def local(self, *values: Word | int) -> Word:
        """Return the address of words on the thread's stack, with initial values."""
        place = Word(self.code, self.code.local(f"[{len(values)} x {WORD}]"))
        for index, value in enumerate(values):
            self.store_word(value, place + INT * index)
        return place

    # -- the system ----------------------------------------------------------------------------

    def system(self, function: Field, *arguments: Word | int) -> Word:
        """Call a function of the system; return its result, whose upper bits may be anything."""
        return self.call_at(self.get(function), *arguments)

    def sleep(self, field: Field, value: Word, nanoseconds: int = 0) -> None:
        """Sleep until the field's sleepers are woken, if the field is ``value``.

        The timeout is below a second; 0 for none.
        """
        place = self.team + int(field)
        if target.system() == target.WINDOWS:
            timeout = -(-nanoseconds // MILLISECOND) or ENDLESS
            self.system(Field.WAIT, place, self.local(value), INT, timeout)
        elif target.system() == target.MACOS:
            self.system(Field.WAIT, COMPARE_AND_WAIT, place, value, nanoseconds // 1000)
        else:
            until = self.local(0, nanoseconds) if nanoseconds else 0
            self.system(Field.WAIT, self._futex, place, WAIT, value, until, 0, 0)

    def wake(self, field: Field, count: Word | int) -> None:
        """Wake ``count`` threads that sleep on a field; on Windows and macOS all of them."""
        place = self.team + int(field)
        if target.system() == target.WINDOWS:
            self.system(Field.WAKE, place)
        elif target.system() == target.MACOS:
            self.system(Field.WAKE, COMPARE_AND_WAIT | WAKE_ALL, place, 0)
        else:
            self.system(Field.WAKE, self._futex, place, WAKE, count, 0, 0, 0)

    @property
    def _futex(self) -> int:
        return target.ARCHITECTURES[target.architecture()].futex

    def now(self) -> Word:
        """Return the time in ticks."""
        if target.is_x86():
            return Word(self.code, call_function(self.code, "llvm.readcyclecounter", WORD))
        count, frequency = (self._register(name) for name in ("CNTVCT_EL0", "CNTFRQ_EL0"))
        return count * (self.word(TICKS) // frequency)

    def _register(self, name: str) -> Word:
        """Read a system register of AArch64."""
        register = Value(self.code, "metadata", f'!{{!"{name}"}}')
        read = "llvm.read_volatile_register.i64"
        return Word(self.code, call_function(self.code, read, WORD, register))

    # -- floating point ------------------------------------------------------------------------

    def flush_subnormals(self) -> Word:
        """Let the thread take subnormal numbers as 0; return the address of its former mode.

        An instruction on x86-64 that meets one takes a hundred times as long.
        """
        before = self.local(0)
        if target.is_x86():
            self._mode("stmxcsr", before)
            mode = self._result(f"or {self.load_word(before).typed}, {ZERO_SUBNORMALS}")
            self._mode("ldmxcsr", self.local(mode))
        return before

    def restore_mode(self, before: Word) -> None:
        """Set the mode that ``flush_subnormals`` returned."""
        if target.is_x86():
            self._mode("ldmxcsr", before)

    def _mode(self, instruction: str, at: Word) -> None:
        place = Value(self.code, "ptr", self._pointer(at))
        call_function(self.code, f"llvm.x86.sse.{instruction}", "void", place)

    # -- control -------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Word) -> Word:
        """Call a function of the module."""
        return Word(self.code, self.code.call(name, WORD, [one.typed for one in arguments]))

    def give(self, result: Word | int = 0) -> None:
        """Return from the function."""
        self.code.give(self.word(result).typed)

    def pause(self) -> None:
        """Write the processor's spin-wait hint."""
        if target.is_x86():
            call_function(self.code, "llvm.x86.sse2.pause", "void")
        else:
            domain = Value(self.code, INDEX, "15")
            call_function(self.code, "llvm.aarch64.isb", "void", domain)

    @contextmanager
    def forever(self) -> Iterator[EndlessLoop]:
        """Write an endless loop, which its body leaves."""
        head, after = self.code.new_block(), self.code.new_block()
        self.code.jump(head)
        self.code.block = head
        yield EndlessLoop(self.code, head, after)
        self.code.jump(head)
        self.code.block = after


FUNCTIONS = ("parallel", "play", "prepare", "helper")
"""Functions of the team that Python calls."""


def write_team(module: Module) -> None:
    """Write the functions of the team; the symbol ``state`` is the address of the teams."""
    _write_take(Function(module, "take", 1))
    _write_prepare(Function(module, "prepare", 1))
    _write_region(Function(module, "region", 3))
    _write_parallel(Function(module, "parallel", 3))
    _write_play(Function(module, "play", 2))
    _write_helper(Function(module, "helper", 1))


def _taken(ticket: Word) -> Word:
    return ticket % PARTS


def _parts(ticket: Word) -> Word:
    return (ticket >> 16) % PARTS


def _is_open(ticket: Word) -> Condition:
    return _taken(ticket) < _parts(ticket)


def _write_take(f: Function) -> None:
    """Write the function that takes the first team that no thread leads.

    It starts the helpers for a number of parts, as far as the system allows.
    """
    (parts,) = f.arguments
    f.code.module.declare("state", WORD)
    f.code.module.variables.append(
        f"@first_team = internal global {WORD} ptrtoint (ptr @state to {WORD})"
    )
    first = f.team = Word(f.code, f.code.result(f"load {WORD}, ptr @first_team"))
    index = Variable(f, 0)
    with f.forever():
        with f.when(index.value >= TEAMS):
            f.system(Field.YIELD)
            index.value = 0
        f.team = first + index.value * int(Field.END)
        index.value += 1
        with f.when(f.replace(Field.BUSY, 0, 1)):
            with f.forever() as helpers:
                with f.when(f.get(Field.HELPERS) >= parts - 1):
                    helpers.leave()
                with f.when(f.system(Field.START_HELPER, f.team).equals(0)):
                    helpers.leave()
                f.add(Field.HELPERS, 1)
            f.give(f.team)
    f.give()  # never


def _write_prepare(f: Function) -> None:
    """Write the function that starts the helpers for a number of parts; 0 if they are there."""
    (parts,) = f.arguments
    f.team = f.call("take", parts)
    lacking = choose(f.get(Field.HELPERS) < parts - 1, 1, 0)
    f.set(Field.BUSY, 0)
    f.give(lacking)


def _write_region(f: Function) -> None:
    """Write the function that calls a kernel for each part: ``kernel(argument, part, parts)``."""
    work, argument, parts = f.arguments
    with f.when(parts < 2):
        f.call_at(work, argument, 0, 1)
        f.give()
    f.team = f.call("take", parts)
    f.set(Field.WORK, work)
    f.set(Field.ARGUMENT, argument)
    f.set(Field.DONE, 0)
    alone = f.get(Field.ALONE)
    with f.when(alone > 0):
        f.set(Field.ALONE, alone - 1)
    f.set(Field.TICKET, ((f.get(Field.TICKET) >> 32) + 1) * REGION + parts * PARTS + 1)
    # after the ticket: a helper first counts itself as asleep, and then reads the ticket
    with f.when(f.get(Field.ASLEEP) > 0):
        f.add(Field.BELL, 1)
        f.wake(Field.BELL, parts - 1)
    begin, own = f.now(), Variable(f, 1)
    f.call_at(work, argument, 0, parts)
    with f.forever() as loop:
        ticket = f.get(Field.TICKET)
        with f.when(_taken(ticket) >= parts):
            loop.leave()
        with f.when(f.replace(Field.TICKET, ticket, ticket + 1)):
            f.call_at(work, argument, _taken(ticket), parts)
            own.value += 1
    end, helped, patience = f.now(), parts - own.value, _patience(f, LEADER_SPIN)
    with f.when(helped > 0):
        with f.forever() as loop:
            done = f.get(Field.DONE)
            with f.when(done.equals(helped)):
                loop.leave()
            with f.when(f.now() - end < patience):
                f.pause()
                loop.repeat()
            f.add(Field.WAITING, 1)
            f.sleep(Field.DONE, done)
            f.add(Field.WAITING, -1)
        with f.when(alone < 2):
            _learn(f, f.now() - end, end - begin)
    f.set(Field.BUSY, 0)
    f.give()


def _patience(f: Function, ticks: int) -> Word:
    """Return the number of ticks to spin before sleeping."""
    return choose(f.get(Field.LEVEL) > 0, ticks >> BUSY_SHIFT, ticks)


def _learn(f: Function, waited: Word, own: Word) -> None:
    """Let late helpers sleep over some regions, the more regions the more often they were late."""
    level, late = f.get(Field.LEVEL), (waited > LATE) & (waited > own)
    good = choose(late, 0, f.get(Field.GOOD) + 1)
    with f.when(late):
        f.set(Field.LEVEL, choose(level < LEVELS, level + 1, level))
        f.set(Field.ALONE, f.word(ALONE_AT_FIRST) << level)
    with f.when(good >= GOOD_ENOUGH):
        f.set(Field.LEVEL, choose(level > 0, level - 1, 0))
    f.set(Field.GOOD, good % GOOD_ENOUGH)


def _write_parallel(f: Function) -> None:
    """Write the function that runs a region."""
    before = f.flush_subnormals()
    f.call("region", *f.arguments)
    f.restore_mode(before)
    f.give()


def _write_play(f: Function) -> None:
    """Write the loop over a table of regions: the three arguments of each."""
    table, count = f.arguments
    before = f.flush_subnormals()
    with f.loop(count) as row:
        f.call("region", *f.load_words(table + row.i * (3 * INT), 3))
    f.restore_mode(before)
    f.give()


def _write_helper(f: Function) -> None:
    """Write the endless loop of a team's helper.

    A leader writes the ticket first and then reads the number of sleepers. A helper therefore
    counts itself as asleep first and then reads the ticket.
    """
    (f.team,) = f.arguments
    f.flush_subnormals()
    seen, naps, awake_until = Variable(f, -1), Variable(f, 0), Variable(f, 0)
    with f.forever() as loop:
        ticket, alone, bell = f.get(Field.TICKET), f.get(Field.ALONE), f.get(Field.BELL)
        joins = alone.equals(0) | (ticket >> 32).equals(seen.value)
        with f.when(_is_open(ticket) & joins):
            with f.when(f.replace(Field.TICKET, ticket, ticket + 1)):
                work, argument = f.get(Field.WORK), f.get(Field.ARGUMENT)
                f.call_at(work, argument, _taken(ticket), _parts(ticket))
                f.add(Field.DONE, 1)
                with f.when(f.get(Field.WAITING) > 0):
                    f.wake(Field.DONE, 1)
                awake_until.value = f.now() + _patience(f, SPIN)
            loop.repeat()
        with f.when(alone.equals(0) & (f.now() < awake_until.value)):
            f.pause()
            loop.repeat()
        with f.when((alone > 0) & (naps.value < NAPS)):
            seen.value = choose(_is_open(ticket), ticket >> 32, -1)
            f.sleep(Field.BELL, bell, NAP)
            naps.value = choose(f.get(Field.TICKET).equals(ticket), naps.value + 1, 0)
            awake_until.value = f.now() + _patience(f, SPIN)
            loop.repeat()
        f.add(Field.ASLEEP, 1)
        ticket = f.get(Field.TICKET)
        with f.when(_taken(ticket) >= _parts(ticket)):
            f.sleep(Field.BELL, bell)
        f.add(Field.ASLEEP, -1)
        seen.value, naps.value = -1, 0
        awake_until.value = f.now() + _patience(f, SPIN)
    f.give()  # never
