"""Single layers, forward and backward."""

import numpy as np
import pytest

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

LAYERS = {
    "convolution 3x3": (
        (16, 64, 56, 56),
        'type: "Convolution" convolution_param { num_output: 64 kernel_size: 3 pad: 1 '
        'weight_filler { type: "msra" } }',
    ),
    "convolution 1x1": (
        (16, 256, 28, 28),
        'type: "Convolution" convolution_param { num_output: 64 kernel_size: 1 '
        'weight_filler { type: "msra" } }',
    ),
    "convolution 11x11 of 3 channels": (
        (16, 3, 227, 227),
        'type: "Convolution" convolution_param { num_output: 96 kernel_size: 11 stride: 4 '
        'weight_filler { type: "msra" } }',
    ),
    "convolution 3x3 of single channels": (
        (16, 256, 28, 28),
        'type: "Convolution" convolution_param { num_output: 256 kernel_size: 3 pad: 1 group: 256 '
        'weight_filler { type: "msra" } }',
    ),
    "max pooling": (
        (16, 96, 55, 55),
        'type: "Pooling" pooling_param { pool: MAX kernel_size: 3 stride: 2 }',
    ),
    "mean pooling": (
        (16, 96, 55, 55),
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }',
    ),
    "LRN": ((16, 96, 27, 27), 'type: "LRN" lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }'),
    "inner product": (
        (64, 256, 6, 6),
        'type: "InnerProduct" inner_product_param { num_output: 1024 '
        'weight_filler { type: "constant" value: 0.01 } }',
    ),
    "ReLU": ((16, 64, 56, 56), 'type: "ReLU"'),
    "GELU": ((16, 64, 56, 56), 'type: "GELU"'),
    "batch normalisation": ((16, 64, 56, 56), 'type: "BatchNorm"'),
    "dropout": ((16, 512, 13, 13), 'type: "Dropout"'),
    "LSTM": (
        (20, 16, 1000),
        'type: "LSTM" bottom: "cont" recurrent_param { num_output: 1000 '
        'weight_filler { type: "xavier" } }',
    ),
    "softmax loss": ((256, 1000), 'type: "SoftmaxWithLoss" bottom: "label"'),
}


@pytest.fixture(params=LAYERS)
def net(request, device, smoke) -> Net:
    """A net of one layer; its input is changed in each pass, as new data would."""
    shape, fields = LAYERS[request.param]
    shape = (1, *shape[1:]) if smoke else shape
    dims = " ".join(f"dim: {n}" for n in shape)
    text = f"""
        force_backward: true
        layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}
        layer {{ name: "label" type: "Input" top: "label"
                 input_param {{ shape {{ dim: {shape[0]} }} }} }}
        layer {{ name: "cont" type: "Input" top: "cont"
                 input_param {{ shape {{ dim: {shape[0]} dim: {shape[1]} }} }} }}
        layer {{ name: "it" top: "it" bottom: "data" {fields} }}
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=1)
    data = net.blobs["data"]
    data.mutable_cpu_data()[...] = np.random.default_rng(0).normal(size=shape)
    net.blobs["cont"].mutable_cpu_data()[...] = 1
    net.forward()
    top = net.blobs["it"]
    if len(shape) > 2:
        top.mutable_cpu_diff()[...] = np.random.default_rng(1).normal(size=top.shape)
    net.backward(-1)
    net.synchronize()
    return net


def test_forward(benchmark, net):
    def forward():
        net.forward()
        net.synchronize()

    benchmark(forward)


def test_backward(benchmark, net):
    def backward():
        net.clear_param_diffs()
        net.backward(-1)
        net.synchronize()

    benchmark(backward)
