"""Whole nets: layers in place, live views, other devices, weights, solvers."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.memory import transfers
from demitasse.net import Net
from demitasse.testing.conformance.runs import SEED, expect_same, run, run_on_both
from demitasse.training import RULES, Solver

RNG = np.random.default_rng(5)
SHAPE = (4, 3, 8, 8)
INPUTS = {"x": RNG.normal(size=SHAPE), "label": np.array([0.0, 3, 1, 4])}

LENET = """
name: "small"
layer { name: "x" type: "Input" top: "x"
  input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
  num_output: 6 kernel_size: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {
  kernel_size: 2 stride: 2 } }
layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "drop" }
layer { name: "ip" type: "InnerProduct" bottom: "drop" top: "ip" inner_product_param {
  num_output: 5 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

NOISE = """
layer { name: "x" type: "DummyData" top: "x"
  dummy_data_param { shape { dim: 9 } data_filler { type: "gaussian" } } }
"""

CHAINED = {
    "ReLU": 'type: "ReLU"',
    "TanH": 'type: "TanH"',
    "Dropout": 'type: "Dropout"',
    "Scale": 'type: "Scale" scale_param { bias_term: true filler { value: -1.5 } }',
    "BatchNorm": 'type: "BatchNorm"',
    "Softmax": 'type: "Softmax"',
}


# the gradient of a bias before a normalization contains rounding errors alone
PAIRS = [pair for pair in itertools.product(CHAINED, repeat=2) if pair != ("Scale", "BatchNorm")]


def small(device: str | Device, dtype: str = "float32", **options) -> Net:
    net = Net(
        parse_text(LENET, NetParameter), "TRAIN", device=device, dtype=dtype, seed=SEED, **options
    )
    for name, value in INPUTS.items():
        net.blobs[name].data[...] = value
    return net


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_layers_in_place_behind_one_another(first, second, phase, device, dtype):
    text = f"""
        force_backward: {str(phase == "TRAIN").lower()}
        layer {{ name: "x" type: "Input" top: "x"
          input_param {{ shape {{ dim: 4 dim: 3 dim: 8 dim: 8 }} }} }}
        layer {{ name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {{
          num_output: 8 kernel_size: 3 pad: 1 bias_term: false
          weight_filler {{ type: "gaussian" std: 0.3 }} }} }}
        layer {{ name: "first" bottom: "y" top: "y" {CHAINED[first]} }}
        layer {{ name: "second" bottom: "y" top: "y" {CHAINED[second]} }}
    """
    inputs = {"x": INPUTS["x"]}

    run_on_both(parse_text(text, NetParameter), device, dtype, inputs, phase)


def test_whole_net(device, dtype):
    run_on_both(parse_text(LENET, NetParameter), device, dtype, INPUTS)


def test_gradients_add_up_until_they_are_cleared(device):
    net = small(device)
    net.forward_backward()
    once = np.array(net.params["ip"][0].diff)

    net.passes = 0  # the same elements are dropped
    net.forward_backward()
    twice = np.array(net.params["ip"][0].diff)
    net.clear_param_diffs()

    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)
    assert not net.params["ip"][0].cpu_diff().any()


def test_a_pass_copies_the_loss_and_nothing_else(device):
    net = small(device)
    net.forward_backward()  # inputs and weights go up
    transfers.reset()

    net.forward_backward()

    counted = (transfers.to_device, transfers.to_host)
    assert counted == ((0, 0) if device.shares_host else (0, 1))


def test_held_views_are_live(device):
    net = small(device)
    x, loss, gradient = net.blobs["x"].data, net.blobs["loss"].data, net.params["conv"][0].diff
    first = net.forward_backward()
    seen = (float(loss), np.array(gradient))

    x *= -2
    net.passes = 0
    second = net.forward_backward()

    assert seen[0] == pytest.approx(first)
    assert seen[1].any()
    assert second != first
    assert float(loss) == pytest.approx(second)
    assert (gradient != seen[1]).any()


@pytest.mark.parametrize("other", ["numpy", "readonly"])
def test_a_net_moves_to_another_device_and_back(other, device, dtype):
    net = small(device, dtype)
    first = net.forward_backward()
    gradient = np.array(net.params["conv"][0].diff)

    losses = []
    for place in (other, device):
        net.to(place)
        net.passes = 0
        net.clear_param_diffs()
        losses.append(net.forward_backward())

    assert losses == pytest.approx([first, first], rel=1e-5)
    np.testing.assert_allclose(net.params["conv"][0].diff, gradient, rtol=1e-3, atol=1e-6)


def test_a_net_runs_in_another_thread(device):
    net = small(device)
    here = net.forward_backward()
    net.passes = 0

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(net.forward_backward).result()

    assert found == pytest.approx(here)


def test_nets_that_keep_only_their_outputs_compute_the_same(device, dtype):
    param = parse_text(LENET, NetParameter)
    whole = run(param, device, dtype, INPUTS)
    gradients = []
    with small(device, dtype, keep_blobs="outputs") as net:
        for _ in range(2):
            net.forward()
            net.backward(-1)
            gradients.append(np.array(net.params["conv"][0].diff))

    want = {"gradient": whole["layer 'conv' (Convolution), gradient of parameter 0"]}
    expect_same({"gradient": gradients[1]}, want, dtype, device)
    assert (gradients[0] != gradients[1]).any()


def test_weights_are_the_same_file_as_elsewhere(device, tmp_path):
    files = [tmp_path / "mine.caffemodel", tmp_path / "other.caffemodel"]
    for place, file in zip((device, "numpy"), files, strict=True):
        small(place).save(file)

    assert files[0].read_bytes() == files[1].read_bytes()


def test_weights_that_the_device_changed_are_saved_and_loaded(device, tmp_path):
    net = small(device)
    net.forward_backward()
    net.update()

    net.save(tmp_path / "net.caffemodel")
    loaded = small(device, weights=tmp_path / "net.caffemodel")

    for blob, mine in zip(loaded.learnable_params, net.learnable_params, strict=True):
        np.testing.assert_array_equal(blob.data, mine.data)


@pytest.mark.parametrize("kind", RULES)
def test_solver_steps(kind, device, dtype):
    momentum = "" if kind in {"AdaGrad", "RMSProp"} else "momentum: 0.9"
    text = (
        f'type: "{kind}" base_lr: 0.05 lr_policy: "fixed" {momentum} momentum2: 0.99 '
        "weight_decay: 0.01 delta: 0.001 clip_gradients: 5 iter_size: 2 "
        f"net_param {{ {LENET} }}"
    )
    param = parse_text(text, SolverParameter)

    def trained(place: str | Device) -> dict[str, np.ndarray]:
        solver = Solver(param, device=place, dtype=dtype, seed=SEED)
        for name, value in INPUTS.items():
            solver.net.blobs[name].data[...] = value
        solver.step(3)
        return {
            f"layer {name!r}, parameter {i} after 3 iterations": np.array(blob.data)
            for name, blobs in solver.net.params.items()
            for i, blob in enumerate(blobs)
        }

    expect_same(trained(device), trained("numpy"), dtype, device)


def test_means_of_a_test_net(device):
    fields = 'test_iter: 3 test_interval: 1 base_lr: 0.1 lr_policy: "fixed"'
    param = parse_text(f"net_param {{ {NOISE} }} {fields}", SolverParameter)

    found, want = (Solver(param, device=d, seed=SEED).test()["x"] for d in (device, "numpy"))

    np.testing.assert_allclose(found, want, rtol=1e-6)
