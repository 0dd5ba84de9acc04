"""The gradient checker: what it accepts, and every kind of mistake it must find."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, NetError
from demitasse.layers import register_layer, unregister
from demitasse.layers.activations import NeuronLayer
from demitasse.layers.base import Exactly, Layer
from demitasse.testing import GradientError, check_gradients, make_layer

X = np.random.default_rng(0).normal(0, 1, (2, 3))


@pytest.fixture
def layer_type():
    """Register a layer class as "Mine" for one test."""

    def use(cls):
        register_layer("Mine")(cls)
        return 'type: "Mine"'

    yield use
    unregister("Mine")


class Square(NeuronLayer):
    """What the mistaken layers of this file are made from."""

    def forward(self, bottom, top):
        x = bottom[0].read()
        top[0].write(x * x)

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].write_diff(2 * bottom[0].read() * top[0].read_diff())


def test_a_right_gradient_passes_and_the_largest_error_is_returned(layer_type, backend):
    error = check_gradients(layer_type(Square), X, device=backend)

    assert 0 <= error < 1e-9


def test_a_wrong_gradient_is_reported_with_place_and_both_values(layer_type):
    class Wrong(Square):
        def backward(self, top, propagate_down, bottom):
            factor = self.constant("factor", (), lambda: self.xp.asarray([[2.0, 2, 2], [2, 2, 3]]))
            bottom[0].write_diff(factor * bottom[0].read() * top[0].read_diff())

    text = layer_type(Wrong)

    with expect_error(
        GradientError,
        mentions=[
            "top 'top0'[1, 2]",
            "bottom 0 ('bottom0') at [1, 2]",
            f"{6 * X[1, 2] / 2:.6g}"[:6],
            f"{2 * X[1, 2]:.6g}"[:6],
        ],
    ):
        check_gradients(text, X, device="numpy", exhaustive=True)


@pytest.mark.parametrize("exhaustive", [False, True])
def test_a_gradient_that_is_added_instead_of_overwritten_is_found(layer_type, exhaustive):
    class Adds(Square):
        def backward(self, top, propagate_down, bottom):
            bottom[0].add_diff(2 * bottom[0].read() * top[0].read_diff())

    text = layer_type(Adds)

    with expect_error(GradientError, mentions=["bottom 0", "is nan"]):
        check_gradients(text, X, exhaustive=exhaustive)


def test_a_gradient_that_is_not_written_is_found(layer_type):
    class Forgets(Square):
        def backward(self, top, propagate_down, bottom):
            """Nothing."""

    text = layer_type(Forgets)

    with expect_error(GradientError, mentions=["bottom 0", "is nan"]):
        check_gradients(text, X)


class Weighted(Layer):
    """y = w x, one weight."""

    bottoms = tops = Exactly(1)

    def setup(self, bottom, top):
        self.add_param((1,))

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward(self, bottom, top):
        top[0].write(bottom[0].read() * self.blobs[0].read())

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].add_diff(
            self.xp.reshape(self.xp.sum(bottom[0].read() * top[0].read_diff()), (1,))
        )
        if propagate_down[0]:
            bottom[0].write_diff(self.blobs[0].read() * top[0].read_diff())


def test_parameters_are_checked(layer_type, backend):
    one = make_layer(layer_type(Weighted), [X], device=backend)
    one.params[0].data = 1.5

    assert check_gradients(one) < 1e-9


def test_a_parameter_gradient_that_is_overwritten_is_found(layer_type):
    class Overwrites(Weighted):
        def backward(self, top, propagate_down, bottom):
            self.blobs[0].set_diff(0)
            super().backward(top, propagate_down, bottom)

    text = layer_type(Overwrites)

    with expect_error(GradientError, mentions="parameter 0 at [0]"):
        check_gradients(text, X)
    assert check_gradients(text, X, check_params=False) < 1e-9


class Product(Layer):
    """y = a b."""

    bottoms, tops = Exactly(2), Exactly(1)

    def reshape(self, bottom, top):
        top[0].reshape_like(bottom[0])

    def forward(self, bottom, top):
        top[0].write(bottom[0].read() * bottom[1].read())

    def backward(self, top, propagate_down, bottom):
        for i in range(2):
            if propagate_down[i]:
                bottom[i].write_diff(bottom[1 - i].read() * top[0].read_diff())


@pytest.mark.parametrize("check_bottom", [None, 0, 1, -1, [0, 1]])
def test_bottoms_are_checked_that_are_asked_for(layer_type, check_bottom):
    assert check_gradients(layer_type(Product), X, X + 1, check_bottom=check_bottom) < 1e-9


def test_a_gradient_nobody_asked_for_is_found(layer_type):
    class Generous(Product):
        def backward(self, top, propagate_down, bottom):
            super().backward(top, [True, True], bottom)

    text = layer_type(Generous)

    with expect_error(GradientError, mentions=["bottom 1 ('bottom1')", "propagate_down"]):
        check_gradients(text, X, X + 1, check_bottom=0)


def test_bottoms_without_a_gradient_are_left_out(layer_type):
    class OneSided(Product):
        def allow_force_backward(self, bottom_index):
            return bottom_index == 0

        def backward(self, top, propagate_down, bottom):
            assert not propagate_down[1]
            super().backward(top, propagate_down, bottom)

    assert check_gradients(layer_type(OneSided), X, X + 1) < 1e-9


def test_elements_near_a_kink_are_not_checked():
    x = np.array([[-1.0, 0.0004, 2.0]])

    with pytest.raises(GradientError):
        check_gradients('type: "ReLU"', x, step=1e-3)

    assert check_gradients('type: "ReLU"', x, step=1e-3, kink=0, kink_range=1e-2) < 1e-9


def test_there_may_be_several_kinks():
    x = np.array([[-0.5001, 0.2, 1.4999]])
    text = 'type: "Clip" clip_param { min: -0.5 max: 1.5 }'

    assert check_gradients(text, x, kink=(0.5, 1.5), kink_range=1e-2) < 1e-9


def test_a_layer_in_place_is_checked_as_any_other(backend):
    text = 'type: "TanH" bottom: "x" top: "x"'

    assert check_gradients(text, X, device=backend, exhaustive=True) < 1e-6


def test_a_layer_that_changes_its_parameters_in_forward_is_checked_from_one_start(layer_type):
    class Drifts(Weighted):
        def forward(self, bottom, top):
            super().forward(bottom, top)
            self.blobs[0].write(self.blobs[0].read() + 1)

        def backward(self, top, propagate_down, bottom):
            if propagate_down[0]:
                bottom[0].write_diff((self.blobs[0].read() - 1) * top[0].read_diff())

    assert check_gradients(layer_type(Drifts), X, check_params=False) < 1e-9


def test_only_float64_is_accurate_enough():
    one = make_layer('type: "TanH"', [X], dtype="float32")

    with expect_error(ValueError, mentions="float32"):
        check_gradients(one)


def test_a_layer_without_gradients_is_refused():
    one = make_layer('type: "DummyData" dummy_data_param { shape { dim: 2 } }')

    with expect_error(ValueError, mentions="DummyData"):
        check_gradients(one)


class Undeclared(Layer):
    """As a first layer of one's own often is: nothing says that it has a top."""

    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    forward, backward = Square.forward, Square.backward


def test_a_layer_that_does_not_say_how_many_tops_it_has_is_told_to(layer_type):
    with expect_error(
        NetError, ErrorCode.MISSING, field="tops", mentions=["Mine", "tops = Exactly(1)"]
    ):
        check_gradients(layer_type(Undeclared), X)


def test_naming_the_top_is_as_good(layer_type):
    assert check_gradients(layer_type(Undeclared) + ' top: "y"', X) < 1e-9


def test_without_tops_there_is_nothing_to_check():
    with expect_error(ValueError, mentions=["Silence", "tops = Exactly(1)"]):
        check_gradients('type: "Silence"', X)


def test_a_made_layer_is_checked_where_it_stands():
    one = make_layer('type: "TanH"', [X])

    assert check_gradients(one) == check_gradients('type: "TanH"', X)
