"""Crop and Slice between layers that keep their blobs in layouts of their own."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

MIDDLES = {
    "crop of places": """layer { name: "p" type: "Crop" bottom: "a" bottom: "x" top: "p"
      crop_param { axis: 2 offset: 1 offset: 2 } }""",
    "slice at 8": """layer { name: "p" type: "Slice" bottom: "a" top: "p" top: "q"
      slice_param { slice_point: 8 } }""",
    "slice at 3": """layer { name: "p" type: "Slice" bottom: "a" top: "q" top: "p"
      slice_param { slice_point: 3 } }""",
    "slice of rows": """layer { name: "p" type: "Slice" bottom: "a" top: "q" top: "p"
      slice_param { axis: 2 slice_point: 4 } }""",
}


@pytest.mark.parametrize("channels", [32, 20, 5])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", MIDDLES)
def test_parts_are_those_of_the_portable_code_in_any_layout(kind, batch, channels):
    if kind == "slice at 8" and channels < 8:
        channels = 9
    text = f"""input: "x" input_shape {{ dim: {batch} dim: 3 dim: 9 dim: 8 }}
    layer {{ name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param {{
      num_output: {channels} pad: 3 kernel_size: 3
      weight_filler {{ type: "gaussian" std: 0.3 }} }} }}
    {MIDDLES[kind]}
    layer {{ name: "d" type: "Convolution" bottom: "p" top: "d" convolution_param {{
      num_output: 5 kernel_size: 3 weight_filler {{ type: "gaussian" std: 0.3 }} }} }}"""
    x = np.random.default_rng(2).normal(size=(batch, 3, 9, 8)).astype(np.float32)
    message = parse_text(text, NetParameter)
    nets = [
        Net(message, "TEST", device="cpu", seed=1, optimize=lowered) for lowered in (True, False)
    ]

    for net in nets:
        for _ in range(4):
            net.blobs["x"].mutable_cpu_data()[...] = x
            net.forward()

    for name in set(nets[0].blobs) - {"x"}:
        got, want = (net.blobs[name].cpu_data() for net in nets)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    [entry] = [entry for entry in nets[0].plan.entries if entry.layer.name == "p"]
    assert entry.executed_step is not None
