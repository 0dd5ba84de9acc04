"""A pass, or other work on a net, that is cut short anywhere: done again, it is as if it never was.

Only what comes after all its work, on the way back to the caller, finds a pass that has been.

``nox -s interrupts`` raises exceptions at many more lines; here it is a sample.
"""

import numpy as np
import pytest
from expect_error import expect_error
from interruptions import POINTS, Interrupt, chosen, interrupted, told

from demitasse import Net
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text

NET = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "wanted" type: "Input" top: "wanted" input_param { shape { dim: 2 dim: 4 } } }
layer { name: "noise" type: "DummyData" top: "noise" dummy_data_param {
        shape { dim: 2 dim: 3 dim: 8 dim: 8 } data_filler { type: "gaussian" } }
        include { not_stage: "plain" } }
layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "noise" top: "sum"
        include { not_stage: "plain" } }
layer { name: "sum" type: "Power" bottom: "data" top: "sum" include { stage: "plain" } }
layer { name: "conv" type: "Convolution" bottom: "sum" top: "conv"
        convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv"
        include { not_stage: "steady" } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
        pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "wanted" top: "loss" }
"""
SEQUENCES = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 3 dim: 2 dim: 4 } } }
layer { name: "cont" type: "DummyData" top: "cont" dummy_data_param {
        shape { dim: 3 dim: 2 } data_filler { type: "constant" value: 1 } } }
layer { name: "lstm" type: "LSTM" bottom: "data" bottom: "cont" top: "h"
        recurrent_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "h" top: "loss" loss_weight: 1
        reduction_param { operation: SUMSQ } }
"""


def made(device, text=NET, *, stages=(), **options):
    net = Net(
        parse_text(text, NetParameter), "TRAIN", device=device, seed=3, stages=stages, **options
    )
    fill(net)
    return net


def fill(net):
    random = np.random.default_rng(5)
    for name in net.inputs:
        net.blobs[name].data[...] = random.normal(size=net.blobs[name].shape)


def carried(net):
    """Return what a net holds between passes."""
    blobs = [blob.cpu_data().tobytes() for blob in net.structure.params_list]
    states = [
        saved.blob.cpu_data().tobytes()
        for layer in net.layers
        for name, saved in sorted(layer._saved.items())
        if name.startswith("state")
    ]
    return [net.passes, blobs, states, [layer.state() for layer in net.layers]]


def outputs(net):
    return {name: net.blobs[name].cpu_data().tobytes() for name in net.outputs}


def gradients(net):
    return [np.array(blob.cpu_diff()) for blob in net.learnable_params]


def counted(act):
    """Return the lines that some work goes through, and what it returns."""
    with Interrupt() as whole:
        found = act()
    return whole.lines, found


ERRORS = [KeyboardInterrupt, MemoryError] if POINTS else [KeyboardInterrupt]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("before", [0, 2], ids=["first", "later"])
@pytest.mark.parametrize("text", [NET, SEQUENCES], ids=["images", "sequences"])
def test_a_forward_pass_that_is_cut_short_has_not_been(backend_with_steps, text, before, error):
    def begun():
        net = made(backend_with_steps, text)
        for _ in range(before):
            net.forward()
        return net

    begun().forward()  # what a process prepares once is prepared
    net = begun()
    start = carried(net)
    lines, loss = counted(net.forward)
    wanted = [loss, outputs(net), carried(net)]

    numbers = chosen(lines, 3)
    cut = 0
    for at in numbers:
        net = begun()
        with interrupted(at, error) as interrupt:
            net.forward()
        if not interrupt.raised:
            continue

        cut += 1
        if [outputs(net), carried(net)] == wanted[1:]:
            continue  # it was at its end already
        assert carried(net) == start or before == 0, lines[at - 1]
        if net.execution.passes._interrupted is not None:
            with expect_error(NetError, ErrorCode.BAD_STATE, mentions="forward"):
                net.backward()
        assert [net.forward(), outputs(net), carried(net)] == wanted, lines[at - 1]

    assert cut > 0.5 * len(numbers)
    told(f"forward, after {before} others, {error.__name__}", cut)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("before", [0, 2], ids=["first", "later"])
def test_gradients_of_a_backward_pass_that_is_cut_short_are_refused(
    backend_with_steps, before, error
):
    def begun():
        net = made(backend_with_steps)
        for _ in range(before):
            net.forward_backward()
        net.forward()
        net.clear_param_diffs()
        return net

    net = begun()
    lines, _ = counted(net.backward)
    wanted, numbers = gradients(net), chosen(lines, 3)

    for at in numbers:
        net = begun()
        with interrupted(at, error):
            net.backward()
        if not net.execution.passes.gradients_valid:
            with expect_error(NetError, ErrorCode.BAD_STATE, mentions="backward"):
                net.update()
        net.clear_param_diffs()
        net.backward()

        for array, gradient in zip(gradients(net), wanted, strict=True):
            assert np.array_equal(array, gradient), lines[at - 1]
    told(f"backward, after {before} others, {error.__name__}", len(numbers))


@pytest.mark.parametrize("error", ERRORS)
def test_a_first_pass_that_is_cut_short_changes_no_gradient(backend_with_steps, error):
    def whole(net):
        net.clear_param_diffs()
        net.forward()
        net.backward()

    whole(made(backend_with_steps, stages=["plain"]))  # compiled code is found from now on
    net = made(backend_with_steps, stages=["plain"])
    lines, _ = counted(lambda: whole(net))
    wanted = gradients(net)

    # normalisations in place exchange buffers
    in_norm = [(at, line) for at, line in enumerate(lines, 1) if line[0].endswith("steps/norm.py")]
    if not POINTS:  # the first and the last time that each line is met
        ends = {line: at for at, line in in_norm}, {line: at for at, line in reversed(in_norm)}
        in_norm = [(at, line) for each in ends for line, at in each.items()]
    for at in {*chosen(lines, 5), *dict(in_norm)}:
        net = made(backend_with_steps, stages=["plain"])
        with interrupted(at, error):
            whole(net)
        net.passes = 0  # the forward pass may have been done
        whole(net)

        for array, gradient in zip(gradients(net), wanted, strict=True):
            assert np.array_equal(array, gradient), lines[at - 1]


def grown(net):
    net.blobs["data"].reshape(5, 3, 8, 8)
    net.blobs["wanted"].reshape(5, 4)
    net.reshape()


def shrunk(net):
    net.blobs["data"].reshape(1, 3, 8, 8)
    net.blobs["wanted"].reshape(1, 4)
    net.reshape()


def moved(net):
    net.to("numpy")


def shared(net):
    net.share_trained_layers_with(other(net))


def loaded(net):
    net.load(other(net).to_proto())


def copied(net):
    for mine, theirs in zip(net.learnable_params, other(net).learnable_params, strict=True):
        mine.copy_from(theirs)


def adopted(net):
    net.blobs["data"].set_cpu_data(np.ones((2, 3, 8, 8), np.float32))


def predicted(net):
    net.predict({"data": np.ones((2, 3, 8, 8)), "wanted": np.ones((2, 4))})
    net.passes = 0


def other(net):
    """Return a net of other weights."""
    if id(net) not in others:
        others.clear()
        source = Net(net._source, device=net.device, seed=9)
        others[id(net)] = net, source
    return others[id(net)][1]


others: dict[int, tuple[Net, Net]] = {}
"""Nets by the identity of another, which lives as long, so that no later net has it too."""

WORK = [grown, shrunk, moved, shared, loaded, copied, adopted, predicted]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("keep", [None, "outputs"], ids=["all", "outputs"])
@pytest.mark.parametrize("work", WORK)
def test_work_that_is_cut_short_is_done_again(backend_with_steps, work, keep, error):
    # a prediction is passes, and those that were done count in running averages
    stages = ["plain", "steady"] if work is predicted else ["plain"]

    def begun():
        net = made(backend_with_steps, stages=stages, keep_blobs=keep)
        net.forward_backward()
        net.clear_param_diffs()
        net.passes = 0
        other(net)
        return net

    def after(net):
        fill(net)
        loss = net.forward()
        net.backward()
        return [loss, [array.tobytes() for array in gradients(net)], carried(net)]

    net = begun()
    lines, _ = counted(lambda: work(net))
    wanted, numbers = after(net), chosen(lines, 1)

    for at in numbers:
        net = begun()
        with interrupted(at, error):
            work(net)
        work(net)

        assert after(net) == wanted, lines[at - 1]
    told(f"{work.__name__}, keep={keep}, {error.__name__}", len(numbers))
