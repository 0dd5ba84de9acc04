"""Write functions that several threads run at once: atomic memory, endless loops, results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from demitasse.backends.kernels.language.kernel import Routine
from demitasse.backends.kernels.language.words import INT, WORD, Condition, Word, declared
from demitasse.backends.kernels.team.state import Field, Member

__all__ = ["Function", "Loop", "member", "take_member"]

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
