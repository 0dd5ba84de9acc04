"""Lowerings of the device cpu in nets, where layers take over each other's layouts.

Each operation by itself is held against portable code in test_steps_equal_portable.py.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowered import build, expect_same, layer, net, taken_by_rows

from demitasse.backends.cpu import slow_reason

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())


SCALE = "scale_param { bias_term: true }"


def conv(name, bottom, top, m, rest=""):
    return layer(
        name, "Convolution", bottom, top, f"convolution_param {{ num_output: {m} {rest} }}"
    )


def ip(bottom, top, m):
    return layer(top, "InnerProduct", bottom, top, f"inner_product_param {{ num_output: {m} }}")


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
        ("BNLL", ""),
        ("Clip", "clip_param { min: 0 max: 0.5 }"),
        ("Clip", "clip_param { min: 0.1 max: 0.5 }"),
        ("ELU", ""),
        ("Exp", ""),
        ("Power", "power_param { power: 2 scale: 0.5 shift: 1 }"),
        ("ReLU6", ""),
        ("Swish", ""),
    ],
    ids=lambda value: value.partition("_")[0],
)
def test_activation_behind_a_convolution(kind, param, in_place, channels):
    top = "c" if in_place else "y"
    text = net(
        conv("conv", "x", "c", channels, "kernel_size: 3 pad: 1"),
        layer("act", kind, "c", top, param),
        conv("next", top, "z", 4, "kernel_size: 3"),
    )

    expect_same(text, ["conv", "act", "next"], rtol=5e-5)


@pytest.mark.parametrize("channels", [3, 16, 20, 32], ids=str)
@pytest.mark.parametrize("value", [1.0, np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(
    "parts",
    [
        [layer("m", "Eltwise", "a b", "y", "eltwise_param { operation: MAX }")],
        [layer("p", "Eltwise", "a b", "y", "eltwise_param { operation: PROD }")],
        [layer("abs", "AbsVal", "a", "y")],
        [layer("clip", "Clip", "a", "y", "clip_param { min: 0 max: 6 }")],
        [layer("relu6", "ReLU6", "a", "y")],
        [layer("mvn", "MVN", "a", "y")],
        [layer("swish", "Swish", "a", "a"), layer("elu", "ELU", "a", "y")],
        [layer("cut", "Slice", "a", "s0 s1", "slice_param { axis: 3 }"),
         layer("more", "Eltwise", "s0 s1", "y", "eltwise_param { operation: MAX }")],
        [layer("cut", "Slice", "a", "s0 s1", "slice_param { axis: 1 slice_point: 1 }"),
         layer("join", "Concat", "s1 s0", "y")],
        [layer("shuffle", "ShuffleChannel", "a", "y", "shuffle_channel_param { group: 1 }")],
        [layer("mean", "Pooling", "a", "g", "pooling_param { pool: AVE global_pooling: true }"),
         layer("gate", "Sigmoid", "g", "g"), layer("sum", "Axpy", "g a b", "y")],
        [layer("mean", "Pooling", "a", "g", "pooling_param { pool: AVE global_pooling: true }"),
         layer("flat", "Flatten", "g", "f"),
         layer("gated", "Scale", "b f", "y", "scale_param { axis: 0 }")],
    ],
    ids=lambda parts: parts[-1].partition("type: ")[2].partition(" ")[0],
)  # fmt: skip
def test_what_runs_in_kernels_where_no_gradient_is_wanted(parts, value, channels):
    text = net(
        conv("one", "x", "a", channels, "kernel_size: 3 pad: 1"),
        conv("two", "x", "b", channels, "kernel_size: 1"),
        *parts,
        conv("next", "y", "z", 4, "kernel_size: 1"),
    ).replace("force_backward: true\n", "")
    planned, portable = (
        build(text, "TEST", keep_blobs="outputs"),
        build(text, "TEST", optimize=False),
    )
    image = np.random.default_rng(1).normal(size=planned.blobs["x"].shape)
    image[1, 2, 3, 3] = value

    for factor in (1.0, -2.0, 3.0, 4.0):  # calls are noted in the third pass
        for each in (planned, portable):
            each.blobs["x"].data[...] = factor * image
            each.forward()

        want = portable.blobs["z"].data
        np.testing.assert_allclose(planned.blobs["z"].data, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [1.0, np.nan, -np.inf], ids=str)
@pytest.mark.parametrize("relu", [True, False], ids=["with ReLU", "alone"])
@pytest.mark.parametrize("m", [4, 20], ids=str)
def test_filters_as_wide_as_an_image_of_one_channel_take_its_columns_for_channels(m, relu, value):
    text = net(
        conv("rows", "x", "c", m, "kernel_h: 3 kernel_w: 24 pad_h: 1 dilation: 2 dilation: 1"),
        *([layer("relu", "ReLU", "c", "c")] if relu else []),
        conv("next", "c", "z", 4, "kernel_size: 1"),
        shape=(2, 1, 9, 24),
    ).replace("force_backward: true\n", "")
    planned, portable = (
        build(text, "TEST", keep_blobs="outputs"),
        build(text, "TEST", optimize=False),
    )
    image = np.random.default_rng(1).normal(size=(2, 1, 9, 24))
    image[1, 0, 5, 7] = value

    for factor in (1.0, -2.0, 3.0, 4.0):  # changed filters are turned again
        for each in (planned, portable):
            each.blobs["x"].data[...] = image
            each.params["rows"][0].data[...] *= factor
            each.forward()

        want = portable.blobs["z"].data
        np.testing.assert_allclose(planned.blobs["z"].data, want, rtol=1e-4, atol=1e-3)
    assert taken_by_rows(planned, 1)
    assert (planned.plan.entries[1].group is not None) == relu


@pytest.mark.parametrize("bias", [True, False], ids=["with bias", "without"])
@pytest.mark.parametrize("m", [4, 20], ids=str)
def test_filters_as_wide_as_an_image_of_one_channel_learn(m, bias):
    fields = "kernel_h: 3 kernel_w: 24 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0"
    text = net(
        conv("below", "x", "b", 1, "kernel_size: 1"),
        conv("rows", "b", "c", m, f"{fields} bias_term: {str(bias).lower()}"),
        layer("relu", "ReLU", "c", "c"),
        conv("next", "c", "z", 4, "kernel_size: 1"),
        shape=(2, 1, 9, 24),
    )

    planned = expect_same(text)  # of several passes, whose gradients are added up

    assert taken_by_rows(planned, 2)


@pytest.mark.parametrize("channels", [8, 16], ids=str)
def test_a_deconvolution_adds_its_bias_where_others_have_one_block_of_channels(channels):
    # lies in memory as with the channels last, and the library has other code for it
    text = net(
        conv("down", "x", "a", channels, "kernel_size: 3 pad: 1"),
        layer("bent", "TanH", "a", "a"),
        conv("deep", "a", "b", 32, "kernel_size: 4 stride: 2 pad: 1"),
        layer("up", "Deconvolution", "b", "z", f"convolution_param {{ num_output: {channels} "
              "kernel_size: 4 stride: 2 pad: 1 }"),
        shape=(2, 3, 8, 8),
    )  # fmt: skip

    expect_same(text, ("up",))


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

    planned, portable = build(text, phase), build(text, phase, optimize=False)
    planned.forward()
    portable.forward()

    entry = planned.plan.entries[planned.layer_names.index("conv")]
    assert entry.group is None
    assert "GELU" in entry.why_not_fused
    assert "ReLU" in entry.why_not_fused
    for name in ("c", "z"):
        want = portable.blobs[name].data
        assert np.allclose(planned.blobs[name].data, want, rtol=5e-5, atol=1e-6), name


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


NORMS = {"BatchNorm": "batch_norm_param", "BN": "bn_param"}


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("channels", [3, 16, 20], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("followers", ["", "scale", "scale relu", "relu"])
@pytest.mark.parametrize("kind", ["BatchNorm", "BN"])
def test_batch_norm_with_what_follows(kind, phase, channels, in_place, followers):
    top = "c" if in_place else "y"
    parts = [
        conv("conv", "x", "c", channels, "kernel_size: 3 pad: 1 bias_term: false"),
        layer("bn", kind, "c", top, f"{NORMS[kind]} {{ eps: 1e-3 }}"),
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


@pytest.mark.parametrize(
    "norms",
    [
        [layer("bn", "BatchNorm", "c", "c"),
         layer("norm", "Scale", "c", "c", "scale_param { bias_term: true }")],
        [layer("norm", "BN", "c", "c", "bn_param { eps: 0.01 }")],
        [layer("norm", "BN", "c", "c", "bn_param { bn_mode: INFERENCE }")],
        [layer("norm", "BatchNorm", "c", "c", "batch_norm_param { scale_bias: true }")],
    ],
    ids=["BatchNorm and Scale", "BN", "SegNet's", "NVCaffe's"],
)  # fmt: skip
def test_normalisation_is_folded_into_a_convolution_that_needs_no_gradient(norms):
    text = net(
        conv("conv", "x", "c", 16, "kernel_size: 3"),
        *norms,
        layer("relu", "ReLU", "c", "c"),
        conv("next", "c", "z", 4, "kernel_size: 3"),
    ).replace("force_backward: true\n", "")
    planned, portable = build(text, "TEST"), build(text, "TEST", optimize=False)

    for factor in (1.0, 2.0):  # changed parameters are folded in again
        for each in (planned, portable):
            for blob in each.params["norm"]:
                blob.data[...] *= factor
            each.forward()

        want = portable.blobs["z"].data
        assert np.allclose(planned.blobs["z"].data, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert planned.plan.entries[1].group.count == len(norms) + 2


@pytest.mark.parametrize("channels", [3, 16, 20], ids=str)
@pytest.mark.parametrize("first", ["BatchNorm", "Scale", "BatchNorm Scale"])
@pytest.mark.parametrize("value", [1.0, np.nan, np.inf, -np.inf], ids=str)
def test_factors_offsets_and_relu_run_as_one_where_no_gradient_is_wanted(channels, first, value):
    kinds = first.split()
    text = net(
        *(
            layer(kind, kind, "x" if i == 0 else kinds[i - 1], kind, SCALE if "S" in kind else "")
            for i, kind in enumerate(kinds)
        ),
        layer("relu", "ReLU", kinds[-1], "y"),
        shape=(2, channels, 5, 4),
    ).replace("force_backward: true\n", "")
    planned, portable = (
        build(text, "TEST", keep_blobs="outputs"),
        build(text, "TEST", optimize=False),
    )
    image = np.random.default_rng(1).normal(size=(2, channels, 5, 4))
    image[1, 2, 3, 3] = value

    for factor in (1.0, -2.0):  # changed parameters are taken again
        for each in (planned, portable):
            each.blobs["x"].data[...] = image
            for blobs in each.params.values():
                for i, blob in enumerate(blobs):
                    blob.data[...] = factor if i == 0 else 0.5
            each.forward()

        want = portable.blobs["y"].data
        np.testing.assert_allclose(planned.blobs["y"].data, want, rtol=1e-5, atol=1e-5)
    assert planned.plan.entries[1].group.count == len(kinds) + 1


@pytest.mark.parametrize("channels", [2, 8, 17, 32])
@pytest.mark.parametrize("kind", ["BatchNorm", "Scale"])
def test_each_channel_of_images_of_one_pixel_has_its_own_factor(channels, kind):
    text = net(
        layer(kind, kind, "x", "n", SCALE if kind == "Scale" else ""),
        layer("relu", "ReLU", "n", "y"),
        shape=(3, channels, 1, 1),
    ).replace("force_backward: true\n", "")
    planned, portable = (
        build(text, "TEST", keep_blobs="outputs"),
        build(text, "TEST", optimize=False),
    )

    for each in (planned, portable):
        each.params[kind][0].data[...] = np.arange(channels) - 2.5
        each.blobs["x"].data[...] = 3
        each.forward()

    np.testing.assert_allclose(planned.blobs["y"].data, portable.blobs["y"].data, rtol=1e-5)


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
    planned, portable = build(text), build(text, optimize=False)

    for each in (planned, portable):
        each.blobs["x"].data[1, 4] = value
        each.forward()

    for name in ("y", "z"):
        want = portable.blobs[name].data
        np.testing.assert_allclose(planned.blobs[name].data, want, rtol=1e-5)
