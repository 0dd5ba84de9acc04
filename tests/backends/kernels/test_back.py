"""The way back of one tile: outputs, offsets, a rectifier, pooling."""

import numpy as np
import pytest
from stages import WIDTH, called, normal, of_stage

from demitasse.backends.kernels.language.words import FLOAT
from demitasse.backends.kernels.winograd.back import back
from demitasse.backends.kernels.winograd.matrices import matrices

SIZE = 6
"""Rows and columns of the memory that a tile's outputs go to."""


def outputs(taps, width, rows, columns, slope, *, pool):
    """What the kernel writes of random sums and offsets, and what it should."""
    of = matrices(taps)
    name = f"back {'pooled ' if pool else ''}{taps}x{width}"
    kernel = of_stage(name, width, 10, lambda module: back(module, of, width, pool=pool))
    points, offsets = normal(of.side**2, width), normal(width, seed=1)
    slope = np.linspace(slope, slope / 2, width, dtype=np.float32)  # one for each filter
    target = np.full((SIZE, SIZE, width), np.nan, np.float32)
    scratch = np.zeros((of.outputs, of.side, width), np.float32)

    vector = width * FLOAT
    called(
        kernel, points, vector, target, SIZE * vector, vector, rows, columns, offsets,
        slope, scratch,
    )  # fmt: skip

    tile = points.reshape(of.side, of.side, width).astype(float)
    want = (
        np.einsum("ri,sj,ijv->rsv", of.output, of.output, tile, optimize=True)[:rows, :columns]
        + offsets
    )
    return target, np.maximum(want, slope * want)


@WIDTH
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (1, 4), (4, 3), (2, 1)])
@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_outputs_that_are_there_are_written(taps, width, rows, columns, slope):
    got, want = outputs(taps, width, rows, columns, slope, pool=False)

    np.testing.assert_allclose(got[:rows, :columns], want, rtol=1e-4, atol=5e-4)
    assert np.isnan(got[rows:]).all()
    assert np.isnan(got[:, columns:]).all()


@WIDTH
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 4), (4, 1), (1, 3)])
def test_pooled_outputs_are_the_largest_of_those_that_are_there(taps, width, rows, columns):
    got, want = outputs(taps, width, rows, columns, 0.0, pool=True)

    high, wide = -(-rows // 2), -(-columns // 2)
    for i in range(high):
        for j in range(wide):
            largest = want[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max(axis=(0, 1))
            np.testing.assert_allclose(got[i, j], largest, rtol=1e-4, atol=5e-4)
    assert np.isnan(got[high:]).all()
    assert np.isnan(got[:, wide:]).all()
