"""OpenMP's interface for a team of our own: state, members, and generated functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from llvmlite import ir

from demitasse.backends.kernels.language.kernel import Routine
from demitasse.backends.kernels.language.words import INT, WORD, Condition, Word, declared

__all__ = [
    "ALONE_AT_FIRST",
    "BUSY_SHIFT",
    "GOOD_ENOUGH",
    "HARMLESS",
    "LATE",
    "LEVELS",
    "LONG_ROUNDS",
    "NAP",
    "OURS",
    "PARTS",
    "REGION",
    "SPIN",
    "STATE_WAIT",
    "SYSTEM",
    "Field",
    "Function",
    "Loop",
    "Member",
    "State",
    "member",
    "original",
    "take_member",
    "write_members",
]


ORDER = "seq_cst"
FUTEX, WAIT, WAKE = 202, 128, 129
"""Number of Linux's call on x86-64; to wait and to wake, within one process."""


class Loop:
    """An endless loop while it is written."""

    def __init__(self, builder: Any, head: Any, after: Any) -> None:
        self._b, self._head, self._after = builder, head, after

    def again(self) -> None:
        """Begin the next iteration."""
        self._b.branch(self._head)

    def leave(self) -> None:
        """Go on behind the loop."""
        self._b.branch(self._after)


class Function(Routine):
    """A function of words with a word as its result, as it is being written.

    Args:
        module: What it belongs to.
        name: Of the function.
        count: How many arguments it has.
    """

    def __init__(self, module: ir.Module, name: str, count: int) -> None:
        super().__init__(module, declared(module, name, ir.FunctionType(WORD, [WORD] * count)))

    # -- what the team shares ------------------------------------------------------------------

    def get(self, field: Field) -> Word:
        """Return what the threads share there."""
        return Word(self._b, self._b.load_atomic(self._shared(field), ORDER, INT))

    def set(self, field: Field, value: Word | int) -> None:
        """Write what all threads see there from now on."""
        self._b.store_atomic(self.word(value).llvm, self._shared(field), ORDER, INT)

    def add(self, field: Field, value: int) -> Word:
        """Add to what is there; return what it was."""
        constant = self.word(value).llvm
        return Word(self._b, self._b.atomic_rmw("add", self._shared(field), constant, ORDER))

    def replace(self, field: Field, old: Word | int, new: Word | int) -> Condition:
        """Write a value if another one is still there; return whether it was."""
        place = self._shared(field)
        found = self._b.cmpxchg(place, self.word(old).llvm, self.word(new).llvm, ORDER, ORDER)
        return Condition(self._b, self._b.extract_value(found, 1))

    def shared(self, field: Field) -> Word:
        """Return the address of what the threads share."""
        return Word(self._b, self._b.ptrtoint(self._state(), WORD)) + int(field)

    def sleep(self, field: Field, value: Word, nanoseconds: int = 0) -> None:
        """Sleep until the field is rung, while the lower half of it has a value.

        Args:
            field: Which one.
            value: What it was.
            nanoseconds: How long at most, below a second; 0 for ever.
        """
        until: Word | int = 0
        if nanoseconds:
            until = self.local(0, nanoseconds)
        self.call("syscall", FUTEX, self.shared(field), WAIT, value, until, 0, 0)

    def wake(self, field: Field, count: Word | int) -> None:
        """Wake threads that sleep until a field is rung."""
        self.call("syscall", FUTEX, self.shared(field), WAKE, count, 0, 0, 0)

    def ring(self, count: Word | int) -> None:
        """Wake helpers that sleep."""
        self.add(Field.BELL, 1)
        self.wake(Field.BELL, count)

    def wait_until(
        self, field: Field, over: Callable[[Word], Condition], sleepers: Field, patience: Word | int
    ) -> None:
        """Wait until a condition holds of what is shared; sleep where that takes long.

        Who changes it looks then whether somebody sleeps; and who has looked at something else than
        what is there by now is not put to sleep.

        Args:
            field: What is looked at.
            over: The condition.
            sleepers: Counts those who sleep.
            patience: Ticks before one does.
        """
        begun = self.now()
        with self.forever() as loop:
            value = self.get(field)
            with self.when(over(value)):
                loop.leave()
            with self.when(self.now() - begun < patience):
                self.pause()
                loop.again()
            self.add(sleepers, 1)
            self.sleep(field, value)
            self.add(sleepers, -1)

    def _shared(self, field: Field) -> Any:
        return self._b.inttoptr(self.shared(field).llvm, WORD.as_pointer())

    def _state(self) -> Any:
        known = self.module.globals.get("state")
        return ir.GlobalVariable(self.module, WORD, "state") if known is None else known

    # -- what is the thread's own --------------------------------------------------------------

    def local(self, *values: int) -> Word:
        """Return the address of words of the thread's own, with values that they have at first."""
        kind = ir.ArrayType(WORD, len(values))
        with self._b.goto_entry_block():
            place = Word(self._b, self._b.ptrtoint(self._b.alloca(kind), WORD))
        for index, value in enumerate(values):
            self.store(value, place, INT * index)
        return place

    def load(self, place: Word, offset: Member | int = 0) -> Word:
        """Return a word of the thread's own."""
        return self.load_word(place + int(offset))

    def store(self, value: Word | int, place: Word, offset: Member | int = 0) -> None:
        """Write a word of the thread's own."""
        self.store_word(self.word(value), place + int(offset))

    # -- values --------------------------------------------------------------------------------

    def equal(self, a: Word, b: Word | int) -> Condition:
        """Return whether two words are the same."""
        return Condition(self._b, self._b.icmp_signed("==", a.llvm, self.word(b).llvm))

    def unequal(self, a: Word, b: Word | int) -> Condition:
        """Return whether two words are not the same."""
        return Condition(self._b, self._b.icmp_signed("!=", a.llvm, self.word(b).llvm))

    def quotient(self, a: Word, b: Word) -> Word:
        """Return a / b, rounded towards 0; either may be negative."""
        return Word(self._b, self._b.sdiv(a.llvm, b.llvm))

    def doubled(self, value: int, times: Word) -> Word:
        """Return an integer that was doubled so often."""
        return Word(self._b, self._b.shl(self.word(value).llvm, times.llvm))

    def now(self) -> Word:
        """Return the time in ticks."""
        kind = ir.FunctionType(WORD, [])
        ticks = declared(self.module, "llvm.readcyclecounter", kind)
        return Word(self._b, self._b.call(ticks, []))

    # -- control -------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Word | int) -> Word:
        """Call a function by its name; return its result, whose upper bits may be anything."""
        kind = ir.FunctionType(WORD, [WORD] * len(arguments))
        function = declared(self.module, name, kind)
        words = [self.word(value).llvm for value in arguments]
        return Word(self._b, self._b.call(function, words))

    def address(self, name: str) -> Word:
        """Return the address of a function of this module, of one argument."""
        kind = ir.FunctionType(WORD, [WORD])
        return Word(self._b, self._b.ptrtoint(declared(self.module, name, kind), WORD))

    def give(self, result: Word | int = 0) -> None:
        """Return from the function."""
        self._b.ret(self.word(result).llvm)

    def pause(self) -> None:
        """Let a moment pass."""
        kind = ir.FunctionType(ir.VoidType(), [])
        self._b.call(declared(self.module, "llvm.x86.sse2.pause", kind), [])

    @contextmanager
    def forever(self) -> Iterator[Loop]:
        """Write a loop that is left in its body."""
        head, after = (self.function.append_basic_block(name) for name in ("again", "after"))
        self._b.branch(head)
        self._b.position_at_end(head)
        yield Loop(self._b, head, after)
        if not self._b.block.is_terminated:
            self._b.branch(head)
        self._b.position_at_end(after)


def member(f: Function) -> Word:
    """Return the address of this thread's :class:`Member`; 0 for a thread that is in no region."""
    return f.call("pthread_getspecific", f.get(Field.KEY))


def take_member(f: Function, place: Word | int) -> None:
    """Say what is this thread's :class:`Member` from now on; 0 for none."""
    f.call("pthread_setspecific", f.get(Field.KEY), place)


def write_members(module: ir.Module) -> None:
    """Write the functions."""
    _write_part(Function(module, "part", 0))
    _write_parts(Function(module, "parts", 0))
    _write_in_parallel(Function(module, "in_parallel", 0))
    _write_barrier(Function(module, "barrier", 0))
    _write_loop_next(Function(module, "loop_next", 2))
    _write_loop_start(Function(module, "loop_start", 6))
    _write_loop_end(Function(module, "loop_end", 0))


def _outside(f: Function, name: str) -> Word:
    """Hand threads that are in no region on to the OpenMP runtime; return the Member of others."""
    me = member(f)
    with f.when(f.equal(me, 0)):
        f.give(f.call(original(name), *f.arguments))
    return me


def _part_and_parts(f: Function, me: Word) -> tuple[Word, Word]:
    """Return which part is computed, and of how many; regions within a region have one."""
    part, parts = f.local(0), f.local(1)
    with f.when(f.equal(f.load(me, Member.DEPTH), 0)):
        f.store(f.load(me, Member.PART), part)
        f.store(f.load(me, Member.PARTS), parts)
    return f.load(part), f.load(parts)


def _write_part(f: Function) -> None:
    f.give(_part_and_parts(f, _outside(f, "omp_get_thread_num"))[0])


def _write_parts(f: Function) -> None:
    f.give(_part_and_parts(f, _outside(f, "omp_get_num_threads"))[1])


def _write_in_parallel(f: Function) -> None:
    _outside(f, "omp_in_parallel")
    f.give(1)


def _write_barrier(f: Function) -> None:
    me = _outside(f, "GOMP_barrier")
    with f.when(f.load(me, Member.DEPTH) > 0):
        f.give()
    parts = f.load(me, Member.PARTS)
    with f.when(f.get(Field.ALONE) > 0):  # all of them are needed, and at once
        f.set(Field.ALONE, 0)
        f.ring(parts)
    phase = f.get(Field.PHASE)
    with f.when(f.equal(f.add(Field.ARRIVED, 1) + 1, parts)):
        f.set(Field.ARRIVED, 0)
        f.add(Field.PHASE, 1)
        with f.when(f.get(Field.AT_BARRIER) > 0):
            f.wake(Field.PHASE, parts)
        f.give()
    f.wait_until(Field.PHASE, lambda now: f.unequal(now, phase), Field.AT_BARRIER, STATE_WAIT)
    f.give()


def _write_loop_start(f: Function) -> None:
    start, stop, step, chunk, first, last = f.arguments
    me = _outside(f, "GOMP_loop_static_start")
    f.store(0, me, Member.TRIPS)
    f.store(start, me, Member.START)
    f.store(stop, me, Member.STOP)
    f.store(step, me, Member.STEP)
    f.store(chunk, me, Member.CHUNK)
    f.give(f.call("loop_next", first, last))


def _write_loop_next(f: Function) -> None:
    """Write which iterations a member computes next: a block, or chunks in turn."""
    first, last = f.arguments
    me = _outside(f, "GOMP_loop_static_next")
    part, parts = _part_and_parts(f, me)
    start, stop, step, chunk, trips = (
        f.load(me, field)
        for field in (Member.START, Member.STOP, Member.STEP, Member.CHUNK, Member.TRIPS)
    )
    nearly = f.local(-1)  # so that a step that does not end at the stop counts
    with f.when(step < 0):
        f.store(1, nearly)
    left = f.local(0)
    f.store(f.quotient(stop - start + step + f.load(nearly), step), left)
    with f.when(f.load(left) < 0):
        f.store(0, left)
    count = f.load(left)
    begin, end = f.local(0), f.local(0)
    with f.when(f.equal(chunk, 0)):
        with f.when(trips > 0):
            f.give(0)
        share, more = count // parts, count % parts
        f.store(share * part + more, begin)
        f.store(share, end)
        with f.when(part < more):
            f.store((share + 1) * part, begin)
            f.store(share + 1, end)
        f.store(f.load(begin) + f.load(end), end)
    with f.when(chunk > 0):
        f.store((trips * parts + part) * chunk, begin)
        f.store(f.load(begin) + chunk, end)
        with f.when(f.load(end) > count):
            f.store(count, end)
    f.store(trips + 1, me, Member.TRIPS)
    with f.when(f.load(begin) >= f.load(end)):
        f.give(0)
    f.store(start + f.load(begin) * step, first)
    f.store(start + f.load(end) * step, last)
    f.give(1)


def _write_loop_end(f: Function) -> None:
    _outside(f, "GOMP_loop_end_nowait")
    f.give()


class Field(IntEnum):
    """Places in bytes, of words; what different threads write at the same time is 64 bytes apart.

    A region is a function that each member of the team calls with its part. ``TICKET`` says which
    region, of how many parts, and how many of those somebody has taken: 32, 16 and 16 bits.
    """

    BUSY = 0
    """True if some thread leads a region."""
    KEY = 8
    """By which each thread finds its :class:`Member`."""
    TICKET = 64
    WORK = 128
    """The region's function."""
    ARGUMENT = 136
    """Argument of the function."""
    DONE = 192
    """Number of parts that helpers have finished."""
    WAITING = 200
    """Number of leaders that sleep until ``DONE`` changes: 1 or 0."""
    BELL = 256
    """Is another number each time that sleeping helpers are woken."""
    ASLEEP = 264
    """Number of helpers that sleep."""
    RESTING = 272
    """Number of helpers that sleep without a timeout."""
    HELPERS = 320
    ALONE = 328
    """For how many regions more the helpers are not woken, and come by themselves or not at all."""
    LEVEL = 336
    """Recent hits of the timed sleep; each one doubles the number of regions."""
    GOOD = 344
    """Number of regions since the last miss."""
    BEGUN = 352
    """Start time of the region."""
    CALLED = 360
    """True if helpers were to come at once, so that one may be late."""
    LEADER = 384
    """The leader's :class:`Member`."""
    ARRIVED = 448
    """Number of members at the barrier."""
    PHASE = 456
    """Is another number after each barrier."""
    AT_BARRIER = 464
    """Number of members that sleep until ``PHASE`` changes."""
    END = 512


class Member(IntEnum):
    """Places in what a thread knows while it computes a part."""

    PART = 0
    """Thread number."""
    PARTS = 8
    """Number of threads."""
    DEPTH = 16
    """In how many regions within the region; those have one part each."""
    TRIPS = 24
    """Number of loop blocks assigned to it."""
    START = 32
    STOP = 40
    STEP = 48
    CHUNK = 56
    END = 64


REGION, PARTS = 1 << 32, 1 << 16
"""Increments of ``TICKET`` for a region and for a part."""

SPIN = 800_000
"""Ticks for which a helper looks for more to do before it sleeps; a pass seldom pauses longer."""

STATE_WAIT = 400_000
"""Ticks for which the leader looks whether helpers are done before it sleeps."""

BUSY_SHIFT = 4
"""Both are shorter, by so many halvings, while helpers have been late: others need the cores."""

LATE = 1_500_000
"""Ticks that a leader waits at least for a helper that is called late. If that was longer than it
took to do its own part, the helper had no core."""

ALONE_AT_FIRST, LEVELS = 16, 5
"""For how many regions the helpers are not woken after one was late, and how often that doubles."""

LONG_ROUNDS = 50
"""Polls of a helper after a timed sleep, before it sleeps until it is woken."""

GOOD_ENOUGH = 8
"""Regions that must go well for the number to be halved."""

NAP = 100_000
"""Nanoseconds after which a helper that nobody wakes looks whether a region is still not done. It
then takes part in that: so long ones are shared, and a part can wait for another."""


class State:
    """The memory. It is never given back: helpers look at it until the process has ended.

    Attributes:
        address: Where it is.
    """

    def __init__(self) -> None:
        allocate = ctypes.CDLL(None).aligned_alloc
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
        self.address: int = allocate(64, Field.END) or 0
        if not self.address:
            raise MemoryError
        ctypes.memset(self.address, 0, Field.END)
        key = ctypes.c_uint()
        if ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None):
            raise MemoryError
        self[Field.KEY] = key.value

    def clear(self) -> None:
        """Let there be no helpers and no region, as in a process that has just been forked."""
        key = self[Field.KEY]
        ctypes.memset(self.address, 0, Field.END)
        self[Field.KEY] = key

    def __getitem__(self, field: Field) -> int:
        return ctypes.c_int64.from_address(self.address + field).value

    def __setitem__(self, field: Field, value: int) -> None:
        ctypes.c_int64.from_address(self.address + field).value = value


OURS = {
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
"""System functions that the team's code calls."""


def original(name: str) -> str:
    """Return by which name a function of the OpenMP runtime is called by ours."""
    return f"libgomp_{name}"
