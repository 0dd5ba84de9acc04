"""Few rows times a weight in panels, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.kernels.epilogue import NOTHING, RELU, Rectifier
from demitasse.backends.kernels.few_rows import MOST_ROWS, FewRows
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])


def in_panels(weight, panel, columns):
    """Return a weight (M, K) in panels (panels, columns, panel), NaN where there is none."""
    m, k = weight.shape
    panels = np.full((-(-m // panel), panel, columns), np.nan, np.float32)
    panels.reshape(-1, columns)[:m, :k] = weight
    return np.ascontiguousarray(panels.transpose(0, 2, 1))


def product(x, weight, offsets, panel, tuning, then=NOTHING, dtype="float32"):
    (rows, k), m = x.shape, len(weight)
    got = np.full((rows + 1, m), 77.0, np.float32)
    run = FewRows(rows, k, m, panel, k + 3, tuning, then, half=dtype == "float16")

    run(x, got, in_panels(weight, panel, k + 3).astype(dtype), offsets)

    assert (got[rows:] == 77).all()
    return got[:rows]


@WIDTH
@THREADS
@pytest.mark.parametrize("rows", range(1, MOST_ROWS[16] + 1))
@pytest.mark.parametrize("vectors", [1, 3, 4])
@pytest.mark.parametrize(("length", "outputs"), [(7, 5), (600, 150), (1030, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_multiplied_with_every_output(
    dtype, length, outputs, vectors, rows, threads, width
):
    rows = min(rows, MOST_ROWS[width])
    x, weight, offsets = normal(rows, length), normal(outputs, length, seed=1), normal(outputs)
    weight = weight.astype(dtype).astype(np.float32)

    got = product(x, weight, offsets, vectors * width, Tuning(width, threads), dtype=dtype)

    want = x.astype(float) @ weight.T.astype(float) + offsets
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.sqrt(length))


@WIDTH
def test_every_half_float_is_widened_exactly(width):
    """Subnormal numbers, infinity and NaN too."""
    with np.errstate(invalid="ignore"):  # signalling NaN, of which aarch64 tells
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

    got = product(
        np.ones((1, 1), np.float32), every[:, None], None, width, Tuning(width), dtype="float16"
    )

    np.testing.assert_array_equal(got[0], every)


@WIDTH
def test_there_may_be_no_offsets(width):
    x, weight = normal(2, 9), normal(5, 9, seed=1)

    got = product(x, weight, None, width, Tuning(width))

    np.testing.assert_allclose(got, x @ weight.T, rtol=1e-5, atol=1e-5)


@WIDTH
def test_a_rectifier_keeps_nan(width):
    x, weight = normal(3, 9), normal(5, 9, seed=1)
    x[1, 2] = np.nan

    got = product(x, weight, normal(5), width, Tuning(width), RELU)

    want = np.maximum(x @ weight.T + normal(5), 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert np.isnan(got[1]).all()
    assert not np.isnan(got[[0, 2]]).any()


FUNCTIONS = {
    Rectifier(slope=0.25): lambda x: np.where(x > 0, x, x / 4),
    Rectifier(limits=(-1.0, 2.0)): lambda x: np.clip(x, -1, 2),
    Rectifier(curve="sigmoid"): lambda x: 1 / (1 + np.exp(-x)),
    Rectifier(curve="tanh"): np.tanh,
    Rectifier(curve="swish"): lambda x: x / (1 + np.exp(-x)),
    Rectifier(curve="hard_swish"): lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


@WIDTH
@pytest.mark.parametrize("then", FUNCTIONS, ids=str)
def test_what_becomes_of_the_sums(then, width):
    x, weight, offsets = normal(3, 30), normal(21, 30, seed=1), normal(21)
    x[1, 2] = np.nan

    got = product(x, weight, offsets, 2 * width, Tuning(width), then)

    want = FUNCTIONS[then](x.astype(float) @ weight.T.astype(float) + offsets)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # NaN where there is NaN


@WIDTH
def test_many_outputs_are_divided_among_threads(width):
    x, weight = normal(2, 400), normal(700, 400, seed=1)

    one, three = (
        product(x, weight, normal(700), 4 * width, Tuning(width, threads)) for threads in (1, 3)
    )

    np.testing.assert_array_equal(one, three)
    assert FewRows(2, 400, 700, 4 * width, 400, Tuning(width, 3)).threads == 3


@pytest.mark.parametrize(("rows", "panel"), [(0, 8), (MOST_ROWS[8] + 1, 8), (1, 12)])
def test_what_it_does_not_take_is_refused(rows, panel):
    with pytest.raises(ValueError, match="whole vectors"):
        FewRows(rows, 4, 4, panel, 4, Tuning(8))
