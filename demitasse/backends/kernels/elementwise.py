"""Elementwise kernels.

Array after array as they lie in memory, in whatever layout. The operations are those of the layers'
portable formulas, in their order, so that NaN, infinities and what lies on a kink give the same.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from math import pi, sqrt

import numpy as np

from demitasse.backends import normal
from demitasse.backends.kernels.bound import BoundKernel, own_vectors, threads_for
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
    hard_swish,
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
"""Takes the function's constants, and an element of each array."""

LARGEST = 50.0
"""No exponential of more is taken in the gradient of BNLL."""

MOST = 4
"""Greatest number of arrays that a function reads, and of its constants."""


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
    """Constants of the functions, ``MOST`` for each."""


def _linear(numbers: Numbers, x: Vector) -> Vector:
    _, scale, shift, *_ = numbers
    return x * scale + shift


def _square(numbers: Numbers, x: Vector) -> Vector:
    inner = _linear(numbers, x)
    return inner * inner


def _bell(x: Vector) -> tuple[Vector, Vector]:
    """Return a = |x|, and exp(-a^2 / 2); see ``backends.normal``."""
    size = clamp_max(clamp_min(x, -x), normal.LARGEST)
    near = rounded(size * normal.STEPS_PER_ONE) * (1 / normal.STEPS_PER_ONE)
    return size, exp(near * near * -0.5) * exp((size - near) * (size + near) * -0.5)


def _tail(size: Vector) -> Vector:
    """Return the tail of the normal distribution above ``size``, divided by the bell."""
    inverse = 1.0 / (size + 4.0)
    coefficients = reversed(normal.tail_powers(float(np.finfo(np.float32).eps)))
    return polynomial(1.0 - inverse * 8.0, tuple(coefficients)) * inverse


def _gelu(_: Numbers, x: Vector) -> Vector:
    size, bell = _bell(x)
    return clamp_min(x, 0.0) - _tail(size) * bell * size


FUNCTIONS: dict[str, Formula] = {
    "abs": lambda _, x: clamp_min(x, -x) + 0.0,  # of negative zero, too
    "bnll": lambda _, x: clamp_min(x, 0.0) + log_one_more(exp(clamp_max(x, -x))),
    "clip": lambda numbers, x: clamp_min(clamp_max(x, numbers[1]), numbers[0]),
    "elu": lambda numbers, x: clamp_min(x, 0.0) + numbers[0] * exp_less_one(clamp_max(x, 0.0)),
    "exp": lambda numbers, x: exp(x * numbers[0]) * numbers[1],
    "gelu": _gelu,
    "hard_swish": lambda _, x: hard_swish(x),
    "linear": _linear,
    "relu": lambda numbers, x: rectified(x, numbers[0]),
    "sigmoid": lambda _, x: sigmoid(x),
    "square": _square,
    "swish": lambda numbers, x: x * sigmoid(x * numbers[0]),
    "tanh": lambda _, x: tanh(x),
}
"""Functions of one array."""


def _chosen(condition: Condition, dy: Vector) -> Vector:
    """Return the gradient where a condition holds; NaN and infinity leave NaN elsewhere."""
    return dy * choose(condition, dy.constant(1.0), 0.0)


def _abs_slope(_: Numbers, x: Vector, dy: Vector) -> Vector:
    return dy * choose(x > 0.0, 1.0, choose(x < 0.0, -1.0, x))  # 0 of 0, NaN of NaN


def _bnll_slope(_: Numbers, x: Vector, dy: Vector) -> Vector:
    e = exp(clamp_max(x, LARGEST))
    return dy * (e / (e + 1.0))


def _gelu_slope(_: Numbers, x: Vector, dy: Vector) -> Vector:
    size, bell = _bell(x)
    density = size * (1 / sqrt(2 * pi))
    below = (_tail(size) - density) * bell  # the derivative at -|x|; 1 less that at |x|
    return dy * choose(x > 0.0, 1.0 - below, below)


def _hard_swish_slope(_: Numbers, x: Vector, dy: Vector) -> Vector:
    curve = (x + x + 3.0) / 6.0
    return dy * choose(x >= 3.0, 1.0, choose(x <= -3.0, 0.0, curve))


def _relu_slope(numbers: Numbers, x: Vector, dy: Vector) -> Vector:
    return dy * choose(x > 0.0, 1.0, choose(x <= 0.0, numbers[0], 0.0))


def _square_slope(numbers: Numbers, x: Vector, dy: Vector) -> Vector:
    power, scale, *_ = numbers
    return dy * (power * scale * _linear(numbers, x))


SLOPES: dict[str, Formula] = {
    "abs_slope": _abs_slope,
    "bnll_slope": _bnll_slope,
    "clip_slope": lambda n, x, dy: _chosen((x >= n[0]) & (x <= n[1]), dy),
    "exp_slope": lambda numbers, y, dy: dy * y * numbers[0],
    "gelu_slope": _gelu_slope,
    "hard_swish_slope": _hard_swish_slope,
    "inside_slope": lambda n, x, dy: _chosen((x > n[0]) & (x < n[1]), dy),
    "linear_slope": lambda numbers, _, dy: dy * numbers[1],
    "relu_slope": _relu_slope,
    "sigmoid_slope": lambda _, y, dy: dy * y * (1.0 - y),
    "square_slope": _square_slope,
    "tanh_slope": lambda _, y, dy: dy * (1.0 - y * y),
}
"""Gradients, from a function's input and the gradient of its result.

The gradients of exponential, sigmoid and tanh read the result in place of the input.
"""


def _elu_slope(numbers: Numbers, x: Vector, y: Vector, dy: Vector) -> Vector:
    return dy * choose(x > 0.0, 1.0, y + numbers[0])


def _swish_slope(numbers: Numbers, x: Vector, y: Vector, dy: Vector) -> Vector:
    by = y * numbers[0]
    gate = 1.0 / (1.0 + exp(-(x * numbers[0])))
    return dy * (by + gate * (1.0 - by))


SLOPES_OF_BOTH: dict[str, Formula] = {"elu_slope": _elu_slope, "swish_slope": _swish_slope}
"""Gradients, from a function's input, the contents of its result's memory, and their gradient."""


def _larger(_: Numbers, one: Vector, two: Vector) -> Vector:
    return choose(one > two, one, two)


COMBINATIONS: dict[str, Formula] = {
    "larger": _larger,
    "marked": lambda _, mark, dy: choose(mark > 0.0, dy, 0.0),
    "product": lambda _, one, two: one * two,
    "unmarked": lambda _, mark, dy: choose(mark > 0.0, 0.0, dy),
}
"""Functions of two arrays; the first array of some is a mask."""


def _larger_of_which(_: Numbers, one: Vector, two: Vector) -> tuple[Vector, Vector]:
    first = one > two
    return choose(first, one, two), choose(first, one.constant(1.0), 0.0)


def _parted(_: Numbers, mark: Vector, dy: Vector) -> tuple[Vector, Vector]:
    first = mark > 0.0
    return choose(first, dy, 0.0), choose(first, 0.0, dy)


PAIRS: dict[str, Callable[..., tuple[Vector, Vector]]] = {
    "larger_of_which": _larger_of_which,
    "parted": _parted,
}
"""Functions of two arrays with two results."""


def _sum(_: Numbers, *arrays: Vector) -> Vector:
    return reduce(Vector.__add__, arrays)


SUMS: dict[str, Formula] = {
    "rectified_sum": lambda numbers, *arrays: rectified(_sum(numbers, *arrays), numbers[0]),
    "sum": _sum,
    "weighted_sum": lambda numbers, *arrays: _sum(numbers, *map(Vector.__mul__, arrays, numbers)),
}
"""Sums of all arrays, from first to last. The sum of one array is a copy."""

ARRAYS: dict[str, int] = {
    name: count
    for count, group in (
        (1, FUNCTIONS), (2, SLOPES), (2, COMBINATIONS), (2, PAIRS), (3, SLOPES_OF_BOTH),
        (MOST, SUMS),
    )
    for name in group
}  # fmt: skip
"""Number of arrays that a function takes, at most."""

FORMULAS: dict[str, Callable[..., Vector | tuple[Vector, Vector]]]
FORMULAS = {**FUNCTIONS, **SLOPES, **SLOPES_OF_BOTH, **COMBINATIONS, **PAIRS, **SUMS}


@ElementFields.kernel("elementwise")
def _kernel(
    k: Kernel, f: ElementFields, arrays: int, *functions: str, bf16: tuple[bool, ...] = ()
) -> None:
    places = [FLOAT * place for place in range(MOST * len(functions))]
    constants = [k.broadcast(f.numbers + place) for place in places]

    def body(place: Word, some: Condition | None) -> None:
        if bf16 and some is not None:  # bfloat16 has whole vectors
            return
        addresses = (f.x, f.other, f.third, f.fourth)[:arrays]
        halved = [*bf16, *[False] * (arrays + 2)]
        values = [
            k.load_bfloats(address + place // 2) if half else k.load(address + place, some)
            for address, half in zip(addresses, halved, strict=False)
        ]
        for number, name in enumerate(functions):
            taken, own = ARRAYS[name], constants[MOST * number : MOST * (number + 1)]
            result = FORMULAS[name](own, *values[:taken])
            values[:taken] = result if isinstance(result, tuple) else [result]
        for value, target, half in zip(values, (f.y, f.also), halved[arrays:], strict=False):
            if half:
                k.store_bfloat(value, target + place // 2)
            else:
                k.store(value, target + place, some)

    own_vectors(k, f.count, body)


Chain = Sequence[tuple[str, Sequence[float]]]
"""Functions by name, each with its constants, that are applied one after the other."""


class Elementwise(BoundKernel):
    """y = f(x), or of the arrays that a chain of functions takes; or two such results.

    The functions are those of :data:`FORMULAS`. Each takes the result before it, and as many
    further arrays as it lacks.

    A call takes the arrays that are read, and those that are written, which may be among the first.
    ``bf16`` says which are of bfloat16, whose elements are whole vectors.
    """

    def __init__(
        self, chain: Chain, arrays: int, count: int, tuning: Tuning, bf16: tuple[bool, ...] = ()
    ) -> None:
        names, constants = [name for name, _ in chain], np.zeros((len(chain), MOST), np.float32)
        for row, (_, numbers) in zip(constants, chain, strict=True):
            row[: len(numbers)] = numbers
        lacking = ("other", "third", "fourth")[arrays - 1 :]
        absent = dict.fromkeys([*lacking, *["also"] * (names[-1] not in PAIRS)])
        values = ElementFields.values(count=count, numbers=constants, **absent)
        threads = threads_for(tuning, count, FEWEST_EACH)
        kernel = _kernel(tuning.width, arrays, *names, bf16=bf16 if any(bf16) else ())
        super().__init__("-".join(names), kernel, values, tuning, threads)
