"""Kernels of the numpy backend beside portable code: what test_steps_equal_portable.py leaves.

How the work is cut into pieces, and values that are no numbers.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import Net
from demitasse.backends.numpy import products
from demitasse.io.proto import NetParameter, parse_text


def build(layer, shapes, *, optimize, dtype="float32", tops=1, backward=True, in_place=False):
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
    return Net(param, "TRAIN", device="numpy", optimize=optimize, dtype=dtype, seed=1)


def run(net, values, top_diffs):
    """All results of a forward and two backward passes: parameter gradients add up."""
    for name, value in values.items():
        net.blobs[name].data = value
    net.clear_param_diffs()
    net.forward()
    for name, value in top_diffs.items():
        net.blobs[name].diff = value
    net.backward(-1)
    if net.outputs[0] not in values:  # in place, the first backward has changed the top's gradient
        net.backward(-1)
    got = {name: np.array(blob.data) for name, blob in net.blobs.items()}
    got |= {f"d{name}": np.array(net.blobs[name].diff) for name in values}
    params = net.params.get("layer", [])
    return got | {f"dparam{i}": np.array(blob.diff) for i, blob in enumerate(params)}


def expect_equal_to_portable(
    layer, shapes, values=None, *, kernel, params=None, rtol=1e-5, **options
):
    """Run the layer both ways; ``kernel`` names the Step, or several, that must have run it."""
    rng = np.random.default_rng(0)
    fast, slow = (build(layer, shapes, optimize=on, **options) for on in (True, False))
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
            patch.setattr(products, name, value)
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
        kernel="MaxStep",
    )


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (3, 4)])
@pytest.mark.parametrize("in_place", [True, False])
def test_batch_norm_by_statistics_that_were_never_filled(shape, in_place):
    layer = 'type: "BatchNorm" batch_norm_param { use_global_stats: true }'
    statistics = [np.arange(4.0), np.arange(1.0, 5.0), [0.0]]

    expect_equal_to_portable(
        layer, [shape], kernel="BatchNormStep", in_place=in_place, params=statistics
    )


def test_a_bottom_of_another_shape_gets_a_kernel_of_its_own():
    layer = 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }'
    fast, slow = (build(layer, [(2, 3, 8, 8)], optimize=on) for on in (True, False))
    rng = np.random.default_rng(0)

    for shape in [(2, 3, 8, 8), (1, 3, 5, 6), (2, 3, 8, 8)]:
        x, dy = rng.standard_normal(shape), {}
        for net in (fast, slow):
            net.blobs["x0"].reshape(shape)
            net.blobs["x0"].data = x
            net.forward()
            dy.setdefault("y0", rng.standard_normal(net.blobs["y0"].shape))
            net.blobs["y0"].diff = dy["y0"]
            net.backward(-1)

        np.testing.assert_allclose(fast.blobs["x0"].diff, slow.blobs["x0"].diff)
