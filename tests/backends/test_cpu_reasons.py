"""Why no kernel runs an operation, what then does, and what is said of what runs."""

import numpy as np
import pytest
from lowered import build, conv, expect_same, layer, net

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

THIRTEEN = (2, *(1,) * 9, 3, 2, 4)


def planned(*layers, shape=(2, 4, 6, 6), phase="TRAIN", **options):
    text = net(*layers, shape=shape, **options)
    made = build(text.replace("force_backward: true", "") if phase == "TEST" else text, phase)
    made.reshape()
    return made


def entry(made, name):
    return made.plan.entries[made.layer_names.index(name)]


@pytest.mark.parametrize(
    "layers",
    [
        [layer("l", "ReLU", "x", "y")],
        [layer("l", "Sigmoid", "x", "y")],
        [layer("l", "Softmax", "x", "y")],
        [layer("l", "Softmax", "x", "y", "softmax_param { axis: 11 }")],
        [layer("l", "Dropout", "x", "y")],
        [layer("t", "TanH", "x", "a"), layer("l", "Eltwise", "x a", "y")],
        [layer("s", "Split", "x", "a b"), layer("l", "Concat", "a b", "y")],
    ],
    ids=["ReLU", "Sigmoid", "Softmax", "Softmax axis 11", "Dropout", "Eltwise", "Concat"],
)
def test_any_number_of_axes_runs_in_kernels(layers):
    text = net(*layers, shape=THIRTEEN)

    expect_same(text, ["l"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            layer("l", "LRN", "x", "y", "lrn_param { norm_region: WITHIN_CHANNEL beta: 0.5 }"),
            ["WITHIN_CHANNEL"],
        ),
        (
            layer("l", "Pooling", "x", "y", "pooling_param { pool: STOCHASTIC kernel_size: 2 }"),
            ["STOCHASTIC", "MAX", "AVE"],
        ),
        (layer("l", "Eltwise", "x x", "y", "eltwise_param { operation: PROD }"), ["PROD"]),
    ],
    ids=["LRN", "Pooling", "Eltwise"],
)
def test_what_is_not_lowered_says_why(text, why):
    made = planned(text)

    for name in why:
        assert name in entry(made, "l").why


def test_doubles_run_on_numpy_and_say_why():
    text = net(conv(3))
    made = Net(parse_text(text, NetParameter), "TRAIN", device="cpu", dtype="float64")
    made.reshape()

    step = entry(made, "c").step

    assert step.code == "numpy"
    [why] = step.refused
    assert "float64" in why


def test_a_step_names_the_code_that_runs():
    made = planned(conv(16), layer("s", "Softmax", "c", "p"))

    for name in ("c", "s"):
        step = entry(made, name).step
        assert step.code == step.forward_calls[0].code
        assert step.backward_code


def test_what_runs_as_one_names_all_of_it():
    made = planned(conv(16), layer("r", "ReLU", "c", "c"))

    group = entry(made, "c").group.step

    assert group.code == f"{entry(made, 'c').step.code} + ReLU"


def test_a_normalisation_and_what_follows_name_all_of_it():
    layers = [
        conv(16),
        layer("bn", "BatchNorm", "c", "c"),
        layer("scale", "Scale", "c", "c", "scale_param { bias_term: true }"),
        layer("r", "ReLU", "c", "c"),
    ]

    trained, used = planned(*layers), planned(*layers, phase="TEST")

    assert entry(trained, "bn").group.step.code.endswith(" + Scale + ReLU")
    assert entry(used, "c").group.step.code.endswith(" + BatchNorm + Scale + ReLU")


@pytest.mark.parametrize(
    ("kind", "param"),
    [("GELU", ""), ("TanH", ""), ("ReLU", "relu_param { negative_slope: -0.1 }")],
    ids=str,
)
def test_other_activations_run_by_themselves_and_say_why(kind, param):
    made = planned(conv(16), layer("r", kind, "c", "c", param))

    assert entry(made, "c").group is None
    assert "ReLU" in entry(made, "c").why_not_fused


def test_a_step_declines_before_it_touches_anything():
    made = planned(layer("l", "Eltwise", "x x", "y", "eltwise_param { operation: PROD }"))
    assert "PROD" in entry(made, "l").why
    made.blobs["x"].data[...] = np.nan

    made.forward()

    assert np.isnan(made.blobs["y"].data).all()
