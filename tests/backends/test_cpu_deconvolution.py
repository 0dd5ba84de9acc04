"""Deconvolutions on device cpu, most of them without gradients."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

DECONVOLUTION = """
input: "x" input_shape {{ dim: 2 dim: {maps} dim: 5 dim: 4 }} force_backward: {training}
layer {{ name: "y" type: "Deconvolution" bottom: "x" top: "y" convolution_param {{
  num_output: {channels} kernel_size: {size} stride: 2 pad: {pad}
  weight_filler {{ type: "msra" }} bias_filler {{ type: "uniform" }} }} }}
"""


def make_pair(channels, training="false", maps=8, size=4):
    """A net and the same one in portable code."""
    window = {"size": size, "pad": size // 2 - 1}
    text = DECONVOLUTION.format(channels=channels, training=training, maps=maps, **window)
    message = parse_text(text, NetParameter)
    return [
        Net(message, "TEST", device="cpu", seed=1, optimize=lowered) for lowered in (True, False)
    ]


@pytest.fixture
def pair():
    return make_pair(3)


def results(pair, x):
    for net in pair:
        net.blobs["x"].mutable_cpu_data()[...] = x
        net.forward()
    return [net.blobs["y"].cpu_data() for net in pair]


def test_few_channels_are_added_up_from_products_of_pixels(pair):
    x = np.random.default_rng(0).normal(size=(2, 8, 5, 4))

    got, want = results(pair, x)

    code = pair[0].plan.entries[-1].executed_step.code
    assert "overlaps" in code
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [3, 5, 7])
def test_windows_of_parts_of_strides_are_added_up_too(size):
    pair = make_pair(3, size=size)
    x = np.random.default_rng(0).normal(size=(2, 8, 5, 4))

    got, want = results(pair, x)

    code = pair[0].plan.entries[-1].executed_step.code
    assert "overlaps" in code
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_new_parameters_are_followed(pair):
    x = np.random.default_rng(0).normal(size=(2, 8, 5, 4))
    results(pair, x)

    for net in pair:
        for blob in net.layers[-1].blobs:
            blob.mutable_cpu_data()[...] *= -2
    got, want = results(pair, x)

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_nan_and_infinity_reach_the_same_pixels(pair):
    x = np.random.default_rng(0).normal(size=(2, 8, 5, 4))
    x[0, 3, 0, 0], x[1, 2, 2, 1] = np.nan, np.inf

    got, want = results(pair, x)

    assert np.isnan(want).any()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.parametrize("training", ["true", "false"])
@pytest.mark.parametrize("channels", [16, 32, 40])
@pytest.mark.parametrize("size", [2, 4])
def test_a_bias_is_added_behind_implicit_gemm(size, channels, training):
    nets = make_pair(channels, training, size=size)

    got, want = results(nets, np.random.default_rng(0).normal(size=(2, 8, 5, 4)))

    assert "numpy" not in nets[0].plan.entries[-1].executed_step.code
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", ["true", "false"])
@pytest.mark.parametrize(("maps", "channels"), [(256, 64), (512, 32)])
def test_a_bias_is_added_once_to_what_is_summed_in_parts(maps, channels, training):
    nets = make_pair(channels, training, maps)

    got, want = results(nets, np.random.default_rng(0).normal(size=(2, maps, 5, 4)))

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", ["true", "false"])
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("channels", [16, 32, 40])
def test_windows_of_no_whole_strides_and_a_bias_run_by_implicit_gemm(channels, size, training):
    nets = make_pair(channels, training, maps=32, size=size)
    x = np.random.default_rng(0).normal(size=(2, 32, 5, 4))

    for _ in range(2):
        got, want = results(nets, x)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        for net in nets:
            net.layers[-1].blobs[1].mutable_cpu_data()[...] += 1.5

    assert "numpy" not in nets[0].plan.entries[-1].executed_step.code


GROUPED = """
input: "x" input_shape {{ dim: 2 dim: {channels} dim: 9 dim: 7 }} force_backward: {training}
layer {{ name: "y" type: "Deconvolution" bottom: "x" top: "y" convolution_param {{
  num_output: {channels} group: {channels} kernel_size: {size} stride: {stride} pad: {pad}
  weight_filler {{ type: "msra" }} bias_filler {{ type: "uniform" }} bias_term: {bias} }} }}
"""


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("channels", [2, 7, 16, 21, 40])
@pytest.mark.parametrize(("size", "stride"), [(4, 2), (8, 4), (3, 2), (5, 3), (3, 1)])
@pytest.mark.parametrize("training", ["true", "false"])
def test_channels_by_themselves_are_turned_depthwise_convolutions(
    training, size, stride, channels, bias
):
    text = GROUPED.format(
        training=training, channels=channels, size=size, stride=stride, pad=size // 4, bias=bias
    )
    message, rng = parse_text(text, NetParameter), np.random.default_rng(0)
    nets = [Net(message, "TEST", device="cpu", seed=1, optimize=fast) for fast in (True, False)]
    x, found = rng.normal(size=nets[0].blobs["x"].shape), []
    dy = rng.normal(size=nets[0].blobs["y"].shape)
    for net in nets:
        for _ in range(3):  # the last ones are replayed
            net.blobs["x"].mutable_cpu_data()[...] = x
            net.forward()
            if training == "true":
                net.clear_param_diffs()
                net.blobs["y"].mutable_cpu_diff()[...] = dy
                net.backward()
            for blob in net.layers[-1].blobs:
                blob.mutable_cpu_data()[...] *= 1.5
        grads = [net.blobs["x"], *net.layers[-1].blobs] if training == "true" else []
        found.append([net.blobs["y"].cpu_data(), *(blob.cpu_diff() for blob in grads)])

    step = nets[0].plan.entries[-1].executed_step
    assert "depthwise" in step.code
    assert training == "false" or "depthwise" in step.backward_code
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_values_without_images_are_deconvolved_like_rows():
    text = """
      input: "x" input_shape { dim: 6 } force_backward: true
      layer { name: "y" type: "Deconvolution" bottom: "x" top: "y" convolution_param {
        axis: 0 num_output: 4 weight_filler { type: "msra" } } }
    """
    message = parse_text(text, NetParameter)
    fast, portable = (Net(message, "TEST", device="cpu", seed=1, optimize=on) for on in (1, 0))
    x = np.random.default_rng(0).normal(size=6)

    got, want = results((fast, portable), x)

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
