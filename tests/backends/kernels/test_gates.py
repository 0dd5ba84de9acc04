"""Channels of each image times a number of their own, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal

from demitasse.backends.kernels.gates import GatedChannels, takes
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning


@WIDTH
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("whole", [True, False], ids=["channels last", "blocks"])
@pytest.mark.parametrize("adds", [False, True], ids=["alone", "with a sum"])
@pytest.mark.parametrize("size", [(1, 1), (5, 3)])
def test_each_channel_of_each_image_has_its_gate(size, adds, whole, threads, width):
    shape = (3, 2 * width, *size)
    x, other, gates = normal(*shape), normal(*shape, seed=1), normal(*shape[:2], seed=2)
    images = Images.in_blocks(shape, shape[1] if whole else width)
    run = GatedChannels(images, Tuning(width=width, threads=threads), adds=adds)
    source, added = in_memory(x, images), in_memory(other, images)
    y = np.full_like(source, np.nan)

    run(gates.reshape(-1), source, added if adds else None, y)
    run(gates.reshape(-1), source, added if adds else None, source)  # in place

    np.testing.assert_array_equal(source, y)
    want = x * gates[:, :, None, None] + (other if adds else 0)
    np.testing.assert_allclose(y, in_memory(want.astype(np.float32), images), rtol=1e-6, atol=1e-6)


def test_whole_vectors_of_channels_are_needed():
    images = Images.in_blocks((2, 12, 3, 4), 12)

    assert not takes(images, 8)
    with pytest.raises(ValueError, match="12 channels in blocks of 12 were given"):
        GatedChannels(images, Tuning(width=8), adds=False)
