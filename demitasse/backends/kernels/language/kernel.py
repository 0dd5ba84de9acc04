"""Write functions in LLVM's instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import mul
from typing import Any

from demitasse.backends.kernels.language.instructions import (
    WORD,
    Block,
    Code,
    Module,
    VectorKind,
    phi,
    vector_kind,
)
from demitasse.backends.kernels.language.target import WIDE, is_x86
from demitasse.backends.kernels.language.values import (
    BFLOAT,
    FLOAT,
    HALF,
    INDEX,
    INT,
    LINE_BYTES,
    NUMBER,
    Condition,
    FirstLanes,
    Float,
    IntVector,
    Value,
    Vector,
    Word,
    call_function,
    chunk,
    constant_text,
    maximum,
    minimum,
    permuted,
    places_text,
    shuffled,
)

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
    """Function of integers under construction.

    Args:
        code: The function's instructions; none yet.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.arguments = [Word(code, argument) for argument in code.arguments]

    def word(self, value: Word | int) -> Word:
        """Convert a Python int to a value of the function."""
        return Word(self.code, "", value) if isinstance(value, int) else value

    def load_word(self, address: Word) -> Word:
        """Return the integer of 64 bits at an address."""
        return Word(self.code, self._load(address, WORD, INT))

    def load_words(self, address: Word, count: int) -> list[Word]:
        """Return ``count`` consecutive integers of 64 bits."""
        return [self.load_word(address + INT * place) for place in range(count)]

    def store_word(self, value: Word | int, address: Word) -> None:
        """Write an integer of 64 bits to an address."""
        self._store(self.word(value), address, INT)

    def _pointer(self, address: Word) -> str:
        return self.code.pointer(address.name or "0", address.number)

    def _load(self, address: Word, kind: str, align: int) -> str:
        return self.code.result(f"load {kind}, ptr {self._pointer(address)}, align {align}")

    def _store(self, value: Value, address: Word, align: int) -> None:
        self.code.write(f"store {value.typed}, ptr {self._pointer(address)}, align {align}")

    @contextmanager
    def when(self, condition: Condition) -> Iterator[None]:
        """Write instructions that run if a condition holds."""
        yes, after = self.code.new_block(), self.code.new_block()
        self.code.branch(condition.name, yes, after)
        self.code.block = yes
        yield
        self.code.jump(after)
        self.code.block = after

    @contextmanager
    def loop(
        self, end: Word | int, start: Word | int = 0, step: Word | int = 1, *,
        vectors: Sequence[Vector] = (), words: Sequence[Word] = (),
    ) -> Iterator[Loop]:  # fmt: skip
        """Write a loop over ``range(start, end, step)``, which may be empty.

        ``vectors`` and ``words`` are the initial values of loop-carried values; see :class:`Loop`.
        """
        code, before = self.code, self.code.block
        body, after = code.new_block(), code.new_block()
        initial: list[Any] = [self.word(start), *vectors, *words]
        firsts = [value.text for value in initial]
        code.branch((initial[0] < end).name, body, after)
        code.block = body
        phis = [value.new(code.result("")) for value in initial]  # written when all is known
        count = 1 + len(vectors)
        loop = Loop(phis[0], phis[1:count], phis[count:])
        yield loop
        following: list[Any] = [loop.i + step, *loop.vectors, *loop.words]
        nexts, last = [value.text for value in following], code.block
        code.branch((Word(code, nexts[0]) < end).name, body, after)
        code.block = after
        ends = []
        for place, value in enumerate(initial):
            sources = [(firsts[place], before), (nexts[place], last)]
            body.lines[place] += phi(value.kind, sources)
            ends.append(value.new(code.result(phi(value.kind, sources))))
        loop.vectors, loop.words = ends[1:count], ends[count:]

    def call_at(self, address: Word, *arguments: Word | int) -> Word:
        """Call a function at an address; return its result, of which 64 bits need not be there."""
        typed = ", ".join(self.word(value).typed for value in arguments)
        pointer = self._pointer(address)
        return Word(self.code, self.code.result(f"call {WORD} {pointer}({typed})"))


class Kernel(Routine):
    """Function of integers without a result, under construction.

    Args:
        module: The function's module.
        name: Name of the function.
        count: Number of arguments.
        width: Floats of a vector.
        threaded: True if the team calls the function, with the number of the thread and the number
            of threads as further arguments.
    """

    def __init__(
        self, module: Module, name: str, count: int, width: int, *, threaded: bool = False
    ) -> None:
        super().__init__(Code(module, name, count + 2 * threaded, "void"))
        self.arguments, self._thread = self.arguments[:count], self.arguments[count:]
        self.width, self.vector_bytes = width, FLOAT * width
        self._vector = vector_kind(width, NUMBER)

    def done(self) -> None:
        self.code.give()

    # -- integers ------------------------------------------------------------------------------

    def no_cse(self, value: Word) -> Word:
        """Return the same integer, hidden from common-subexpression elimination.

        Repeated loads from the address stay loads and do not occupy a register.
        """
        return Word(self.code, self.code.result(f'call {WORD} asm "", "=r,0"({value.typed})'))

    # -- memory --------------------------------------------------------------------------------

    def pointer(self, address: Word) -> Value:
        """Return an address as the argument of LLVM's functions."""
        return Value(self.code, "ptr", self._pointer(address))

    def load(self, address: Word, some: Condition | None = None) -> Vector:
        """Return the vector at an address, with zeros for the lanes that ``some`` lacks."""
        if some is None:
            return self._filled(self._load(address, self._vector, FLOAT))
        name = f"llvm.masked.load.v{self.width}f32.p0"
        zeros = self._filled("zeroinitializer")
        return zeros.new(
            call_function(self.code, name, self._vector, *self._some(address, some), zeros)
        )

    def _filled(self, name: str) -> Vector:
        return Vector(self.code, self._vector, name)

    def load_halves(self, address: Word) -> Vector:
        """Return as many floats of 16 bits at an address as a vector has, widened."""
        return self._widened(address, "half")

    def load_bfloats(self, address: Word) -> Vector:
        """Return as many numbers of bfloat16 at an address as a vector has, widened."""
        return self._widened(address, BFLOAT)

    def _widened(self, address: Word, element: str) -> Vector:
        narrow = vector_kind(self.width, element)
        value = Value(self.code, narrow, self._load(address, narrow, HALF))
        return self._filled(value.converted("fpext", self._vector))

    def access(self, size: int) -> tuple[Callable[..., Vector], Callable[..., None]]:
        """Return the methods that load and write a vector of numbers of so many bytes.

        Those of 2 bytes are bfloat16.
        """
        if size == HALF:
            return self.load_bfloats, self.store_bfloat
        return self.load, self.store

    def load_float(self, address: Word) -> Float:
        """Return the float at an address."""
        return Float(self.code, NUMBER, self._load(address, NUMBER, FLOAT))

    def load_unsigned(self, address: Word, bits: int) -> Word:
        """Return the integer of ``bits`` bits, which is not negative, at an address."""
        value = Value(self.code, f"i{bits}", self._load(address, f"i{bits}", bits // 8))
        return Word(self.code, value.converted("zext", WORD))

    def load_lanes(self, address: Word, count: int, bits: int) -> IntVector:
        """Return ``count`` integers of ``bits`` bits at an address."""
        kind = vector_kind(count, f"i{bits}")
        return IntVector(self.code, kind, self._load(address, kind, bits // 8))

    def store(self, value: Vector | Float, address: Word, some: Condition | None = None) -> None:
        """Write a float, a vector, or the lanes of a vector that ``some`` has, to an address."""
        if some is None:
            self._store(value, address, FLOAT)
            return
        if isinstance(value, Vector) and isinstance(some, FirstLanes):
            self._store_first(value, address, some.count)
            return
        name = f"llvm.masked.store.v{self.width}f32.p0"
        call_function(self.code, name, "void", value, *self._some(address, some))

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
                self._store(elements, address + FLOAT * at, FLOAT)
                at += part
            part //= 2

    def store_bfloat(self, value: Vector | Float, address: Word) -> None:
        """Write a vector or a float, rounded to bfloat16, to an address."""
        kind = vector_kind(self.width, BFLOAT) if isinstance(value, Vector) else BFLOAT
        self._store(Value(self.code, kind, value.converted("fptrunc", kind)), address, HALF)

    def store_bfloats(self, first: Vector, second: Vector, address: Word) -> None:
        """Write two vectors of 16 floats, rounded to bfloat16, one behind the other."""
        self._store(self._rounded(first, second), address, HALF)

    def store_interleaved(self, vectors: Sequence[Vector], address: Word) -> None:
        """Write the first elements of two or four vectors of 16 floats side by side, then the next.

        They are rounded to bfloat16.
        """
        count, lanes = len(vectors), 2 * self.width
        halves = [self._rounded(*vectors[at : at + 2]) for at in range(0, count, 2)]
        for part in range(count // 2):
            begin = part * lanes // count
            places = [at + self.width * i for at in range(begin, begin + lanes // count)
                      for i in range(count)]  # fmt: skip
            value = shuffled(halves[0], halves[-1], places)
            self._store(value, address + lanes * HALF * part, HALF)

    def _rounded(self, first: Vector, second: Vector) -> Vector:
        """Return two vectors of 16 floats as one of bfloat16."""
        kind, name = vector_kind(2 * self.width, BFLOAT), "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        return Vector(self.code, kind, call_function(self.code, name, kind, second, first))

    def lane_mask(self, count: Word | int, *, rare: bool = False) -> Condition:
        """Return a mask of a vector's first ``count`` elements, at most all.

        A store with a ``rare`` mask is short and slow code: AVX2's masked store takes AMD's
        processors 12 cycles or more.
        """
        counts = self.lanes(count, self.width, 32).name
        compare = f"icmp slt {places_text(range(self.width))}, {counts}"
        mask = Condition(self.code, vector_kind(self.width, "i1"), self.code.result(compare))
        return mask if rare or self.width >= WIDE else FirstLanes(mask, count)

    def _some(self, address: Word, some: Condition) -> list[Value]:
        return [self.pointer(address), self._index(FLOAT), some]

    def _index(self, number: int) -> Value:
        return Value(self.code, INDEX, str(number))

    def store_half(self, value: Word, address: Word) -> None:
        """Write the lower 16 bits of an integer to an address."""
        self._store(Value(self.code, "i16", value.converted("trunc", "i16")), address, HALF)

    def store_lanes(self, value: IntVector, address: Word) -> None:
        """Write integers to an address."""
        self._store(value, address, value.bits // 8)

    def accumulate(self, pairs: Sequence[tuple[Vector, Word]], adds: Word | int) -> None:
        """Write vectors to their addresses; add to the old values if ``adds`` is not 0."""
        yes, no, after = (self.code.new_block() for _ in range(3))
        self.code.branch((self.word(adds) > 0).name, yes, no)
        for block in (yes, no):
            self.code.block = block
            for vector, address in pairs:
                value = self.load(address) + vector if block is yes else vector
                self.store(value, address)
            self.code.jump(after)
        self.code.block = after

    def scratch(self, vectors: int) -> Word:
        """Return the address of thread-local memory for ``vectors`` vectors."""
        return Word(self.code, self.code.local(f"[{vectors} x {self._vector}]"))

    def prefetch(self, address: Word, cache: int = 1) -> None:
        """Prefetch the cache line at an address, valid or not, to the cache of level 1 or 2."""
        use_near_data = (self._index(number) for number in (0, 4 - cache, 1))
        call_function(self.code, "llvm.prefetch.p0", "void", self.pointer(address), *use_near_data)

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
        with self.each_line(begin, size) as line:
            word = self._load(line, WORD, FLOAT)
            self.code.write(f'call void asm sideeffect "", "r"({WORD} {word})')

    # -- vectors -------------------------------------------------------------------------------

    def constant(self, number: float) -> Vector:
        """Return a vector of equal numbers."""
        return self._filled(constant_text(self._vector, number))

    def broadcast(self, address: Word) -> Vector:
        """Return a vector of the float at an address.

        NEON multiplies by an element of a register. Loading the float alone leaves the vector pipes
        to the arithmetic, so the load is hidden from LLVM, which would load and replicate at once.
        """
        number = self.load_float(address).name
        if not is_x86():
            number = self.code.result(f'call {NUMBER} asm "", "=w,0"({NUMBER} {number})')
        return self._filled(self._spread(number, self._vector))

    def lanes(self, value: Word | int, count: int, bits: int) -> IntVector:
        """Return a vector of the lower bits of an integer."""
        kind = vector_kind(count, f"i{bits}")
        number = self.word(value).converted("trunc", kind.element)
        return IntVector(self.code, kind, self._spread(number, kind))

    def _spread(self, number: str, kind: VectorKind) -> str:
        first = self._inserted(kind, "undef", number, 0)
        zeros = f"{vector_kind(kind.lanes, INDEX)} zeroinitializer"
        return self.code.result(f"shufflevector {kind} {first}, {kind} undef, {zeros}")

    def _inserted(self, kind: VectorKind, into: str, number: str, lane: int) -> str:
        return self.code.result(
            f"insertelement {kind} {into}, {kind.element} {number}, {INDEX} {lane}"
        )

    def gather(self, addresses: Sequence[Word]) -> Vector:
        """Return a vector of the floats at the addresses."""
        value = "undef"
        for lane, address in enumerate(addresses):
            value = self._inserted(self._vector, value, self.load_float(address).name, lane)
        return self._filled(value)

    # -- control -------------------------------------------------------------------------------

    @contextmanager
    def cases(self, value: Word) -> Iterator[Callable[[int], None]]:
        """Write a switch over an integer; yields a function that begins the case of an integer."""
        code, chosen, end = self.code, value.typed, self.code.new_block()
        before, targets = code.block, dict[int, Block]()

        def case(number: int) -> None:
            if targets:
                code.jump(end)
            targets[number] = code.block = code.new_block()

        yield case
        if targets:
            code.jump(end)
        code.block = before
        table = " ".join(f"{WORD} {n}, label %{block.label}" for n, block in targets.items())
        code.write(f"switch {chosen}, label %{end.label} [ {table} ]")
        before.ended, code.block = True, end

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
