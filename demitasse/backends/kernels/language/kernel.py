"""Write functions in LLVM's instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import mul
from typing import Any

from llvmlite import ir

from demitasse.backends.kernels.language.target import WIDE, is_x86
from demitasse.backends.kernels.language.values import (
    BFLOAT,
    FLOAT,
    HALF,
    INT,
    LINE_BYTES,
    NUMBER,
    WORD,
    Condition,
    FirstLanes,
    Float,
    IntVector,
    SplatConstant,
    Vector,
    Word,
    call_function,
    chunk,
    maximum,
    minimum,
    permuted,
)

BYTE, SHORT, INDEX = ir.IntType(8), ir.IntType(16), ir.IntType(32)

FEWEST_TILES = 4
"""Least number of tiles that share the prefetches of a panel: bursts delay the products."""


class Loop:
    """Counted loop under construction.

    Attributes:
        i: The counter.
        vectors: Loop-carried vectors. The body reads the current iteration's values and assigns the
            next iteration's; after the loop the list has the final values.
        words: Loop-carried integers, used like ``vectors``.
    """

    def __init__(self, i: Word, vectors: list[Vector], words: list[Word]) -> None:
        self.i, self.vectors, self.words = i, vectors, words


class Routine:
    """Function of integers under construction, from an LLVM function without instructions."""

    def __init__(self, module: ir.Module, function: Any) -> None:
        self.module, self.function = module, function
        function.attributes.add("nounwind")  # so without tables for exceptions
        self._b: Any = ir.IRBuilder(function.append_basic_block("entry"))
        self.arguments = [Word(self._b, argument) for argument in function.args]

    def word(self, value: Word | int) -> Word:
        """Convert a Python int to a value of the function."""
        return Word(self._b, ir.Constant(WORD, value)) if isinstance(value, int) else value

    def load_word(self, address: Word) -> Word:
        """Return the integer of 64 bits at an address."""
        return Word(self._b, self._load(address, WORD, INT))

    def load_words(self, address: Word, count: int) -> list[Word]:
        """Return ``count`` consecutive integers of 64 bits."""
        return [self.load_word(address + INT * place) for place in range(count)]

    def store_word(self, value: Word, address: Word) -> None:
        self._store(value.llvm, address, INT)

    def _load(self, address: Word, kind: Any, align: int) -> Any:
        value = self._b.load(self._b.inttoptr(address.llvm, ir.PointerType(kind)))
        value.align = align
        return value

    def _store(self, value: Any, address: Word, align: int) -> None:
        place = self._b.inttoptr(address.llvm, ir.PointerType(value.type))
        self._b.store(value, place).align = align

    @contextmanager
    def when(self, condition: Condition) -> Iterator[None]:
        """Write instructions that run if a condition holds."""
        with self._b.if_then(condition.llvm):
            yield

    @contextmanager
    def loop(
        self, end: Word | int, start: Word | int = 0, step: Word | int = 1, *,
        vectors: Sequence[Vector] = (), words: Sequence[Word] = (),
    ) -> Iterator[Loop]:  # fmt: skip
        """Write a loop over ``range(start, end, step)``, which may be empty.

        ``vectors`` and ``words`` are the initial values of loop-carried values; see :class:`Loop`.
        """
        b, before = self._b, self._b.block
        body, after = (self.function.append_basic_block(name) for name in ("body", "after"))
        first: list[Any] = [self.word(start), *vectors, *words]
        count = 1 + len(vectors)
        b.cbranch((first[0] < end).llvm, body, after)
        b.position_at_end(body)
        phis = [self._phi(value, before) for value in first]
        loop = Loop(phis[0], phis[1:count], phis[count:])
        yield loop
        following: list[Any] = [loop.i + step, *loop.vectors, *loop.words]
        last = b.block
        b.cbranch((following[0] < end).llvm, body, after)
        b.position_at_end(after)
        ends = [self._phi(value, before) for value in first]
        for phi, end_phi, value in zip(phis, ends, following, strict=True):
            phi.llvm.add_incoming(value.llvm, last)
            end_phi.llvm.add_incoming(value.llvm, last)
        loop.vectors, loop.words = ends[1:count], ends[count:]

    def _phi(self, value: Any, source: Any) -> Any:
        phi = self._b.phi(value.llvm.type)
        phi.add_incoming(value.llvm, source)
        return type(value)(self._b, phi)

    def call_at(self, address: Word, *arguments: Word | int) -> Word:
        """Call a function at an address; return its result, of which 64 bits need not be there."""
        kind = ir.FunctionType(WORD, [WORD] * len(arguments))
        function = self._b.inttoptr(address.llvm, ir.PointerType(kind))
        return Word(self._b, self._b.call(function, [self.word(value).llvm for value in arguments]))


class Kernel(Routine):
    """Function of integers without a result, under construction.

    Args:
        module: The function's module.
        name: Name of the function.
        count: Number of arguments.
        width: Floats of a vector.
        exported: True if the function has an address; others are inlined into their module's.
        threaded: True if the team calls the function, with the number of the thread and the number
            of threads as further arguments.
    """

    def __init__(
        self, module: ir.Module, name: str, count: int, width: int, *, exported: bool = False,
        threaded: bool = False,
    ) -> None:  # fmt: skip
        words = [WORD] * (count + 2 * threaded)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), words), name)
        if not (exported or threaded):
            function.linkage = "internal"
            function.attributes.add("alwaysinline")
        super().__init__(module, function)
        self.arguments, self._thread = self.arguments[:count], self.arguments[count:]
        self.width, self.vector_bytes = width, FLOAT * width
        self._vector = ir.VectorType(NUMBER, width)

    def done(self) -> None:
        self._b.ret_void()

    # -- integers ------------------------------------------------------------------------------

    def no_cse(self, value: Word) -> Word:
        """Return the same integer, hidden from common-subexpression elimination.

        Repeated loads from the address stay loads and do not occupy a register.
        """
        kind = ir.FunctionType(WORD, [WORD])
        return Word(self._b, self._b.asm(kind, "", "=r,0", [value.llvm], side_effect=False))

    # -- memory --------------------------------------------------------------------------------

    def load(self, address: Word, some: Condition | None = None) -> Vector:
        """Return the vector at an address, with zeros for the lanes that ``some`` lacks."""
        if some is None:
            return Vector(self._b, self._load(address, self._vector, FLOAT))
        zeros = ir.Constant(self._vector, None)
        name, place = f"llvm.masked.load.v{self.width}f32.p0", self._some(address, some)
        return Vector(self._b, call_function(self._b, name, self._vector, *place, zeros))

    def load_halves(self, address: Word) -> Vector:
        """Return as many floats of 16 bits at an address as a vector has, widened."""
        narrow = ir.VectorType(ir.HalfType(), self.width)
        return Vector(self._b, self._b.fpext(self._load(address, narrow, HALF), self._vector))

    def load_float(self, address: Word) -> Float:
        """Return the float at an address."""
        return Float(self._b, self._load(address, NUMBER, FLOAT))

    def load_unsigned(self, address: Word, bits: int) -> Word:
        """Return the integer of ``bits`` bits, which is not negative, at an address."""
        value = self._load(address, ir.IntType(bits), bits // 8)
        return Word(self._b, self._b.zext(value, WORD))

    def load_lanes(self, address: Word, count: int, bits: int) -> IntVector:
        """Return ``count`` integers of ``bits`` bits at an address."""
        kind = ir.VectorType(ir.IntType(bits), count)
        return IntVector(self._b, self._load(address, kind, bits // 8))

    def store(self, value: Vector | Float, address: Word, some: Condition | None = None) -> None:
        """Write a float, a vector, or the lanes of a vector that ``some`` has, to an address."""
        if some is None:
            self._store(value.llvm, address, FLOAT)
            return
        if isinstance(value, Vector) and isinstance(some, FirstLanes):
            self._store_first(value, address, some.count)
            return
        name, place = f"llvm.masked.store.v{self.width}f32.p0", self._some(address, some)
        call_function(self._b, name, ir.VoidType(), value.llvm, *place)

    def _store_first(self, value: Vector, address: Word, count: Word | int) -> None:
        """Write a vector's first elements, in parts of 1, 2, 4 and so on elements."""
        if isinstance(count, Word):
            with self.cases(minimum(count, self.width)) as case:
                for lanes in range(1, self.width + 1):
                    case(lanes)
                    self._store_first(value, address, lanes)
            return
        count = max(0, min(count, self.width))
        at, part = 0, self.width
        while part:
            if count & part:
                elements = permuted(value, range(at, at + part))
                self._store(elements.llvm, address + FLOAT * at, FLOAT)
                at += part
            part //= 2

    def store_bfloat(self, value: Vector | Float, address: Word) -> None:
        """Write a vector or a float, rounded to bfloat16, to an address."""
        kind = ir.VectorType(BFLOAT, self.width) if isinstance(value, Vector) else BFLOAT
        self._store(self._b.fptrunc(value.llvm, kind), address, HALF)

    def lane_mask(self, count: Word | int, *, rare: bool = False) -> Condition:
        """Return a mask of a vector's first ``count`` elements, at most all.

        A store with a ``rare`` mask is short and slow code: AVX2's masked store takes AMD's
        processors 12 cycles or more.
        """
        places = ir.VectorType(INDEX, self.width)
        counts = self._spread(self._b.trunc(self.word(count).llvm, INDEX), places)
        numbers = ir.Constant(places, list(range(self.width)))
        mask = self._b.icmp_signed("<", numbers, counts)
        if rare or self.width >= WIDE:
            return Condition(self._b, mask)
        return FirstLanes(self._b, mask, count)

    def _some(self, address: Word, some: Condition) -> list[Any]:
        pointer = self._b.inttoptr(address.llvm, ir.PointerType(self._vector))
        return [pointer, ir.Constant(INDEX, FLOAT), some.llvm]

    def store_half(self, value: Word, address: Word) -> None:
        """Write the lower 16 bits of an integer to an address."""
        self._store(self._b.trunc(value.llvm, SHORT), address, HALF)

    def store_lanes(self, value: IntVector, address: Word) -> None:
        """Write integers to an address."""
        self._store(value.llvm, address, value.llvm.type.element.width // 8)

    def accumulate(self, pairs: Sequence[tuple[Vector, Word]], adds: Word | int) -> None:
        """Write vectors to their addresses; add to the old values if ``adds`` is not 0."""
        with self._b.if_else((self.word(adds) > 0).llvm) as (yes, no):
            with yes:
                for vector, address in pairs:
                    self.store(self.load(address) + vector, address)
            with no:
                for vector, address in pairs:
                    self.store(vector, address)

    def scratch(self, vectors: int) -> Word:
        """Return the address of thread-local memory for ``vectors`` vectors."""
        kind = ir.ArrayType(self._vector, vectors)
        with self._b.goto_entry_block():
            return Word(self._b, self._b.ptrtoint(self._b.alloca(kind), WORD))

    def prefetch(self, address: Word, cache: int = 1) -> None:
        """Prefetch the cache line at an address, valid or not, to the cache of level 1 or 2."""
        line = self._b.inttoptr(address.llvm, ir.PointerType(BYTE))
        use, near, data = (ir.Constant(INDEX, number) for number in (0, 4 - cache, 1))
        call_function(self._b, "llvm.prefetch.p0i8", ir.VoidType(), line, use, near, data)

    def prefetch_step(self, size: int, tiles: Word) -> Word:
        """Return bytes that a step, which reads ``size``, prefetches if ``tiles`` share a panel."""
        return minimum(size // FEWEST_TILES, (tiles + (size - 1)) // maximum(tiles, 1))

    @contextmanager
    def each_line(self, begin: Word, size: Word) -> Iterator[Word]:
        """Write a loop over the cache lines of some bytes; yields the address of each."""
        with self.loop(size - (LINE_BYTES - 1), 0, LINE_BYTES) as line:
            yield begin + line.i

    def touch(self, begin: Word, size: Word) -> None:
        """Read some bytes into the caches, one line after the other.

        Processors fetch ahead what is read in the order of its addresses. They do not learn from
        tiles, whose rows are read side by side.
        """
        kind = ir.FunctionType(ir.VoidType(), [WORD])
        with self.each_line(begin, size) as line:
            word = self._load(line, WORD, FLOAT)
            self._b.call(ir.InlineAsm(kind, "", "r", side_effect=True), [word])

    # -- vectors -------------------------------------------------------------------------------

    def constant(self, number: float) -> Vector:
        """Return a vector of equal numbers."""
        return Vector(self._b, SplatConstant(self._vector, float(number)))

    def number(self, number: float) -> Float:
        return Float(self._b, ir.Constant(NUMBER, float(number)))

    def broadcast(self, address: Word) -> Vector:
        """Return a vector of the float at an address.

        NEON multiplies by an element of a register. Loading the float alone leaves the vector pipes
        to the arithmetic, so the load is hidden from LLVM, which would load and replicate at once.
        """
        number = self.load_float(address).llvm
        if not is_x86():
            kind = ir.FunctionType(NUMBER, [NUMBER])
            number = self._b.asm(kind, "", "=w,0", [number], side_effect=False)
        return Vector(self._b, self._spread(number, self._vector))

    def lanes(self, value: Word | int, count: int, bits: int) -> IntVector:
        """Return a vector of the lower bits of an integer."""
        kind = ir.VectorType(ir.IntType(bits), count)
        return IntVector(
            self._b, self._spread(self._b.trunc(self.word(value).llvm, kind.element), kind)
        )

    def _spread(self, number: Any, kind: Any) -> Any:
        none = ir.Constant(kind, ir.Undefined)
        first = self._b.insert_element(none, number, ir.Constant(INDEX, 0))
        return self._b.shuffle_vector(
            first, none, SplatConstant(ir.VectorType(INDEX, kind.count), 0)
        )

    def gather(self, addresses: Sequence[Word]) -> Vector:
        """Return a vector of the floats at the addresses."""
        value: Any = ir.Constant(self._vector, ir.Undefined)
        for lane, address in enumerate(addresses):
            number = self.load_float(address).llvm
            value = self._b.insert_element(value, number, ir.Constant(INDEX, lane))
        return Vector(self._b, value)

    # -- control -------------------------------------------------------------------------------

    @contextmanager
    def cases(self, value: Word) -> Iterator[Callable[[int], None]]:
        """Write a switch over an integer; yields a function that begins the case of an integer."""
        b, end = self._b, self.function.append_basic_block("end")
        switch = b.switch(value.llvm, end)

        def case(number: int) -> None:
            if b.block.terminator is None:
                b.branch(end)
            block = self.function.append_basic_block("case")
            switch.add_case(ir.Constant(WORD, number), block)
            b.position_at_end(block)

        yield case
        if b.block.terminator is None:
            b.branch(end)
        b.position_at_end(end)

    def call(self, kernel: Kernel, *arguments: Word | int) -> None:
        self._b.call(kernel.function, [self.word(value).llvm for value in arguments])

    def thread(self) -> tuple[Word, Word]:
        """Return this thread's number in its team, and the number of threads."""
        index, count = self._thread
        return index, count

    @contextmanager
    def parallel_loop(self, *counts: Word) -> Iterator[list[Word]]:
        """Write nested loops whose iterations threads divide; yields this thread's indices."""
        begin, end = chunk(reduce(mul, counts), *self.thread())
        with self.loop(end, begin) as loop:
            outer, indices = loop.i, list[Word]()
            for count in reversed(counts[1:]):
                outer, index = outer // count, outer % count
                indices.insert(0, index)
            yield [outer, *indices]
