"""Transforms of one tile against products of matrices."""

import numpy as np
import pytest
from stages import WIDTH, called, normal, of_stage

from demitasse.backends.kernels.language.words import FLOAT
from demitasse.backends.kernels.winograd.matrices import matrices
from demitasse.backends.kernels.winograd.transforms import transform


def matrix(taps, which):
    found = getattr(matrices(taps), which.removesuffix(" transposed"))
    return np.ascontiguousarray(found.T) if which.endswith("transposed") else found


@WIDTH
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("which", ["input", "filter", "filter transposed", "output transposed"])
def test_a_tile_is_multiplied_from_both_sides(which, taps, width):
    of = matrix(taps, which)
    high, wide = of.shape
    name = f"transform {which}{taps}x{width}"
    kernel = of_stage(name, width, 6, lambda module: transform(module, "stage", of, width))
    tile, scratch = normal(wide + 2, wide + 1, width), np.zeros((high, wide, width), np.float32)
    points = np.zeros((high * high, 3, width), np.float32)

    vector = width * FLOAT
    called(kernel, tile, (wide + 1) * vector, vector, points[0, 1:], 3 * vector, scratch)

    want = np.einsum("ri,sj,ijv->rsv", of, of, tile[:wide, :wide].astype(float), optimize=True)
    np.testing.assert_allclose(points[:, 1].reshape(want.shape), want, rtol=1e-4, atol=2e-4)
    assert not points[:, [0, 2]].any()
