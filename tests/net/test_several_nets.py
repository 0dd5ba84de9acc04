"""Several nets in a process: blobs they share, and threads they run in."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Blob, Net, Solver
from demitasse.errors import DeviceError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text

TEXT = """
name: "small"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
        inner_product_param { num_output: 3 bias_term: false weight_filler { type: "xavier" } } }
"""
TRAINED = (
    TEXT
    + """layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
    layer { name: "drop" type: "Dropout" bottom: "y" top: "y" }
    layer { name: "loss" type: "Reduction" bottom: "y" top: "loss"
            reduction_param { operation: SUMSQ } loss_weight: 1 }"""
)
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def made(backend, seed, text=TEXT):
    net = Net(parse_text(text, NetParameter), "TRAIN", device=backend, seed=seed)
    net.blobs["x"].data = X
    return net


def weight(backend, value):
    """Return a weight that multiplies the sum of each row."""
    blob = Blob((3, 6), device=backend)
    blob.data = value
    return blob


def output(net):
    net.forward()
    return net.blobs["y"].data.copy()


def test_nets_on_devices_that_do_not_reach_each_other_cannot_share():
    net, other = made("numpy", seed=1), made("strict:device1", seed=2)
    expected = output(net)

    with expect_error(DeviceError, ErrorCode.CONFLICT, mentions=["strict:device1", "numpy"]):
        other.share_trained_layers_with(net)
    assert not np.array_equal(output(other), expected)

    net.to("strict:device1")
    other.share_trained_layers_with(net)

    np.testing.assert_allclose(output(other), expected, rtol=1e-6)


@pytest.mark.parametrize("devices", [("numpy", "cpu"), ("cpu", "readonly"), ("readonly", "cpu")])
def test_nets_in_host_memory_share_in_every_order(devices):
    net, other = made(devices[0], seed=1), made(devices[1], seed=2)
    expected = output(net)

    other.share_trained_layers_with(net)

    np.testing.assert_allclose(output(other), expected, rtol=1e-6)
    net.params["ip"][0].data[...] *= 2
    np.testing.assert_allclose(output(other), output(net), rtol=1e-6)
    assert not np.allclose(output(net), expected)

    net.to("numpy")
    np.testing.assert_allclose(output(other), output(net), rtol=1e-6)


@pytest.mark.parametrize(
    ("device", "moved"), [("strict:device1", "cpu"), ("numpy", "strict:device1")]
)
def test_a_net_is_told_that_its_weights_were_moved(device, moved):
    net, other = made(device, seed=1), made(device, seed=2)
    other.share_trained_layers_with(net)

    net.to(moved)
    with expect_error(DeviceError, ErrorCode.CONFLICT, mentions=["ip", moved, device, "net.to"]):
        other.forward()
    other.to(moved)

    np.testing.assert_allclose(output(other), output(net), rtol=1e-6)


def test_a_kernel_is_told_that_its_weights_were_moved():
    blob = weight("strict:device1", 2.0)

    with expect_error(DeviceError, ErrorCode.CONFLICT, mentions=["strict:device1", "net.to"]):
        blob.data_memory.private_data(SimpleNamespace(size=32, shape=(3, 6)))

    assert (blob.data == 2).all()


def test_a_net_that_shares_follows_when_it_shares_again(backend):
    one, other = made(backend, 1), made(backend, 2)
    sums = X.sum(axis=1, keepdims=True).repeat(3, axis=1)
    before = output(one), output(other)

    other.share_trained_layers_with(one)
    np.testing.assert_array_equal(output(other), before[0])

    one.params["ip"][0].share_data(weight(backend, 2.0))
    np.testing.assert_allclose(output(one), 2 * sums, rtol=1e-5)
    np.testing.assert_array_equal(output(other), before[0])  # the memory it was given

    other.share_trained_layers_with(one)
    np.testing.assert_allclose(output(other), 2 * sums, rtol=1e-5)


def test_test_nets_follow_a_weight_whose_memory_is_another(backend):
    fields = 'base_lr: 0 lr_policy: "fixed" test_iter: 1 test_interval: 9 snapshot_after_train: 0'
    param = parse_text(fields, SolverParameter)
    param.net_param.CopyFrom(parse_text(TEXT, NetParameter))
    solver = Solver(param, device=backend, seed=1)
    solver.test_nets[0].blobs["x"].data = X
    solver.test()

    solver.net.params["ip"][0].share_data(weight(backend, 3.0))
    means = solver.test()

    np.testing.assert_allclose(means["y"], 3 * X.sum(axis=1, keepdims=True).repeat(3, 1), rtol=1e-5)


def test_test_nets_follow_to_another_device(backend):
    fields = 'base_lr: 0 lr_policy: "fixed" test_iter: 1 test_interval: 9 snapshot_after_train: 0'
    param = parse_text(fields, SolverParameter)
    param.net_param.CopyFrom(parse_text(TEXT, NetParameter))
    solver = Solver(param, device="numpy", seed=1)
    solver.test_nets[0].blobs["x"].data = X
    before = solver.test()

    solver.net.to(backend)
    solver.net.forward()

    np.testing.assert_allclose(solver.test()["y"], before["y"], rtol=1e-5)
    assert str(solver.test_nets[0].device) == backend


def test_a_blob_that_is_in_two_nets_is_noticed_by_both(backend):
    one, other = made(backend, 1), made(backend, 2)
    other.layer_by_name("ip").blobs[0] = one.params["ip"][0]
    np.testing.assert_array_equal(output(one), output(other))

    one.params["ip"][0].share_data(weight(backend, 2.0))

    want = 2 * X.sum(axis=1, keepdims=True).repeat(3, axis=1)
    np.testing.assert_allclose(output(other), want, rtol=1e-5)
    np.testing.assert_allclose(output(one), want, rtol=1e-5)


def test_shapes_of_one_net_are_no_business_of_another(backend, monkeypatch):
    one, other, reshaped = made(backend, 1), made(backend, 2), []
    for net in (one, other):
        net.forward()
        layer = net.layer_by_name("ip")
        monkeypatch.setattr(
            layer,
            "reshape",
            lambda bottom, top, net=net, own=layer.reshape: (
                reshaped.append(net),
                own(bottom, top),
            ),
        )

    one.blobs["x"].reshape(7, 6)
    for net in (one, other):
        net.forward()

    assert reshaped == [one]


# -- threads -----------------------------------------------------------------------------------


def trained(net, steps=5):
    """Train a little, and return what came of it."""
    losses = []
    for _ in range(steps):
        net.clear_param_diffs()
        losses.append(net.forward_backward())
        net.params["ip"][0].scale_diff(0.01)
        net.update()
    return losses, net.params["ip"][0].data.tobytes()


def in_threads(*acts):
    """Run functions in threads of their own that begin together, and return what they return."""
    found, together = {}, threading.Barrier(len(acts))

    def run(number, act):
        together.wait()
        found[number] = act()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(acts))]


def test_nets_in_different_threads_compute_what_they_do_alone(backend):
    alone = [trained(made(backend, seed, TRAINED)) for seed in range(4)]

    nets = [made(backend, seed, TRAINED) for seed in range(4)]
    together = in_threads(*(lambda net=net: trained(net) for net in nets))

    assert together == alone


def test_nets_may_be_made_and_reshaped_while_others_run(backend):
    def sizes(seed):
        net = made(backend, seed)
        return [output_of(net, rows) for rows in (3, 9, 5, 12)]

    def output_of(net, rows):
        return net(np.ones((rows, 6), np.float32)).tobytes()

    assert in_threads(*(lambda seed=seed: sizes(seed) for seed in range(4))) == [
        sizes(seed) for seed in range(4)
    ]


@pytest.mark.parametrize(
    "act",
    [
        lambda net: net.forward(),
        lambda net: net.backward(len(net.layers) - 1),
        lambda net: net.predict(X),
        lambda net: net.update(),
        lambda net: net.reshape(),
        lambda net: net.to("numpy"),
        lambda net: net.forward_backward(),
        lambda net: net.clear_param_diffs(),
        lambda net: net.load(NetParameter()),
        lambda net: net.share_trained_layers_with(made("numpy", 2)),
        lambda net: net.clone(),
        lambda net: net.to_proto(),
    ],
)
def test_a_net_refuses_a_second_thread_and_goes_on_when_the_first_has_left(act):
    net, refused = made("numpy", 1), []

    def another(index):
        def enter():
            with expect_error(NetError, ErrorCode.BAD_STATE, net="small") as error:
                act(net)
            refused.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()

    net.before_forward.append(another)
    net.forward()
    net.before_forward.clear()

    assert len(refused) == len(net.layers)
    act(net)


def test_threads_may_clone_a_test_net_while_it_runs():
    net, clones = Net(parse_text(TEXT, NetParameter), "TEST", device="numpy", seed=1), []
    net.blobs["x"].data = X
    net.before_forward.append(lambda index: clones.extend(in_threads(net.clone, net.clone)))

    expected = output(net)

    assert len(clones) == 4
    for clone in clones:
        clone.blobs["x"].data = X
        np.testing.assert_array_equal(output(clone), expected)


def test_a_pass_may_be_begun_within_a_pass_of_the_same_thread():
    net, inner = made("numpy", 1), []
    net.after_forward.append(lambda index: inner or inner.append(1) or net.forward(0, 0))

    net.forward()

    assert inner == [1]


def contended(acts):
    """Let threads work on one net at the same time; return how often that was done and refused."""
    done, refused = [], []

    def often(act):
        for _ in range(60):
            try:
                act()
                done.append(1)
            except NetError:
                refused.append(1)

    in_threads(*(lambda act=act: often(act) for act in acts))
    return len(done), len(refused)


IMAGES = """
layer { name: "x" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 2 dim: 3 dim: 12 dim: 12 } shape { dim: 2 } data_filler { type: "gaussian" std: 1 }
  data_filler { type: "constant" value: 1 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "p" type: "Pooling" bottom: "c" top: "p"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "p" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def solver_of(device):
    fields = (
        'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 1 snapshot_after_train: false'
    )
    param = parse_text(fields, SolverParameter)
    param.net_param.CopyFrom(parse_text(IMAGES, NetParameter))
    return Solver(param, device=device)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_four_threads_that_step_one_solver_make_whole_steps(device):
    solver, alone = solver_of(device), solver_of(device)

    done, refused = contended([lambda: solver.step(1)] * 4)

    assert (done + refused, done > 0) == (240, True)
    assert solver.iter == done
    alone.step(done)
    for mine, theirs in zip(solver.net.learnable_params, alone.net.learnable_params, strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_four_threads_that_predict_with_one_net_get_what_one_gets_or_an_error(device):
    net, found = made(device, 1), set()
    want = net.predict(X)["y"].tobytes()

    done, refused = contended([lambda: found.add(net.predict(X)["y"].tobytes())] * 4)

    assert (done + refused, found) == (240, {want})


def test_a_solver_at_work_refuses_another_thread(tmp_path):
    solver, refused = solver_of("numpy"), []
    _, state = solver.snapshot(tmp_path / "s")

    def another():
        for act in (
            lambda: solver.step(1),
            solver.apply_update,
            lambda: solver.snapshot(tmp_path / "s"),
            lambda: solver.restore(state),
        ):
            with expect_error(NetError, ErrorCode.BAD_STATE, net=solver.net.name):
                act()
            refused.append(act)

    solver.on_gradients_ready.append(lambda: in_threads(another))  # between passes
    solver.step(1)

    assert (len(refused), solver.iter) == (4, 1)
