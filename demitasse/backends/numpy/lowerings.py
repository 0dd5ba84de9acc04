"""The numpy backend's Steps, by operation.

Each computes what the layer's portable code computes, straight into the blobs' buffers.
"""

from demitasse.backends import ops
from demitasse.backends.numpy.steps.activation import activation
from demitasse.backends.numpy.steps.batch_norm import BatchNormStep
from demitasse.backends.numpy.steps.concat import ConcatStep
from demitasse.backends.numpy.steps.convolution import ConvStep
from demitasse.backends.numpy.steps.deconvolution import DeconvStep
from demitasse.backends.numpy.steps.eltwise import SumStep
from demitasse.backends.numpy.steps.inner_product import InnerProductStep
from demitasse.backends.numpy.steps.lrn import LRNStep
from demitasse.backends.numpy.steps.pooling import pool
from demitasse.backends.numpy.steps.scale import ScaleStep
from demitasse.backends.numpy.steps.split import SplitStep
from demitasse.backends.step import Lowerings

__all__ = ["LOWERINGS"]

LOWERINGS: Lowerings = {
    ops.Activation: (activation,),
    ops.BatchNorm: (BatchNormStep,),
    ops.Concat: (ConcatStep,),
    ops.Conv: (ConvStep,),
    ops.Deconv: (DeconvStep,),
    ops.Eltwise: (SumStep,),
    ops.InnerProduct: (InnerProductStep,),
    ops.LRN: (LRNStep,),
    ops.Pool: (pool,),
    ops.Scale: (ScaleStep,),
    ops.Split: (SplitStep,),
}
