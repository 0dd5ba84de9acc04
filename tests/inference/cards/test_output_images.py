"""Task ``image``: the net's output is an image."""

import base64

import numpy as np
import pytest
from expect_error import expect_error
from PIL import Image as Pillow

import demitasse as dm
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.inference.cards import Image
from demitasse.inference.cards.predictions import draw_prediction
from demitasse.io.data.images.codecs import decode_image
from demitasse.io.data.images.colors import bgr_to_lab, bgr_to_luma
from demitasse.net import Net

RNG = np.random.default_rng(5)

PIXELS = RNG.integers(0, 256, (6, 8, 3), np.uint8)

NET = """
layer {{ name: "data" type: "Input" top: "data"
        input_param {{ shape {{ dim: 1 dim: {inputs} dim: {h} dim: {w} }} }} }}
layer {{ name: "made" type: "{type}" bottom: "data" top: "made"
        convolution_param {{ num_output: {outputs} kernel_size: {size} stride: {size} }} }}
"""


@pytest.fixture
def load(tmp_path):
    """Load a model whose net multiplies the channels of each pixel by a matrix."""

    def make(matrix, preprocess, image="", *, shape=(6, 8), factor=1, bias=0.0):
        outputs, inputs = np.shape(matrix)
        kind = "Deconvolution" if factor > 1 else "Convolution"
        text = NET.format(
            inputs=inputs, outputs=outputs, h=shape[0], w=shape[1], type=kind, size=factor
        )
        (tmp_path / "net.prototxt").write_text(text)
        with Net(tmp_path / "net.prototxt", "TEST", device="numpy") as net:
            weights, biases = net.params["made"]
            values = np.array(matrix, np.float32)[:, :, None, None]
            values = values.swapaxes(0, 1) if factor > 1 else values
            weights.data[...] = np.broadcast_to(values, weights.shape)
            biases.data[...] = bias
            net.save(tmp_path / "net.caffemodel")
        (tmp_path / "model.toml").write_text(
            '[model]\nnet = "net.prototxt"\nweights = "net.caffemodel"\ntask = "image"\n'
            f"[preprocess]\n{preprocess}\n[image]\n{image}\n"
        )
        return dm.load_model(tmp_path, device="numpy")

    return make


@pytest.mark.parametrize("channels", ["bgr", "rgb"])
def test_an_output_like_the_input_is_the_image(load, channels):
    how = f'channels = "{channels}"\nmean = [10, 20, 30]\nscale = 0.01\nresize = "none"'

    [answer] = load(np.eye(3), how).predict(PIXELS)

    np.testing.assert_array_equal(answer.pixels, PIXELS)


def test_an_output_has_a_mean_and_scale_of_its_own(load):
    how = 'channels = "bgr"\nresize = "none"'

    [answer] = load(np.eye(3), how, 'channels = "rgb"\nmean = 1\nscale = 2').predict(PIXELS)

    np.testing.assert_array_equal(answer.pixels, np.rint(PIXELS[:, :, ::-1] / 2 + 1))


def test_a_gray_image_has_no_channels(load):
    [answer] = load([[1]], 'channels = "gray"\nresize = "none"').predict(PIXELS[:, :, 0])

    np.testing.assert_array_equal(answer.pixels, PIXELS[:, :, 0])
    assert draw_prediction(PIXELS.transpose(2, 0, 1), answer).shape == (1, 6, 8)


def test_images_of_any_size_keep_their_size(load):
    predictor = load(np.eye(3), 'channels = "bgr"\nresize = "none"')

    found = predictor.predict([PIXELS, PIXELS[:4], PIXELS[:, :3]])

    assert [one.pixels.shape for one in found] == [(6, 8, 3), (4, 8, 3), (6, 3, 3)]


@pytest.mark.parametrize("factor", [1, 2])
def test_warped_images_get_their_proportions_back(load, factor):
    image = np.full((9, 20, 3), 7, np.uint8)

    [answer] = load(np.eye(3), 'channels = "bgr"', factor=factor).predict(image)

    np.testing.assert_array_equal(answer.pixels, np.full((9 * factor, 20 * factor, 3), 7))


def test_luma_gets_the_chroma_of_the_image(load):
    [same] = load([[1]], 'channels = "y"\nscale = 0.5\nresize = "none"').predict(PIXELS)
    [brighter] = load([[1]], 'channels = "y"\nresize = "none"', bias=10).predict(PIXELS // 2)

    np.testing.assert_array_equal(same.pixels, PIXELS)
    luma = [bgr_to_luma(one.planes) for one in (brighter, Image(PIXELS // 2))]
    np.testing.assert_allclose(luma[0], luma[1] + 10, atol=0.5)


def test_luma_that_is_enlarged_has_an_enlarged_image(load):
    image = np.repeat(np.repeat(PIXELS[:2, :2], 20, axis=0), 20, axis=1)

    [answer] = load([[1]], 'channels = "y"\nresize = "none"', factor=2).predict(image)
    before = 'channels = "y"\nresize = "factor"\nsize = 2'
    [other] = load([[1]], before).predict(image)

    assert answer.pixels.shape == other.pixels.shape == (80, 80, 3)
    np.testing.assert_allclose(answer.pixels[10, 10], PIXELS[0, 0], atol=1)
    np.testing.assert_allclose(other.pixels[70, 70], PIXELS[1, 1], atol=1)


@pytest.mark.parametrize("size", [(1500, 1500), (2, 5000)])
def test_images_that_would_become_too_large_are_refused(load, size):
    predictor = load(np.eye(3), 'channels = "bgr"\nresize = "factor"\nsize = 16')

    with expect_error(DataError, ErrorCode.LIMIT):
        predictor.predict(np.zeros(size, np.uint8))


def test_colours_get_the_lightness_of_the_image(load):
    gray = np.repeat(PIXELS[:, :, :1] // 2 + 60, 3, axis=2)
    predictor = load([[0], [0]], 'channels = "l"\nmean = 50\nsize = 4', bias=[20, -15])

    [answer] = predictor.predict(gray)

    lightness, a, b = bgr_to_lab(answer.planes)
    assert answer.pixels.shape == gray.shape
    np.testing.assert_allclose(lightness, bgr_to_lab(Image(gray).planes)[0], atol=0.6)
    np.testing.assert_allclose(a, 20, atol=1.5)
    np.testing.assert_allclose(b, -15, atol=1.5)


@pytest.mark.parametrize("channels", ["bgr", "y", "l"])
def test_values_that_are_not_finite_are_pixels(load, channels):
    outputs = {"bgr": np.eye(3), "y": [[1]], "l": [[1], [1]]}[channels]
    predictor = load(outputs, f'channels = "{channels}"\nresize = "none"\nscale = 1e-30')

    for value in (np.nan, np.inf, -np.inf, 3e38):
        predictor.net.params["made"][1].data[...] = value
        with np.errstate(invalid="ignore"):
            [answer] = predictor.predict(PIXELS)
        assert answer.pixels.shape == PIXELS.shape


def test_an_image_in_json_is_a_file(load):
    [answer] = load(np.eye(3), 'channels = "bgr"\nresize = "none"').predict(PIXELS)

    found = answer.as_dict()["result"]

    assert (found["width"], found["height"]) == (8, 6)
    np.testing.assert_array_equal(decode_image(base64.b64decode(found["png"])), answer.planes)


def test_an_output_with_other_channels_is_refused(load):
    predictor = load(np.ones((2, 3)), 'channels = "bgr"\nresize = "none"')

    with expect_error(ConfigError, ErrorCode.SHAPE_MISMATCH, task="image", got=(1, 2, 6, 8)):
        predictor.predict(Pillow.fromarray(PIXELS))
