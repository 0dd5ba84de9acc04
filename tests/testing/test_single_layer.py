"""One layer outside of a net."""

import numpy as np
import pytest
from expect_error import expect_error

import demitasse.testing
from demitasse.errors import ErrorCode, NetError, PrototxtError
from demitasse.io.proto import LayerParameter
from demitasse.testing import make_layer

X = np.array([[-1.0, 2.0]])


@pytest.mark.parametrize(
    "layer",
    [
        'type: "ReLU"',
        'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }',
        LayerParameter(type="ReLU"),
    ],
)
def test_a_layer_is_made_from_fields_from_a_layer_or_from_a_message(layer, backend):
    one = make_layer(layer, [X], device=backend)

    [y] = one.forward()
    [dx] = one.backward([[3, 4]])

    np.testing.assert_array_equal(y, [[0, 2]])
    np.testing.assert_array_equal(dx, [[0, 4]])


def test_bottoms_may_change_values_and_shape():
    one = make_layer('type: "ReLU"', [X])

    [y] = one.forward([[1.0, -2.0, 3.0]])

    np.testing.assert_array_equal(y, [[1, 0, 3]])


def test_equal_names_mean_in_place():
    one = make_layer('type: "ReLU" bottom: "x" top: "x"', [X])

    assert one.top[0] is one.bottom[0]


def test_a_loss_layer_has_its_weight_as_top_gradient():
    one = make_layer('type: "EuclideanLoss" loss_weight: 3', [X, X + 1])

    [loss] = one.forward()
    da, db = one.backward()

    assert loss == pytest.approx(1)
    np.testing.assert_allclose(da, -3 * np.ones((1, 2)))
    np.testing.assert_allclose(db, 3 * np.ones((1, 2)))


def test_gradients_are_only_computed_where_wanted():
    one = make_layer('type: "EuclideanLoss"', [X, X + 1])
    one.forward()

    da, db = one.backward(propagate_down=[False, True])

    assert da is None
    assert db is not None


def test_dtype_phase_and_seed_reach_the_layer():
    one = make_layer('type: "ReLU"', [X], dtype="float32", phase="TEST", seed=7)

    assert (one.layer.dtype, one.layer.phase, one.layer.context.seed) == ("float32", "TEST", 7)
    assert one.top[0].dtype == "float32"


def test_more_than_one_layer_is_refused():
    with expect_error(PrototxtError, ErrorCode.COUNT_MISMATCH, got=2):
        make_layer('layer { type: "ReLU" } layer { type: "ReLU" }', [X])


def test_what_the_layer_refuses_is_refused():
    with expect_error(NetError, mentions=["ReLU", "1", "2"]):
        make_layer('type: "ReLU"', [X, X])


def test_all_public_names_exist_and_others_do_not():
    for name in demitasse.testing.__all__:
        assert name in dir(demitasse.testing)
        assert getattr(demitasse.testing, name).__doc__

    with expect_error(AttributeError, mentions="nonsense"):
        _ = demitasse.testing.nonsense
