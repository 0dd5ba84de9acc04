"""Channels times gates and the gradients, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends.kernels.channel_affine import gate_gradient, gates
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning


def batch(size, width, rest):
    """Images with the channels last; with a rest, they fill no whole vectors."""
    n, c = 3, 4 * width + rest
    return n, c, Images.channels_last((n, c, *size))


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (7, 5)])
@pytest.mark.parametrize("rest", [0, 3])
def test_products_and_sums_are_numpys_to_the_bit(rest, size, adds, threads, width):
    n, c, images = batch(size, width, rest)
    x, other, by = normal(n, c, *size), normal(n, c, *size, seed=1), normal(n, c, seed=2)
    y = np.full(x.size, np.nan, np.float32)

    run = gates(images, Tuning(width=width, threads=threads), adds=adds)
    run(in_memory(x, images), by, in_memory(other, images) if adds else None, y)

    product = x * by[..., None, None]
    np.testing.assert_array_equal(out_of_memory(y, images), product + other if adds else product)


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (7, 5)])
@pytest.mark.parametrize("rest", [0, 3])
def test_gradients_are_those_of_the_definition(rest, size, adds, threads, width):
    n, c, images = batch(size, width, rest)
    x, dy, by = normal(n, c, *size), normal(n, c, *size, seed=1), normal(n, c, seed=2)
    dx, of_gates = np.full(x.size, np.nan, np.float32), np.full((n, c), np.nan, np.float32)
    added = np.full(x.size, np.nan, np.float32) if adds else None

    run = gate_gradient(images, Tuning(width=width, threads=threads), adds=adds)
    run(in_memory(x, images), by, in_memory(dy, images), dx, of_gates, added)

    np.testing.assert_array_equal(out_of_memory(dx, images), dy * by[..., None, None])
    want = (x.astype(float) * dy).sum((2, 3))
    np.testing.assert_allclose(of_gates, want, rtol=1e-5, atol=1e-5)
    if adds:
        np.testing.assert_array_equal(out_of_memory(added, images), dy)


@WIDTH
def test_channels_that_have_no_vectors_are_refused(width):
    images = Images.channels_last((1, width - 1, 2, 2))

    for kernel in (gates, gate_gradient):
        with pytest.raises(ValueError, match="whole vectors"):
            kernel(images, Tuning(width=width), adds=True)
