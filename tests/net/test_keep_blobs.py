"""Nets that keep but some blobs: of the data when they only run forward, else of the gradients."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.layout import innermost
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.memory.arena import Slot
from demitasse.training import Solver


def layer(name, kind, bottoms, top, param=""):
    reads = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name}" type: "{kind}" {reads} top: "{top}" {param} }}\n'


def pool(name, bottom):
    fields = "pool: AVE kernel_size: 2 stride: 2"
    return layer(name, "Pooling", bottom, name, f"pooling_param {{ {fields} }}")


def conv(name, bottom, m=16):
    fields = f'num_output: {m} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }}'
    return layer(name, "Convolution", bottom, name, f"convolution_param {{ {fields} }}")


INPUT = (
    'layer { name: "x" type: "Input" top: "x" '
    "input_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } } }\n"
)
BLOCK = (
    conv("a", "x")
    + layer("a_norm", "BatchNorm", "a", "a_norm")
    + layer("a_scale", "Scale", "a_norm", "a_scale", "scale_param { bias_term: true }")
    + layer("a_relu", "ReLU", "a_scale", "a_relu")
    + conv("b", "a_relu")
    + layer("sum", "Eltwise", "x b", "sum")
    + layer("sum_relu", "ReLU", "sum", "sum_relu")
)
NET = (
    INPUT
    + BLOCK
    + conv("left", "sum_relu")
    + conv("right", "sum_relu")
    + layer("right_relu", "ReLU", "right", "right")
    + layer("both", "Concat", "left right", "both")
    + layer("flat", "Flatten", "both", "flat")
    + layer("ip", "InnerProduct", "flat", "ip", "inner_product_param { num_output: 5 }")
    + layer("prob", "Softmax", "ip", "prob")
)


def made(device, keep=None, text=NET):
    net = Net(parse_text(text, NetParameter), "TEST", device=device, seed=3, keep_blobs=keep)
    rng = np.random.default_rng(1)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = rng.uniform(0.2, 1.0, blob.shape)
    net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
    return net


def test_outputs_and_named_blobs_are_those_of_a_net_that_keeps_all(backend):
    whole, some = made(backend), made(backend, ["a_relu", "both"])

    for _ in range(2):
        whole.forward()
        some.forward()

    for name in ("prob", "a_relu", "both"):
        want = whole.blobs[name].data
        np.testing.assert_allclose(some.blobs[name].data, want, rtol=1e-5, atol=1e-5)


def test_a_blob_that_was_not_kept_is_refused_by_name(backend):
    net = made(backend, "outputs")
    net.forward()

    left = net.blobs["left"]
    for read in (lambda: left.data, left.cpu_data, left.mutable_cpu_data, left.gpu_data):
        with expect_error(
            NetError, ErrorCode.BAD_STATE, mentions="keep_blobs=['left', ...]", blob="left"
        ):
            read()
    assert left.shape == (2, 16, 8, 8)


def test_blobs_whose_times_do_not_meet_share_buffers(backend):
    row = INPUT + "".join(conv(f"c{i}", f"c{i - 1}" if i else "x") for i in range(6))
    whole, some = made(backend, text=row), made(backend, "outputs", text=row)

    whole.forward()
    some.forward()

    assert some.blob_bytes < 0.7 * whole.blob_bytes
    np.testing.assert_allclose(some.blobs["c5"].data, whole.blobs["c5"].data, rtol=1e-4)


def test_a_small_blob_does_not_take_the_only_large_buffer(backend):
    chain = (
        conv("large", "x", 64)
        + conv("between", "large")
        + conv("small", "between")
        + conv("large_too", "small", 64)
        + conv("back", "large_too")
        + layer("sum", "Eltwise", "back small", "sum")
    )
    net = made(backend, "outputs", text=INPUT + chain)

    net.forward()

    channel = net.blobs["x"].count // 16
    slots = net.execution.passes._allocator.arena.slots
    assert sum(slot.expected for slot in slots) == (64 + 16 + 16) * channel


def test_larger_and_smaller_batches_get_buffers_that_fit(backend):
    whole, some = made(backend), made(backend, "outputs")
    rng = np.random.default_rng(2)

    for items in (2, 5, 1, 3):
        x = rng.normal(size=(items, 16, 8, 8))
        want, got = whole.predict(x)["prob"], some.predict(x)["prob"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_pass_that_begins_behind_what_it_reads_is_refused(backend):
    net = made(backend, ["sum_relu"])
    net.forward()

    with expect_error(NetError, ErrorCode.BAD_STATE, mentions="keep_blobs=", blob="both"):
        net.forward("flat")
    net.forward("sum_relu_sum_relu_0_split")  # what it reads was kept


def test_what_a_pass_reads_is_looked_at_again_where_shapes_have_changed(backend):
    net, rng = made(backend, ["sum_relu"]), np.random.default_rng(3)

    for items in (2, 3):
        net.predict(rng.normal(size=(items, 16, 8, 8)))
        net.forward()
        for _ in range(2):
            with expect_error(NetError, ErrorCode.BAD_STATE, mentions="keep_blobs=", blob="both"):
                net.forward("flat")


def test_only_forward_passes_in_phase_test():
    net = made("numpy", "outputs")
    net.forward()

    with expect_error(NetError, ErrorCode.UNSUPPORTED, field="keep_blobs"):
        net.backward()


def test_names_that_the_net_has_not_are_refused():
    with expect_error(NetError, ErrorCode.UNKNOWN, field="keep_blobs", got=["nothing"]):
        made("numpy", ["nothing"])


def test_a_net_that_moves_takes_new_buffers(backend):
    net = made("numpy", "outputs")
    net.forward()
    want = np.array(net.blobs["prob"].data)

    net.to(backend).forward()

    np.testing.assert_allclose(net.blobs["prob"].data, want, rtol=1e-4, atol=1e-6)


def test_a_copy_keeps_the_same():
    net = made("numpy", ["left"])

    copy = net.clone()
    copy.forward()

    assert copy.blobs["left"].data.any()
    with pytest.raises(NetError):
        copy.blobs["right"].cpu_data()


def test_callbacks_see_every_blob_in_its_time(backend):
    net, seen = made(backend, "outputs"), []
    net.after_forward.append(
        lambda index: seen.append(net.plan.entries[index].binding.top[0].asum_data())
    )

    net.forward()

    assert len(seen) == len(net.layers)
    assert all(seen)


@pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
def test_what_nobody_reads_is_not_computed():
    net = made("cpu", "outputs")
    net.forward()

    groups = {e.layer.name: e.group.count for e in net.plan.entries if e.group}

    assert groups["a"] == 4  # with BatchNorm, Scale and ReLU
    assert groups["b"] == 3  # with Eltwise and ReLU


@pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
@pytest.mark.parametrize("channels", [8, 16])
def test_layers_run_as_one_behind_a_pooling(channels):
    size = 8 + channels  # of no other test
    text = INPUT.replace("dim: 8 dim: 8", f"dim: {size} dim: {size}")
    text += layer("p", "Pooling", "x", "p", "pooling_param { kernel_size: 3 stride: 1 pad: 1 }")
    text += conv("a", "p", channels) + layer("n", "BatchNorm", "a", "n")
    seen = innermost((2, channels, size, size), 1)
    net = made("cpu", "outputs", text)

    net.forward()

    groups = {e.layer.name: e.group.count for e in net.plan.entries if e.group}
    assert seen is not None
    assert groups["a"] == 2


@pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
def test_nothing_runs_as_one_through_a_blob_that_is_kept():
    net = made("cpu", ["a_norm", "sum"])
    net.forward()

    groups = {e.layer.name: e.group.count for e in net.plan.entries if e.group}

    assert groups["a"] == 2
    assert groups["b"] == 2


LOSS = (
    'layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 } } }\n'
    + layer("loss", "SoftmaxWithLoss", "ip label", "loss")
    + layer("accuracy", "Accuracy", "ip label", "accuracy")
)
TRAIN = NET.replace(layer("prob", "Softmax", "ip", "prob"), "") + LOSS


def trained(device, keep=None):
    net = Net(parse_text(TRAIN, NetParameter), "TRAIN", device=device, seed=3, keep_blobs=keep)
    rng = np.random.default_rng(1)
    for blob in net.learnable_params:
        blob.data[...] = rng.uniform(-0.3, 0.3, blob.shape)
    net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
    net.blobs["label"].data[...] = rng.integers(0, 5, net.blobs["label"].shape)
    return net


def gradients(net):
    return {
        f"{name}/{i}": np.array(blob.cpu_diff())
        for name, blobs in net.params.items()
        for i, blob in enumerate(blobs)
    }


def test_training_without_kept_gradients_computes_the_same(backend):
    whole, some = trained(backend), trained(backend, ["sum"])

    for _ in range(2):
        for net in (whole, some):
            net.clear_param_diffs()
            net.forward_backward()

        want = gradients(whole)
        assert want["a/0"].any()
        for name, got in gradients(some).items():
            np.testing.assert_array_equal(got, want[name], err_msg=name)
        np.testing.assert_array_equal(some.blobs["sum"].cpu_diff(), whole.blobs["sum"].cpu_diff())
    assert some.gradient_bytes < 0.6 * whole.gradient_bytes
    assert some.blob_bytes == whole.blob_bytes
    for name in ("a", "a_relu", "both"):
        np.testing.assert_array_equal(some.blobs[name].data, whole.blobs[name].data)


@pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
def test_the_first_backward_pass_makes_each_buffer_once(monkeypatch):
    sizes = []
    lend = Slot.borrow

    def noted(slot, kind, size, make):
        def counted(size):
            sizes.append((id(slot), kind))
            return make(size)

        return lend(slot, kind, size, counted)

    monkeypatch.setattr(Slot, "borrow", noted)
    text = TRAIN.replace(  # the further down, the smaller
        layer("flat", "Flatten", "both", "flat"),
        pool("pool", "both")
        + conv("c", "pool")
        + pool("pool2", "c")
        + conv("d", "pool2")
        + layer("flat", "Flatten", "d", "flat"),
    )
    net = Net(parse_text(text, NetParameter), "TRAIN", device="cpu", seed=3, keep_blobs="outputs")

    net.forward_backward()

    made = [(slot, kind) for slot, kind in sizes if kind[0] == "private"]
    assert made
    assert len(made) == len(set(made))


def test_a_gradient_that_was_not_kept_is_refused_by_name(backend):
    net = trained(backend, "outputs")
    net.forward_backward()

    with expect_error(
        NetError, ErrorCode.BAD_STATE, mentions="keep_blobs=['left', ...]", blob="left"
    ):
        net.blobs["left"].cpu_diff()
    assert net.blobs["left"].data.any()


def test_a_gradient_that_somebody_looks_at_is_kept(backend):
    net = trained(backend, "outputs")
    view = net.blobs["left"].diff

    net.forward_backward()

    assert view.any()
    np.testing.assert_array_equal(view, net.blobs["left"].cpu_diff())


def test_a_backward_pass_that_begins_behind_what_it_reads_is_refused(backend):
    net = trained(backend, ["sum_relu"])
    net.forward_backward()

    with expect_error(NetError, ErrorCode.BAD_STATE, mentions="keep_blobs=", blob="flat"):
        net.backward("flat")
    net.backward("sum_relu")  # what it reads was kept


def test_callbacks_see_every_gradient_in_its_time(backend):
    net, seen = trained(backend, "outputs"), []
    places = net.plan.entries

    def look(index):
        entry = places[index]
        wanted = zip(entry.binding.bottom, entry.binding.propagate_down, strict=True)
        seen.extend(blob.asum_diff() for blob, down in wanted if down)

    net.after_backward.append(look)

    net.forward_backward()

    assert len(seen) > 10
    assert all(seen)


def test_a_solver_trains_alike_whatever_is_kept(backend):
    weights = []
    for keep in (None, "outputs"):
        param = parse_text(
            'base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 random_seed: 3 '
            "snapshot_after_train: false",
            SolverParameter,
        )
        param.net_param.CopyFrom(parse_text(TRAIN, NetParameter))
        with Solver(param, device=backend, keep_blobs=keep) as solver:
            rng = np.random.default_rng(1)
            for name in ("x", "label"):
                blob = solver.net.blobs[name]
                blob.data[...] = rng.integers(0, 5, blob.shape)
            solver.step(3)
            weights.append([np.array(blob.cpu_data()) for blob in solver.net.learnable_params])

    for want, got in zip(*weights, strict=True):
        np.testing.assert_array_equal(got, want)
