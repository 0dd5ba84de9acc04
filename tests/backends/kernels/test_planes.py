"""Each channel of each image by its own mean and deviation, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.norm import PlaneNorm
from demitasse.backends.kernels.tuning import Tuning

EPS = 1e-3


def normalised(x):
    x = x.astype(float)
    away = x - x.mean((2, 3), keepdims=True)
    return away / (np.sqrt((away**2).mean((2, 3), keepdims=True)) + EPS)


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (17, 16)])
@pytest.mark.parametrize("level", [0.0, 1000.0])
def test_each_plane_is_normalised_by_itself(level, size, threads, width):
    shape = (3, 2 * width, *size)
    images = Images.channels_last(shape)
    x = normal(*shape) + np.float32(level)
    source = in_memory(x, images)
    y = np.full_like(source, np.nan)
    run = PlaneNorm(images, EPS, Tuning(width=width, threads=threads))

    run(source, y)
    run(source, source)  # in place

    np.testing.assert_array_equal(source, y)
    np.testing.assert_allclose(run.deviations, x.astype(float).std((2, 3)) + EPS, rtol=1e-4)
    want = in_memory(normalised(x).astype(np.float32), images)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4 if level else 1e-5)


@WIDTH
def test_nan_spoils_its_plane_alone(width):
    shape = (2, width, 3, 4)
    images, x = Images.channels_last(shape), normal(*shape)
    x[1, 3, 2, 1] = np.nan
    source = in_memory(x, images)

    PlaneNorm(images, EPS, Tuning(width=width))(source, source)

    lost = np.isnan(source).reshape(2, 3, 4, width)
    assert lost[1, ..., 3].all()
    assert lost.sum() == 12
