"""Values in a kernel, with Python's operators: integers, conditions, floats and vectors of them.

Every operator writes one instruction at the builder's position. An address is a word that counts
bytes: ``address + FLOAT * elements`` is the address of another element. Words named ``*_stride``
count elements; words named ``*_bytes`` count bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from llvmlite import ir

from demitasse.backends.kernels.language.target import is_x86

FLOAT, INT, HALF = 4, 8, 2
"""Bytes of a float32, an int64 and an int16."""

WORD, NUMBER = ir.IntType(64), ir.FloatType()


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's type of bfloat16, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"


BFLOAT = BFloat()


class SplatConstant(ir.Constant):  # type: ignore[misc]  # LLVM's package has no types
    """A vector of equal numbers, written in LLVM's short form."""

    def __init__(self, kind: ir.VectorType, number: float) -> None:
        super().__init__(kind, number)

    def get_reference(self) -> str:
        """Return the constant's text without its type."""
        return f"splat ({self.constant[0]})"


class Value:
    """Result of an instruction: a value of llvmlite, and the kernel's builder."""

    __slots__ = ("builder", "llvm")

    def __init__(self, builder: Any, llvm: Any) -> None:
        self.builder, self.llvm = builder, llvm


class Condition(Value):
    """Boolean value; ``&`` is logical and, ``|`` logical or."""

    __slots__ = ()

    def __and__(self, other: Condition) -> Condition:
        return Condition(self.builder, self.builder.and_(self.llvm, other.llvm))

    def __or__(self, other: Condition) -> Condition:
        return Condition(self.builder, self.builder.or_(self.llvm, other.llvm))


def _word_operator(name: str) -> Callable[[Word, Word | int], Word]:
    def operator(self: Word, other: Word | int) -> Word:
        return Word(self.builder, getattr(self.builder, name)(self.llvm, _llvm(other)))

    return operator


def _vector_operator(name: str) -> Callable[[Vector, Vector], Vector]:
    def operator(self: Vector, other: Vector) -> Vector:
        return Vector(self.builder, getattr(self.builder, name)(self.llvm, other.llvm))

    return operator


class Word(Value):
    """Integer of 64 bits. The other operand may be a Python int.

    ``//`` and ``%`` need operands that are not negative.
    """

    __slots__ = ()

    __add__ = __radd__ = _word_operator("add")
    __sub__ = _word_operator("sub")
    __mul__ = __rmul__ = _word_operator("mul")
    __floordiv__ = _word_operator("udiv")
    __mod__ = _word_operator("urem")
    __lshift__ = _word_operator("shl")
    __rshift__ = _word_operator("ashr")

    def __rsub__(self, other: int) -> Word:
        return -self + other

    def __neg__(self) -> Word:
        return Word(self.builder, self.builder.neg(self.llvm))

    def __lt__(self, other: Word | int) -> Condition:
        return self._ordered("<", self, other)

    def __le__(self, other: Word | int) -> Condition:
        return self._ordered("<=", self, other)

    def __gt__(self, other: Word | int) -> Condition:
        return self._ordered("<", other, self)

    def __ge__(self, other: Word | int) -> Condition:
        return self._ordered("<=", other, self)

    def equals(self, other: Word | int) -> Condition:
        return self._ordered("==", self, other)

    def _ordered(self, sign: str, a: Word | int, b: Word | int) -> Condition:
        return Condition(self.builder, self.builder.icmp_signed(sign, _llvm(a), _llvm(b)))


class Float(Value):
    """One float32, which a kernel loads, stores, and broadcasts."""

    __slots__ = ()


class Vector(Value):
    """Floats of 32 bits that fill a register."""

    __slots__ = ()

    __add__ = _vector_operator("fadd")
    __sub__ = _vector_operator("fsub")
    __mul__ = _vector_operator("fmul")
    __truediv__ = _vector_operator("fdiv")

    def __neg__(self) -> Vector:
        return Vector(self.builder, self.builder.fneg(self.llvm))

    def __gt__(self, other: Vector) -> Condition:
        """Return a mask of the larger elements; NaN is not larger."""
        return Condition(self.builder, self.builder.fcmp_ordered(">", self.llvm, other.llvm))

    def __ge__(self, other: Vector) -> Condition:
        """Return a mask of the elements that are not smaller; NaN is neither."""
        return Condition(self.builder, self.builder.fcmp_ordered(">=", self.llvm, other.llvm))


class IntVector(Value):
    """Unsigned integers of one size, from 8 to 64 bits."""

    __slots__ = ()

    def __add__(self, other: IntVector) -> IntVector:
        return self._new(self.builder.add(self.llvm, other.llvm))

    def __rshift__(self, bits: int) -> IntVector:
        by = SplatConstant(self.llvm.type, bits)
        return self._new(self.builder.lshr(self.llvm, by))

    def shuffle(self, order: Sequence[int | None]) -> IntVector:
        """Return the integers at the given indices; None gives 0."""
        count = self.llvm.type.count
        zeros = self._new(SplatConstant(self.llvm.type, 0))
        return _shuffle(self, zeros, [count if place is None else place for place in order])

    def concat(self, other: IntVector) -> IntVector:
        """Return these integers followed by the other vector's, of the same type."""
        return _shuffle(self, other, range(2 * self.llvm.type.count))

    def of_bits(self, bits: int) -> IntVector:
        """Return the same bits as integers of another size."""
        count = self.llvm.type.count * self.llvm.type.element.width // bits
        return self._new(self.builder.bitcast(self.llvm, ir.VectorType(ir.IntType(bits), count)))

    def cut(self, bits: int) -> IntVector:
        """Return the lower bits of each integer."""
        return self._new(self.builder.trunc(self.llvm, self._kind(bits)))

    def extended(self, bits: int) -> IntVector:
        """Return the integers in more bits."""
        return self._new(self.builder.zext(self.llvm, self._kind(bits)))

    def equals(self, other: IntVector) -> Condition:
        """Return a mask of the equal integers."""
        return Condition(self.builder, self.builder.icmp_unsigned("==", self.llvm, other.llvm))

    def __mul__(self, other: IntVector) -> IntVector:
        return self._new(self.builder.mul(self.llvm, other.llvm))

    def _new(self, llvm: Any) -> IntVector:
        return IntVector(self.builder, llvm)

    def _kind(self, bits: int) -> Any:
        return ir.VectorType(ir.IntType(bits), self.llvm.type.count)


def high_product(a: IntVector, b: IntVector) -> IntVector:
    """Return the upper 16 of the 32 bits of each product of integers of 16 bits."""
    return (a.extended(32) * b.extended(32) >> 16).cut(16)


def pair_sums(a: IntVector, b: IntVector) -> IntVector:
    """Return a0 * b0 + a1 * b1 for each pair of neighbours, eight integers of 32 bits.

    The operands are sixteen integers of 16 bits, below 1 << 15.
    """
    builder, count = a.builder, a.llvm.type.count
    if not is_x86():
        products = a.extended(32) * b.extended(32)
        even, odd = (products.shuffle(range(first, count, 2)) for first in (0, 1))
        return even + odd
    wide = ir.VectorType(ir.IntType(32), count // 2)
    return IntVector(
        builder, call_function(builder, "llvm.x86.avx2.pmadd.wd", wide, a.llvm, b.llvm)
    )


def _llvm(value: Value | int) -> Any:
    return ir.Constant(WORD, value) if isinstance(value, int) else value.llvm


@overload
def choose(condition: Condition, yes: Word | int, no: Word | int) -> Word: ...
@overload
def choose(condition: Condition, yes: Vector, no: Vector) -> Vector: ...


def choose(condition: Condition, yes: Any, no: Any) -> Any:
    """Return ``yes`` where the condition holds, ``no`` elsewhere."""
    kind = Vector if isinstance(yes, Vector) else Word
    b = condition.builder
    return kind(b, b.select(condition.llvm, _llvm(yes), _llvm(no)))


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


def fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """Return a * b + c, rounded once."""
    return _intrinsic("fma", a, b, c)


def _intrinsic(name: str, *vectors: Vector) -> Vector:
    """Return the result of one of LLVM's functions of vectors."""
    builder, kind = vectors[0].builder, vectors[0].llvm.type
    full, operands = f"llvm.{name}.v{kind.count}f32", (vector.llvm for vector in vectors)
    return Vector(builder, call_function(builder, full, kind, *operands))


def pair_fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """Return c + a0 * b0 + a1 * b1 for pairs of bfloat16 in the place of each float of a and b."""
    builder, kind = a.builder, a.llvm.type
    pairs = ir.VectorType(BFLOAT, 2 * kind.count)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * kind.count}"
    operands = (builder.bitcast(one.llvm, pairs) for one in (a, b))
    return Vector(builder, call_function(builder, name, kind, c.llvm, *operands))


def root(vector: Vector) -> Vector:
    """Return the square roots of the elements."""
    return _intrinsic("sqrt", vector)


def permuted(vector: Vector, order: Sequence[int]) -> Vector:
    """Return the elements at the given indices."""
    return _shuffle(vector, vector, order)


V = TypeVar("V", Vector, IntVector)


def _shuffle(one: V, other: V, order: Sequence[int]) -> V:
    """Return the elements of two concatenated vectors at the indices."""
    places = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
    return type(one)(one.builder, one.builder.shuffle_vector(one.llvm, other.llvm, places))


def horizontal_sum(
    vector: Vector, join: Callable[[Vector, Vector], Vector] = Vector.__add__
) -> Vector:
    """Return the sum of all elements, added in pairs, halves first, as every element.

    ``join`` is another operation in place of the addition.
    """
    count = vector.llvm.type.count
    by = count // 2
    while by:
        vector = join(vector, permuted(vector, [(lane + by) % count for lane in range(count)]))
        by //= 2
    return vector


def horizontal_sums(vectors: Sequence[Vector]) -> Vector:
    """Return a vector whose element i is the sum of ``vectors[i]``; missing vectors are zeros.

    Every sum has the bits of :func:`horizontal_sum`.
    """
    builder, kind = vectors[0].builder, vectors[0].llvm.type
    zeros = Vector(builder, ir.Constant(kind, None))
    rows = [*vectors, *[zeros] * (kind.count - len(vectors))]
    part = kind.count
    while len(rows) > 1:
        half = part // 2
        # each part holds the addends of one sum: take the first halves and the second halves
        firsts = [lane for at in range(0, 2 * kind.count, part) for lane in range(at, at + half)]
        others = [lane + half for lane in firsts]
        rows = [
            _shuffle(a, b, firsts) + _shuffle(a, b, others)
            for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        part = half
    return rows[0]


def rounded(vector: Vector) -> Vector:
    """Round to the nearest integers; magnitudes are at most 1 << 22."""
    kind = vector.llvm.type
    # float32 has no fraction bits at this magnitude
    large = Vector(vector.builder, SplatConstant(kind, 1.5 * 2**23))
    return vector + large - large


def integers(vector: Vector) -> IntVector:
    """Return whole numbers as integers of 32 bits."""
    kind = ir.VectorType(ir.IntType(32), vector.llvm.type.count)
    return IntVector(vector.builder, vector.builder.fptosi(vector.llvm, kind))


def exp2_int(vector: Vector) -> Vector:
    """Return 2 ** n of integers from -126 to 127; other values and NaN are undefined."""
    b, kind = vector.builder, vector.llvm.type
    whole = ir.VectorType(ir.IntType(32), kind.count)
    bias, place = (SplatConstant(whole, number) for number in (127, 23))
    exponent = b.shl(b.add(b.fptosi(vector.llvm, whole), bias), place)
    return Vector(b, b.bitcast(exponent, kind))


def clamp_min(vector: Vector, floor: Vector) -> Vector:
    """Return the larger of the vector and ``floor``, element by element; NaN stays."""
    return choose(floor > vector, floor, vector)


def clamp_max(vector: Vector, ceiling: Vector) -> Vector:
    """Return the smaller of the vector and ``ceiling``, element by element; NaN stays."""
    if is_x86():  # whose minimum is the other operand for NaN
        return choose(vector > ceiling, ceiling, vector)
    return _intrinsic("minimum", vector, ceiling)


def larger(vector: Vector, other: Vector) -> Vector:
    """Return the larger of two vectors, element by element; NaN of either stays."""
    builder = vector.builder
    number = Condition(builder, builder.fcmp_ordered("ord", vector.llvm, vector.llvm))
    return choose(number, choose(vector >= other, vector, other), vector)


def rectified(vector: Vector, slope: Vector) -> Vector:
    """Return max(x, 0) + slope * min(x, 0), as Caffe's ReLU: x for a slope of 1; NaN stays."""
    zero = Vector(vector.builder, SplatConstant(vector.llvm.type, 0.0))
    return fma(slope, clamp_max(vector, zero), clamp_min(vector, zero))


def declared(module: Any, name: str, kind: Any) -> Any:
    """Return a module's declaration of an external function, adding it if it is missing."""
    known = module.globals.get(name)
    return ir.Function(module, kind, name) if known is None else known


def call_function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call an external function, and return its result in llvmlite."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(declared(builder.module, name, kind), arguments)


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
                found[i], found[i + by] = _shuffle(*pair, first), _shuffle(*pair, second)
        by *= 2
    return found
