"""The image operations compared with OpenCV's, where it is installed."""

import numpy as np
import pytest

from demitasse.io.data.images.colors import (
    bgr_to_gray,
    bgr_to_hsv,
    bgr_to_lab,
    bgr_to_ycrcb,
    equalize,
    equalize_parts,
    hsv_to_bgr,
    lab_to_bgr,
    ycrcb_to_bgr,
)
from demitasse.io.data.images.resize import interpolate
from demitasse.io.data.transform.photometric import blur, erode

cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")

INTER = {"LINEAR": 1, "AREA": 3, "NEAREST": 0, "CUBIC": 2, "LANCZOS4": 4}


def random_image(height=61, width=83):
    rng = np.random.default_rng(0)
    noise = rng.normal(100, 40, (3, height, width)) + np.linspace(0, 100, width)
    return np.clip(noise, 0, 255).astype(np.uint8)


def opencv(image):
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def ours(image):
    return image.transpose(2, 0, 1)


@pytest.mark.parametrize("mode", INTER)
@pytest.mark.parametrize(
    "sizes", [(61, 83, 30, 41), (30, 40, 64, 91), (50, 70, 37, 90), (60, 80, 30, 20), (3, 2, 9, 9)]
)
def test_resizing(mode, sizes):
    H, W, h, w = sizes
    image = random_image(H, W)

    result = interpolate(image, h, w, mode)

    want = ours(cv2.resize(opencv(image), (w, h), interpolation=INTER[mode]))
    np.testing.assert_allclose(result.astype(int), want.astype(int), atol=1)


@pytest.mark.parametrize(
    ("convert", "code"),
    [
        (bgr_to_ycrcb, "COLOR_BGR2YCrCb"),
        (ycrcb_to_bgr, "COLOR_YCrCb2BGR"),
        (bgr_to_hsv, "COLOR_BGR2HSV"),
        (hsv_to_bgr, "COLOR_HSV2BGR"),
    ],
)
def test_colours(convert, code):
    image = random_image()

    want = ours(cv2.cvtColor(opencv(image), getattr(cv2, code)))

    np.testing.assert_allclose(convert(image).astype(int), want.astype(int), atol=1)


def test_gray_and_lab():
    image = random_image()

    gray = cv2.cvtColor(opencv(image), cv2.COLOR_BGR2GRAY)
    np.testing.assert_allclose(bgr_to_gray(image).astype(int), gray.astype(int), atol=1)

    lab = cv2.cvtColor(opencv(image).astype(np.float32) / 255, cv2.COLOR_BGR2Lab)
    np.testing.assert_allclose(bgr_to_lab(image), ours(lab), atol=0.5)
    np.testing.assert_allclose(lab_to_bgr(bgr_to_lab(image)).astype(int), image, atol=1)
    back = cv2.cvtColor(lab * np.float32([1, 0.5, 0.5]), cv2.COLOR_Lab2BGR) * 255
    half = bgr_to_lab(image) * np.float32([1, 0.5, 0.5])[:, None, None]
    np.testing.assert_allclose(lab_to_bgr(half).astype(int), ours(back).round(), atol=2)


@pytest.mark.parametrize("size", [(64, 64), (61, 83), (64, 83), (9, 9)])
def test_histograms(size):
    plane = random_image(*size)[0]

    np.testing.assert_array_equal(equalize(plane), cv2.equalizeHist(plane))
    want = cv2.createCLAHE(4.0).apply(plane)
    np.testing.assert_allclose(equalize_parts(plane, 4.0).astype(int), want.astype(int), atol=1)


def test_blur_and_erosion():
    image = random_image()

    want = ours(cv2.GaussianBlur(opencv(image), (7, 7), 1.5))
    np.testing.assert_allclose(blur(image).astype(int), want.astype(int), atol=1)

    ellipse = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))
    np.testing.assert_array_equal(erode(image), ours(cv2.erode(opencv(image), ellipse)))
