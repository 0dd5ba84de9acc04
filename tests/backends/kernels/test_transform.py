"""Transforms of one tile against products of matrices."""

import numpy as np
import pytest
from stages import WIDTH, called, normal, of_stage
from tilings import KERNELS

from demitasse.backends.kernels.language.values import FLOAT
from demitasse.backends.kernels.winograd.matrices import filtering
from demitasse.backends.kernels.winograd.transforms import transform


def matrix(of, which):
    found = getattr(of, which.removesuffix(" transposed"))
    return found.T if which.endswith("transposed") else found


@WIDTH
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("which", ["input", "filter", "filter transposed", "output transposed"])
def test_a_tile_is_multiplied_from_both_sides(which, kernel, width):
    of = filtering(kernel)
    both = down, across = tuple(matrix(each, which) for each in of)
    (high, rows), (wide, columns) = (each.shape for each in both)
    name = f"transform {which}{of}x{width}"
    code = of_stage(name, width, 6, lambda module: transform(module, "stage", both, width))
    tile = normal(rows + 2, columns + 1, width)
    positions = np.zeros((high * wide, 3, width), np.float32)

    vector = width * FLOAT
    places = positions.reshape(-1)[width:]  # of the second of three tiles
    called(code, tile, (columns + 1) * vector, vector, places, 3 * vector, vector)

    taken = tile[:rows, :columns].astype(float)
    want = np.einsum("ri,sj,ijv->rsv", down, across, taken, optimize=True)
    np.testing.assert_allclose(positions[:, 1].reshape(want.shape), want, rtol=1e-4, atol=2e-4)
    assert not positions[:, [0, 2]].any()
