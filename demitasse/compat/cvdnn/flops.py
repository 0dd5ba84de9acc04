"""Floating point operations of layers, counted like OpenCV.

OpenCV ignores groups of convolutions, and assumes that a deconvolution has as many output as input
channels, in single precision. Other layer types count 0.

Source: OpenCV 4, ``getFLOPS`` of the layers in ``modules/dnn/src/layers``.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from demitasse.io.proto import LRNParameter
from demitasse.layers import Layer
from demitasse.layers.pooling import pooling_method, pooling_window

Shapes = Sequence[tuple[int, ...]]

PER_VALUE = {
    "AbsVal": 1, "BNLL": 5, "BatchNorm": 3, "ELU": 2, "Exp": 3, "Log": 1, "PReLU": 1, "ReLU": 1,
    "ReLU6": 2, "Sigmoid": 3, "Softmax": 4, "Swish": 3, "TanH": 1,
}  # fmt: skip
"""Operations per value of the first bottom, by layer type."""


def layer_flops(layer: Layer, bottoms: Shapes, tops: Shapes) -> int:
    """Return the operations of a layer's forward pass, for shapes of bottoms and tops."""
    count = prod(bottoms[0]) if bottoms else 0
    outputs = prod(tops[0]) if tops else 0
    match layer.param.type:
        case "Convolution" | "ConvolutionDepthwise" | "DepthwiseConvolution":
            taps = prod(layer.blobs[0].shape[2:])
            return outputs * (2 * taps * bottoms[0][1] + 1)
        case "Deconvolution":
            taps = prod(layer.blobs[0].shape[2:])
            return int(np.float32(2 * count * taps * bottoms[0][1]))
        case "InnerProduct":
            weight = layer.blobs[0].count
            return 3 * weight * outputs // layer.param.inner_product_param.num_output
        case "Pooling":
            p = layer.param.pooling_param
            window = prod(pooling_window(p, bottoms[0][2:]).kernel)
            return outputs * (window + (pooling_method(p)[0] == "AVE"))
        case "LRN":
            return _lrn(layer.param.lrn_param, bottoms[0])
        case "MVN":
            axes = 1 + layer.param.mvn_param.normalize_variance
            return 6 * count + 3 * prod(bottoms[0][:axes])
        case "Eltwise":
            return len(bottoms) * count
        case "Scale":
            return 2 * sum(map(prod, bottoms))
        case "PriorBox":
            plane, planes = prod(bottoms[0][2:]), sum(prod(shape[2:]) for shape in bottoms)
            return tops[0][2] // plane * planes
        case "Power":
            return count * (10 if layer.param.power_param.power != 1 else 2)
        case kind:
            return count * PER_VALUE.get(kind, 0)


def _lrn(p: LRNParameter, shape: tuple[int, ...]) -> int:
    if p.norm_region == LRNParameter.WITHIN_CHANNEL:
        return prod(shape) * (2 * p.local_size**2 + 2)
    items, channels, plane = shape[0], shape[1], prod(shape[2:])
    half = (p.local_size - 1) // 2
    sliding = (p.local_size + 2 * (channels - p.local_size)) * plane if half < channels else 0
    return items * (min(half, channels) * 2 + channels * 4) * plane + sliding
