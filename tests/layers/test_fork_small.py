"""Small layers of the forks: Axpy, ReLU6, and other names of Convolution."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X = RNG.normal(0, 4, (2, 3, 4, 5))


class TestAxpy:
    A, B = RNG.normal(0, 1, (2, 3, 1, 1)), RNG.normal(0, 1, X.shape)
    IN_PLACE = 'bottom: "a" bottom: "x" bottom: "b" top: "b"'

    @pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 3)])
    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_value(self, shape, more, backend):
        a = self.A.reshape(shape)
        one = make_layer(f'type: "Axpy" {more}', [a, X, self.B], device=backend)

        [y] = one.forward(a, X, self.B)

        np.testing.assert_allclose(y, self.A * X + self.B)

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_gradients(self, more, backend):
        expect_gradients(f'type: "Axpy" {more}', self.A, X, self.B, threshold=1e-7, device=backend)

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_one_gradient_at_a_time(self, index, backend):
        expect_gradients('type: "Axpy"', self.A, X, self.B, check_bottom=index, device=backend)

    @pytest.mark.parametrize(
        "bottoms",
        [
            [A[:1], X, B],
            [A[:, :2], X, B],
            [A.repeat(2, axis=2), X, B],
            [A, X, B[:, :, :2]],
            [A[:, 0, 0, 0], X[:, 0, 0, 0], B[:, 0, 0, 0]],
        ],
    )
    def test_other_shapes_are_refused(self, bottoms):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(N, C)", "(N, C, ...)"]):
            make_layer('type: "Axpy"', bottoms)

    @pytest.mark.parametrize("top", ["a", "x"])
    def test_in_place_of_another_bottom_is_refused(self, top):
        a = np.ones((2, 3))
        x = a if top == "a" else X
        more = f'bottom: "a" bottom: "x" bottom: "b" top: "{top}"'

        with expect_error(NetError, ErrorCode.CONFLICT, mentions="Axpy"):
            make_layer(f'type: "Axpy" {more}', [a, x, x])


class TestReLU6:
    IN_PLACE = 'bottom: "x" top: "x"'

    @staticmethod
    def text(slope, more=""):
        return f'type: "ReLU6" relu6_param {{ negative_slope: {slope} }} {more}'

    @pytest.mark.parametrize("slope", [0, 0.25, -0.5])
    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_value(self, slope, more, backend):
        one = make_layer(self.text(slope, more), [X], device=backend)

        [y] = one.forward(X)

        np.testing.assert_allclose(y, np.minimum(np.where(X > 0, X, slope * X), 6))

    @pytest.mark.parametrize("slope", [0, 0.25, -0.5])
    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_gradients(self, slope, more, backend):
        expect_gradients(
            self.text(slope, more), X, kink=[0, 6], kink_range=0.01, threshold=1e-7, device=backend
        )

    def test_at_the_kinks_the_gradient_is_that_of_the_left_and_of_0(self, backend):
        one = make_layer(self.text(0.5), [[0.0, 6.0]], device=backend)
        one.forward()

        np.testing.assert_array_equal(one.backward([1, 1])[0], [0.5, 0])


class TestDepthwise:
    WINDOW = "kernel_size: 3 pad: 1 stride: 2"
    FILLER = 'weight_filler { type: "gaussian" }'

    def loop(self, x, weight, bias):
        n, c, h, w = x.shape
        padded = np.zeros((n, c, h + 2, w + 2))
        padded[:, :, 1:-1, 1:-1] = x
        y = np.empty((n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1))
        for channel in range(c):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    seen = padded[:, channel, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
                    y[:, channel, i, j] = (seen * weight[channel, 0]).sum(axis=(1, 2))
        return y + bias[:, None, None]

    @pytest.mark.parametrize(
        ("kind", "fields"),
        [
            ("DepthwiseConvolution", "num_output: 3 group: 3"),
            ("ConvolutionDepthwise", "num_output: 3"),
        ],
    )
    def test_against_a_loop(self, kind, fields, backend):
        text = f'type: "{kind}" convolution_param {{ {fields} {self.WINDOW} {self.FILLER} }}'
        one = make_layer(text, [X], device=backend)
        one.params[1].data = [1, 2, 3]
        weight, bias = (np.array(blob.data) for blob in one.params)

        [y] = one.forward()

        assert weight.shape == (3, 1, 3, 3)
        np.testing.assert_allclose(y, self.loop(X, weight, bias), atol=1e-12)
