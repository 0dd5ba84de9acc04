"""Every kernel of the numpy backend computes what the layer's portable code computes."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import Net
from demitasse.backends.numpy import columns
from demitasse.proto import NetParameter, parse_text


def build(layer, shapes, *, plan, dtype="float32", tops=1, backward=True, in_place=False):
    """A net of one layer: bottoms x0, x1, ... are inputs, tops are y0, y1, ... or the bottoms."""
    inputs = "".join(
        f'layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ shape {{ '
        f"{' '.join(f'dim: {n}' for n in shape)} }} }} }} "
        for i, shape in enumerate(shapes)
    )
    names = " ".join(f'bottom: "x{i}"' for i in range(len(shapes)))
    names += " " + " ".join(f'top: "{"x" if in_place else "y"}{i}"' for i in range(tops))
    text = f'force_backward: {int(backward)} {inputs} layer {{ name: "layer" {names} {layer} }}'
    param = parse_text(text, NetParameter)
    return Net(param, "TRAIN", device="numpy", plan=plan, dtype=dtype, seed=1)


def run(net, values, top_diffs):
    """All results of a forward and two backward passes: parameter gradients add up."""
    for name, value in values.items():
        net.blobs[name].data = value
    net.clear_param_diffs()
    net.forward()
    for name, value in top_diffs.items():
        net.blobs[name].diff = value
    net.backward()
    if net.outputs[0] not in values:  # in place, the first backward has changed the top's gradient
        net.backward()
    got = {name: np.array(blob.data) for name, blob in net.blobs.items()}
    got |= {f"d{name}": np.array(net.blobs[name].diff) for name in values}
    params = net.params.get("layer", [])
    return got | {f"dparam{i}": np.array(blob.diff) for i, blob in enumerate(params)}


def expect_equal_to_portable(
    layer, shapes, values=None, *, kernel, params=None, rtol=1e-5, **options
):
    """Run the layer both ways; ``kernel`` names the Step, or several, that must have run it."""
    rng = np.random.default_rng(0)
    fast, slow = (build(layer, shapes, plan=plan, **options) for plan in (True, False))
    if values is None:
        values = {f"x{i}": rng.standard_normal(shape) for i, shape in enumerate(shapes)}
    diffs = {name: rng.standard_normal(fast.blobs[name].shape) for name in fast.outputs}
    for i, mine in enumerate(fast.params.get("layer", [])):
        mine.data = rng.standard_normal(mine.shape) if params is None else params[i]
        slow.params["layer"][i].copy_from(mine)

    got, want = run(fast, values, diffs), run(slow, values, diffs)

    assert type(fast.plan.steps()[-1]).__name__ in ({kernel} if isinstance(kernel, str) else kernel)
    assert set(slow.plan.steps()) == {None}
    for key, value in want.items():
        # a parameter's gradient is a sum of many terms, which may cancel each other
        least = 1.0 if key.startswith("dparam") else 1e-3
        scale = max(np.abs(value[np.isfinite(value)]).max(initial=0.0), least)
        np.testing.assert_allclose(got[key], value, rtol=0, atol=rtol * scale, err_msg=key)


def repeated(name, values):
    return " ".join(f"{name}: {value}" for value in values)


@st.composite
def convolutions(draw, *, transposed=False):
    """The fields of a convolution that fits its bottoms, and the bottoms' shape."""
    axes = draw(st.integers(1, 3))
    sides = st.integers(1, 3)
    kernel = [draw(sides) for _ in range(axes)]
    stride = [draw(sides) for _ in range(axes)]
    dilation = [draw(st.integers(1, 2)) for _ in range(axes)]
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    pad = [draw(st.integers(0, (e - 1) // 2 if transposed else 2)) for e in extent]
    room = [
        draw(st.integers(1 if transposed else max(1, e - 2 * p), 6))
        for e, p in zip(extent, pad, strict=True)
    ]
    group = draw(st.integers(1, 2))
    channels, out = (group * draw(st.integers(1, 3)) for _ in range(2))
    bias = draw(st.booleans())
    fields = (
        f"num_output: {out} group: {group} bias_term: {str(bias).lower()} "
        f"{repeated('kernel_size', kernel)} {repeated('stride', stride)} "
        f"{repeated('pad', pad)} {repeated('dilation', dilation)}"
    )
    return fields, (draw(st.sampled_from([1, 2, 5, 17])), channels, *room)


# how the work is cut into pieces
CUTS = {
    "default": {},
    "bands of rows": {"BUDGET": 40},
    "single images": {"BIG_PLANE": 1, "BIG_PRODUCT": 1},
    "few images": {"BUDGET": 400, "SHORT_ROW": 0},
    "image index last": {"BUDGET": 2000, "SOME_IMAGES": 2},
}


@contextmanager
def cut_as(cut):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CUTS[cut].items():
            patch.setattr(columns, name, value)
        yield


@given(convolutions(), st.sampled_from(sorted(CUTS)))
def test_convolution(case, cut):
    fields, shape = case
    layer = f'type: "Convolution" convolution_param {{ {fields} }}'

    with cut_as(cut):
        expect_equal_to_portable(layer, [shape], kernel="ConvStep")


@given(convolutions(transposed=True), st.sampled_from(sorted(CUTS)))
def test_deconvolution(case, cut):
    fields, shape = case
    layer = f'type: "Deconvolution" convolution_param {{ {fields} }}'

    with cut_as(cut):
        expect_equal_to_portable(layer, [shape], kernel="DeconvStep")


@pytest.mark.parametrize("cut", CUTS)
def test_however_the_work_is_cut(cut):
    layer = 'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 pad: 1 group: 2 }'

    with cut_as(cut):
        expect_equal_to_portable(layer, [(20, 4, 7, 6)], kernel="ConvStep")


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_several_bottoms_share_the_weight(kind):
    layer = f'type: "{kind}" convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 }}'

    expect_equal_to_portable(
        layer, [(2, 3, 5, 6)] * 3, tops=3, kernel="ConvStep" if kind[0] == "C" else "DeconvStep"
    )


def test_convolution_behind_another_axis():
    layer = 'type: "Convolution" convolution_param { axis: 2 num_output: 4 kernel_size: 3 }'

    expect_equal_to_portable(layer, [(2, 3, 4, 5, 6)], kernel="ConvStep")


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("count", [1, 20])
def test_depthwise(kind, count):
    fields = "num_output: 6 group: 6 kernel_size: 3 pad: 1 stride: 2"

    expect_equal_to_portable(
        f'type: "{kind}" convolution_param {{ {fields} }}',
        [(count, 6, 9, 8)],
        kernel={"ConvStep", "DeconvStep"},
    )


def test_a_window_that_sticks_out_by_less_than_a_stride():
    layer = 'type: "Convolution" convolution_param { num_output: 2 kernel_size: 4 stride: 2 }'

    expect_equal_to_portable(layer, [(2, 3, 3, 3)], kernel="ConvStep")


@pytest.mark.parametrize("count", [1, 40])
def test_double_precision(count):
    layer = 'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 pad: 1 }'

    expect_equal_to_portable(
        layer, [(count, 3, 5, 6)], dtype="float64", kernel="ConvStep", rtol=1e-12
    )


@st.composite
def poolings(draw):
    axes = draw(st.sampled_from([1, 2, 2, 2, 3]))
    if axes == 2 and draw(st.booleans()):
        kernel = [draw(st.integers(1, 4)) for _ in range(2)]
        pad = [draw(st.integers(0, k - 1)) for k in kernel]
        stride = [draw(st.integers(1, 3)) for _ in range(2)]
        fields = " ".join(
            f"{name}_{side}: {value}"
            for name, pair in (("kernel", kernel), ("pad", pad), ("stride", stride))
            for side, value in zip("hw", pair, strict=True)
        )
    else:
        kernel = [draw(st.integers(1, 4))] * axes
        pad = [draw(st.integers(0, kernel[0] - 1))] * axes
        stride = draw(st.integers(1, 3))
        fields = f"kernel_size: {kernel[0]} pad: {pad[0]} stride: {stride}"
    mode = draw(st.sampled_from(["CEIL", "FLOOR"]))
    shape = [draw(st.integers(max(1, k - p), 7)) for k, p in zip(kernel, pad, strict=True)]
    return f"{fields} round_mode: {mode}", (2, 3, *shape)


def ties(shape):
    """Values of which many are equal."""
    return {"x0": np.random.default_rng(1).integers(-1, 2, shape)}


@given(poolings(), st.integers(1, 2), st.booleans())
def test_max_pooling(case, tops, equal):
    fields, shape = case

    expect_equal_to_portable(
        f'type: "Pooling" pooling_param {{ {fields} }}',
        [shape],
        ties(shape) if equal else None,
        tops=tops,
        kernel={"MaxStep", "GlobalMaxStep"},
    )


def test_max_pooling_when_the_empty_windows_make_up_for_the_rows_left_out():
    layer = (
        'type: "Pooling" pooling_param { kernel_h: 1 kernel_w: 2 stride_h: 2 stride_w: 1 '
        "pad_h: 0 pad_w: 0 }"
    )

    expect_equal_to_portable(layer, [(2, 3, 2, 2)], kernel="MaxStep")


@given(poolings())
def test_max_pooling_without_a_gradient(case):
    fields, shape = case
    layer = f'type: "Pooling" pooling_param {{ {fields} }}'
    fast, slow = (build(layer, [shape], plan=plan, backward=False) for plan in (True, False))
    for net in (fast, slow):
        net.blobs["x0"].data = ties(shape)["x0"]

    fast.forward()
    slow.forward()

    np.testing.assert_array_equal(fast.blobs["y0"].data, slow.blobs["y0"].data)


@given(poolings())
def test_average_pooling(case):
    fields, shape = case

    expect_equal_to_portable(
        f'type: "Pooling" pooling_param {{ pool: AVE {fields} }}',
        [shape],
        kernel={"AverageStep", "GlobalAverageStep"},
    )


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 1, 1), (3, 2, 4, 4, 4)])
def test_global_pooling(method, shape):
    layer = f'type: "Pooling" pooling_param {{ pool: {method} global_pooling: true }}'

    expect_equal_to_portable(layer, [shape], kernel={"GlobalMaxStep", "GlobalAverageStep"})


@pytest.mark.parametrize("window", ["kernel_size: 2 stride: 2", "global_pooling: true"])
@pytest.mark.parametrize("tops", [1, 2])
def test_what_is_no_number_or_infinitely_low_is_never_the_maximum(window, tops):
    x = np.zeros((1, 4, 2, 4), np.float32)
    x[0, 0] = np.nan
    x[0, 1] = -np.inf
    x[0, 2, 0] = np.nan
    x[0, 3, 1] = np.inf

    expect_equal_to_portable(
        f'type: "Pooling" pooling_param {{ {window} }}',
        [x.shape],
        {"x0": x},
        tops=tops,
        kernel={"MaxStep", "GlobalMaxStep"},
    )


def test_windows_that_start_beyond_the_image():
    layer = 'type: "Pooling" pooling_param { kernel_size: 1 stride: 3 }'

    expect_equal_to_portable(layer, [(2, 3, 5, 5)], tops=2, kernel="MaxStep")


@given(
    st.sampled_from(["ACROSS_CHANNELS", "WITHIN_CHANNEL"]),
    st.sampled_from([1, 3, 5, 9]),
    st.sampled_from([0.75, 0.5, 1.3]),
    st.tuples(*[st.integers(1, 6)] * 4),
)
def test_lrn(region, size, beta, shape):
    fields = f"norm_region: {region} local_size: {size} beta: {beta} alpha: 0.7 k: 2"

    expect_equal_to_portable(f'type: "LRN" lrn_param {{ {fields} }}', [shape], kernel="LRNStep")


@pytest.mark.parametrize("transpose", ["true", "false"])
@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_inner_product(transpose, bias, axis):
    fields = f"num_output: 7 transpose: {transpose} bias_term: {bias} axis: {axis}"

    expect_equal_to_portable(
        f'type: "InnerProduct" inner_product_param {{ {fields} }}',
        [(3, 4, 5)],
        kernel="InnerProductStep",
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    shapes = [[4, 3, 5], [4, 3, 5], [4, 3, 5]]
    for shape, size in zip(shapes, (2, 1, 6), strict=True):
        shape[axis] = size

    expect_equal_to_portable(
        f'type: "Concat" concat_param {{ axis: {axis} }}', shapes, kernel="ConcatStep"
    )


def test_relu():
    x = np.random.default_rng(0).integers(-2, 3, (3, 4, 5))

    expect_equal_to_portable('type: "ReLU"', [x.shape], {"x0": x}, kernel="ReLUStep")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 4), (3, 7, 1000)], ids=str)
def test_gelu(shape, backward, in_place, dtype):
    expect_equal_to_portable(
        'type: "GELU"', [shape], kernel="GELUStep", rtol=1e-12 if dtype == "float64" else 1e-6,
        backward=backward, in_place=in_place, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "shapes"),
    [
        ("", [(3, 4, 5, 2)]),
        ("bias_term: true", [(3, 4, 5, 2)]),
        ("axis: 0 num_axes: 2 bias_term: true", [(3, 4, 5)]),
        ("num_axes: 0", [(3, 4)]),
        ("axis: 2 num_axes: -1", [(3, 4, 5, 2)]),
        ("", [(3, 4, 5), (4,)]),
        ("axis: 0 bias_term: true", [(3, 4, 5), (3, 4)]),
    ],
)
@pytest.mark.parametrize("in_place", [True, False])
def test_scale(fields, shapes, in_place):
    layer = f'type: "Scale" scale_param {{ {fields} }}'

    expect_equal_to_portable(layer, shapes, kernel="ScaleStep", in_place=in_place)


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (3, 4)])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("factor", [0.0, 2.5])
def test_batch_norm_by_stored_statistics(shape, in_place, factor):
    layer = 'type: "BatchNorm" batch_norm_param { use_global_stats: true }'
    statistics = [np.arange(4.0), np.arange(1.0, 5.0), [factor]]

    expect_equal_to_portable(
        layer, [shape], kernel="BatchNormStep", in_place=in_place, params=statistics
    )


@pytest.mark.parametrize("fields", ["", "coeff: 1 coeff: -2 coeff: 0.5", "coeff: 3 coeff: 1"])
@pytest.mark.parametrize("in_place", [True, False])
def test_sum(fields, in_place):
    layer = f'type: "Eltwise" eltwise_param {{ {fields} }}'
    count = fields.count("coeff") or 2

    expect_equal_to_portable(layer, [(3, 4)] * count, kernel="SumStep", in_place=in_place)


@pytest.mark.parametrize("readers", [2, 3])
def test_split(readers):
    expect_equal_to_portable('type: "Split"', [(3, 4)], tops=readers, kernel="SplitStep")


def test_inner_product_of_few_rows():
    layer = 'type: "InnerProduct" inner_product_param { num_output: 40 }'

    expect_equal_to_portable(layer, [(3, 20)], kernel="InnerProductStep")


def test_a_bottom_of_another_shape_gets_a_kernel_of_its_own():
    layer = 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }'
    fast, slow = (build(layer, [(2, 3, 8, 8)], plan=plan) for plan in (True, False))
    rng = np.random.default_rng(0)

    for shape in [(2, 3, 8, 8), (1, 3, 5, 6), (2, 3, 8, 8)]:
        x, dy = rng.standard_normal(shape), {}
        for net in (fast, slow):
            net.blobs["x0"].reshape(shape)
            net.blobs["x0"].data = x
            net.forward()
            dy.setdefault("y0", rng.standard_normal(net.blobs["y0"].shape))
            net.blobs["y0"].diff = dy["y0"]
            net.backward()

        np.testing.assert_allclose(fast.blobs["x0"].diff, slow.blobs["x0"].diff)


def test_stochastic_pooling_runs_its_portable_code():
    layer = 'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }'

    net = build(layer, [(2, 3, 8, 8)], plan=True)
    net.forward()

    assert net.plan.steps()[-1] is None
