"""BatchNorm with a scale and a bias of its own, as NVCaffe's."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.backends import ops
from demitasse.errors import ConfigError, ErrorCode
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(1, 2, (4, 3, 2, 5))
IN_PLACE = 'bottom: "x" top: "x"'
UNIFORM = '{ type: "uniform" min: 0.5 max: 2 }'
FILLERS = f"scale_filler {UNIFORM} bias_filler {UNIFORM}"


def text(fields, more=""):
    return f'type: "BatchNorm" batch_norm_param {{ {fields} }} {more}'


def spread(param):
    return np.asarray(param.data).reshape(-1, 1, 1)


@pytest.mark.parametrize("fields", ["scale_bias: true", "scale_filler { value: 1 }", FILLERS])
@pytest.mark.parametrize("more", ["", IN_PLACE])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_it_is_batch_norm_and_scale(fields, more, phase, backend):
    one = make_layer(text(fields, more), [X], phase=phase, device=backend)
    one.params[0].data, one.params[1].data, one.params[2].data = [1, 2, 3], [2, 3, 4], [2]
    mean, variance = (spread(blob) / 2 for blob in one.params[:2])
    if phase == "TRAIN":
        mean = X.mean(axis=(0, 2, 3), keepdims=True)
        variance = X.var(axis=(0, 2, 3), keepdims=True)

    [y] = one.forward(X)

    unit = (X - mean) / np.sqrt(variance + np.float32(1e-5))
    np.testing.assert_allclose(y, unit * spread(one.params[3]) + spread(one.params[4]))


@pytest.mark.parametrize("more", ["", IN_PLACE])
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_gradients(more, phase, backend):
    stored = {1: [2, 3, 4], 2: [2]}

    expect_gradients(
        text(FILLERS, more), X, phase=phase, params=stored, device=backend,
        step=1e-4, threshold=1e-5, check_params=[3, 4],
    )  # fmt: skip


def test_without_fillers_it_scales_by_1_and_adds_0():
    one = make_layer(text("scale_bias: true"), [X])

    np.testing.assert_array_equal(one.params[3].data, 1)
    np.testing.assert_array_equal(one.params[4].data, 0)


def test_rates_of_the_statistics_become_0():
    rates = "param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 1 decay_mult: 1 }"

    one = make_layer(text("scale_bias: true", rates), [X])

    assert [spec.lr_mult for spec in one.layer.param.param] == [0, 0, 0]
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="param.lr_mult"):
        make_layer(text("", rates), [X])


def test_backends_do_not_take_it_for_caffes():
    op = make_layer(text("scale_bias: true"), [X]).layer.op

    assert isinstance(op, ops.AffineBatchNorm)
    assert not op.use_global_stats
    assert make_layer(text(""), [X]).layer.op is not None
