"""Where the vectors of a pixel lie."""

import numpy as np
import pytest
from stages import images_of

from demitasse.backends.kernels.images import Images


def test_channels_that_are_last_lie_side_by_side():
    array = np.zeros((2, 5, 6, 20), np.float32).transpose(0, 3, 1, 2)

    images = images_of(array)

    assert (images.image_stride, images.row_stride, images.column_stride) == (600, 120, 20)
    assert images.vectors(8) == [0, 8, 12]  # the last begins early


@pytest.mark.parametrize("width", [8, 16])
def test_vectors_are_of_channels_side_by_side(width):
    few = Images.channels_last((1, width - 1, 3, 3))
    for images in (few, Images.in_order((1, 40, 3, 3))):
        assert not images.fits(width)
        with pytest.raises(ValueError, match="whole vectors"):
            images.vectors(width)
