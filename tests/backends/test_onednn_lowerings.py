"""Every lowering of the oneDNN backend against the portable code, over many geometries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowered import build, expect_same, layer, net

from demitasse.backends.onednn import status

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))


def conv(name, bottom, top, m, rest=""):
    return layer(
        name, "Convolution", bottom, top, f"convolution_param {{ num_output: {m} {rest} }}"
    )


def ip(bottom, top, m):
    return layer(top, "InnerProduct", bottom, top, f"inner_product_param {{ num_output: {m} }}")


sizes = st.integers(1, 4)


@given(
    n=st.integers(1, 3),
    group=st.integers(1, 3),
    c=st.integers(1, 4),
    m=st.integers(1, 6),
    kernel=st.tuples(sizes, sizes),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
)
def test_convolution_is_the_portable_one(n, group, c, m, kernel, stride, pad, dilation, bias):
    rest = (
        f"group: {group} kernel_h: {kernel[0]} kernel_w: {kernel[1]} "
        f"stride_h: {stride[0]} stride_w: {stride[1]} pad_h: {pad[0]} pad_w: {pad[1]} "
        f"dilation: {dilation} bias_term: {str(bias).lower()}"
    )

    expect_same(net(conv("conv", "x", "y", m * group, rest), shape=(n, c * group, 9, 8)), ["conv"])


@given(
    group=st.integers(1, 2),
    c=st.integers(1, 5),
    m=st.integers(1, 5),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    pad=st.integers(0, 1),
    bias=st.booleans(),
)
def test_deconvolution_is_the_portable_one(group, c, m, kernel, stride, pad, bias):
    pad = min(pad, (kernel - 1) // 2)
    param = (
        f"convolution_param {{ num_output: {m * group} group: {group} kernel_size: {kernel} "
        f"stride: {stride} pad: {pad} bias_term: {str(bias).lower()} }}"
    )
    deconv = layer("deconv", "Deconvolution", "x", "y", param)

    expect_same(net(deconv, shape=(2, c * group, 5, 4)))


@pytest.mark.parametrize("spatial", [(9,), (5, 6, 4)], ids=["1 axis", "3 axes"])
def test_convolution_over_other_numbers_of_axes(spatial):
    text = net(conv("conv", "x", "y", 5, "kernel_size: 3 pad: 1"), shape=(2, 4, *spatial))

    expect_same(text, ["conv"])


@given(
    rows=st.integers(1, 40),
    k=st.integers(1, 50),
    m=st.integers(1, 40),
    bias=st.booleans(),
    transpose=st.booleans(),
)
def test_inner_product_is_the_portable_one(rows, k, m, bias, transpose):
    param = (
        f"inner_product_param {{ num_output: {m} bias_term: {str(bias).lower()} "
        f"transpose: {str(transpose).lower()} }}"
    )

    expect_same(
        net(layer("ip", "InnerProduct", "x", "y", param), shape=(rows, k)),
        [] if transpose else ["ip"],
    )


@given(
    method=st.sampled_from(["MAX", "AVE"]),
    c=st.sampled_from([1, 3, 16, 20]),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    pad=st.integers(0, 2),
)
def test_pooling_is_the_portable_one(method, c, size, kernel, stride, pad):
    pad = min(pad, kernel - 1)
    param = f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad} }}"

    expect_same(net(layer("pool", "Pooling", "x", "y", param), shape=(2, c, *size)))


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_pooling_that_onednn_can_is_lowered(method):
    param = f"pooling_param {{ pool: {method} kernel_size: 3 stride: 2 }}"

    expect_same(net(layer("pool", "Pooling", "x", "y", param), shape=(2, 16, 8, 8)), ["pool"])


@given(
    c=st.sampled_from([16, 32, 48]),
    size=st.sampled_from([3, 5]),
    alpha=st.floats(1e-4, 1.0),
    beta=st.sampled_from([0.5, 0.75, 1.0]),
    k=st.sampled_from([1.0, 2.0]),
)
def test_lrn_is_the_portable_one(c, size, alpha, beta, k):
    param = f"lrn_param {{ local_size: {size} alpha: {alpha} beta: {beta} k: {k} }}"

    expect_same(net(layer("lrn", "LRN", "x", "y", param), shape=(2, c, 5, 4)), rtol=5e-5)


@pytest.mark.parametrize("channels", [3, 16, 20], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize(
    ("kind", "param"),
    [
        ("ReLU", ""),
        ("ReLU", "relu_param { negative_slope: 0.1 }"),
        ("TanH", ""),
        ("Sigmoid", ""),
        ("GELU", ""),
    ],
    ids=["ReLU", "leaky ReLU", "TanH", "Sigmoid", "GELU"],
)
def test_activation_behind_a_convolution(kind, param, in_place, channels):
    top = "c" if in_place else "y"
    text = net(
        conv("conv", "x", "c", channels, "kernel_size: 3 pad: 1"),
        layer("act", kind, "c", top, param),
        conv("next", top, "z", 4, "kernel_size: 3"),
    )

    expect_same(text, ["conv", "act", "next"], rtol=5e-5)


@pytest.mark.parametrize("channels", [16, 20], ids=str)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_a_convolution_leaves_gelu_in_place_to_a_step_of_its_own(phase, channels):
    text = net(
        conv("conv", "x", "c", channels, "kernel_size: 3 pad: 1"),
        layer("act", "GELU", "c", "c"),
        conv("next", "c", "z", 4, "kernel_size: 3"),
    )
    if phase == "TEST":
        text = text.replace("force_backward: true\n", "")

    planned, portable = build(text, phase), build(text, phase, plan=False)
    planned.forward()
    portable.forward()

    entry = planned.plan.entries[planned.layer_names.index("conv")]
    assert entry.group is None
    assert "GELU runs by itself; oneDNN appends ReLU without a slope" in entry.why_alone
    for name in ("c", "z"):
        want = portable.blobs[name].data
        assert np.allclose(planned.blobs[name].data, want, rtol=5e-5, atol=1e-6), name


@given(shape=st.sampled_from([(4, 7), (2, 16, 5), (2, 5, 4, 3), (3, 1000)]), axis=st.integers(0, 2))
def test_softmax_is_the_portable_one(shape, axis):
    param = f"softmax_param {{ axis: {min(axis, len(shape) - 1)} }}"

    expect_same(net(layer("softmax", "Softmax", "x", "y", param), shape=shape), ["softmax"])


@given(channels=st.lists(st.sampled_from([1, 3, 16, 20, 32]), min_size=2, max_size=4))
def test_concat_of_convolutions_and_its_gradient(channels):
    branches = [
        conv(f"conv{i}", f"x{i}", f"b{i}", m, "kernel_size: 1") for i, m in enumerate(channels)
    ]
    split = layer("split", "Split", "x", " ".join(f"x{i}" for i in range(len(channels))))
    join = layer("join", "Concat", " ".join(f"b{i}" for i in range(len(channels))), "y")
    after = conv("after", "y", "z", 3, "kernel_size: 3")

    expect_same(net(split, *branches, join, after), ["join", "split"], rtol=5e-5)


@given(
    coefficients=st.lists(st.sampled_from([1.0, -1.0, 0.5]), min_size=2, max_size=3),
    channels=st.sampled_from([3, 16, 20]),
)
def test_eltwise_sum_of_convolutions(coefficients, channels):
    count = len(coefficients)
    branches = [conv(f"conv{i}", "x", f"b{i}", channels, "kernel_size: 3") for i in range(count)]
    coeff = " ".join(f"coeff: {c}" for c in coefficients)
    join = layer(
        "sum", "Eltwise", " ".join(f"b{i}" for i in range(count)), "y",
        f"eltwise_param {{ operation: SUM {coeff} }}",
    )  # fmt: skip
    relu = layer("relu", "ReLU", "y", "y")

    expect_same(net(*branches, join, relu, conv("after", "y", "z", 3, "kernel_size: 1")), ["sum"])


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("channels", [3, 16, 20], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("followers", ["", "scale", "scale relu", "relu"])
def test_batch_norm_with_what_follows(phase, channels, in_place, followers):
    top = "c" if in_place else "y"
    parts = [
        conv("conv", "x", "c", channels, "kernel_size: 3 pad: 1 bias_term: false"),
        layer("bn", "BatchNorm", "c", top, "batch_norm_param { eps: 1e-3 }"),
    ]
    if "scale" in followers:
        parts.append(layer("scale", "Scale", top, top, "scale_param { bias_term: true }"))
    if "relu" in followers:
        parts.append(layer("relu", "ReLU", top, top))
    parts.append(conv("next", top, "z", 4, "kernel_size: 3"))

    expect_same(net(*parts, shape=(3, 3, 7, 6)), ["bn"], phase=phase, rtol=1e-4)


@pytest.mark.parametrize("bias", [False, True], ids=["factor", "factor and offset"])
def test_scale_by_itself(bias):
    param = f"scale_param {{ bias_term: {str(bias).lower()} }}"
    text = net(
        conv("conv", "x", "c", 16, "kernel_size: 3"),
        layer("scale", "Scale", "c", "c", param),
        conv("next", "c", "z", 4, "kernel_size: 3"),
    )

    expect_same(text, ["scale"], rtol=5e-5)


def test_normalisation_is_folded_into_a_convolution_that_needs_no_gradient():
    text = net(
        conv("conv", "x", "c", 16, "kernel_size: 3"),
        layer("bn", "BatchNorm", "c", "c"),
        layer("scale", "Scale", "c", "c", "scale_param { bias_term: true }"),
        layer("relu", "ReLU", "c", "c"),
        conv("next", "c", "z", 4, "kernel_size: 3"),
    ).replace("force_backward: true\n", "")
    planned, portable = build(text, "TEST"), build(text, "TEST", plan=False)

    for weight in (1.0, 2.0):  # changed parameters are folded in again
        for each in (planned, portable):
            each.params["scale"][0].data[...] = weight
            each.forward()

        want = portable.blobs["z"].data
        assert np.allclose(planned.blobs["z"].data, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert planned.plan.entries[1].group.count == 4


@given(
    shape=st.sampled_from([(5, 4), (2, 4, 3, 2), (3, 4, 6)]),
    ignore=st.sampled_from(["", "ignore_label: 1"]),
    mode=st.sampled_from(["FULL", "VALID", "BATCH_SIZE", "NONE"]),
)
def test_softmax_loss_is_the_portable_one(shape, ignore, mode):
    param = f"loss_param {{ {ignore} normalization: {mode} }}"
    text = net(
        conv("conv", "x", "c", 4, "kernel_size: 1") if len(shape) > 2 else ip("x", "c", 4),
        layer("loss", "SoftmaxWithLoss", "c label", "loss", param),
        shape=shape,
        label=(shape[0], *shape[2:]),
    ).replace("force_backward: true", "")

    expect_same(text, ["loss"])


@pytest.mark.parametrize("shape", [(3, 20), (3, 20, 2, 5)], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_softmax_hides_no_value_that_is_not_a_number(shape, value):
    text = net(
        layer("softmax", "Softmax", "x", "y"), layer("again", "Softmax", "y", "z"), shape=shape
    )
    planned, portable = build(text), build(text, plan=False)

    for each in (planned, portable):
        each.blobs["x"].data[1, 4] = value
        each.forward()

    for name in ("y", "z"):
        want = portable.blobs[name].data
        np.testing.assert_allclose(planned.blobs[name].data, want, rtol=1e-5)
