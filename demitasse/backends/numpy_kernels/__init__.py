"""Kernels of the numpy backend, one module for each family; importing this registers them.

Each computes what the layer's portable code computes, straight into the blobs' buffers.
"""

from demitasse.backends.numpy_kernels.batch_norm import BatchNormStep
from demitasse.backends.numpy_kernels.concat import ConcatStep
from demitasse.backends.numpy_kernels.convolution import ConvStep, DeconvStep
from demitasse.backends.numpy_kernels.eltwise import SumStep
from demitasse.backends.numpy_kernels.inner_product import InnerProductStep
from demitasse.backends.numpy_kernels.lrn import LRNStep
from demitasse.backends.numpy_kernels.pool_average import AverageStep, GlobalAverageStep
from demitasse.backends.numpy_kernels.pool_max import GlobalMaxStep, MaxStep
from demitasse.backends.numpy_kernels.pooling import pool
from demitasse.backends.numpy_kernels.relu import ReLUStep
from demitasse.backends.numpy_kernels.scale import ScaleStep
from demitasse.backends.numpy_kernels.split import SplitStep

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
