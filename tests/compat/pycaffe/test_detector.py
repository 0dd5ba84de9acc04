"""Windows of images in, probabilities out: ``caffe.Detector``."""

import sys
import types

import numpy as np
import pytest
from expect_error import expect_error
from PIL import Image

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import io

NET = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean"
        pooling_param { pool: AVE global_pooling: true } }
"""

MEAN = np.array([10.0, 20.0, 30.0])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A net that averages each channel, in a folder with an image."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")
    pixels = np.random.default_rng(7).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return "net.prototxt", "w.caffemodel"


def test_windows_are_warped_to_the_input(files):
    image = io.load_image("image.png")
    windows = np.array([[0, 0, 20, 30], [2, 3, 10, 11], [5, 5, 6, 7]])

    found = caffe.Detector(*files, raw_scale=255).detect_windows([("image.png", windows)])

    assert [d["filename"] for d in found] == ["image.png"] * 3
    for detection, window in zip(found, windows, strict=True):
        top, left, bottom, right = window
        part = io.resize_image(image[top:bottom, left:right], (8, 8)) * 255
        np.testing.assert_array_equal(detection["window"], window)
        np.testing.assert_allclose(detection["prediction"].ravel(), part.mean((0, 1)), rtol=1e-4)


def test_no_windows_no_detections(files):
    assert caffe.Detector(*files).detect_windows([("image.png", [])]) == []


def test_a_border_shows_what_is_around_the_window(files):
    detector = caffe.Detector(*files, context_pad=2)
    image = io.load_image("image.png")

    crop = detector.crop(image, np.array([8, 10, 11, 13]))

    # 4 x 4 pixels, counted with both ends, are the inner half of the input: 8 x 8 around them
    assert crop.shape == (8, 8, 3)
    np.testing.assert_allclose(crop, io.resize_image(image[6:14, 8:16], (8, 8)), atol=1e-6)


def test_beyond_the_edges_is_the_mean(files):
    detector = caffe.Detector(
        *files, mean=MEAN, raw_scale=100, channel_swap=(2, 1, 0), context_pad=2
    )
    image = np.zeros((20, 30, 3), np.float32)

    crop = detector.crop(image, [0, 0, 3, 3])

    red_first = MEAN[::-1] / 100
    np.testing.assert_allclose(crop[:2], np.broadcast_to(red_first, (2, 8, 3)), rtol=1e-6)
    np.testing.assert_allclose(crop[:, :2], np.broadcast_to(red_first, (8, 2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(crop[2:, 2:], 0)


def test_the_border_can_be_changed(files):
    detector = caffe.Detector(*files, context_pad=2)
    image = io.load_image("image.png")

    detector.configure_crop(None)

    np.testing.assert_array_equal(detector.crop(image, [1, 2, 5, 9]), image[1:5, 2:9])
    np.testing.assert_array_equal(detector.crop_dims, [8, 8, 3])


def test_windows_outside_of_the_image_are_refused(files):
    detector = caffe.Detector(*files, context_pad=2)

    with expect_error(ValueError, mentions="[50, 10, 60, 20]"):
        detector.crop(io.load_image("image.png"), [50, 10, 60, 20])


def test_selective_search_proposes_windows(files, monkeypatch):
    asked = []

    def get_windows(names, cmd):
        asked.append((names, cmd))
        return [[[0, 0, 8, 8], [4, 4, 16, 16]] for _ in names]

    package = types.SimpleNamespace(get_windows=get_windows)
    monkeypatch.setitem(sys.modules, "selective_search_ijcv_with_python", package)

    found = caffe.Detector(*files).detect_selective_search(["image.png"])

    ((names, cmd),) = asked
    assert names[0].endswith("/image.png")
    assert cmd == "selective_search_rcnn"
    assert [d["window"] for d in found] == [[0, 0, 8, 8], [4, 4, 16, 16]]


def test_selective_search_is_a_package_of_its_own(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "selective_search_ijcv_with_python", None)

    with expect_error(ImportError, mentions="detect_windows"):
        caffe.Detector(*files).detect_selective_search(["image.png"])
