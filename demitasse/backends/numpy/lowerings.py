"""Kernels of the numpy backend, one module for each family; importing this registers them.

Each computes what the layer's portable code computes, straight into the blobs' buffers.
"""

from demitasse.backends.numpy.steps.activation import ReLUStep
from demitasse.backends.numpy.steps.batch_norm import BatchNormStep
from demitasse.backends.numpy.steps.concat import ConcatStep
from demitasse.backends.numpy.steps.convolution import ConvStep, DeconvStep
from demitasse.backends.numpy.steps.eltwise import SumStep
from demitasse.backends.numpy.steps.inner_product import InnerProductStep
from demitasse.backends.numpy.steps.lrn import LRNStep
from demitasse.backends.numpy.steps.pool_average import AverageStep, GlobalAverageStep
from demitasse.backends.numpy.steps.pool_max import GlobalMaxStep, MaxStep
from demitasse.backends.numpy.steps.pooling import pool
from demitasse.backends.numpy.steps.scale import ScaleStep
from demitasse.backends.numpy.steps.split import SplitStep

__all__ = [
    "AverageStep",
    "BatchNormStep",
    "ConcatStep",
    "ConvStep",
    "DeconvStep",
    "GlobalAverageStep",
    "GlobalMaxStep",
    "InnerProductStep",
    "LRNStep",
    "MaxStep",
    "ReLUStep",
    "ScaleStep",
    "SplitStep",
    "SumStep",
    "pool",
]
