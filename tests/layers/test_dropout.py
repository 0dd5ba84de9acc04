"""Dropout."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(0, 1, (20, 500)) + 10

UNSCALED = "scale_train: false"


def text(ratio=0.5, more="", fields=""):
    return f'type: "Dropout" dropout_param {{ dropout_ratio: {ratio} {fields} }} {more}'


def mask(ratio=0.5, rows=20, device="numpy", **changes):
    """Which values are kept, after changing the layer's context."""
    one = make_layer(text(ratio), [X[:rows]], device=device)
    for name, value in changes.items():
        if name == "passes":
            one.layer.context.pass_counter.passes = value
        else:
            setattr(one.layer.context, name, value)
    return one.forward()[0] != 0


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.75])
def test_train_drops_about_the_ratio_and_scales_the_rest(ratio, backend):
    one = make_layer(text(ratio), [X], device=backend)

    [y] = one.forward()

    kept = y != 0
    assert kept.mean() == pytest.approx(1 - ratio, abs=0.02)
    np.testing.assert_allclose(y[kept], X[kept] / (1 - ratio), rtol=1e-6)


def test_the_gradient_passes_where_the_value_did(backend):
    one = make_layer(text(0.25), [X], device=backend)
    [y] = one.forward()

    [dx] = one.backward(np.ones_like(X))

    np.testing.assert_allclose(dx, (y != 0) / 0.75, rtol=1e-6)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("names", ["", 'bottom: "x" top: "x"'])
def test_gradients(phase, names, backend):
    expect_gradients(text(0.3, names), X[:3, :5], phase=phase, device=backend)


@pytest.mark.parametrize("names", ["", 'bottom: "x" top: "x"'])
def test_test_passes_everything(names, backend):
    one = make_layer(text(0.5, names), [X], phase="TEST", device=backend)

    np.testing.assert_array_equal(one.forward()[0], X)
    np.testing.assert_array_equal(one.backward(X + 1)[0], X + 1)


@pytest.mark.parametrize("names", ["", 'bottom: "x" top: "x"'])
def test_the_rest_may_stay_as_it_is_in_train(names, backend):
    one = make_layer(text(0.25, names, UNSCALED), [X], device=backend)

    [y] = one.forward()
    [dx] = one.backward(X + 1)

    kept = mask(0.25, device=backend)
    np.testing.assert_array_equal(y, X * kept)
    np.testing.assert_array_equal(dx, (X + 1) * kept)


@pytest.mark.parametrize("names", ["", 'bottom: "x" top: "x"'])
def test_and_all_is_scaled_in_test(names, backend):
    one = make_layer(text(0.25, names, UNSCALED), [X], phase="TEST", device=backend)

    np.testing.assert_allclose(one.forward()[0], X * 0.75, rtol=1e-6)
    np.testing.assert_allclose(one.backward(X + 1)[0], (X + 1) * 0.75, rtol=1e-6)


SAMPLED = "sample_weights_test: true"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fields", [SAMPLED, f"{SAMPLED} {UNSCALED}"])
def test_test_may_drop_values_as_train_does(fields, dtype, backend):
    test, train = (
        make_layer(text(0.3, "", fields), [X], phase=phase, dtype=dtype, device=backend)
        for phase in ("TEST", "TRAIN")
    )

    np.testing.assert_array_equal(test.forward()[0], train.forward()[0])
    assert (test.forward()[0] == 0).mean() == pytest.approx(0.3, abs=0.02)
    np.testing.assert_array_equal(test.backward(np.ones_like(X))[0] == 0, test.forward()[0] == 0)


def test_each_pass_in_test_then_drops_others(backend):
    layers = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 20 dim: 50 } } } '
        f'layer {{ name: "drop" bottom: "x" top: "y" {text(0.5, "", SAMPLED)} }}'
    )
    net = Net(parse_text(layers, NetParameter), "TEST", device=backend)
    net.blobs["x"].data[...] = 1

    net.forward()
    first = net.blobs["y"].data.copy()
    net.forward()

    assert (net.blobs["y"].data != first).mean() == pytest.approx(0.5, abs=0.1)


def test_in_place_gives_the_same(backend):
    apart = make_layer(text(), [X], device=backend)
    one = make_layer(text(0.5, 'bottom: "x" top: "x"'), [X], device=backend)

    np.testing.assert_array_equal(one.forward()[0], apart.forward()[0])
    np.testing.assert_array_equal(one.backward(X)[0], apart.backward(X)[0])


def test_the_mask_is_the_same_on_every_device(backend):
    np.testing.assert_array_equal(mask(device=backend), mask())


def test_each_pass_and_each_seed_has_its_own_mask():
    assert (mask() == mask()).all()
    assert (mask(passes=1) != mask()).any()
    assert (mask(seed=2) != mask()).any()


def test_a_sample_of_a_rank_has_the_mask_it_has_in_the_joined_batch():
    joined = mask(rows=20)

    parts = [mask(rows=5, rank=rank, world_size=4) for rank in range(4)]

    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(part, joined[rank::4])


def test_ratio_0_drops_nothing(backend):
    one = make_layer(text(0), [X], device=backend)

    np.testing.assert_array_equal(one.forward()[0], X)
    np.testing.assert_array_equal(one.backward(X)[0], X)


@pytest.mark.parametrize("ratio", [1, 1.5, -0.1])
def test_a_ratio_outside_0_to_1_is_refused(ratio):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="dropout_param.dropout_ratio"):
        make_layer(text(ratio), [X])


@pytest.mark.parametrize(
    ("fields", "phase", "kept"), [("", "TEST", 1), (UNSCALED, "TEST", 0), (UNSCALED, "TRAIN", 0)]
)
def test_a_ratio_of_1_is_read_where_nothing_is_divided_by_0(fields, phase, kept, backend):
    one = make_layer(text(1, fields=fields), [X], phase=phase, device=backend)

    np.testing.assert_array_equal(one.forward()[0], X * kept)
