"""The way from gradients to weights: order of the steps, factors, live views, what is copied."""

import numpy as np
import pytest

from demitasse import Solver
from demitasse.memory import transfers

# One weight matrix and no data: gradients are set by the test.
PLAIN = """
name: "plain"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 2 } }
"""


def params(solver):
    return [blob for blobs in solver.net.params.values() for blob in blobs]


def set_gradients(solver, *values):
    for blob, value in zip(params(solver), values, strict=True):
        blob.diff[...] = value


def test_multipliers_scale_rate_and_decay(fields, backend):
    solver = Solver(fields(net=PLAIN, momentum=0, weight_decay=0.5), device=backend)
    weight, bias = params(solver)
    weight.data[...], bias.data[...] = 4, 4
    set_gradients(solver, 1, 1)

    solver.apply_update()

    np.testing.assert_allclose(weight.data, 4 - 0.1 * (1 + 0.5 * 4), rtol=1e-6)
    np.testing.assert_allclose(bias.data, 4 - 0.1 * 2 * 1, rtol=1e-6)


def test_lars_scales_the_rate_of_weights_and_not_of_biases(fields, backend):
    solver = Solver(
        fields(net=PLAIN, type="LARS", momentum=0, weight_decay=0.5, trust_coefficient=0.01),
        device=backend,
    )
    weight, bias = params(solver)
    weight.data[...], bias.data[...] = 4, 4
    set_gradients(solver, 1, 1)

    solver.apply_update()

    ratio = 0.01 * 8 / (2 + 0.5 * 8)  # four elements: the norms are 8 and 2
    np.testing.assert_allclose(weight.data, 4 - 0.1 * ratio * (1 + 0.5 * 4), rtol=1e-6)
    np.testing.assert_allclose(bias.data, 4 - 0.1 * 2 * 1, rtol=1e-6)


def test_lars_leaves_factors_of_any_shape_the_common_rate(fields, backend):
    net = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "bn" type: "BN" bottom: "x" top: "bn" }
    """
    solver = Solver(
        fields(net=net, type="LARS", momentum=0, weight_decay=0, trust_coefficient=0.01),
        device=backend,
    )
    slope = solver.net.params["bn"][0]
    slope.data[...], slope.diff[...] = 4, 1

    solver.apply_update()

    assert len(slope.shape) > 1
    np.testing.assert_allclose(slope.data, 4 - 0.1, rtol=1e-6)


def test_the_gradient_becomes_what_was_subtracted(fields, backend):
    solver = Solver(fields(net=PLAIN, weight_decay=0), device=backend)
    weight, _ = params(solver)

    for _ in range(2):
        set_gradients(solver, 1, 1)
        solver.apply_update()

    np.testing.assert_allclose(weight.diff, 0.1 + 0.9 * 0.1, rtol=1e-6)


def test_clipping_comes_before_iter_size(fields, backend):
    solver = Solver(
        fields(net=PLAIN, momentum=0, weight_decay=0, clip_gradients=3, iter_size=2), device=backend
    )
    weight, bias = params(solver)
    set_gradients(solver, 3, 0)  # four elements: the norm is 6

    solver.apply_update()

    np.testing.assert_allclose(weight.data, -0.1 * 1.5 / 2, rtol=1e-6)
    np.testing.assert_array_equal(bias.data, 0)


def test_a_small_gradient_is_not_clipped(fields, backend):
    solver = Solver(fields(net=PLAIN, momentum=0, weight_decay=0, clip_gradients=7), device=backend)
    set_gradients(solver, 3, 0)

    solver.apply_update()

    np.testing.assert_allclose(params(solver)[0].data, -0.3, rtol=1e-6)


def test_clipping_is_logged_on_the_host(fields, lines):
    solver = Solver(fields(net=PLAIN, clip_gradients=3), device="numpy")
    set_gradients(solver, 3, 0)

    solver.apply_update()

    assert lines()[-1] == (
        "Gradient clipping: scaling down gradients (L2 norm 6 > 3) by scale factor 0.5"
    )


def test_a_parameter_without_gradient_still_decays(fields, backend):
    solver = Solver(fields(net=PLAIN, momentum=0, weight_decay=0.5), device=backend)
    weight, _ = params(solver)
    weight.data[...] = 4
    solver.net.clear_param_diffs()

    solver.apply_update()

    np.testing.assert_allclose(weight.data, 4 - 0.1 * 0.5 * 4, rtol=1e-6)


@pytest.mark.parametrize("kind", ["SGD", "AdaGrad", "Adam", "AdamW", "LARS", "LAMB"])
def test_a_frozen_parameter_stays(fields, kind, backend):
    frozen = PLAIN.replace("lr_mult: 1", "lr_mult: 0")
    momentum = 0 if kind == "AdaGrad" else 0.9
    solver = Solver(fields(net=frozen, type=kind, momentum=momentum), device=backend)
    weight, bias = params(solver)
    weight.data[...] = 4
    set_gradients(solver, 1, 1)

    solver.apply_update()

    assert np.all(weight.data == 4)
    assert np.all(bias.data != 0)


def test_old_momentum_moves_a_parameter_that_is_frozen_now(fields, tmp_path, backend):
    """As in Caffe: a rate of 0 stops new gradients, not what is in the history."""
    solver = Solver(fields(net=PLAIN, weight_decay=0), device=backend)
    set_gradients(solver, 1, 1)
    solver.apply_update()
    _, state = solver.snapshot(tmp_path / "s")
    frozen = Solver(
        fields(net=PLAIN.replace("lr_mult: 1", "lr_mult: 0"), weight_decay=0), device=backend
    )
    frozen.restore(state)
    before = params(frozen)[0].data.copy()
    frozen.net.clear_param_diffs()

    frozen.apply_update()

    np.testing.assert_allclose(params(frozen)[0].data, before - 0.9 * 0.1, rtol=1e-6)


def test_a_shared_parameter_is_updated_once(fields, backend):
    shared = (
        PLAIN.replace("param { lr_mult: 1", 'param { name: "w" lr_mult: 1')
        + """
layer { name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2" param { name: "w" }
  inner_product_param { num_output: 2 bias_term: false } }
"""
    )
    solver = Solver(fields(net=shared, momentum=0, weight_decay=0), device=backend)
    solver.net.params["ip"][0].diff[...] = 1

    solver.apply_update()

    np.testing.assert_allclose(solver.net.params["ip2"][0].data, -0.1, rtol=1e-6)
    assert len(solver.history) == 2


def test_a_live_view_shows_the_update_and_what_is_written_into_it_counts(fields, backend):
    solver = Solver(fields(net=PLAIN, momentum=0, weight_decay=0), device=backend)
    weight, _ = params(solver)
    view = weight.data
    set_gradients(solver, 1, 1)
    solver.apply_update()
    view += 10

    set_gradients(solver, 1, 1)
    solver.apply_update()

    np.testing.assert_allclose(view, 10 - 0.2, rtol=1e-6)


def test_double_precision(fields, backend):
    solver = Solver(fields(net=PLAIN, momentum=0, weight_decay=0), device=backend, dtype="float64")
    set_gradients(solver, 1e-9, 0)

    solver.apply_update()

    weight = params(solver)[0].data
    assert weight.dtype == np.float64
    np.testing.assert_allclose(weight, -1e-10, rtol=1e-7)


def test_an_update_waits_for_nothing_and_copies_nothing(fields):
    solver = Solver(fields(clip_gradients=0.01, type="Adam"), device="strict:device1")
    solver.step(2)
    transfers.reset()

    solver.apply_update()

    assert transfers.to_host == transfers.to_device == 0


def test_an_iteration_brings_home_the_loss_alone(fields):
    net = fields().net_param
    for layer in net.layer:  # constant data is filled once
        for filler in layer.dummy_data_param.data_filler:
            filler.type = "constant"
    param = fields(net="")
    param.net_param.CopyFrom(net)
    solver = Solver(param, device="strict:device1")
    solver.step(2)
    transfers.reset()

    solver.step(3)

    assert transfers.to_host <= 3
    assert transfers.bytes_to_host <= 3 * 4


def test_history_moves_with_the_net(fields):
    solver = Solver(fields(net=PLAIN, weight_decay=0), device="numpy")
    set_gradients(solver, 1, 1)
    solver.apply_update()

    solver.net.to("strict:device1")
    set_gradients(solver, 1, 1)
    solver.apply_update()

    np.testing.assert_allclose(params(solver)[0].diff, 0.19, rtol=1e-6)
