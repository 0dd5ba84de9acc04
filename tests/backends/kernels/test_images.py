"""Where the vectors of a pixel lie."""

import numpy as np
import pytest
from stages import images_of

from demitasse.backends.kernels.images import Images


def test_channels_that_are_last_lie_side_by_side():
    array = np.zeros((2, 5, 6, 20), np.float32).transpose(0, 3, 1, 2)

    images = images_of(array)

    assert (images.image_stride, images.row_stride, images.column_stride) == (600, 120, 20)
    assert images.vectors(8) == [(0, 0), (8, 8), (12, 12)]  # the last begins early


def test_blocks_of_channels_are_as_far_apart_as_a_plane_of_them():
    images = Images.in_blocks((2, 32, 5, 6), 16)

    assert images.vectors(16) == [(0, 0), (16, 16 * 30)]
    assert images.vectors(8) == [(0, 0), (8, 8), (16, 480), (24, 488)]


@pytest.mark.parametrize(("block", "width", "fits"), [(8, 16, False), (20, 8, False), (8, 8, True)])
def test_vectors_do_not_reach_over_blocks(block, width, fits):
    images = Images.in_blocks((1, 40, 3, 3), block)

    assert images.fits(width) == fits
    if not fits:
        with pytest.raises(ValueError, match=f"block={block}.*whole vectors"):
            images.vectors(width)
