"""Nets in training on device cpu: gradients of convolutions lie as what they are gradients of."""

import pytest

from demitasse import Net
from demitasse.backends.onednn import status
from demitasse.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(not status().loaded, reason=str(status()))

BLOCK = """
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 32 dim: 14 dim: 14 } } }
layer { name: "before" type: "Convolution" bottom: "x" top: "before" convolution_param {
  num_output: 64 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "before" top: "before" }
layer { name: "one" type: "Convolution" bottom: "before" top: "one" convolution_param {
  num_output: 96 kernel_size: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "two" type: "Convolution" bottom: "before" top: "two" convolution_param {
  num_output: 96 kernel_size: 3 pad: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "one" bottom: "two" top: "sum" }
"""


def test_gradients_of_strided_convolutions_lie_as_the_images_do():
    with Net(parse_text(BLOCK, NetParameter), "TRAIN", device="cpu", seed=1) as net:
        net.blobs["x"].data[...] = 1.0
        net.forward()
        net.blobs["sum"].diff[...] = 1.0
        net.backward()

        image = net.blobs["before"].data_memory.layout
        read = [name for name in net.blobs if "split" in name]
        gradients = [net.blobs[name].diff_memory.layout for name in read]

    assert gradients == [image, image]
