"""What holds of the image operations whatever another library says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from demitasse.io.data.images.colors import (
    bgr_to_hsv,
    bgr_to_lab,
    bgr_to_ycrcb,
    equalize,
    equalize_parts,
    hsv_to_bgr,
)
from demitasse.io.data.images.colors import ycrcb_to_bgr as from_ycrcb
from demitasse.io.data.images.resize import MODES, interpolate
from demitasse.io.data.transform.photometric import blur, erode, recompress
from demitasse.io.data.transform.random import AUGMENT_WORDS, Choice, Draws

SIDES = st.integers(1, 12)


@st.composite
def images(draw, channels=3):
    return draw(arrays(np.uint8, (channels, draw(SIDES), draw(SIDES))))


@given(images())
def test_colours_come_back_within_rounding(image):
    hsv = bgr_to_hsv(image)

    assert hsv[0].max() < 180
    distance = np.abs(hsv_to_bgr(hsv).astype(int) - image)
    assert distance.max() <= 5  # hues are steps of two degrees
    assert np.abs(from_ycrcb(bgr_to_ycrcb(image)).astype(int) - image).max() <= 2


def test_colours_that_are_known():
    blue, white, gray = np.eye(3)[0] * 255, np.full(3, 255), np.full(3, 119)
    image = np.stack([blue, white, gray], 1).astype(np.uint8)[:, None]  # (3, 1, 3)

    hsv, lab = bgr_to_hsv(image)[:, 0].T, bgr_to_lab(image)[:, 0].T

    assert hsv.tolist() == [[120, 255, 255], [0, 0, 255], [0, 0, 119]]
    np.testing.assert_allclose(lab[0], [32.30, 79.19, -107.86], atol=0.02)
    np.testing.assert_allclose(lab[1:], [[100, 0, 0], [50.03, 0, 0]], atol=0.02)


@given(images(), SIDES, SIDES, st.sampled_from(MODES))
def test_a_flat_image_stays_flat_in_any_size(image, height, width, mode):
    image[...] = image[:, :1, :1]

    resized = interpolate(image, height, width, mode)

    assert resized.shape == (3, height, width)
    assert (resized == image[:, :1, :1]).all()


@given(images(), SIDES, SIDES)
def test_area_keeps_the_mean_where_it_shrinks(image, height, width):
    h, w = min(height, image.shape[1]), min(width, image.shape[2])

    resized = interpolate(image, h, w, "AREA")

    np.testing.assert_allclose(resized.mean((1, 2)), image.mean((1, 2)), atol=0.51)


@given(images())
def test_nothing_gets_brighter_by_erosion(image):
    eroded = erode(image)

    assert (eroded <= image).all()
    assert (eroded.min((1, 2)) == image.min((1, 2))).all()


@given(images())
def test_a_blur_stays_between_the_extremes(image):
    blurred = blur(image)

    assert (blurred.max((1, 2)) <= image.max((1, 2))).all()
    assert (blurred.min((1, 2)) >= image.min((1, 2))).all()


@given(images(channels=1))
def test_equalizing_keeps_the_order_of_levels(image):
    plane = image[0]

    spread = equalize(plane)

    order = np.argsort(plane, axis=None, kind="stable")
    assert (np.diff(spread.ravel()[order].astype(int)) >= 0).all()
    if plane.min() < plane.max():
        assert (spread.min(), spread.max()) == (0, 255)
    assert equalize_parts(plane, 4.0).shape == plane.shape


@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_of_an_image_is_nearly_that_image(channels):
    image = np.broadcast_to(np.linspace(0, 200, 32), (channels, 32, 32)).astype(np.uint8)

    good, bad = recompress(image, 95), recompress(image, 1)

    assert good.shape == bad.shape == image.shape
    np.testing.assert_allclose(good.astype(int), image, atol=4)
    assert np.abs(bad.astype(int) - image).mean() > np.abs(good.astype(int) - image).mean()


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_draws_stay_in_their_range(word, count):
    draws = Draws(np.full(AUGMENT_WORDS, word, np.uint32))

    assert 0 <= draws.share(Choice.HUE) < 1
    assert draws.happens(Choice.NOISE, 1)
    assert not draws.happens(Choice.NOISE, 0)
    assert 0 <= draws.one_of(Choice.INTERPOLATION, count) < count
    assert -3 <= draws.between(Choice.HUE_DELTA, -3, 4) <= 4
    places = draws.indices(Choice.PIXELS, 20, count)
    assert places.shape == (20,)
    assert places.max() < count
