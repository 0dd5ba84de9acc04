"""Division of pixels by the length of their channels, against its definition."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.lrn import UnitLength
from demitasse.backends.kernels.tuning import Tuning

EPS = 0.1


def computed(x, factors, tuning, *, in_place=False):
    images = Images.channels_last(x.shape)
    source = in_memory(x, images)
    target = source if in_place else np.full_like(source, np.nan)
    UnitLength(images, EPS, tuning)(source, target, factors)
    return out_of_memory(target, images)


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("channels", [1, 5, 16, 50])
def test_pixels_are_those_of_the_definition(channels, in_place, threads, width):
    x, factors = normal(2, channels, 3, 5), normal(channels, seed=1)

    y = computed(x, factors, Tuning(width=width, threads=threads), in_place=in_place)

    length = np.sqrt((x.astype(float) ** 2).sum(axis=1, keepdims=True) + EPS)
    np.testing.assert_allclose(y, x / length * factors[:, None, None], rtol=1e-5, atol=1e-7)


@WIDTH
def test_nan_stays_in_its_pixel(width):
    x = np.ones((1, 20, 1, 3), np.float32)
    x[0, 18, 0, 1] = np.nan

    y = computed(x, np.ones(20, np.float32), Tuning(width=width))

    assert np.isnan(y[..., 1]).all()
    assert np.isfinite(y[..., [0, 2]]).all()


def test_images_in_c_order_are_not_taken():
    with pytest.raises(ValueError, match="channels"):
        UnitLength(Images.in_order((2, 5, 3, 3)), EPS, Tuning(width=8))
