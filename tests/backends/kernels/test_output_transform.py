"""Output transform of one tile: outputs, offsets, a rectifier."""

import numpy as np
import pytest
from stages import WIDTH, called, exported, normal
from tilings import KERNELS

from demitasse.backends.kernels.epilogue import rectifying
from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.winograd.matrices import filtering
from demitasse.backends.kernels.winograd.transforms import Outputs, output_transform

SIZE = 6
"""Rows and columns of the memory that a tile's outputs go to."""


def write(k, of):
    sums, position_bytes, *place, offsets, slopes = k.arguments
    offset, then = k.load(offsets), rectifying(k, slopes, 0, "")
    output_transform(
        k, of, sums, position_bytes, Outputs(*place), lambda total: then(total + offset)
    )


def outputs(kernel, width, rows, columns, slope, above=0, before=0):
    """What the kernel writes of random sums and offsets, and what it should."""
    of = filtering(kernel, (4, 4))
    down, across = of
    code = exported(f"outputs {of}x{width}", width, lambda k: write(k, of), 11)
    positions, offsets = normal(of.positions, width), normal(width, seed=1)
    slope = np.linspace(slope, slope / 2, width, dtype=np.float32)  # one for each filter
    target = np.full((SIZE, SIZE, width), np.nan, np.float32)

    vector = width * FLOAT
    called(
        code, positions, vector, target, SIZE * vector, vector, rows, columns, above, before,
        offsets, slope,
    )  # fmt: skip

    tile = positions.reshape(down.side, across.side, width).astype(float)
    sums = np.einsum("ri,sj,ijv->rsv", down.output, across.output, tile, optimize=True)
    want = sums[:rows, :columns] + offsets
    return target, np.maximum(want, slope * want)


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (1, 4), (4, 3), (2, 1)])
@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_outputs_that_are_there_are_written(kernel, width, rows, columns, slope):
    of = filtering(kernel, (4, 4))
    rows, columns = min(rows, of.down.outputs), min(columns, of.across.outputs)

    got, want = outputs(kernel, width, rows, columns, slope)

    np.testing.assert_allclose(got[:rows, :columns], want, rtol=1e-4, atol=5e-4)
    assert np.isnan(got[rows:]).all()
    assert np.isnan(got[:, columns:]).all()


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(("above", "before"), [(1, 0), (0, 1), (2, 1), (-1, 1), (-3, -2)])
@pytest.mark.parametrize("rows", [3, 9])
def test_outputs_before_those_that_are_there_are_left_alone(kernel, width, above, before, rows):
    got, want = outputs(kernel, width, rows, 9, 0.5, above, before)

    (high, wide), above, before = want.shape[:2], max(above, 0), max(before, 0)
    written = got[above:high, before:wide].copy()
    got[above:high, before:wide] = np.nan
    np.testing.assert_allclose(written, want[above:, before:], rtol=1e-4, atol=5e-4)
    assert np.isnan(got).all()
