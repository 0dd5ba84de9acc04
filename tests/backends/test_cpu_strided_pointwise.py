"""Weights' gradients of 1x1 convolutions with a stride, by the code for AVX2 on several threads.

The channels are no whole vectors. The tests run in a process of its own, which knows no wider
instructions.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

NET = """
    force_backward: true
    input: "data" input_shape {{ dim: {n} dim: {c} dim: {h} dim: {w} }}
    layer {{ name: "c" type: "Convolution" bottom: "data" top: "c"
      convolution_param {{ num_output: 16 kernel_size: 1 stride: {stride} bias_term: false
        weight_filler {{ type: "msra" }} }} }}"""

SHAPES = [(1, 2, 16, 16), (1, 4, 8, 10), (1, 5, 16, 16), (2, 12, 16, 16), (1, 3, 17, 24)]

ROUNDING = 1e-5
"""Of the largest value."""


def gradient(param, device):
    net = Net(param, "TRAIN", device=device, seed=1)
    rng = np.random.default_rng(3)
    net.blobs["data"].data[...] = rng.standard_normal(net.blobs["data"].shape)
    net.forward()
    net.blobs["c"].diff[...] = rng.standard_normal(net.blobs["c"].shape)
    net.backward()
    return net.params["c"][0].diff.copy()


def check_gradients():
    for n, c, h, w in SHAPES:
        for stride in (2, 3):
            param = parse_text(NET.format(n=n, c=c, h=h, w=w, stride=stride), NetParameter)
            want = gradient(param, "numpy")
            assert abs(gradient(param, "cpu") - want).max() <= ROUNDING * abs(want).max(), (n, c)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_overwrite_each_other(threads):
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": str(threads)}
    environment |= {"DEMITASSE_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parent)}
    code = "import test_cpu_strided_pointwise as tests; tests.check_gradients()"

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
