"""A net of Caffe's with weights, and the same net in other frameworks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from demitasse import Net
from demitasse.cli.root import cli

NET = """
name: "small"
layer { name: "image" type: "Input" top: "image"
  input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "image" top: "conv" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn"
  scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 2 } } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "pool" type: "Pooling" bottom: "bn" top: "pool"
  pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
  num_output: 5 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Work in a folder with small.prototxt and small.caffemodel; return the parameters."""
    monkeypatch.chdir(tmp_path)
    Path("small.prototxt").write_text(NET)
    with Net("small.prototxt", "TEST", device="numpy", seed=3) as net:
        mean, variance, factor = (blob.mutable_cpu_data() for blob in net.params["bn"])
        mean[...], variance[...], factor[...] = [0.2, -0.4, 0.6, 0.1], [1, 2, 3, 4], 2
        net.save("small.caffemodel")
        params = {f"{n}/{i}": b.cpu_data().copy() for n, p in net.params.items()
                  for i, b in enumerate(p)}  # fmt: skip
    params["bn/0"], params["bn/1"] = params["bn/0"] / 2, params["bn/1"] / 2
    return params


@pytest.fixture
def run() -> Callable[[str], Result]:
    """Run the command line in this process."""

    def invoke(args: str) -> Result:
        result = CliRunner().invoke(cli, args.split())
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke
