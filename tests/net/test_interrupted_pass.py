"""A pass that is interrupted anywhere leaves a net that computes what it would have computed."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import demitasse
from demitasse import Net
from demitasse.proto import NetParameter, parse_text

PACKAGE = str(Path(demitasse.__file__).parent)
POINTS = 60

NET = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "wanted" type: "Input" top: "wanted" input_param { shape { dim: 2 dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
        pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "wanted" top: "loss" }
"""


class Interrupt:
    """Raises KeyboardInterrupt at one of the lines of the package that a pass goes through.

    Attributes:
        lines: How many lines were met so far.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.lines = at, 0

    def __enter__(self) -> "Interrupt":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, value: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def made(device: str) -> Net:
    net = Net(parse_text(NET, NetParameter), "TRAIN", device=device, seed=3)
    random = np.random.default_rng(5)
    for name in ("data", "wanted"):
        net.blobs[name].data[...] = random.normal(size=net.blobs[name].shape)
    return net


def gradients(net: Net) -> list[np.ndarray]:
    net.clear_param_diffs()
    net.forward()
    net.backward()
    return [np.array(blob.diff) for blob in net.learnable_params]


def test_an_interrupted_first_pass_changes_no_gradient(backend):
    expected = gradients(made(backend))
    net = made(backend)
    with Interrupt() as whole:
        gradients(net)

    interrupted = 0
    for at in range(1, whole.lines, max(1, whole.lines // POINTS)):
        net = made(backend)
        try:
            with Interrupt(at):
                gradients(net)
        except KeyboardInterrupt:
            interrupted += 1
        found = gradients(net)

        for array, wanted in zip(found, expected, strict=True):
            assert np.array_equal(array, wanted), f"interrupted at line {at} of {whole.lines}"
    # a pass may be some lines shorter than the one that was counted: garbage is collected in some
    assert interrupted > 0.9 * POINTS
