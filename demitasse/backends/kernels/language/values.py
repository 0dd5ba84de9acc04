"""Values in a kernel, with Python's operators: integers, conditions, floats and vectors of them.

Every operator writes one instruction at the builder's position; an operand may be a Python number.
An address is a word that counts bytes: ``address + FLOAT * elements`` is the address of another
element. Words named ``*_stride`` count elements; words named ``*_bytes`` count bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, overload

from llvmlite import ir

from demitasse.backends.kernels.language.target import is_x86

FLOAT, INT, HALF = 4, 8, 2
"""Bytes of a float32, an int64 and an int16."""

LINE_BYTES = 64
"""Bytes of a cache line."""

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

    def new(self, llvm: Any) -> Self:
        """Return another value of this class."""
        return type(self)(self.builder, llvm)

    def constant(self, number: float) -> Self:
        """Return a Python number as a value of this type."""
        kind = self.llvm.type
        is_vector = isinstance(kind, ir.VectorType)
        return self.new(SplatConstant(kind, number) if is_vector else ir.Constant(kind, number))

    def operand(self, other: Self | float) -> Self:
        """Return the operand of an operator, which may be a Python number."""
        return other if isinstance(other, Value) else self.constant(other)


V = TypeVar("V", bound=Value)


def _operator(instruction: str, *, swapped: bool = False) -> Callable[[V, V | float], V]:
    """Return the operator of an instruction; ``swapped`` if the left operand is the other one."""

    def operator(self: V, other: V | float) -> V:
        operands = [self.llvm, self.operand(other).llvm]
        return self.new(getattr(self.builder, instruction)(*operands[:: -1 if swapped else 1]))

    return operator


def _word_operator(
    instruction: str, *, swapped: bool = False
) -> Callable[[Word, Word | int], Word]:
    """Return an operator of words; their subclasses are kinds of fields, which mix."""
    return _operator(instruction, swapped=swapped)


def _comparison(
    kind: str, sign: str, *, swapped: bool = False
) -> Callable[[V, V | float], Condition]:
    """Return a comparison, which gives a mask of vectors."""

    def comparison(self: V, other: V | float) -> Condition:
        operands = [self.llvm, self.operand(other).llvm]
        compare = getattr(self.builder, kind)
        return Condition(self.builder, compare(sign, *operands[:: -1 if swapped else 1]))

    return comparison


class Condition(Value):
    """Boolean value; ``&`` is logical and, ``|`` logical or."""

    __slots__ = ()

    __and__ = _operator("and_")
    __or__ = _operator("or_")


class FirstLanes(Condition):
    """Mask of a vector's first elements, which are stored without a masked store.

    Attributes:
        count: Number of elements; none for a negative number, all for a large one.
    """

    __slots__ = ("count",)

    def __init__(self, builder: Any, llvm: Any, count: Word | int) -> None:
        super().__init__(builder, llvm)
        self.count = count


class Word(Value):
    """Integer of 64 bits. ``//`` and ``%`` need operands that are not negative."""

    __slots__ = ()

    __add__ = __radd__ = _word_operator("add")
    __sub__ = _word_operator("sub")
    __rsub__ = _word_operator("sub", swapped=True)
    __mul__ = __rmul__ = _word_operator("mul")
    __floordiv__ = _word_operator("udiv")
    __mod__ = _word_operator("urem")
    __lshift__ = _word_operator("shl")
    __rshift__ = _word_operator("ashr")
    __lt__ = _comparison("icmp_signed", "<")
    __le__ = _comparison("icmp_signed", "<=")
    __gt__ = _comparison("icmp_signed", "<", swapped=True)
    __ge__ = _comparison("icmp_signed", "<=", swapped=True)
    equals = _comparison("icmp_signed", "==")

    def __neg__(self) -> Word:
        return self.new(self.builder.neg(self.llvm))


class Float(Value):
    """One float32, which a kernel loads, stores, and broadcasts."""

    __slots__ = ()


class Vector(Value):
    """Floats of 32 bits that fill a register; comparisons with NaN do not hold."""

    __slots__ = ()

    __add__ = __radd__ = _operator("fadd")
    __sub__ = _operator("fsub")
    __rsub__ = _operator("fsub", swapped=True)
    __mul__ = __rmul__ = _operator("fmul")
    __truediv__ = _operator("fdiv")
    __rtruediv__ = _operator("fdiv", swapped=True)
    __lt__ = _comparison("fcmp_ordered", ">", swapped=True)
    __le__ = _comparison("fcmp_ordered", ">=", swapped=True)
    __gt__ = _comparison("fcmp_ordered", ">")
    __ge__ = _comparison("fcmp_ordered", ">=")

    def __neg__(self) -> Vector:
        return self.new(self.builder.fneg(self.llvm))


class IntVector(Value):
    """Unsigned integers of one size, from 8 to 64 bits."""

    __slots__ = ()

    __add__ = _operator("add")
    __mul__ = _operator("mul")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")
    equals = _comparison("icmp_unsigned", "==")

    def shuffle(self, order: Sequence[int | None]) -> IntVector:
        """Return the integers at the given indices; None gives 0."""
        count = self.llvm.type.count
        return _shuffle(self, self.operand(0), [count if at is None else at for at in order])

    def concat(self, other: IntVector) -> IntVector:
        """Return these integers followed by the other vector's, of the same type."""
        return _shuffle(self, other, range(2 * self.llvm.type.count))

    def of_bits(self, bits: int) -> IntVector:
        """Return the same bits as integers of another size."""
        count = self.llvm.type.count * self.llvm.type.element.width // bits
        return self.new(self.builder.bitcast(self.llvm, ir.VectorType(ir.IntType(bits), count)))

    def cut(self, bits: int) -> IntVector:
        """Return the lower bits of each integer."""
        return self.new(self.builder.trunc(self.llvm, self._kind(bits)))

    def extended(self, bits: int) -> IntVector:
        """Return the integers in more bits."""
        return self.new(self.builder.zext(self.llvm, self._kind(bits)))

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


@overload
def choose(condition: Condition, yes: Word | int, no: Word | int) -> Word: ...
@overload
def choose(condition: Condition, yes: Vector, no: Vector | float) -> Vector: ...
@overload
def choose(condition: Condition, yes: float, no: Vector) -> Vector: ...


def choose(condition: Condition, yes: Any, no: Any) -> Any:
    """Return ``yes`` where the condition holds, ``no`` elsewhere; two numbers are words."""
    builder = condition.builder
    word = Word(builder, ir.Constant(WORD, 0))
    kind = next((value for value in (yes, no) if isinstance(value, Value)), word)
    return kind.new(builder.select(condition.llvm, *(kind.operand(v).llvm for v in (yes, no))))


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
    kind, operands = first.llvm.type, (first.operand(other).llvm for other in (first, *others))
    full = f"llvm.{name}.v{kind.count}f32"
    return first.new(call_function(first.builder, full, kind, *operands))


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


def rearranged(vectors: Sequence[Vector], order: Sequence[int]) -> list[Vector]:
    """Return the elements of all vectors at the given indices, as vectors."""
    lanes, found = vectors[0].llvm.type.count, []
    for begin in range(0, len(order), lanes):
        wanted = [divmod(at, lanes) for at in order[begin : begin + lanes]]
        first, *others = sorted({number for number, _ in wanted})
        total = permuted(vectors[first], [lane for _, lane in wanted])
        for other in others:
            places = [
                lanes + lane if number == other else place
                for place, (number, lane) in enumerate(wanted)
            ]
            total = _shuffle(total, vectors[other], places)
        found.append(total)
    return found


def _shuffle(one: V, other: V, order: Sequence[int]) -> V:
    """Return the elements of two concatenated vectors at the indices."""
    places = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
    return one.new(one.builder.shuffle_vector(one.llvm, other.llvm, places))


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
    count = vectors[0].llvm.type.count
    rows = [*vectors, *[vectors[0].constant(0.0)] * (count - len(vectors))]
    part = count
    while len(rows) > 1:
        half = part // 2
        # each part holds the addends of one sum: take the first halves and the second halves
        firsts = [lane for at in range(0, 2 * count, part) for lane in range(at, at + half)]
        others = [lane + half for lane in firsts]
        rows = [
            _shuffle(a, b, firsts) + _shuffle(a, b, others)
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
    kind = ir.VectorType(ir.IntType(32), vector.llvm.type.count)
    return IntVector(vector.builder, vector.builder.fptosi(vector.llvm, kind))


def exp2_int(vector: Vector) -> Vector:
    """Return 2 ** n of integers from -126 to 127; other values and NaN are undefined."""
    exponent = (integers(vector) + 127) << 23
    return vector.new(vector.builder.bitcast(exponent.llvm, vector.llvm.type))


def clamp_min(vector: Vector, floor: Vector | float) -> Vector:
    """Return the larger of the vector and ``floor``, element by element; NaN stays."""
    return choose(vector < floor, vector.operand(floor), vector)


def clamp_max(vector: Vector, ceiling: Vector | float) -> Vector:
    """Return the smaller of the vector and ``ceiling``, element by element; NaN stays."""
    if is_x86():  # whose minimum is the other operand for NaN
        return choose(vector > ceiling, vector.operand(ceiling), vector)
    return _intrinsic("minimum", vector, ceiling)


def larger(vector: Vector, other: Vector) -> Vector:
    """Return the larger of two vectors, element by element; NaN of either stays."""
    number = _comparison("fcmp_ordered", "ord")(vector, vector)
    return choose(number, choose(vector >= other, vector, other), vector)


def rectified(vector: Vector, slope: Vector | float = 0.0) -> Vector:
    """Return max(x, 0) + slope * min(x, 0), as Caffe's ReLU: x for a slope of 1; NaN stays."""
    return fma(vector.operand(slope), clamp_max(vector, 0.0), clamp_min(vector, 0.0))


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
