"""Kernels that read and write 16 bytes at a time: what they make of arrays that do not begin or end
there, and that the compiler makes such instructions of them."""

import re

import numpy as np
import pytest
from cuda_host import HostEngine
from nvrtc import portable_code

from demitasse.backends.cupy.library.engine import Grid, options, source

RNG = np.random.default_rng(0)
GRIDS = [Grid(1, 1), Grid(3, 4)]


def placed(values: np.ndarray, start: int) -> np.ndarray:
    """Return a copy that begins ``start`` elements after a multiple of 16 bytes."""
    memory = np.empty(values.size + 8, values.dtype)
    first = -memory.ctypes.data // values.itemsize % (16 // values.itemsize) + start
    array = memory[first : first + values.size]
    array[...] = values.reshape(-1)
    return array


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 3, 4, 8, 11, 100])
@pytest.mark.parametrize("starts", [(0, 0, 0), (1, 1, 1), (0, 1, 0), (0, 0, 1)], ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_beginning_and_any_end(dtype, count, starts, grid):
    a, b = RNG.normal(size=(2, count)).astype(dtype)
    out = np.full(count + 2, 7, dtype)
    y = placed(out, starts[2])

    kernel = HostEngine(grid).vectorized("elementwise", "weighted_sum", dtype, count, 2.0, -0.5)
    kernel(placed(a, starts[0]), placed(b, starts[1]), y)

    np.testing.assert_allclose(y[:count], 2 * a - b / 2, rtol=1e-6)
    np.testing.assert_array_equal(y[count:], 7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(2, 3, 8), (2, 3, 5), (7, 3, 1), (1, 1, 4), (3, 1, 9)], ids=str)
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_factor_for_each_channel(dtype, sizes, start, grid):
    x = RNG.normal(size=sizes).astype(dtype)
    s, b = RNG.normal(size=(2, sizes[1])).astype(dtype)
    y = placed(np.zeros(x.size + 2, dtype), start)

    kernel = HostEngine(grid).vectorized("elementwise", "scale", dtype, x.size, *sizes[1:], 1)
    kernel(placed(x, start), s, b, y)

    want = x * s[:, None] + b[:, None]
    np.testing.assert_allclose(y[: x.size], want.reshape(-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(y[x.size :], 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("width", "full", "first"), [(4, 12, 8), (4, 12, 6), (3, 8, 4), (5, 5, 0)])
@pytest.mark.parametrize("start", [0, 1])
def test_columns_of_any_width(dtype, width, full, first, start):
    x = RNG.normal(size=(3, width)).astype(dtype)
    y = placed(np.zeros(3 * full, dtype), start)
    back = placed(np.zeros(x.size, dtype), 0)
    numbers = ("elementwise", "into_columns", dtype, x.size, width, full, first)

    HostEngine(Grid(2, 2)).vectorized(*numbers)(placed(x, start), y)
    HostEngine().vectorized(numbers[0], "from_columns", *numbers[2:])(y, back)

    want = np.zeros((3, full), dtype)
    want[:, first : first + width] = x
    np.testing.assert_array_equal(y, want.reshape(-1))
    np.testing.assert_array_equal(back, x.reshape(-1))


NAMES = {
    "activation": ("relu", "relu_gradient", "gelu_gradient"),
    "batch_norm": ("part_statistics", "normalise", "gradient_sums", "normalise_gradient"),
    "conv": ("add_bias",),
    "elementwise": (
        *("weighted_sum", "rectified_sum", "scaled", "product", "scale"),
        *("into_columns", "from_columns"),
    ),
    "loss": ("euclidean_loss_gradient", "cross_entropy_loss_gradient"),
    "random": ("dropout",),
    "softmax": ("softmax_loss_gradient",),
    "sums": ("channel_sums",),
    "update": ("sgd", "adam", "sums_of_squares"),
}


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize(("dtype", "vector"), [("float32", "v4"), ("float64", "v2")])
def test_the_compiler_loads_and_stores_packs(family, dtype, vector):
    code = portable_code(source(family), options(dtype, wide=False))
    kernels = dict(re.findall(r"\.entry (\w+)\((.*?)(?=\.visible|\Z)", code, re.DOTALL))

    without = [
        name for name in NAMES[family] if not re.search(rf"\bld\S*\.{vector}\.", kernels[name])
    ]
    slow = [name for name, text in kernels.items() if re.search(r"\b(ld|st)\.local", text)]

    assert without == []
    assert slow == []


NARROW = {
    "activation": ("relu", "gelu"),
    "batch_norm": ("normalise",),
    "conv": ("add_bias",),
    "elementwise": ("weighted_sum", "rectified_sum", "scaled", "scale", "into_columns"),
}
"""Those of them that take values of 16 bits."""


@pytest.mark.parametrize("family", NARROW)
@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_eight_values_of_16_bits_are_loaded_and_stored_at_a_time(family, kind):
    code = portable_code(source(family), options(kind, wide=False))
    kernels = dict(re.findall(r"\.entry (\w+)\((.*?)(?=\.visible|\Z)", code, re.DOTALL))

    without = [
        name
        for name in NARROW[family]
        if not all(re.search(rf"\b{way}\S*\.v4\.u32", kernels[name]) for way in ("ld", "st"))
    ]

    assert without == []
