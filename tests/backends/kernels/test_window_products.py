"""Products of windows and filters, and the sums that are their gradient."""

import numpy as np
import pytest
from stages import WIDTH, called, normal

from demitasse.backends.kernels.few_inputs import window_products, window_sums
from demitasse.backends.kernels.language.values import FLOAT, INT

ROWS, TAPS = 3, 4
"""Of a window."""


def table(columns, step):
    """Bytes from a window's first tap to each. Shape: (ROWS, TAPS)."""
    i, j = np.ogrid[:ROWS, :TAPS]
    return FLOAT * (i * columns + j * step).astype(np.int64)


@WIDTH
@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize(("step", "stride"), [(1, 1), (2, 1), (1, 2)])
def test_a_row_of_pixels(step, stride, vectors, width):
    m = vectors * width
    filters, offsets, slopes = normal(ROWS * TAPS, m), normal(m, seed=1), normal(m, seed=2)
    places = FLOAT * width * np.arange(vectors, dtype=np.int64)[::-1].copy()
    for pixels in (1, 2, 7, 31):
        columns = (pixels - 1) * stride + (TAPS - 1) * step + 1
        image, out = normal(ROWS, columns), np.zeros((pixels + 1, m), np.float32)
        taps = table(columns, step)
        first_of_rows = taps[:, 0].copy()

        product = window_products(width, TAPS, step, stride)(vectors, {pixels})
        called(
            product.address, image, first_of_rows, ROWS * INT, filters, out, m * FLOAT, places,
            offsets, pixels, slopes, product.entry[1],
        )  # fmt: skip

        numbers = image.reshape(-1)[taps.reshape(-1) // FLOAT + stride * np.arange(pixels)[:, None]]
        total = numbers.astype(float) @ filters + offsets
        want = np.where(total > 0, total, slopes * total)
        got = out[:pixels].reshape(pixels, vectors, width)[:, ::-1].reshape(pixels, m)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert not out[pixels].any()


@WIDTH
@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 5, 12])
def test_sums_over_pixels_are_added_to_the_gradient(count, vectors, width):
    m, pixels, rows, columns = vectors * width, 6, 4, 9
    image, slopes = normal(rows + ROWS - 1, columns), normal(rows, pixels, m, seed=1)
    taps = table(columns, 1).reshape(-1)[:count].copy()
    places = FLOAT * width * np.arange(vectors, dtype=np.int64)
    totals = np.ones((count + 1, m), np.float32)

    product = window_sums(width)(vectors, {count})
    called(
        product.address, image, FLOAT, columns * FLOAT, taps, count,
        slopes, m * FLOAT, pixels * m * FLOAT, places, totals, pixels, rows, product.entry[1],
    )  # fmt: skip

    want = np.ones((count + 1, m))
    for tap, distance in enumerate(taps // FLOAT):
        i, j = divmod(int(distance), columns)
        part = image[i : i + rows, j : j + pixels].astype(float)
        want[tap] += np.einsum("rp,rpm->m", part, slopes, optimize=True)
    np.testing.assert_allclose(totals, want, rtol=1e-4, atol=1e-4)
