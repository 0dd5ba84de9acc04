"""Working memory that layers share outlives the calls that are put off: plain nets keep alive.

Each set of nets runs in a process of its own, by the code for this processor and by that for AVX2.
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
      num_output: {filters} kernel_size: {kernel} pad: {pad} bias_term: {bias}
      weight_filler {{ type: "msra" }} bias_filler {{ type: "constant" value: 0.1 }} }} }}"""
RELU = 'layer { name: "r" type: "ReLU" bottom: "a" top: "a" }'
POOLING = """
    layer { name: "p" type: "Pooling" bottom: "a" top: "p" pooling_param {
      pool: MAX kernel_size: 2 stride: 2 round_mode: FLOOR } }"""

ROUNDING = 1e-4
"""Of the largest value."""

SHAPES = [(1, 128, 28, 256), (1, 96, 27, 256)]
"""Images, channels, rows and columns, filters."""

POOLED = [(1, 128, (13, 13), 256, 3), (1, 64, (15, 15), 64, 5), (1, 128, (9, 16), 96, 7)]
"""Images, channels, (rows, columns), filters, rows and columns of a window."""


def convolution(name, bottom, filters, kernel, *, bias):
    return CONVOLUTION.format(
        name=name, bottom=bottom, filters=filters, kernel=kernel, pad=kernel // 2,
        bias=str(bias).lower(),
    )  # fmt: skip


def two_convolutions(filters, *, relu):
    layers = [convolution("a", "data", filters, 3, bias=False), RELU if relu else ""]
    return "".join([*layers, convolution("b", "a", filters, 3, bias=False)])


def check(text, shape, phase, **options):
    """Hold passes of a net against those of its portable code."""
    dims = " ".join(f"dim: {size}" for size in shape)
    param = parse_text(f'input: "data" input_shape {{ {dims} }} {text}', NetParameter)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    fast = Net(param, phase, device="cpu", seed=1, **options)
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


def run_pooling_that_rounds_down():
    for n, c, size, filters, kernel in POOLED:
        text = convolution("a", "data", filters, kernel, bias=True) + RELU + POOLING
        check(text, (n, c, *size), "TEST", keep_blobs="outputs")


@pytest.mark.parametrize("instructions", ["", "AVX2"], ids=["native", "AVX2"])
@pytest.mark.parametrize("nets", [run_two_convolutions, run_pooling_that_rounds_down])
def test_a_process_outlives_its_passes(nets, instructions):
    environment = {**os.environ, "DEMITASSE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    environment["MALLOC_PERTURB_"] = "165"  # freed memory holds no valid numbers
    if instructions:
        environment["ONEDNN_MAX_CPU_ISA"] = instructions
    code = f"import test_cpu_scratch as tests; tests.{nets.__name__}()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
