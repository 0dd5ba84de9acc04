"""Parameter and Silence."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import make_layer

TEXT = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "w" type: "Parameter" top: "w" parameter_param { shape { dim: 2 dim: 3 } } }
layer { name: "y" type: "Eltwise" bottom: "x" bottom: "w" top: "y"
        eltwise_param { operation: PROD } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }
"""


@pytest.fixture
def net(backend):
    return Net(parse_text(TEXT, NetParameter), "TRAIN", device=backend)


def test_a_parameter_begins_as_zeros_and_is_handed_out(net):
    net.blobs["x"].data = 3
    assert net.forward() == 0

    net.params["w"][0].data = [[1, 2, 3], [4, 5, 6]]

    assert net.forward() == 63
    np.testing.assert_array_equal(net.blobs["w"].data, [[1, 2, 3], [4, 5, 6]])


def test_a_parameter_learns_and_its_gradients_add_up(net):
    net.blobs["x"].data = 3

    net.forward_backward()
    net.forward_backward()

    np.testing.assert_array_equal(net.params["w"][0].diff, np.full((2, 3), 6))


def test_a_frozen_parameter_gets_no_gradient(backend):
    one = make_layer(
        'type: "Parameter" parameter_param { shape { dim: 2 dim: 3 } }', device=backend
    )
    one.forward()
    one.layer.set_param_propagate_down(0, False)

    one.backward(np.ones((2, 3)))

    np.testing.assert_array_equal(one.params[0].diff, 0)


def test_silence_takes_any_blobs_and_gives_them_gradient_0(backend):
    bottoms = [np.ones((2, 3)), np.ones(4)]
    one = make_layer('type: "Silence"', bottoms, device=backend)
    for blob in one.bottom:
        blob.diff = 7
    assert one.forward() == []

    first, second = one.backward(propagate_down=[True, False])

    np.testing.assert_array_equal(first, np.zeros((2, 3)))
    assert second is None
    np.testing.assert_array_equal(one.bottom[1].diff, 7)


def test_silenced_blobs_are_no_outputs():
    text = TEXT.replace('"Reduction"', '"Silence"').replace('top: "loss" loss_weight: 1', "")

    assert Net(parse_text(text, NetParameter), "TEST").outputs == []


def test_silence_has_no_top():
    with expect_error(NetError, ErrorCode.COUNT_MISMATCH, blobs="tops", got=1):
        make_layer('type: "Silence" top: "y"', [np.ones(3)])
