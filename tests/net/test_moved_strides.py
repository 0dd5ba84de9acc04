"""Nets that do not compute the pixels that nobody reads."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError
from demitasse.io.proto import NetParameter, parse_text

NET = """
input: "x" input_shape { dim: 2 dim: 4 dim: 9 dim: 8 }
layer { name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param {
  num_output: 16 kernel_size: 1 weight_filler { type: "msra" } } }
layer { name: "b" type: "Convolution" bottom: "a" top: "b" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "b" top: "b" }
layer { name: "relu" type: "ReLU" bottom: "b" top: "b" }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
layer { name: "relu_sum" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "c" type: "Convolution" bottom: "sum" top: "c" convolution_param {
  num_output: 5 kernel_size: 1 stride: 2 weight_filler { type: "msra" } } }
layer { name: "d" type: "Convolution" bottom: "sum" top: "d" convolution_param {
  num_output: 3 kernel_size: 1 stride: 2 weight_filler { type: "msra" } } }
"""


def make(device="numpy", **options):
    net = Net(parse_text(NET, NetParameter), "TEST", device=device, seed=3, **options)
    mean, variance, count = net.params["bn"]
    mean.data[...], variance.data[...], count.data[...] = 0.1, 0.5, 1
    return net


def outputs(net, x):
    net.blobs["x"].reshape(*x.shape)
    net.reshape()
    net.blobs["x"].data[...] = x
    net.forward()
    return {name: net.blobs[name].data.copy() for name in net.outputs}


@pytest.mark.parametrize("size", [(9, 8), (6, 7), (1, 1)])
def test_the_outputs_are_the_same(size, backend):
    x = np.random.default_rng(0).normal(size=(2, 4, *size)).astype(np.float32)

    thin, whole = outputs(make(backend, keep_blobs="outputs"), x), outputs(make(backend), x)

    for name, values in whole.items():
        np.testing.assert_allclose(thin[name], values, rtol=1e-4, atol=1e-5)


def test_a_sum_may_be_in_place(backend):
    pool = """
layer { name: "pool" type: "Pooling" bottom: "a" top: "p" pooling_param { kernel_size: 1 } }
layer { name: "b" """
    text = NET.replace('bottom: "a" bottom: "b" top: "sum"', 'bottom: "p" bottom: "b" top: "p"')
    text = text.replace('\nlayer { name: "b"', pool).replace('"sum"', '"p"')
    nets = [
        Net(parse_text(text, NetParameter), "TEST", device=backend, seed=3, keep_blobs=kept)
        for kept in ("outputs", None)
    ]
    x = np.random.default_rng(0).normal(size=(2, 4, 9, 8)).astype(np.float32)

    thin, whole = (outputs(net, x) for net in nets)

    for name, values in whole.items():
        np.testing.assert_allclose(thin[name], values, rtol=1e-4, atol=1e-5)


def test_nan_stays(backend):
    x = np.random.default_rng(0).normal(size=(2, 4, 9, 8)).astype(np.float32)
    x[0, 1, 4, 4] = np.nan

    thin, whole = outputs(make(backend, keep_blobs="outputs"), x), outputs(make(backend), x)

    assert np.isnan(thin["c"][0, :, 2, 2]).all()
    assert (np.isnan(thin["c"]) <= np.isnan(whole["c"])).all()


@pytest.mark.parametrize(
    "options", [{}, {"keep_blobs": "sum"}, {"keep_blobs": "outputs", "optimize": False}]
)
def test_blobs_that_can_be_read_and_portable_code_are_as_the_net_says(options):
    net = make(**options)

    assert net.blobs["sum"].shape == (2, 16, 9, 8)
    assert net.layer_names == make().layer_names


def test_the_parameters_are_those_of_the_net():
    whole, thin = make(), make(keep_blobs="outputs")

    assert list(thin.params) == list(whole.params)
    assert thin.blobs["sum"].shape == (2, 16, 5, 4)
    thin.share_trained_layers_with(whole)
    np.testing.assert_array_equal(thin.clone().params["c"][0].data, whole.params["c"][0].data)


def test_a_fault_is_told_with_its_line(tmp_path):
    text = NET.replace("num_output: 3", "num_output: 0")
    (tmp_path / "net.prototxt").write_text(text)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if 'name: "d"' in one)

    with expect_error(ConfigError, mentions=["'d'", f"net.prototxt:{line}]"]):
        Net(tmp_path / "net.prototxt", "TEST", keep_blobs="outputs")
