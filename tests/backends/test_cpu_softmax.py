"""Softmax over the channels of images, behind a convolution and where they lie in C order."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

CONVOLUTION = """layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 5 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }"""
REST = """layer { name: "s" type: "Softmax" bottom: "c" top: "s" }
layer { name: "p" type: "Power" bottom: "s" top: "p" power_param { scale: 2 } }"""


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("convolved", [True, False])
def test_it_computes_what_the_portable_code_does(convolved, batch, phase):
    name = "x" if convolved else "c"
    text = f"""force_backward: {str(phase == "TRAIN").lower()}
    input: "{name}" input_shape {{ dim: {batch} dim: 5 dim: 9 dim: 8 }}
    {CONVOLUTION if convolved else ""} {REST}"""
    x = np.random.default_rng(2).normal(size=(batch, 5, 9, 8)).astype(np.float32)
    x[0, 1, 2, 3] = np.nan
    message = parse_text(text, NetParameter)
    nets = [
        Net(message, phase, device="cpu", seed=1, optimize=lowered) for lowered in (True, False)
    ]

    for net in nets:
        for _ in range(4):
            net.blobs[name].mutable_cpu_data()[...] = x
            net.forward()
        if phase == "TRAIN":
            net.blobs["p"].mutable_cpu_diff()[...] = x
            net.backward()

    got, want = (net.blobs["p"].cpu_data() for net in nets)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert np.isnan(got).sum() == 5
    if phase == "TRAIN":
        got, want = (net.blobs[name].cpu_diff() for net in nets)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    [entry] = [entry for entry in nets[0].plan.entries if entry.layer.name == "s"]
    assert phase == "TRAIN" or entry.executed_step.replayable


LOSS = """force_backward: true
input: "x" input_shape { dim: 3 dim: 5 dim: 9 dim: 8 }
input: "label" input_shape { dim: 3 dim: 1 dim: 9 dim: 8 }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "l" top: "p"
  loss_weight: 1 loss_weight: 0 }"""


@pytest.mark.parametrize("value", [None, np.nan, np.inf], ids=str)
def test_the_loss_takes_the_kernel(value):
    rng = np.random.default_rng(3)
    x, labels = rng.normal(size=(3, 5, 9, 8)), rng.integers(0, 5, (3, 1, 9, 8))
    if value is not None:
        x[0, 1, 2, 3] = value
    message = parse_text(LOSS, NetParameter)
    nets = [Net(message, "TRAIN", device="cpu", optimize=lowered) for lowered in (True, False)]

    for net in nets:
        net.blobs["x"].mutable_cpu_data()[...] = x
        net.blobs["label"].mutable_cpu_data()[...] = labels
        net.forward()
        net.backward()

    for found in ("l.data", "p.data", "x.diff"):
        name, part = found.split(".")
        got, want = (getattr(net.blobs[name], part) for net in nets)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    assert nets[0].plan.entries[-1].executed_step.code.startswith("softmax llvm")
