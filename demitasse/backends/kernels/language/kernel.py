"""Write functions in LLVM's instructions: integers that are addresses and counts, vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

__all__ = ["FLOAT", "WIDE", "Kernel", "Loop", "Value"]

FLOAT, WIDE = 4, 8
"""Bytes of a number, and of an integer."""

WORD, INDEX, NUMBER = ir.IntType(64), ir.IntType(32), ir.FloatType()

Value = Any
"""What an instruction gives; where an integer is asked for, a Python one will do."""


class Loop:
    """A counted loop while it is written.

    Attributes:
        i: The counter.
        values: What the loop carries from turn to turn, as this turn finds it.
        next: The same as the next turn shall find it; set by the body.
        out: The same after the last turn; there when the ``with`` block has ended.
    """

    def __init__(self, i: Value, values: list[Value]) -> None:
        self.i, self.values = i, values
        self.next, self.out = list(values), list[Value]()


class Kernel:
    """A function of integers that returns nothing, as it is being written.

    Args:
        module: What it belongs to.
        name: Of the function.
        count: How many arguments it has.
        width: Floats of a vector.
        exported: Whether Python calls it; others are seen by their module alone.

    Attributes:
        function: What other kernels call.
        arguments: Its arguments.
    """

    def __init__(
        self, module: ir.Module, name: str, count: int, width: int, *, exported: bool = False
    ) -> None:
        self.module, self.width = module, width
        self.vector = ir.VectorType(NUMBER, width)
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD] * count), name)
        if not exported:
            self.function.linkage = "internal"
        self.arguments: Sequence[Value] = self.function.args
        self._b: Any = ir.IRBuilder(self.function.append_basic_block("entry"))

    def done(self) -> None:
        """End the function."""
        self._b.ret_void()

    def fields(self, names: Sequence[str]) -> SimpleNamespace:
        """Return the integers of 64 bits that the first argument is the address of, by name."""
        first = self.arguments[0]
        words = (self.load_word(self.add(first, WIDE * place)) for place in range(len(names)))
        return SimpleNamespace(**dict(zip(names, words, strict=True)))

    # -- integers ------------------------------------------------------------------------------

    def word(self, value: Value) -> Value:
        """Return an integer as LLVM knows it."""
        return ir.Constant(WORD, value) if isinstance(value, int) else value

    def add(self, first: Value, *more: Value) -> Value:
        """Return the sum."""
        total = self.word(first)
        for value in more:
            total = self._b.add(total, self.word(value))
        return total

    def minus(self, a: Value, b: Value) -> Value:
        """Return a - b."""
        return self._b.sub(self.word(a), self.word(b))

    def times(self, a: Value, b: Value) -> Value:
        """Return a * b."""
        return self._b.mul(self.word(a), self.word(b))

    def divided(self, a: Value, b: Value) -> Value:
        """Return the quotient of what is not negative."""
        return self._b.udiv(self.word(a), self.word(b))

    def rest(self, a: Value, b: Value) -> Value:
        """Return the remainder of what is not negative."""
        return self._b.urem(self.word(a), self.word(b))

    def below(self, a: Value, b: Value) -> Value:
        """Return whether a < b."""
        return self._b.icmp_signed("<", self.word(a), self.word(b))

    def both(self, a: Value, b: Value) -> Value:
        """Return whether two conditions hold."""
        return self._b.and_(a, b)

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return one of two values."""
        return self._b.select(condition, self.word(yes), self.word(no))

    def least(self, a: Value, b: Value) -> Value:
        """Return the smaller one."""
        return self.choose(self.below(a, b), a, b)

    def most(self, a: Value, b: Value) -> Value:
        """Return the larger one."""
        return self.choose(self.below(a, b), b, a)

    def part(self, count: Value, index: Value, parts: Value) -> tuple[Value, Value]:
        """Return where one of several parts of ``count`` things begins and ends."""
        first = self.divided(self.times(count, index), parts)
        return first, self.divided(self.times(count, self.add(index, 1)), parts)

    def opaque(self, value: Value) -> Value:
        """Return the same integer, about which the compiler knows nothing.

        What is loaded from there twice is loaded twice, not kept in a register that others need.
        """
        kind = ir.FunctionType(WORD, [WORD])
        return self._b.asm(kind, "", "=r,0", [self.word(value)], side_effect=False)

    # -- memory --------------------------------------------------------------------------------

    def at(self, base: Value, elements: Value) -> Value:
        """Return the address of an element, of four bytes."""
        return self.add(base, self.bytes(elements))

    def bytes(self, elements: Value) -> Value:
        """Return the bytes of so many elements."""
        return self.times(elements, FLOAT)

    def load(self, address: Value) -> Value:
        """Return the vector at an address."""
        return self._load(address, self.vector, FLOAT)

    def load_number(self, address: Value) -> Value:
        """Return the number at an address."""
        return self._load(address, NUMBER, FLOAT)

    def load_word(self, address: Value) -> Value:
        """Return the integer of 64 bits at an address."""
        return self._load(address, WORD, WIDE)

    def _load(self, address: Value, kind: Any, align: int) -> Value:
        value = self._b.load(self._b.inttoptr(address, ir.PointerType(kind)))
        value.align = align
        return value

    def store(self, value: Value, address: Value) -> None:
        """Write a vector or a number."""
        self._b.store(value, self._b.inttoptr(address, ir.PointerType(value.type))).align = FLOAT

    def scratch(self, vectors: int) -> Value:
        """Return the address of memory for so many vectors, the thread's own while this runs."""
        kind = ir.ArrayType(self.vector, vectors)
        with self._b.goto_entry_block():
            return self._b.ptrtoint(self._b.alloca(kind), WORD)

    # -- vectors -------------------------------------------------------------------------------

    def constant(self, number: float) -> Value:
        """Return a vector of one number."""
        return ir.Constant(self.vector, [float(number)] * self.width)

    @staticmethod
    def real(number: float) -> Value:
        """Return a number."""
        return ir.Constant(NUMBER, float(number))

    def spread(self, number: Value) -> Value:
        """Return a vector of one number that is not known yet."""
        none = ir.Constant(self.vector, ir.Undefined)
        first = self._b.insert_element(none, number, ir.Constant(INDEX, 0))
        places = ir.Constant(ir.VectorType(INDEX, self.width), [0] * self.width)
        return self._b.shuffle_vector(first, none, places)

    def gather(self, addresses: Sequence[Value]) -> Value:
        """Return a vector of numbers from anywhere."""
        value = ir.Constant(self.vector, ir.Undefined)
        for lane, address in enumerate(addresses):
            number = self.load_number(address)
            value = self._b.insert_element(value, number, ir.Constant(INDEX, lane))
        return value

    def plus(self, a: Value, b: Value) -> Value:
        """Return the sum of vectors."""
        return self._b.fadd(a, b)

    def less(self, a: Value, b: Value) -> Value:
        """Return the difference of vectors."""
        return self._b.fsub(a, b)

    def product(self, a: Value, b: Value) -> Value:
        """Return the product of vectors, number by number."""
        return self._b.fmul(a, b)

    def negative(self, a: Value) -> Value:
        """Return -a."""
        return self._b.fneg(a)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        name = f"llvm.fma.v{self.width}f32"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self._b.call(self._declared(name, kind), [a, b, c])

    def at_least(self, vector: Value, floor: Value) -> Value:
        """Return the vector with numbers below those of ``floor`` raised; what is NaN stays."""
        return self._b.select(self._b.fcmp_ordered(">", floor, vector), floor, vector)

    def accumulate(self, pairs: Sequence[tuple[Value, Value]], adds: Value) -> None:
        """Write vectors to their addresses, or add them to what is there if ``adds`` is not 0."""
        with self._b.if_else(self.below(0, adds)) as (yes, no):
            with yes:
                for vector, address in pairs:
                    self.store(self.plus(self.load(address), vector), address)
            with no:
                for vector, address in pairs:
                    self.store(vector, address)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return one of two vectors."""
        return self._b.select(condition, yes, no)

    # -- control -------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, end: Value, start: Value = 0, step: Value = 1, carry: Sequence[Value] = ()
    ) -> Iterator[Loop]:
        """Write a loop from ``start`` while the counter is below ``end``; perhaps no turn."""
        b, before = self._b, self._b.block
        body, after = (self.function.append_basic_block(name) for name in ("body", "after"))
        b.cbranch(self.below(start, end), body, after)
        b.position_at_end(body)
        phis = [self._phi(value, before) for value in (self.word(start), *carry)]
        loop = Loop(phis[0], phis[1:])
        yield loop
        counter, last = self.add(loop.i, step), b.block
        for phi, value in zip(phis, (counter, *loop.next), strict=True):
            phi.add_incoming(value, last)
        b.cbranch(self.below(counter, end), body, after)
        b.position_at_end(after)
        for value, new in zip(carry, loop.next, strict=True):
            phi = self._phi(value, before)
            phi.add_incoming(new, last)
            loop.out.append(phi)

    def _phi(self, value: Value, source: Any) -> Any:
        phi = self._b.phi(value.type)
        phi.add_incoming(value, source)
        return phi

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Write what is done if a condition holds."""
        with self._b.if_then(condition):
            yield

    @contextmanager
    def cases(self, value: Value) -> Iterator[Any]:
        """Write what is done in each of several cases.

        Yields:
            A function that begins the case of an integer.
        """
        b, end = self._b, self.function.append_basic_block("end")
        switch = b.switch(self.word(value), end)

        def case(number: int) -> None:
            if b.block.terminator is None:
                b.branch(end)
            block = self.function.append_basic_block("case")
            switch.add_case(self.word(number), block)
            b.position_at_end(block)

        yield case
        if b.block.terminator is None:
            b.branch(end)
        b.position_at_end(end)

    def call(self, kernel: Kernel, *arguments: Value) -> None:
        """Run another kernel of this module."""
        self._b.call(kernel.function, [self.word(value) for value in arguments])

    def call_at(self, address: Value, *arguments: Value) -> None:
        """Run the kernel at an address."""
        kind = ir.FunctionType(ir.VoidType(), [WORD] * len(arguments))
        function = self._b.inttoptr(address, ir.PointerType(kind))
        self._b.call(function, [self.word(value) for value in arguments])

    # -- the team ------------------------------------------------------------------------------

    def thread(self) -> tuple[Value, Value]:
        """Return the number of this thread in its team, and how many there are."""
        kind = ir.FunctionType(INDEX, [])
        number, count = (
            self._b.sext(self._b.call(self._declared(name, kind), []), WORD)
            for name in ("omp_get_thread_num", "omp_get_num_threads")
        )
        return number, count

    def wait(self) -> None:
        """Wait until every thread of the team has come here."""
        self._b.call(self._declared("GOMP_barrier", ir.FunctionType(ir.VoidType(), [])), [])

    def _declared(self, name: str, kind: Any) -> Any:
        known = self.module.globals.get(name)
        return ir.Function(self.module, kind, name) if known is None else known
