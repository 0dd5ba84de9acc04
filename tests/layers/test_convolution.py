"""Convolution and Deconvolution, held against a plain sum over taps."""

from itertools import product

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import LayerParameter, NetParameter, parse_text
from demitasse.layers import windows
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
GAUSSIAN = 'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" }'


def layer(fields, *bottoms, kind="Convolution", **options):
    return make_layer(
        f'type: "{kind}" convolution_param {{ {fields} {GAUSSIAN} }}', bottoms, **options
    )


def correlate(x, w, b, stride, pad, dilation, group):
    """Convolution by its definition, for two spatial axes."""
    n, _, h, wide = x.shape
    out, per_group, kh, kw = w.shape
    oh = (h + 2 * pad - dilation * (kh - 1) - 1) // stride + 1
    ow = (wide + 2 * pad - dilation * (kw - 1) - 1) // stride + 1
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    y = np.zeros((n, out, oh, ow)) + b.reshape(-1, 1, 1)
    for m, c, i, j in product(range(out), range(per_group), range(kh), range(kw)):
        channel = m // (out // group) * per_group + c
        for r, s in product(range(oh), range(ow)):
            seen = x[:, channel, r * stride + i * dilation, s * stride + j * dilation]
            y[:, m, r, s] += w[m, c, i, j] * seen
    return y


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("force", ["true", "false"])
def test_convolution_is_a_sum_over_channels_and_taps(stride, pad, dilation, group, force, backend):
    x = RNG.standard_normal((2, 4, 7, 6))
    one = layer(
        f"num_output: 6 kernel_h: 3 kernel_w: 2 stride: {stride} pad: {pad} dilation: {dilation} "
        f"group: {group} force_nd_im2col: {force}",
        x,
        device=backend,
    )

    [y] = one.forward()

    weight, bias = (np.array(blob.data) for blob in one.params)
    want = correlate(x, weight, bias, stride, pad, dilation, group)
    np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(("kernel", "group"), [(1, 1), (3, 1), (3, 2)])
def test_all_taps_without_dilation_see_one_element(kernel, group, phase, backend):
    text = f"""
layer {{ name: "x" type: "Input" top: "x"
  input_param {{ shape {{ dim: 2 dim: 4 dim: 7 dim: 6 }} }} }}
layer {{ name: "c" type: "Convolution" bottom: "x" top: "y" convolution_param {{ num_output: 8
  kernel_size: {kernel} stride: 2 pad: 1 dilation: 0 group: {group} {GAUSSIAN} }} }}"""
    net = Net(text, phase, device=backend)
    x = net.blobs["x"].data[...] = RNG.standard_normal((2, 4, 7, 6))

    net.forward()

    weight, bias = (np.array(blob.data) for blob in net.params["c"])
    want = correlate(x, weight, bias, 2, 1, 0, group)
    np.testing.assert_allclose(net.blobs["y"].data, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fields", ["kernel_size: 3", "kernel_size: 3 stride: 2 pad: 1 group: 2"])
def test_deconvolution_is_the_gradient_of_convolution(fields, backend):
    conv = layer(f"num_output: 4 {fields} bias_term: false", RNG.standard_normal((2, 6, 7, 7)))
    [y] = conv.forward()
    [dx] = conv.backward(y)

    one = layer(f"num_output: 6 {fields} bias_term: false", y, kind="Deconvolution", device=backend)
    one.params[0].data = conv.params[0].data
    [up] = one.forward()

    np.testing.assert_allclose(up, dx, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("num_output: 3 kernel_size: 3", (2, 2, 4, 5)),
        ("num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 2", (2, 2, 4, 5)),
        ("num_output: 2 kernel_size: 2 dilation: 2 pad: 1", (1, 2, 4, 4)),
        ("num_output: 3 kernel_size: 1", (2, 2, 3, 2)),
        ("num_output: 2 kernel_size: 2 bias_term: false", (2, 2, 3, 3)),
        ("num_output: 2 kernel_size: 2", (2, 2, 5)),
        ("num_output: 2 kernel_size: 2 stride: 2", (1, 2, 2, 4, 2)),
        ("num_output: 2 kernel_size: 2 axis: 2", (2, 1, 2, 3, 3)),
        ("num_output: 2 kernel_size: 3 axis: -2", (2, 3, 4)),
        ("num_output: 3 kernel_size: 5", (4, 2)),
    ],
)
def test_gradients(kind, fields, shape, backend):
    text = f'type: "{kind}" convolution_param {{ {fields} {GAUSSIAN} }}'

    expect_gradients(text, RNG.standard_normal(shape), device=backend)


def test_the_names_that_forks_have_for_it():
    x = RNG.standard_normal((2, 4, 5, 5))
    plain = layer("num_output: 8 kernel_size: 3 group: 4", x)
    grouped = layer("num_output: 8 kernel_size: 3 group: 4", x, kind="DepthwiseConvolution")
    every = layer("num_output: 8 kernel_size: 3", x, kind="ConvolutionDepthwise")

    for other in (grouped, every):
        assert other.params[0].shape == (8, 1, 3, 3)
        other.params[0].copy_from(plain.params[0])
        other.params[1].copy_from(plain.params[1])
        np.testing.assert_array_equal(other.forward()[0], plain.forward()[0])


def test_gradients_with_several_bottoms(backend):
    text = f'type: "Convolution" convolution_param {{ num_output: 2 kernel_size: 2 {GAUSSIAN} }}'

    expect_gradients(text, *RNG.standard_normal((2, 1, 2, 3, 3)), device=backend)


def test_the_work_may_be_cut_into_groups_of_images(monkeypatch, backend):
    x = RNG.standard_normal((5, 2, 4, 4))
    whole = layer("num_output: 3 kernel_size: 3", x, device=backend)
    dy = np.ones_like(whole.forward()[0])
    want = (*whole.forward(), *whole.backward(dy), np.array(whole.params[0].diff))
    monkeypatch.setattr(windows, "CHUNK", 2 * 18 * 4)

    cut = layer("num_output: 3 kernel_size: 3", x, device=backend)
    cut.forward()
    got = (*cut.forward(), *cut.backward(dy), np.array(cut.params[0].diff))

    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_an_empty_batch_gives_an_empty_top(backend):
    one = layer("num_output: 3 kernel_size: 3", np.zeros((0, 2, 4, 4)), device=backend)

    [y] = one.forward()
    one.backward(y)

    assert y.shape == (0, 3, 2, 2)
    assert not np.any(one.params[0].diff)


def test_a_frozen_weight_gets_no_gradient():
    one = layer("num_output: 2 kernel_size: 2", RNG.standard_normal((1, 2, 3, 3)))
    one.layer.set_param_propagate_down(0, False)
    [y] = one.forward()

    one.backward(np.ones_like(y))

    assert not np.any(one.params[0].diff)
    np.testing.assert_allclose(one.params[1].diff, [4, 4])


@pytest.mark.parametrize(
    ("fields", "shapes", "error", "code", "mentions"),
    [
        (
            "kernel_size: 3",
            [(1, 2, 4, 4)],
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            "convolution_param.num_output",
        ),
        (
            "num_output: 2",
            [(1, 2, 4, 4)],
            ConfigError,
            ErrorCode.COUNT_MISMATCH,
            "convolution_param.kernel_size",
        ),
        (
            "num_output: 2 kernel_size: 3 group: 2",
            [(1, 3, 4, 4)],
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            ["convolution_param.group", "3"],
        ),
        (
            "num_output: 3 kernel_size: 3 group: 2",
            [(1, 2, 4, 4)],
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            ["convolution_param.group", "num_output", "3"],
        ),
        (
            "num_output: 3 kernel_size: 3 group: 0",
            [(1, 2, 4, 4)],
            ConfigError,
            ErrorCode.OUT_OF_RANGE,
            "convolution_param.group",
        ),
        ("num_output: 3 kernel_size: 3 axis: 4", [(1, 2, 4, 4)], ShapeError, None, "axis 4"),
        ("num_output: 3 kernel_size: 5", [(1, 2, 4, 4)], ShapeError, None, ["(5, 5)", "(4, 4)"]),
        (
            "num_output: 3 kernel_size: 3",
            [(1, 2, 4, 4), (1, 2, 4, 5)],
            ShapeError,
            ErrorCode.SHAPE_MISMATCH,
            "Convolution",
        ),
    ],
)
def test_refusals(fields, shapes, error, code, mentions):
    with expect_error(error, code, mentions=mentions):
        layer(fields, *(np.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 2, 4, 4, 1)])
def test_a_bottom_that_does_not_fit_the_weight_is_refused(shape):
    one = layer("num_output: 3 kernel_size: 3", np.zeros((1, 2, 4, 4)))

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["Convolution", "2 channels"]):
        one.forward(np.zeros(shape))


def test_stored_parameters_must_be_what_the_layer_has():
    param = LayerParameter(type="Convolution")
    param.convolution_param.num_output = 2
    param.convolution_param.kernel_size.append(3)
    weight = param.blobs.add()
    weight.shape.dim.extend([2, 2, 3, 3])
    weight.data.extend([0.5] * 36)

    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, got=1, expected=2):
        make_layer(param, [np.zeros((1, 2, 4, 4))])

    param.convolution_param.bias_term = False
    one = make_layer(param, [np.ones((1, 2, 4, 4))])
    np.testing.assert_allclose(one.forward()[0], 9.0)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_in_place_it_computes_but_has_no_gradient(kind, optimize):
    text = f"""
        force_backward: true
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 dim: 4
            dim: 4 }} }} }}
        layer {{ name: "c" type: "{kind}" bottom: "x" top: "x"
            convolution_param {{ num_output: 3 kernel_size: 1 {GAUSSIAN} }} }}"""
    net = Net(parse_text(text, NetParameter), "TRAIN", device="numpy", optimize=optimize, seed=1)
    x = RNG.standard_normal((2, 3, 4, 4))
    net.blobs["x"].data = x

    net.forward()

    weight, bias = (np.array(blob.data) for blob in net.params["c"])
    weight = weight[:, :, 0, 0] if kind == "Convolution" else weight[:, :, 0, 0].T
    want = np.einsum("mc,nchw->nmhw", weight, x) + bias.reshape(-1, 1, 1)
    np.testing.assert_allclose(net.blobs["x"].data, want, rtol=1e-4, atol=1e-5)
    with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
        net.backward()
