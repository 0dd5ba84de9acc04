"""BN, of SegNet and of PSPNet."""

from typing import ClassVar

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X = RNG.normal(1, 2, (4, 3, 2, 5))
IN_PLACE = 'bottom: "x" top: "x"'
UNIFORM = '{ type: "uniform" min: 0.5 max: 2 }'


def text(fields, more=""):
    return f'type: "BN" bn_param {{ {fields} }} {more}'


def normalised(x, eps):
    """Every channel, one after the other."""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        y[:, c] = (x[:, c] - x[:, c].mean()) / np.sqrt(x[:, c].var() + eps)
    return y


def spread(param):
    return np.asarray(param.data).reshape(-1, 1, 1)


class TestSegNet:
    LEARN = f"scale_filler {UNIFORM} shift_filler {UNIFORM}"
    INFERENCE = f"{LEARN} bn_mode: INFERENCE"

    @pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_learn_looks_at_the_batch_in_both_phases(self, phase, more, backend):
        one = make_layer(text(self.LEARN, more), [X], phase=phase, device=backend)
        scale, shift = one.params

        [y] = one.forward(X)

        assert [blob.shape for blob in one.params] == [(1, 3, 1, 1)] * 2
        np.testing.assert_allclose(y, normalised(X, 1e-9) * spread(scale) + spread(shift))

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_inference_scales_and_shifts(self, more, backend):
        one = make_layer(text(self.INFERENCE, more), [X], device=backend)
        scale, shift = one.params

        [y] = one.forward(X)

        np.testing.assert_allclose(y, X * spread(scale) + spread(shift))

    def test_further_tops_take_mean_and_variance(self, backend):
        more = 'top: "y" top: "mean" top: "variance"'
        one = make_layer(text(self.LEARN, more), [X], device=backend)

        _, mean, variance = one.forward()

        np.testing.assert_allclose(mean, X.mean(axis=(0, 2, 3)).reshape(1, 3, 1, 1))
        np.testing.assert_allclose(variance, X.var(axis=(0, 2, 3)).reshape(1, 3, 1, 1))

    @pytest.mark.parametrize("fields", [LEARN, INFERENCE])
    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_gradients(self, fields, more, backend):
        expect_gradients(text(fields, more), X, step=1e-4, threshold=1e-5, device=backend)

    def test_further_tops_of_inference_are_refused(self):
        with expect_error(ConfigError, ErrorCode.CONFLICT, field="bn_param.bn_mode"):
            make_layer(text(self.INFERENCE, 'top: "y" top: "mean"'), [X])


class TestPSPNet:
    FIELDS = f"slope_filler {UNIFORM} bias_filler {UNIFORM} eps: 0.001"

    STORED: ClassVar = {2: [[-0.4, 0.9, 0.2]], 3: [[1.1, 1.6, 1.9]]}

    def frozen(self, more="", phase="TRAIN", device=None):
        one = make_layer(text(f"{self.FIELDS} frozen: true", more), [X], phase=phase, device=device)
        self.average(one)
        return one

    @staticmethod
    def average(one):
        one.params[2].data = RNG.normal(0, 1, (1, 3))
        one.params[3].data = RNG.uniform(1, 2, (1, 3))

    def expected(self, one):
        slope, bias, mean, variance = map(spread, one.params)
        return (X - mean) / np.sqrt(variance + np.float32(0.001)) * slope + bias

    def test_training_looks_at_the_batch(self, backend):
        one = make_layer(text(self.FIELDS), [X], device=backend)
        slope, bias = one.params[:2]

        [y] = one.forward()

        assert [blob.shape for blob in one.params] == [(1, 3)] * 4
        expected = normalised(X, np.float32(0.001)) * spread(slope) + spread(bias)
        np.testing.assert_allclose(y, expected)

    def test_training_keeps_averages(self, backend):
        one = make_layer(text("momentum: 0.75 frozen: false"), [X], device=backend)
        mean, variance = np.zeros(3), np.zeros(3)

        for shift in (0, 1, 5):
            one.forward(X + shift)
            mean = 0.75 * mean + 0.25 * (X + shift).mean(axis=(0, 2, 3))
            variance = 0.75 * variance + 0.25 * X.var(axis=(0, 2, 3))

        np.testing.assert_allclose(one.params[2].data[0], mean)
        np.testing.assert_allclose(one.params[3].data[0], variance)

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_testing_uses_the_averages(self, more, backend):
        one = make_layer(text(self.FIELDS, more), [X], phase="TEST", device=backend)
        self.average(one)
        before = one.params[2].data.copy()

        [y] = one.forward(X)

        np.testing.assert_allclose(y, self.expected(one))
        np.testing.assert_array_equal(one.params[2].data, before)

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    @pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
    def test_frozen_uses_the_averages_in_both_phases(self, more, phase, backend):
        one = self.frozen(more, phase, backend)

        np.testing.assert_allclose(one.forward(X)[0], self.expected(one))

    def test_the_averages_are_not_trained_and_frozen_nothing_is(self):
        trained = make_layer(text(self.FIELDS), [X]).layer.param.param
        frozen = make_layer(text("frozen: true", "param { lr_mult: 2 }"), [X]).layer.param.param

        assert [(spec.lr_mult, spec.decay_mult) for spec in trained] == [(1, 1)] * 2 + [(0, 0)] * 2
        assert [spec.lr_mult for spec in frozen] == [0] * 4

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    @pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
    def test_gradients(self, more, phase, backend):
        expect_gradients(
            text(self.FIELDS, more), X, phase=phase, params=self.STORED, device=backend,
            step=1e-4, threshold=1e-5, check_params=[0, 1],
        )  # fmt: skip

    @pytest.mark.parametrize("more", ["", IN_PLACE])
    def test_gradients_when_frozen(self, more, backend):
        expect_gradients(
            text(f"{self.FIELDS} frozen: true", more), X, params=self.STORED, device=backend,
            threshold=1e-7, check_params=False,
        )  # fmt: skip

    def test_when_frozen_parameters_have_no_gradient(self):
        one = self.frozen()
        one.forward()

        one.backward(np.ones_like(X))

        assert all((blob.diff == 0).all() for blob in one.params)


@pytest.mark.parametrize("ones", [[], [1, 1]], ids=["yjxiong", "PSPNet"])
def test_files_of_both_forks_load(tmp_path, ones):
    net = Net(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 3, 2, 5] } } }'
        'layer { name: "bn" type: "BN" bottom: "x" top: "y" bn_param { frozen: true } }'
    )
    stored = LayerParameter(name="bn", type="BN")
    for index in range(4):
        stored.blobs.add(shape={"dim": [1, 3, *ones]}, data=[index + 1, index + 2, index + 3])
    file = tmp_path / "pspnet.caffemodel"
    file.write_bytes(NetParameter(layer=[stored]).SerializeToString())

    report = net.load(file)

    assert report.loaded == ["bn"]
    np.testing.assert_array_equal(net.params["bn"][3].data.reshape(-1), [4, 5, 6])


def test_without_fields_stored_parameters_decide():
    blob = "blobs { shape { dim: [1, 3, 1, 1] } data: [1, 2, 3] }"

    segnet = make_layer(f'type: "BN" {blob} {blob}', [X])
    plain = make_layer('type: "BN"', [X])

    assert (len(segnet.params), len(plain.params)) == (2, 4)


def test_two_axes_are_enough(backend):
    expect_gradients(
        text("momentum: 0.5"),
        X[:, :, 0, 0],
        step=1e-4,
        threshold=1e-4,
        check_params=[0, 1],
        device=backend,
    )


def test_fields_of_both_are_refused():
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="bn_param.scale_filler"):
        make_layer(text("scale_filler { } eps: 1"), [X])


def test_other_channels_are_refused():
    one = make_layer(text("eps: 1"), [X])

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom0", got=2, mentions="3"):
        one.forward(X[:, :2])


def test_a_bottom_without_channels_is_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(N, C, ...)"):
        make_layer(text("eps: 1"), [np.ones(3)])
