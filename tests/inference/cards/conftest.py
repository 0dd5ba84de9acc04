"""Small models with cards: each in a folder of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demitasse.net import Net

INPUT = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
"""

MEANS = """
layer { name: "means" type: "Pooling" bottom: "data" top: "means"
        pooling_param { pool: AVE global_pooling: true } }
"""

PIXELS = """
layer { name: "score" type: "Convolution" bottom: "data" top: "score"
        convolution_param { num_output: 2 kernel_size: 1
                            bias_filler { type: "constant" value: 0 } } }
"""

PRIOR = """
layer { name: "means" type: "Pooling" bottom: "data" top: "means"
        pooling_param { pool: AVE global_pooling: true } }
layer { name: "prior" type: "PriorBox" bottom: "means" bottom: "data" top: "prior"
        prior_box_param { min_size: 2 clip: false
                          variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
"""

PREDICTIONS = """
layer { name: "place" type: "InnerProduct" bottom: "data" top: "place"
        inner_product_param { num_output: 4 } }
layer { name: "score" type: "InnerProduct" bottom: "data" top: "score"
        inner_product_param { num_output: 2 bias_filler { type: "constant" value: 0.75 } } }
"""

OUTPUT = """
layer { name: "found" type: "DetectionOutput" bottom: "place" bottom: "score" bottom: "prior"
        top: "found"
        detection_output_param { num_classes: 2 nms_param { nms_threshold: 0.5 }
                                 code_type: CENTER_SIZE } }
"""

NETS = {
    "classify": INPUT + MEANS,
    "features": INPUT + MEANS,
    "segment": INPUT + PIXELS,
    "detect": INPUT + PRIOR + PREDICTIONS + OUTPUT,
    "anchors": INPUT + PREDICTIONS,
}

Model = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Write a model and its card; returns the folder."""

    def write(kind: str, card: str) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "net.prototxt").write_text(NETS[kind])
        net = Net(folder / "net.prototxt", "TEST", device="numpy")
        if kind == "segment":  # class 1 where there is more blue than 100
            net.params["score"][0].data[...] = np.array([[0, 0, 0], [1, 0, 0]])[:, :, None, None]
            net.params["score"][1].data[...] = [0, -100]
        net.save(folder / "net.caffemodel")
        (folder / "model.toml").write_text(card)
        return folder

    return write


@pytest.fixture
def card() -> Callable[..., str]:
    """The text of a card."""

    def text(task: str = "classify", model: str = "", preprocess: str = "", rest: str = "") -> str:
        return f"""
[model]
net = "net.prototxt"
weights = "net.caffemodel"
task = "{task}"
{model}

[preprocess]
{"" if "channels" in preprocess else 'channels = "bgr"'}
{preprocess}

{rest}
"""

    return text


@pytest.fixture
def photo(tmp_path: Path) -> Callable[..., Path]:
    """Write an image of one colour."""

    def write(name: str, color: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", size, color).save(path)
        return path

    return write
