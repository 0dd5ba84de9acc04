"""The kernel that resizes images gives every bit that numpy gives, and OpenCV."""

import ctypes
import mmap

import numpy as np
import pytest
from needs import needs

from demitasse.backends.kernels.language import status
from demitasse.io.data.images.resize import portable, resize_image

pytestmark = pytest.mark.skipif(not status().ready, reason=str(status()))

SIZES = [
    (375, 500, 256, 256),
    (61, 83, 30, 41),
    (30, 40, 64, 91),
    (50, 70, 37, 90),
    (3, 2, 9, 17),
    (1, 1, 5, 7),
    (7, 1, 3, 16),
    (1, 9, 1, 40),
    (40, 33, 1, 1),
    (17, 19, 33, 48),
]


def photo(channels, height, width):
    return np.random.default_rng(0).integers(0, 256, (channels, height, width), np.uint8)


def as_decoded(image):
    """The same image, its channels side by side in memory."""
    return np.ascontiguousarray(image.transpose(1, 2, 0)).transpose(2, 0, 1)


LAYOUTS = {
    "planes": np.ascontiguousarray,
    "side by side": as_decoded,
    "blue first": lambda image: as_decoded(image[::-1])[::-1],
    "mirrored": lambda image: as_decoded(image[:, :, ::-1])[:, :, ::-1],
    "upside down": lambda image: as_decoded(image[:, ::-1])[:, ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_bit_is_that_of_numpy(sizes, channels, layout):
    H, W, height, width = sizes
    image = LAYOUTS[layout](photo(channels, H, W))

    resized = resize_image(image, height, width)

    np.testing.assert_array_equal(resized, portable(image, height, width))


@pytest.mark.parametrize("step", [0.5, 1.7])
def test_the_step_may_be_given(step):
    image = as_decoded(photo(3, 20, 30))

    resized = resize_image(image, 24, 24, step)

    np.testing.assert_array_equal(resized, portable(image, 24, 24, step))


def test_a_part_of_an_image_is_resized_alone():
    image = as_decoded(photo(3, 40, 50))
    part = image[:, 11:30, 7:40]

    resized = resize_image(part, 25, 31)

    np.testing.assert_array_equal(resized, resize_image(part.copy(), 25, 31))


@needs("mprotect")
def test_nothing_is_read_behind_the_last_pixel():
    # given an image that ends where the process's memory does
    H, W = 64, 64
    size = H * W * 3
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.uint8)
    forbid(memory[size:])
    image = memory[:size].reshape(H, W, 3).transpose(2, 0, 1)

    resized = resize_image(image, 100, 100)

    assert not resized.any()


def forbid(page):
    """Let the process be killed that reads from a page."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = ctypes.c_void_p(page.ctypes.data)
    assert libc.mprotect(at, ctypes.c_size_t(len(page)), 0) == 0


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_bit_is_opencvs(sizes, channels):
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    H, W, height, width = sizes
    image = as_decoded(photo(channels, H, W))

    resized = resize_image(image, height, width)

    want = cv2.resize(np.ascontiguousarray(image.transpose(1, 2, 0)), (width, height))
    np.testing.assert_array_equal(resized, want.reshape(height, width, channels).transpose(2, 0, 1))
