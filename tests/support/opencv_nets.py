"""Small nets that OpenCV 4 reads, in text, and how tests make them."""

from __future__ import annotations

import numpy as np

from demitasse import cvdnn

IN_PLACE = """
input: "data" input_shape { dim: 1 dim: 2 dim: 3 dim: 3 }
layer { name: "power" type: "Power" bottom: "data" top: "x" power_param { scale: 2 shift: -1 } }
layer { name: "relu" type: "ReLU" bottom: "x" top: "x" }
layer { name: "twice" type: "TanH" bottom: "x" top: "y" }
layer { name: "twice" type: "AbsVal" bottom: "y" top: "z" }
"""

BRANCHES = """
input: "data" input_shape { dim: 1 dim: 4 dim: 2 dim: 2 }
layer { name: "cut" type: "Slice" bottom: "data" top: "a" top: "b" slice_param { axis: 1 } }
layer { name: "tanh" type: "TanH" bottom: "a" top: "tanh" }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
"""

TWO_INPUTS = """
layer {
  name: "in" type: "Input" top: "x" top: "y"
  input_param { shape { dim: 1 dim: 2 } shape { dim: 1 dim: 2 } }
}
layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "y" top: "sum" }
"""

NO_SHAPE = """
input: "data"
layer { name: "relu" type: "ReLU" bottom: "data" top: "y" }
"""

DETECTOR = """
input: "location" input_shape { dim: 1 dim: 16 }
input: "score" input_shape { dim: 1 dim: 12 }
input: "prior" input_shape { dim: 1 dim: 2 dim: 16 }
layer {
  name: "found" type: "DetectionOutput" bottom: "location" bottom: "score" bottom: "prior"
  top: "found"
  detection_output_param {
    num_classes: 3 share_location: true background_label_id: 0 code_type: CENTER_SIZE
    nms_param { nms_threshold: 0.45 top_k: 10 } keep_top_k: 5 confidence_threshold: 0.2
  }
}
"""

IMAGE_DETECTOR = """
input: "data" input_shape { dim: 1 dim: 1 dim: 4 dim: 4 }
layer {
  name: "prior" type: "PriorBox" bottom: "data" bottom: "data" top: "prior"
  prior_box_param { min_size: 3 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }
}
layer { name: "two" type: "Concat" bottom: "data" bottom: "data" top: "two" }
layer { name: "score" type: "Flatten" bottom: "two" top: "score" }
layer {
  name: "four" type: "Concat" bottom: "data" bottom: "data" bottom: "data" bottom: "data"
  top: "four"
}
layer { name: "location" type: "Flatten" bottom: "four" top: "location" }
layer {
  name: "found" type: "DetectionOutput" bottom: "location" bottom: "score" bottom: "prior"
  top: "found"
  detection_output_param {
    num_classes: 2 share_location: true background_label_id: 0 code_type: CENTER_SIZE
    nms_param { nms_threshold: 0.45 top_k: 10 } keep_top_k: 5 confidence_threshold: 0.2
  }
}
"""

MAPS = """
input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 4 }
layer { name: "power" type: "Power" bottom: "data" top: "y" power_param { scale: 3 } }
"""

LIKE_OPENCV = """
input: "data" input_shape { dim: 1 dim: 4 dim: 5 dim: 6 }
layer { name: "prior" type: "PriorBox" bottom: "data" bottom: "data" top: "prior"
  prior_box_param { min_size: 2 variance: 0.1 } }
layer { name: "plain" type: "LRN" bottom: "data" top: "plain" }
layer { name: "two" type: "LRN" bottom: "data" top: "two" lrn_param { alpha: 1 k: 2 } }
"""

PRIORS = np.array(
    [[0.1, 0.1, 0.3, 0.3], [0.5, 0.5, 0.9, 0.9], [0.12, 0.1, 0.3, 0.3], [0.2, 0.6, 0.4, 0.8]]
)


def net_of(text: str) -> cvdnn.Net:
    return cvdnn.readNetFromCaffe(text.encode())


def detector_inputs(images: int) -> dict[str, np.ndarray]:
    """Inputs of DETECTOR: what is predicted for four priors and three classes."""
    rng = np.random.default_rng(0)
    variance = np.tile([0.1, 0.1, 0.2, 0.2], 4)
    return {
        "location": rng.normal(size=(images, 16)).astype(np.float32),
        "score": rng.uniform(size=(images, 12)).astype(np.float32),
        "prior": np.concatenate([PRIORS.ravel(), variance]).reshape(1, 2, 16).astype(np.float32),
    }


def sample_image(height: int, width: int, channels: int = 3) -> np.ndarray:
    """An image of uint8 in which neighbours differ much."""
    count = height * width * channels
    return (np.arange(count) * 37 % 256).astype(np.uint8).reshape(height, width, channels)
