"""Working memory that layers share outlives the calls that are put off: plain nets keep alive.

The nets run in a process of their own, by the code for this processor and by that for AVX2.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

CONVOLUTION = """
    layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{
      num_output: {filters} kernel_size: {kernel} pad: {pad} bias_term: false
      weight_filler {{ type: "msra" }} }} }}"""
RELU = 'layer { name: "r" type: "ReLU" bottom: "a" top: "a" }'

ROUNDING = 1e-4
"""Of the largest value."""

SHAPES = [(1, 128, 28, 256), (1, 96, 27, 256)]
"""Images, channels, rows and columns, filters."""


def convolution(name, bottom, filters, kernel):
    return CONVOLUTION.format(
        name=name, bottom=bottom, filters=filters, kernel=kernel, pad=kernel // 2
    )


def two_convolutions(filters, *, relu):
    layers = [convolution("a", "data", filters, 3), RELU if relu else ""]
    return "".join([*layers, convolution("b", "a", filters, 3)])


def check(text, shape, phase):
    """Hold passes of a net against those of its portable code."""
    dims = " ".join(f"dim: {size}" for size in shape)
    param = parse_text(f'input: "data" input_shape {{ {dims} }} {text}', NetParameter)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    fast = Net(param, phase, device="cpu", seed=1)
    portable = Net(param, phase, device="numpy", seed=1)
    for net in (fast, portable):
        net.blobs["data"].data[...] = x
    portable.forward()
    for _ in range(4):  # from the third pass on calls are replayed
        fast.forward()
        for name in portable.outputs:
            want = portable.blobs[name].data
            assert abs(fast.blobs[name].data - want).max() <= ROUNDING * abs(want).max()


def run_two_convolutions():
    for phase in ("TEST", "TRAIN"):
        for n, c, size, filters in SHAPES:
            for relu in (False, True):
                check(two_convolutions(filters, relu=relu), (n, c, size, size), phase)


@pytest.mark.parametrize("instructions", ["", "AVX2"], ids=["native", "AVX2"])
def test_a_process_outlives_its_passes(instructions):
    environment = {**os.environ, "DEMITASSE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    environment["MALLOC_PERTURB_"] = "165"  # freed memory holds no valid numbers
    if instructions:
        environment["ONEDNN_MAX_CPU_ISA"] = instructions
    code = "import test_cpu_scratch as tests; tests.run_two_convolutions()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
