"""What runs each layer is said, with what it is fused, and why nothing faster runs."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends import ops
from demitasse.backends.step import Declined, Step
from demitasse.backends.test_devices import ReadonlyBackend
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import Stopwatch, report

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 16 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
        convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "sum" type: "Reduction" bottom: "conv" top: "sum" }
"""
WORK = 2 * 16 * 4 * 4 * 16 * 9  # outputs times what each of them sums


def net_on(device, phase="TEST", **options):
    return Net(parse_text(NET, NetParameter), phase, device=device, seed=1, **options)


def reported(net):
    net.reshape()
    return {layer.name: layer for layer in report(net.plan)}


class OnesStep(Step):
    """A Step that writes ones, so that it shows who ran."""

    code = "ones"

    def forward(self):
        self.at.top[-1].buffer()[...] = 1

    def backward(self):
        self.at.bottom[0].diff_buffer()[...] = 1


class DecliningStep(OnesStep):
    def prepare(self):
        message = "it is Sunday; this Step works on weekdays"
        raise Declined(message)


class NoGradientStep(OnesStep):
    def prepare_backward(self):
        message = "no gradient"
        raise Declined(message)


@pytest.fixture
def lowered(monkeypatch):
    """Give the readonly device these Steps for a ReLU."""

    def lower(*steps):
        monkeypatch.setattr(ReadonlyBackend, "lowerings", {ops.Activation: steps})

    return lower


@pytest.fixture
def fused(monkeypatch, lowered):
    """Let the readonly device run a convolution and a ReLU as one."""
    lowered(OnesStep)

    def fuse(self, chain, at, steps):
        step = OnesStep(None, chain[0], at[-1])
        step.prepare()
        return step

    monkeypatch.setattr(ReadonlyBackend, "fuse", fuse)


def test_every_layer_is_reported_on_every_device(backend):
    layers = reported(net_on(backend))

    assert list(layers) == ["x", "conv", "relu", "sum"]
    assert all(layer.code or layer.part_of for layer in layers.values())
    assert (layers["sum"].code, layers["sum"].why) == ("portable", "")


def test_without_plans_all_is_portable(backend):
    layers = reported(net_on(backend, optimize=False))

    assert {layer.code for layer in layers.values()} == {"portable"}
    assert layers["conv"].why == "plans are off"


def test_the_reason_of_who_declined_is_kept(lowered):
    lowered(DecliningStep, OnesStep)

    layers = reported(net_on("readonly"))

    assert layers["relu"].code == "ones"
    assert layers["relu"].why == "it is Sunday; this Step works on weekdays"
    assert layers["conv"].why == "readonly has no Step for Conv"


def test_a_step_without_its_gradient_runs_in_neither_direction(lowered):
    lowered(NoGradientStep)
    message = parse_text("force_backward: true" + NET, NetParameter)

    with_gradient = reported(Net(message, "TRAIN", device="readonly"))
    without = reported(net_on("readonly"))

    assert with_gradient["relu"].code == with_gradient["relu"].backward_code == "portable"
    assert with_gradient["relu"].why == "its gradient: no gradient"
    assert (without["relu"].code, without["relu"].backward_code) == ("ones", "")


def test_the_next_step_runs_where_one_has_no_gradient(lowered):
    lowered(DecliningStep, NoGradientStep, OnesStep)
    message = parse_text("force_backward: true" + NET, NetParameter)

    relu = reported(Net(message, "TRAIN", device="readonly"))["relu"]

    assert (relu.code, relu.backward_code) == ("ones", "ones")
    assert relu.why == "it is Sunday; this Step works on weekdays; its gradient: no gradient"


def test_layers_that_run_as_one_are_said_once(fused):
    layers = reported(net_on("readonly"))

    assert layers["conv"].fused == ("relu",)
    assert (layers["relu"].code, layers["relu"].part_of) == ("", "conv")
    assert layers["relu"].bytes == layers["relu"].multiply_adds == 0
    assert layers["conv"].multiply_adds == WORK
    image, output, weights = 2 * 16 * 36, 2 * 16 * 16, 16 * 16 * 9 + 16
    assert layers["conv"].bytes == 4 * (image + output + weights)


def test_a_stopwatch_watches_the_program_that_runs(fused):
    net = net_on("readonly")

    with Stopwatch(net.plan, net.synchronize) as watch:
        net.forward()

    assert np.all(net.blobs["conv"].data == 1)
    assert watch.forward[1] > 0
    assert watch.forward[2] == 0  # it ran as one with the layer before
    assert watch.forward[3] > 0


def test_watching_changes_no_result(backend):
    plain, watched = net_on(backend, "TRAIN"), net_on(backend, "TRAIN")
    for net in (plain, watched):
        net.blobs["x"].data[...] = np.random.default_rng(0).normal(size=(2, 16, 6, 6))

    plain.forward_backward()
    with Stopwatch(watched.plan, watched.synchronize):
        watched.forward_backward()

    assert np.array_equal(plain.blobs["sum"].data, watched.blobs["sum"].data)
