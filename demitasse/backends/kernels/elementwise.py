"""Elementwise kernels.

Array after array as they lie in memory, in whatever layout. The operations are those of the layers'
portable formulas, in their order, so that NaN, infinities and what lies on a kink give the same.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from math import pi, sqrt

import numpy as np

from demitasse.backends import normal
from demitasse.backends.kernels.bound import BoundKernel, load, own_vectors, store, threads_for
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, OptionalAddress, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Vector,
    Word,
    choose,
    clamp_max,
    clamp_min,
    rectified,
    rounded,
)
from demitasse.backends.kernels.math_functions import (
    exp,
    exp_less_one,
    log_one_more,
    polynomial,
    sigmoid,
    tanh,
)
from demitasse.backends.kernels.tuning import Tuning

FEWEST_EACH = 1 << 15
"""Elements of a thread at least: to meet others takes as long as so many."""

Numbers = Sequence[Vector]
"""Constants of a function."""

Formula = Callable[..., Vector]
"""Takes the kernel, the function's constants, and an element of each array."""

LARGEST = 50.0
"""No exponential of more is taken in the gradient of BNLL."""

NUMBERS = 3
"""Constants of a function; a weighted sum has one for each array."""

MOST = 4
"""Arrays that a function reads at most."""


class ElementFields(Struct):
    """Arrays of one length, which may be the same."""

    x: Address
    other: OptionalAddress
    third: OptionalAddress
    fourth: OptionalAddress
    y: Output
    also: OptionalAddress
    """The second result of a pair of functions."""
    count: Word
    numbers: Address
    """The function's constants."""


def _linear(_k: Kernel, numbers: Numbers, x: Vector) -> Vector:
    _, scale, shift = numbers
    return x * scale + shift


def _square(k: Kernel, numbers: Numbers, x: Vector) -> Vector:
    inner = _linear(k, numbers, x)
    return inner * inner


def _hard_swish(k: Kernel, _: Numbers, x: Vector) -> Vector:
    gate = clamp_max(clamp_min(x + k.constant(3.0), k.constant(0.0)), k.constant(6.0))
    return x * gate / k.constant(6.0)


def _elu(k: Kernel, numbers: Numbers, x: Vector) -> Vector:
    zero = k.constant(0.0)
    return clamp_min(x, zero) + numbers[0] * exp_less_one(k, clamp_max(x, zero))


def _bnll(k: Kernel, _: Numbers, x: Vector) -> Vector:
    return clamp_min(x, k.constant(0.0)) + log_one_more(k, exp(k, clamp_max(x, -x)))


def _bell(k: Kernel, x: Vector) -> tuple[Vector, Vector]:
    """Return a = |x|, and exp(-a^2 / 2); see ``backends.normal``."""
    size = clamp_max(clamp_min(x, -x), k.constant(normal.LARGEST))
    near = rounded(size * k.constant(normal.STEPS_PER_ONE)) * k.constant(1 / normal.STEPS_PER_ONE)
    half = k.constant(-0.5)
    return size, exp(k, near * near * half) * exp(k, (size - near) * (size + near) * half)


def _tail(k: Kernel, size: Vector) -> Vector:
    """Return the tail of the normal distribution above ``size``, divided by the bell."""
    one = k.constant(1.0)
    inverse = one / (size + k.constant(4.0))
    coefficients = reversed(normal.tail_powers(float(np.finfo(np.float32).eps)))
    return polynomial(k, one - inverse * k.constant(8.0), tuple(coefficients)) * inverse


def _gelu(k: Kernel, _: Numbers, x: Vector) -> Vector:
    size, bell = _bell(k, x)
    return clamp_min(x, k.constant(0.0)) - _tail(k, size) * bell * size


FUNCTIONS: dict[str, Formula] = {
    "abs": lambda k, _, x: clamp_min(x, -x) + k.constant(0.0),  # of negative zero, too
    "bnll": _bnll,
    "clip": lambda _k, numbers, x: clamp_min(clamp_max(x, numbers[1]), numbers[0]),
    "elu": _elu,
    "exp": lambda k, numbers, x: exp(k, x * numbers[0]) * numbers[1],
    "gelu": _gelu,
    "hard_swish": _hard_swish,
    "linear": _linear,
    "relu": lambda _k, numbers, x: rectified(x, numbers[0]),
    "sigmoid": lambda k, _, x: sigmoid(k, x),
    "square": _square,
    "swish": lambda k, numbers, x: x * sigmoid(k, x * numbers[0]),
    "tanh": lambda k, _, x: tanh(k, x),
}
"""Functions of one array."""


def _abs_slope(k: Kernel, _: Numbers, x: Vector, dy: Vector) -> Vector:
    zero, one = k.constant(0.0), k.constant(1.0)
    return dy * choose(x > zero, one, choose(zero > x, -one, x))  # 0 of 0, NaN of NaN


def _clip_slope(k: Kernel, numbers: Numbers, x: Vector, dy: Vector) -> Vector:
    low, high, _ = numbers
    return dy * choose((x >= low) & (high >= x), k.constant(1.0), k.constant(0.0))


def _inside_slope(k: Kernel, numbers: Numbers, x: Vector, dy: Vector) -> Vector:
    low, high, _ = numbers
    return dy * choose((x > low) & (high > x), k.constant(1.0), k.constant(0.0))


def _bnll_slope(k: Kernel, _: Numbers, x: Vector, dy: Vector) -> Vector:
    e = exp(k, clamp_max(x, k.constant(LARGEST)))
    return dy * (e / (e + k.constant(1.0)))


def _gelu_slope(k: Kernel, _: Numbers, x: Vector, dy: Vector) -> Vector:
    size, bell = _bell(k, x)
    density = size * k.constant(1 / sqrt(2 * pi))
    below = (_tail(k, size) - density) * bell  # the derivative at -|x|; 1 less that at |x|
    return dy * choose(x > k.constant(0.0), k.constant(1.0) - below, below)


def _hard_swish_slope(k: Kernel, _: Numbers, x: Vector, dy: Vector) -> Vector:
    zero, one, three = k.constant(0.0), k.constant(1.0), k.constant(3.0)
    curve = (x + x + three) / k.constant(6.0)
    return dy * choose(x >= three, one, choose(-three >= x, zero, curve))


def _relu_slope(k: Kernel, numbers: Numbers, x: Vector, dy: Vector) -> Vector:
    zero = k.constant(0.0)
    return dy * choose(x > zero, k.constant(1.0), choose(zero >= x, numbers[0], zero))


def _square_slope(k: Kernel, numbers: Numbers, x: Vector, dy: Vector) -> Vector:
    power, scale, _ = numbers
    return dy * (power * scale * _linear(k, numbers, x))


SLOPES: dict[str, Formula] = {
    "abs_slope": _abs_slope,
    "bnll_slope": _bnll_slope,
    "clip_slope": _clip_slope,
    "exp_slope": lambda _k, numbers, y, dy: dy * y * numbers[0],
    "gelu_slope": _gelu_slope,
    "hard_swish_slope": _hard_swish_slope,
    "inside_slope": _inside_slope,
    "linear_slope": lambda _k, numbers, _x, dy: dy * numbers[1],
    "relu_slope": _relu_slope,
    "sigmoid_slope": lambda k, _, y, dy: dy * y * (k.constant(1.0) - y),
    "square_slope": _square_slope,
    "tanh_slope": lambda k, _, y, dy: dy * (k.constant(1.0) - y * y),
}
"""Gradients, from a function's input and the gradient of its result.

The gradients of exponential, sigmoid and tanh read the result in place of the input.
"""


def _elu_slope(k: Kernel, numbers: Numbers, x: Vector, y: Vector, dy: Vector) -> Vector:
    return dy * choose(x > k.constant(0.0), k.constant(1.0), y + numbers[0])


def _swish_slope(k: Kernel, numbers: Numbers, x: Vector, y: Vector, dy: Vector) -> Vector:
    one, by = k.constant(1.0), y * numbers[0]
    gate = one / (one + exp(k, -(x * numbers[0])))
    return dy * (by + gate * (one - by))


SLOPES_OF_BOTH: dict[str, Formula] = {"elu_slope": _elu_slope, "swish_slope": _swish_slope}
"""Gradients, from a function's input, the contents of its result's memory, and their gradient."""


def _larger(_k: Kernel, _: Numbers, one: Vector, two: Vector) -> Vector:
    return choose(one > two, one, two)


COMBINATIONS: dict[str, Formula] = {
    "first_larger": lambda k, _, one, two: choose(one > two, k.constant(1.0), k.constant(0.0)),
    "larger": _larger,
    "marked": lambda k, _, mark, dy: choose(mark > k.constant(0.0), dy, k.constant(0.0)),
    "product": lambda _k, _, one, two: one * two,
    "unmarked": lambda k, _, mark, dy: choose(mark > k.constant(0.0), k.constant(0.0), dy),
}
"""Functions of two arrays; the first array of some is a mask."""

PAIRS: dict[str, tuple[str, str]] = {
    "larger_of_which": ("larger", "first_larger"),
    "parted": ("marked", "unmarked"),
}
"""Two of these at once, with two results."""


def _sum(_k: Kernel, _: Numbers, *arrays: Vector) -> Vector:
    return reduce(Vector.__add__, arrays)


def _rectified_sum(_k: Kernel, numbers: Numbers, *arrays: Vector) -> Vector:
    return rectified(reduce(Vector.__add__, arrays), numbers[0])


def _weighted_sum(_k: Kernel, numbers: Numbers, *arrays: Vector) -> Vector:
    return reduce(Vector.__add__, map(Vector.__mul__, arrays, numbers))


SUMS: dict[str, tuple[Formula, int]] = {
    f"{name}{count}": (formula, count)
    for name, formula in (
        ("sum", _sum), ("rectified_sum", _rectified_sum), ("weighted_sum", _weighted_sum)
    )
    for count in range(1, MOST + 1)
}  # fmt: skip
"""Sums, from first to last, and their number of arrays. The sum of one array is a copy."""


KNOWN = FUNCTIONS | SLOPES | SLOPES_OF_BOTH | COMBINATIONS | {n: f for n, (f, _) in SUMS.items()}


@ElementFields.kernel("elementwise")
def _kernel(k: Kernel, f: ElementFields, function: str) -> None:
    first, *chain = function.split("-")
    count = _count(function)
    numbers = range(max(NUMBERS * (1 + len(chain)), count))
    constants = [k.broadcast(f.numbers + FLOAT * place) for place in numbers]
    formulas = [KNOWN[each] for each in PAIRS.get(first, (first,))]

    def body(place: Word, some: Condition | None) -> None:
        read = [load(k, array + place, some) for array in (f.x, f.other, f.third, f.fourth)[:count]]
        own = (constants[:NUMBERS], *read[:1]) if chain else (constants, *read)
        results = [formula(k, *own) for formula in formulas]
        for number, each in enumerate(chain, 1):
            more = read[1:] if each in COMBINATIONS else ()
            results = [KNOWN[each](k, constants[NUMBERS * number :][:NUMBERS], *results, *more)]
        for result, target in zip(results, (f.y, f.also), strict=False):
            store(k, result, target + place, some)

    own_vectors(k, f.count, body)


def _count(function: str) -> int:
    """Return how many arrays a function takes."""
    if "-" in function:
        return 2 if function.rpartition("-")[2] in COMBINATIONS else 1
    if function in SUMS:
        return SUMS[function][1]
    return 1 if function in FUNCTIONS else 3 if function in SLOPES_OF_BOTH else 2


class Elementwise(BoundKernel):
    """y = f(x), or of the arrays that a function takes; or two such results.

    The function is named in :data:`FUNCTIONS`, :data:`SLOPES`, :data:`SLOPES_OF_BOTH`,
    :data:`COMBINATIONS`, :data:`PAIRS` or :data:`SUMS`; ``numbers`` are its constants. A name like
    "linear-clip-product" is a chain of functions, ``NUMBERS`` constants of each; the last may be a
    combination of the result with the second array.

    A call takes the arrays that are read, and those that are written, which may be among the first.
    """

    def __init__(self, function: str, numbers: Sequence[float], count: int, tuning: Tuning) -> None:
        constants = np.zeros(max(MOST, NUMBERS * (1 + function.count("-"))), np.float32)
        constants[: len(numbers)] = numbers
        lacking = ("other", "third", "fourth")[_count(function) - 1 :]
        absent = dict.fromkeys([*lacking, *["also"] * (function not in PAIRS)])
        values = ElementFields.values(count=count, numbers=constants, **absent)
        threads = threads_for(tuning, count, FEWEST_EACH)
        super().__init__(function, _kernel(tuning.width, function), values, tuning, threads)
