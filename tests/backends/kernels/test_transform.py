"""Transforms of one tile against products of matrices."""

import numpy as np
import pytest
from stages import WIDTH, called, exported, normal
from tilings import KERNELS

from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.winograd.matrices import filtering
from demitasse.backends.kernels.winograd.transforms import times_both


def matrix(of, which):
    found = getattr(of, which.removesuffix(" transposed"))
    return found.T if which.endswith("transposed") else found


def write(k, both):
    """Write the transform of a tile, whose results lie side by side."""
    (tile, row_bytes, results), wide = k.arguments, len(both[1])
    times_both(
        k,
        both,
        lambda row, column: k.load(tile + row_bytes * row + column * k.vector_bytes),
        lambda row, column, value: k.store(value, results + (row * wide + column) * k.vector_bytes),
    )


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("which", ["input", "filter", "filter transposed", "output transposed"])
def test_a_tile_is_multiplied_from_both_sides(which, kernel, width):
    of = filtering(kernel, (4, 4))
    both = down, across = tuple(matrix(each, which) for each in of)
    (high, rows), (wide, columns) = (each.shape for each in both)
    name = f"transform {which}{of}x{width}"
    code = exported(name, width, lambda k: write(k, both), 3)
    tile = normal(rows + 2, columns + 1, width)
    results = np.zeros((high * wide + 1, width), np.float32)

    called(code, tile, (columns + 1) * width * FLOAT, results)

    taken = tile[:rows, :columns].astype(float)
    want = np.einsum("ri,sj,ijv->rsv", down, across, taken, optimize=True)
    np.testing.assert_allclose(results[:-1].reshape(want.shape), want, rtol=1e-4, atol=2e-4)
    assert not results[-1].any()
