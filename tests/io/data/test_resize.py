"""Resizing as OpenCV does it; the expected numbers are what OpenCV 4.11 gives."""

import numpy as np
import pytest

from demitasse.io.data.images.resize import resize_image

IMAGE = (np.arange(35).reshape(1, 5, 7) ** 2 * 37 % 256).astype(np.uint8)

OPENCV = [
    [[21, 150, 94, 109], [102, 25, 210, 147], [138, 67, 46, 75]],
    [
        [0, 25, 86, 132, 77, 79, 123, 122, 52],
        [9, 35, 99, 147, 94, 98, 144, 145, 77],
        [25, 54, 113, 159, 121, 128, 168, 170, 115],
        [64, 96, 87, 82, 172, 182, 135, 123, 177],
        [117, 151, 109, 63, 155, 168, 125, 115, 172],
        [182, 219, 180, 101, 72, 88, 136, 148, 100],
        [128, 166, 131, 83, 157, 64, 92, 108, 52],
        [80, 121, 87, 66, 229, 51, 56, 74, 20],
    ],
    [
        [16, 26, 47, 86, 144, 156, 123, 108, 112, 134, 175, 170, 120, 95],
        [162, 176, 204, 187, 124, 96, 102, 95, 74, 88, 136, 139, 96, 75],
    ],
    [
        [24, 77, 122],
        [31, 87, 135],
        [43, 106, 161],
        [66, 136, 156],
        [100, 177, 118],
        [144, 164, 112],
        [198, 97, 138],
        [199, 105, 131],
        [147, 188, 93],
        [120, 229, 74],
    ],
    [[197]],
]


@pytest.mark.parametrize("want", OPENCV, ids=lambda w: f"{len(w)}x{len(w[0])}")
def test_every_pixel_is_opencvs(want):
    got = resize_image(IMAGE, len(want), len(want[0]))

    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got[0], want)


def test_halving_averages_four_pixels():
    image = (np.arange(24).reshape(1, 4, 6) ** 2 * 91 % 256).astype(np.uint8)

    got = resize_image(image, 2, 3)

    np.testing.assert_array_equal(got[0], [[101, 139, 137], [49, 167, 53]])


def test_fractions_are_not_rounded():
    got = resize_image(IMAGE / np.float32(255), 3, 4)

    assert got.dtype == np.float32
    np.testing.assert_allclose(got * 255, resize_image(IMAGE, 3, 4), atol=0.7)  # bytes are cut off


def test_every_channel_is_resized_alone():
    channels = np.concatenate([IMAGE, 255 - IMAGE, IMAGE // 2])

    got = resize_image(channels, 8, 9)

    for one, channel in zip(got, channels, strict=True):
        np.testing.assert_array_equal(one, resize_image(channel[None], 8, 9)[0])


def test_the_same_size_is_the_same_image():
    np.testing.assert_array_equal(resize_image(IMAGE, 5, 7), IMAGE)


@pytest.mark.parametrize("value", [0, 1, 127, 254, 255])
def test_a_flat_image_stays_flat(value):
    flat = np.full((3, 5, 7), value, np.uint8)

    assert (resize_image(flat, 11, 3) == value).all()
