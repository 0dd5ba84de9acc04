"""Values in a kernel, with Python's operators: integers, conditions, floats and vectors of them.

Operators add instructions to the function's present block; an operand may be a Python number.
An address is a word that counts bytes: ``address + FLOAT * elements`` is the address of another
element. Words named ``*_stride`` count elements; words named ``*_bytes`` count bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Self, TypeVar, overload

from demitasse.backends.kernels.language.instructions import WORD, Code, VectorKind, vector_kind
from demitasse.backends.kernels.language.target import is_x86

FLOAT, INT, HALF = 4, 8, 2
"""Bytes of a float32, an int64 and an int16."""

LINE_BYTES, LINE_FLOATS = 64, 16
"""Bytes and floats of a cache line."""

NUMBER, BFLOAT, INDEX = "float", "bfloat", "i32"


def constant_text(kind: str, number: float) -> str:
    """Return a constant of a type, as LLVM writes it; equal numbers for a vector."""
    if isinstance(kind, VectorKind):
        return f"splat ({kind.element} {constant_text(kind.element, number)})"
    if kind != NUMBER:
        return str(number)
    single = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def places_text(places: Sequence[int]) -> str:
    """Return a vector of 32-bit integers with its type."""
    elements = ", ".join([f"{INDEX} {place}" for place in places])
    return f"{vector_kind(len(places), INDEX)} <{elements}>"


class Value:
    """Result of an instruction, or a constant.

    Attributes:
        code: The function.
        kind: Type.
        name: Name of the result, or the constant.
    """

    __slots__ = ("code", "kind", "name")

    def __init__(self, code: Code, kind: str, name: str) -> None:
        self.code, self.kind, self.name = code, kind, name

    @property
    def text(self) -> str:
        """The operand of an instruction."""
        return self.name

    @property
    def typed(self) -> str:
        """The operand with its type."""
        return f"{self.kind} {self.text}"

    def new(self, name: str) -> Self:
        """Return another value of this type."""
        return type(self)(self.code, self.kind, name)

    def constant(self, number: float) -> Self:
        """Return a Python number as a value of this type."""
        return self.new(constant_text(self.kind, number))

    def operand(self, other: Self | float) -> Self:
        """Return the operand of an operator, which may be a Python number."""
        return other if isinstance(other, Value) else self.constant(other)

    def converted(self, instruction: str, kind: str) -> str:
        """Return the name of the value converted to another type."""
        return self.code.result(f"{instruction} {self.typed} to {kind}")


V = TypeVar("V", bound=Value)


def _operands(one: V, other: V | float, swapped: bool) -> str:
    """Return the operands of an instruction."""
    pair = one.text, one.operand(other).text
    return ", ".join(reversed(pair) if swapped else pair)


def _operator(instruction: str, *, swapped: bool = False) -> Callable[[V, V | float], V]:
    """Return the operator of an instruction; ``swapped`` if the left operand is the other one."""

    def operator(self: V, other: V | float) -> V:
        operands = _operands(self, other, swapped)
        return self.new(self.code.result(f"{instruction} {self.kind} {operands}"))

    return operator


def _comparison(instruction: str, *, swapped: bool = False) -> Callable[[V, V | float], Condition]:
    """Return a comparison, which gives a mask of vectors."""

    def comparison(self: V, other: V | float) -> Condition:
        kind, operands = self.kind, _operands(self, other, swapped)
        mask = vector_kind(kind.lanes, "i1") if isinstance(kind, VectorKind) else "i1"
        return Condition(self.code, mask, self.code.result(f"{instruction} {kind} {operands}"))

    return comparison


class Condition(Value):
    """Boolean value; ``&`` is logical and, ``|`` logical or."""

    __slots__ = ()

    __and__ = _operator("and")
    __or__ = _operator("or")


class FirstLanes(Condition):
    """Mask of a vector's first elements, which are stored without a masked store.

    Attributes:
        count: Number of elements; none for a negative number, all for a large one.
    """

    __slots__ = ("count",)

    def __init__(self, mask: Condition, count: Word | int) -> None:
        super().__init__(mask.code, mask.kind, mask.name)
        self.count = count


class Word(Value):
    """Integer of 64 bits: a result and a Python number, which is added where the sum is needed.

    Loads and stores take the number as part of their address. ``//`` and ``%`` need operands that
    are not negative.

    Attributes:
        name: Name of the result; "" for none.
        number: The number.
    """

    __slots__ = ("number",)

    def __init__(self, code: Code, name: str, number: int = 0) -> None:
        super().__init__(code, WORD, name)
        self.number = number

    @property
    def text(self) -> str:
        """The sum as an operand; if it has both addends, their addition is added first."""
        if self.name and self.number:
            return self.code.result(f"add {WORD} {self.name}, {self.number}")
        return self.name or str(self.number)

    def new(self, name: str) -> Word:
        return Word(self.code, name)

    def constant(self, number: Any) -> Word:
        return Word(self.code, "", index(number))

    def __add__(self, other: Word | int) -> Word:
        word = self.operand(other)
        name = self.name or word.name
        if self.name and word.name:
            name = self.code.result(f"add {WORD} {self.name}, {word.name}")
        return Word(self.code, name, self.number + word.number)

    def __neg__(self) -> Word:
        name = self.code.result(f"sub {WORD} 0, {self.name}") if self.name else ""
        return Word(self.code, name, -self.number)

    def __sub__(self, other: Word | int) -> Word:
        return self + -other

    def __rsub__(self, other: int) -> Word:
        return -self + other

    def __mul__(self, other: Word | int) -> Word:
        one, two = self, self.operand(other)
        if one.name and two.name:
            return self.new(self.code.result(f"mul {WORD} {one.text}, {two.text}"))
        if not one.name:
            one, two = two, one
        name = self.code.result(f"mul {WORD} {one.name}, {two.number}") if one.name else ""
        return Word(self.code, name, one.number * two.number)

    __radd__, __rmul__ = __add__, __mul__

    __floordiv__ = _operator("udiv")
    __mod__ = _operator("urem")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("ashr")
    __lt__ = _comparison("icmp slt")
    __le__ = _comparison("icmp sle")
    __gt__ = _comparison("icmp slt", swapped=True)
    __ge__ = _comparison("icmp sle", swapped=True)
    equals = _comparison("icmp eq")


class Float(Value):
    """One float32, which a kernel loads, stores, and broadcasts."""

    __slots__ = ()


class Vector(Value):
    """Floats of 32 bits that fill a register; comparisons with NaN do not hold."""

    __slots__ = ()

    kind: VectorKind

    __add__ = __radd__ = _operator("fadd")
    __sub__ = _operator("fsub")
    __rsub__ = _operator("fsub", swapped=True)
    __mul__ = __rmul__ = _operator("fmul")
    __truediv__ = _operator("fdiv")
    __rtruediv__ = _operator("fdiv", swapped=True)
    __lt__ = _comparison("fcmp ogt", swapped=True)
    __le__ = _comparison("fcmp oge", swapped=True)
    __gt__ = _comparison("fcmp ogt")
    __ge__ = _comparison("fcmp oge")

    def __neg__(self) -> Vector:
        return self.new(self.code.result(f"fneg {self.typed}"))


class IntVector(Value):
    """Unsigned integers of one size, from 8 to 64 bits."""

    __slots__ = ()

    kind: VectorKind

    @property
    def bits(self) -> int:
        """Bits of each integer."""
        return int(self.kind.element[1:])

    __add__ = _operator("add")
    __mul__ = _operator("mul")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")
    equals = _comparison("icmp eq")

    def shuffle(self, order: Sequence[int | None]) -> IntVector:
        """Return the integers at the given indices; None gives 0."""
        count = self.kind.lanes
        return shuffled(self, self.operand(0), [count if at is None else at for at in order])

    def concat(self, other: IntVector) -> IntVector:
        """Return these integers followed by the other vector's, of the same type."""
        return shuffled(self, other, range(2 * self.kind.lanes))

    def of_bits(self, bits: int) -> IntVector:
        """Return the same bits as integers of another size."""
        return self._to("bitcast", bits, self.kind.lanes * self.bits // bits)

    def truncated(self, bits: int) -> IntVector:
        """Return the lower bits of each integer."""
        return self._to("trunc", bits, self.kind.lanes)

    def extended(self, bits: int) -> IntVector:
        """Return the integers in more bits."""
        return self._to("zext", bits, self.kind.lanes)

    def _to(self, instruction: str, bits: int, count: int) -> IntVector:
        kind = vector_kind(count, f"i{bits}")
        return IntVector(self.code, kind, self.converted(instruction, kind))


Elements = TypeVar("Elements", Vector, IntVector)


def high_product(a: IntVector, b: IntVector) -> IntVector:
    """Return the upper 16 of the 32 bits of each product of integers of 16 bits."""
    return (a.extended(32) * b.extended(32) >> 16).truncated(16)


def pair_sums(a: IntVector, b: IntVector) -> IntVector:
    """Return a0 * b0 + a1 * b1 for each pair of neighbours, eight integers of 32 bits.

    The operands are sixteen integers of 16 bits, below 1 << 15.
    """
    count = a.kind.lanes
    if not is_x86():
        products = a.extended(32) * b.extended(32)
        even, odd = (products.shuffle(range(first, count, 2)) for first in (0, 1))
        return even + odd
    wide = vector_kind(count // 2, "i32")
    return IntVector(a.code, wide, call_function(a.code, "llvm.x86.avx2.pmadd.wd", wide, a, b))


@overload
def choose(condition: Condition, yes: Word | int, no: Word | int) -> Word: ...
@overload
def choose(condition: Condition, yes: Vector, no: Vector | float) -> Vector: ...
@overload
def choose(condition: Condition, yes: float, no: Vector) -> Vector: ...


def choose(condition: Condition, yes: Any, no: Any) -> Any:
    """Return ``yes`` where the condition holds, ``no`` elsewhere; two numbers are words."""
    code = condition.code
    kind = next((one for one in (yes, no) if isinstance(one, Value)), Word(code, ""))
    operands = [kind.operand(one).typed for one in (yes, no)]
    return kind.new(code.result(f"select {condition.typed}, {', '.join(operands)}"))


def minimum(a: Word | int, b: Word | int) -> Word:
    """Return the smaller integer; one of them is a word."""
    less: Any = a < b
    return choose(less, a, b)


def maximum(a: Word | int, b: Word | int) -> Word:
    """Return the larger integer; one of them is a word."""
    less: Any = a < b
    return choose(less, b, a)


def chunk(count: Word, index: Word, chunks: Word) -> tuple[Word, Word]:
    """Return the begin and end of chunk ``index`` when ``count`` items are split evenly."""
    return count * index // chunks, count * (index + 1) // chunks


def fma(a: Vector, b: Vector | float, c: Vector | float) -> Vector:
    """Return a * b + c, rounded once."""
    return _intrinsic("fma", a, b, c)


def _intrinsic(name: str, first: Vector, *others: Vector | float) -> Vector:
    """Return the result of one of LLVM's functions of vectors."""
    operands = [first.operand(other) for other in others]
    full = f"llvm.{name}.v{first.kind.lanes}f32"
    return first.new(call_function(first.code, full, first.kind, first, *operands))


def pair_fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """Return c + a0 * b0 + a1 * b1 for pairs of bfloat16 in the place of each float of a and b."""
    pairs = vector_kind(2 * a.kind.lanes, BFLOAT)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * a.kind.lanes}"
    operands = (Value(a.code, pairs, one.converted("bitcast", pairs)) for one in (a, b))
    return a.new(call_function(a.code, name, a.kind, c, *operands))


def root(vector: Vector) -> Vector:
    """Return the square roots of the elements."""
    return _intrinsic("sqrt", vector)


def permuted(vector: Vector, order: Sequence[int]) -> Vector:
    """Return the elements at the given indices."""
    return shuffled(vector, vector, order)


def rearranged(vectors: Sequence[Vector], order: Sequence[int]) -> list[Vector]:
    """Return the elements of all vectors at the given indices, as vectors."""
    lanes, found = vectors[0].kind.lanes, []
    for begin in range(0, len(order), lanes):
        wanted = [divmod(at, lanes) for at in order[begin : begin + lanes]]
        first, *others = sorted({number for number, _ in wanted})
        total = permuted(vectors[first], [lane for _, lane in wanted])
        for other in others:
            places = [
                lanes + lane if number == other else place
                for place, (number, lane) in enumerate(wanted)
            ]
            total = shuffled(total, vectors[other], places)
        found.append(total)
    return found


def shuffled(one: Elements, other: Elements, order: Sequence[int]) -> Elements:
    """Return the elements of two concatenated vectors at the indices."""
    text = f"shufflevector {one.typed}, {other.typed}, {places_text(order)}"
    kind = vector_kind(len(order), one.kind.element)
    return type(one)(one.code, kind, one.code.result(text))


def horizontal_sum(
    vector: Vector, join: Callable[[Vector, Vector], Vector] = Vector.__add__
) -> Vector:
    """Return the sum of all elements, added in pairs, halves first, as every element.

    ``join`` is another operation in place of the addition.
    """
    count = vector.kind.lanes
    by = count // 2
    while by:
        vector = join(vector, permuted(vector, [(lane + by) % count for lane in range(count)]))
        by //= 2
    return vector


def horizontal_sums(vectors: Sequence[Vector]) -> Vector:
    """Return a vector whose element i is the sum of ``vectors[i]``; missing vectors are zeros.

    Every sum has the bits of :func:`horizontal_sum`.
    """
    count = vectors[0].kind.lanes
    rows = [*vectors, *[vectors[0].constant(0.0)] * (count - len(vectors))]
    part = count
    while len(rows) > 1:
        half = part // 2
        # each part holds the addends of one sum: take the first halves and the second halves
        firsts = [lane for at in range(0, 2 * count, part) for lane in range(at, at + half)]
        others = [lane + half for lane in firsts]
        rows = [
            shuffled(a, b, firsts) + shuffled(a, b, others)
            for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        part = half
    return rows[0]


def rounded(vector: Vector) -> Vector:
    """Round to the nearest integers; magnitudes are at most 1 << 22."""
    large = 1.5 * 2**23  # float32 has no fraction bits at this magnitude
    return vector + large - large


def integers(vector: Vector) -> IntVector:
    """Return whole numbers as integers of 32 bits."""
    kind = vector_kind(vector.kind.lanes, "i32")
    return IntVector(vector.code, kind, vector.converted("fptosi", kind))


def floats(numbers: IntVector) -> Vector:
    """Return signed integers as floats."""
    kind = vector_kind(numbers.kind.lanes, NUMBER)
    return Vector(numbers.code, kind, numbers.converted("sitofp", kind))


def exp2_int(vector: Vector) -> Vector:
    """Return 2 ** n of integers from -126 to 127; other values and NaN are undefined."""
    exponent = (integers(vector) + 127) << 23
    return vector.new(exponent.converted("bitcast", vector.kind))


def clamp_min(vector: Vector, floor: Vector | float) -> Vector:
    """Return the larger of the vector and ``floor``, element by element; NaN stays."""
    return choose(vector < floor, vector.operand(floor), vector)


def clamp_max(vector: Vector, ceiling: Vector | float) -> Vector:
    """Return the smaller of the vector and ``ceiling``, element by element; NaN stays."""
    if is_x86():  # whose minimum is the other operand for NaN
        return choose(vector > ceiling, vector.operand(ceiling), vector)
    return _intrinsic("minimum", vector, ceiling)


def is_nan(value: Vector | Float) -> Condition:
    """Return which elements are NaN."""
    return _comparison("fcmp uno")(value, value)


def larger(vector: Vector, other: Vector) -> Vector:
    """Return the larger of two vectors, element by element; NaN of either stays."""
    return choose(is_nan(vector), vector, choose(vector >= other, vector, other))


def truncated(number: Float) -> Word:
    """Return a number without its fraction: 0 for NaN, the nearest integer for large ones."""
    name = call_function(number.code, "llvm.fptosi.sat.i64.f32", WORD, number)
    return Word(number.code, name)


def rectified(vector: Vector, slope: Vector | float = 0.0) -> Vector:
    """Return max(x, 0) + slope * min(x, 0), as Caffe's ReLU: x for a slope of 1; NaN stays."""
    return fma(vector.operand(slope), clamp_max(vector, 0.0), clamp_min(vector, 0.0))


def call_function(code: Code, name: str, result: str, *arguments: Value) -> str:
    """Call an external function; return the name of its result."""
    code.module.declare(name, result, *[one.kind for one in arguments])
    return code.call(name, result, [one.typed for one in arguments])


def transposed(rows: Sequence[Vector]) -> list[Vector]:
    """Transpose a square of vectors: return its columns.

    Pairs of vectors exchange runs of 1, 2, 4 and so on elements: the first one's second run of each
    pair of runs, and the other one's first.
    """
    found, lanes, by = list(rows), len(rows), 1
    while by < lanes:
        first = [lanes + lane - by if lane & by else lane for lane in range(lanes)]
        second = [lanes + lane if lane & by else lane + by for lane in range(lanes)]
        for i in range(lanes):
            if not i & by:
                pair = found[i], found[i + by]
                found[i], found[i + by] = shuffled(*pair, first), shuffled(*pair, second)
        by *= 2
    return found
