"""Scale and Bias."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(0, 1, (2, 3, 4, 5))
PLACES = [  # fields, shape of the second operand, the same ready for broadcasting
    ("", (3,), (1, 3, 1, 1)),
    ("axis: 0", (2,), (2, 1, 1, 1)),
    ("axis: 1 num_axes: 2", (3, 4), (1, 3, 4, 1)),
    ("axis: 1 num_axes: -1", (3, 4, 5), (1, 3, 4, 5)),
    ("axis: 0 num_axes: -1", (2, 3, 4, 5), (2, 3, 4, 5)),
    ("axis: -1", (5,), (1, 1, 1, 5)),
    ("num_axes: 0", (), (1, 1, 1, 1)),
]
KINDS = pytest.mark.parametrize("kind", ["Scale", "Bias"])


def text(kind, fields="", more=""):
    return f'type: "{kind}" {kind.lower()}_param {{ {fields} }} {more}'


def expected(kind, x, operand):
    return x * operand if kind == "Scale" else x + operand


@KINDS
@pytest.mark.parametrize(("fields", "shape", "broadcast"), PLACES)
def test_a_learned_operand_spans_the_axes_it_is_given(kind, fields, shape, broadcast, backend):
    one = make_layer(text(kind, fields), [X], device=backend)
    values = np.random.default_rng(1).normal(0, 1, shape)
    assert one.params[0].shape == shape
    one.params[0].data = values

    [y] = one.forward()

    np.testing.assert_allclose(y, expected(kind, X, values.reshape(broadcast)))


@KINDS
@pytest.mark.parametrize(("fields", "shape", "broadcast"), PLACES)
def test_a_second_bottom_takes_the_place_of_the_parameter(kind, fields, shape, broadcast, backend):
    values = np.random.default_rng(1).normal(0, 1, shape)

    one = make_layer(text(kind, fields), [X, values], device=backend)

    assert not one.params
    np.testing.assert_allclose(one.forward()[0], expected(kind, X, values.reshape(broadcast)))


@KINDS
def test_bottoms_may_have_one_axis(kind, backend):
    x, other = np.array([1, 2, -3], np.float32), np.array([4, 5, 6], np.float32)

    one = make_layer(text(kind, "axis: 0"), [x, other], device=backend, dtype="float32")

    assert one.forward()[0].tolist() == expected(kind, x, other).tolist()
    dx, _ = one.backward(np.ones(3))
    assert dx.tolist() == (other.tolist() if kind == "Scale" else [1, 1, 1])


@pytest.mark.parametrize("fields", [place[0] for place in PLACES])
def test_a_scale_may_have_a_bias_of_the_same_shape(fields, backend):
    one = make_layer(
        text("Scale", fields + " bias_term: true bias_filler { value: 2 }"), [X], device=backend
    )
    assert [blob.shape for blob in one.params] == [one.params[0].shape] * 2

    np.testing.assert_allclose(one.forward()[0], X + 2)


def test_a_bias_may_go_with_a_scale_that_is_a_bottom(backend):
    scale = np.arange(12.0).reshape(3, 4)
    one = make_layer(text("Scale", "bias_term: true"), [X, scale], device=backend)
    bias = np.arange(12.0).reshape(3, 4) / 3
    assert [blob.shape for blob in one.params] == [(3, 4)]
    one.params[0].data = bias

    np.testing.assert_allclose(one.forward()[0], X * scale[..., None] + bias[..., None])


def test_a_scale_begins_as_1_and_a_bias_as_0():
    scale = make_layer(text("Scale", "bias_term: true"), [X])

    np.testing.assert_array_equal(scale.params[0].data, [1, 1, 1])
    np.testing.assert_array_equal(scale.params[1].data, [0, 0, 0])


def test_fillers_are_used():
    scale = make_layer(text("Scale", "filler { value: 3 }"), [X])
    bias = make_layer(text("Bias", "filler { value: 4 }"), [X])

    np.testing.assert_array_equal(scale.params[0].data, [3, 3, 3])
    np.testing.assert_array_equal(bias.params[0].data, [4, 4, 4])


@KINDS
@pytest.mark.parametrize(("fields", "shape", "broadcast"), PLACES)
def test_gradients(kind, fields, shape, broadcast, backend):
    del broadcast
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (2, 3, 4, 5))

    learned = text(kind, fields + " filler { type: 'gaussian' }")

    expect_gradients(learned, x, check_bottom=0, device=backend)
    expect_gradients(
        text(kind, fields), x, rng.normal(0, 1, shape), check_params=False, device=backend
    )


@pytest.mark.parametrize("bottoms", [1, 2])
def test_gradients_of_a_scale_with_a_bias(bottoms, backend):
    given = [X, np.array([1.0, -2.0, 3.0])][:bottoms]

    expect_gradients(
        text("Scale", "bias_term: true filler { type: 'gaussian' }"), *given, device=backend
    )


@KINDS
def test_in_place_gives_the_same_as_apart(kind, backend):
    second = np.array([1.0, -2.0, 3.0])
    dy = np.random.default_rng(3).normal(0, 1, X.shape)
    for bottoms in ([X], [X, second]):
        apart = make_layer(text(kind), bottoms, device=backend)
        in_place = make_layer(text(kind, more='bottom: "x" top: "x"'), bottoms, device=backend)

        np.testing.assert_array_equal(in_place.forward(), apart.forward())
        for got, want in zip(in_place.backward(dy), apart.backward(dy), strict=True):
            np.testing.assert_allclose(got, want)
        for got, want in zip(in_place.params, apart.params, strict=True):
            np.testing.assert_allclose(got.diff, want.diff)


@KINDS
def test_follows_a_batch_of_another_size(kind, backend):
    one = make_layer(text(kind, "filler { value: 2 }"), [X], device=backend)
    longer = np.concatenate([X, X])

    np.testing.assert_allclose(one.forward(longer)[0], expected(kind, longer, 2))


@KINDS
def test_refuses_more_axes_than_there_are(kind):
    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, got=4, mentions="axis 1"):
        make_layer(text(kind, "num_axes: 4"), [X])


@KINDS
def test_refuses_an_axis_that_is_not_there(kind):
    with expect_error(ShapeError, mentions="axis 4"):
        make_layer(text(kind, "axis: 4"), [X])


@KINDS
def test_refuses_a_number_of_axes_below_minus_1(kind):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, got=-2, mentions="num_axes"):
        make_layer(text(kind, "num_axes: -2"), [X])


@KINDS
@pytest.mark.parametrize("shape", [(4,), (3, 5), (3, 4, 5, 1)])
def test_refuses_a_second_bottom_that_does_not_fit(kind, shape):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom1", mentions="bottom0"):
        make_layer(text(kind), [X, np.zeros(shape)])


def test_refuses_a_scale_that_has_outgrown_the_bias(tmp_path):
    file = tmp_path / "net.prototxt"
    file.write_text("""
    layer { name: "in" type: "Input" top: "x" top: "s" input_param {
      shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } } }
    layer { name: "scale" type: "Scale" bottom: "x" bottom: "s" top: "y"
      scale_param { axis: 0 bias_term: true } }""")
    net = Net(file, "TEST", device="numpy")
    for name in net.inputs:
        net.blobs[name].reshape((4, 3))

    with expect_error(
        ShapeError, ErrorCode.SHAPE_MISMATCH, blob="s", mentions=["(4, 3)", "(2, 3)"]
    ):
        net.reshape()
