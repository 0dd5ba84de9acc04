"""BatchNorm."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import check_gradients, make_layer

X = np.random.default_rng(0).normal(3, 2, (4, 3, 2, 5))
EPS = np.float32(1e-5)


def layer(fields="", x=X, **options):
    return make_layer(f'type: "BatchNorm" batch_norm_param {{ {fields} }}', [x], **options)


def moments(x):
    axes = (0, *range(2, x.ndim))
    return x.mean(axis=axes), x.var(axis=axes)


def spread(values, x):
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 7), (4, 3, 2, 5), (2, 3, 2, 2, 2)])
def test_in_train_normalises_by_the_batch(shape, backend):
    x = np.random.default_rng(1).normal(3, 2, shape)
    mean, variance = moments(x)

    [y] = layer(x=x, device=backend).forward()

    np.testing.assert_allclose(y, (x - spread(mean, x)) / np.sqrt(spread(variance, x) + EPS))


@pytest.mark.parametrize(("phase", "carries"), [("TRAIN", True), ("TEST", False)])
def test_fixed_statistics_leave_nothing_for_later_passes(phase, carries):
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "x" }"""
    net = Net(parse_text(text, NetParameter), phase, device="numpy")

    assert net.layer_by_name("bn").has_state == carries


def test_remembers_sums_of_means_and_of_unbiased_variances(backend):
    one = layer("moving_average_fraction: 0.5", device=backend)
    mean, variance = moments(X)
    unbiased = variance * 40 / 39

    one.forward(X)
    one.forward(2 * X)

    means, variances, factor = (blob.data for blob in one.params)
    np.testing.assert_allclose(means, 0.5 * mean + 2 * mean)
    np.testing.assert_allclose(variances, 0.5 * unbiased + 4 * unbiased)
    np.testing.assert_allclose(factor, [1.5])


def test_one_value_for_each_channel_has_variance_0(backend):
    one = layer(x=X[:1, :, 0, 0], device=backend)

    [y] = one.forward()

    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(one.params[1].data, 0)


def test_in_test_normalises_by_the_averages_and_keeps_them(backend):
    one = layer(phase="TEST", device=backend)
    for blob, values in zip(one.params, ([2, 4, 6], [8, 2, 4], [2]), strict=True):
        blob.data = values

    [y] = one.forward()

    mean, variance = np.array([1.0, 2, 3]), np.array([4.0, 1, 2])
    np.testing.assert_allclose(y, (X - spread(mean, X)) / np.sqrt(spread(variance, X) + EPS))
    np.testing.assert_array_equal(one.params[2].data, [2])


def test_averages_that_were_never_filled_count_as_0(backend):
    [y] = layer("eps: 0.25", phase="TEST", device=backend).forward()

    np.testing.assert_allclose(y, X / 0.5)


@pytest.mark.parametrize(
    ("phase", "given", "uses_averages"),
    [("TRAIN", "true", True), ("TEST", "false", False)],
)
def test_use_global_stats_wins_over_the_phase(phase, given, uses_averages):
    one = layer(f"use_global_stats: {given}", phase=phase)

    one.forward()

    assert bool(one.params[2].data[0] == 0) == uses_averages


@pytest.mark.parametrize("fields", ["", "eps: 0.1", "use_global_stats: true"])
@pytest.mark.parametrize("shape", [(6, 3), (3, 2, 2, 3)])
def test_gradients(fields, shape, backend):
    x = np.random.default_rng(2).normal(0, 1, shape)

    expect_gradients(
        f'type: "BatchNorm" batch_norm_param {{ {fields} }}', x, check_params=False, device=backend
    )


def test_gradients_with_stored_averages(backend):
    stored = {0: [2, 4, 6], 1: [8, 2, 4], 2: [2]}

    expect_gradients(
        'type: "BatchNorm"', X, phase="TEST", params=stored, check_params=False, device=backend
    )


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_in_place_gives_the_same_as_apart(phase, backend):
    dy = np.random.default_rng(3).normal(0, 1, X.shape)
    apart = layer(phase=phase, device=backend)
    in_place = make_layer(
        'type: "BatchNorm" bottom: "x" top: "x"', [X], phase=phase, device=backend
    )

    np.testing.assert_array_equal(in_place.forward(), apart.forward())
    np.testing.assert_allclose(in_place.backward(dy), apart.backward(dy))


def test_a_layer_in_place_behind_it_does_not_disturb_the_gradient(backend):
    one = layer(device=backend)
    dy = np.random.default_rng(3).normal(0, 1, X.shape)
    one.forward()
    before = one.backward(dy)

    one.top[0].data = 0

    np.testing.assert_array_equal(one.backward(dy), before)


def test_statistics_have_a_learning_rate_of_0_and_still_need_backward():
    net = Net(
        parse_text(
            """
            layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
            layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" }
            layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }
            """,
            NetParameter,
        ),
        "TRAIN",
    )

    assert [record.lr_mult for record in net.structure.param_records] == [0, 0, 0]
    assert net.structure.needs.layers == [False, True, True]
    assert not net.layers[1].param.param[0].HasField("decay_mult")


def test_a_learning_rate_of_0_may_be_given():
    make_layer('type: "BatchNorm" param { lr_mult: 0 } param { lr_mult: 0 }', [X])


def test_refuses_to_train_the_statistics():
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="param.lr_mult"):
        make_layer('type: "BatchNorm" param { lr_mult: 0 } param { }', [X])


def test_a_bottom_of_one_axis_is_a_single_channel(backend):
    x = np.array([1.0, 2.0, 4.0, 9.0])
    one = layer(x=x, device=backend)
    assert [blob.shape for blob in one.params] == [(1,), (1,), (1,)]

    [y] = one.forward()

    np.testing.assert_allclose(y, (x - x.mean()) / np.sqrt(x.var() + EPS))
    check_gradients(one, check_params=False)


def test_refuses_a_single_number():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(N, C, ...)"):
        layer(x=np.zeros(()))


def test_refuses_another_number_of_channels():
    one = layer()

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom0", got=2, mentions="3"):
        one.forward(X[:, :2])
