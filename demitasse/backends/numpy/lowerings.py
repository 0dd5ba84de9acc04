"""The numpy backend's Steps, by operation.

Each computes what the layer's portable code computes, straight into the blobs' buffers.
"""

from demitasse.backends import ops
from demitasse.backends.numpy.steps.convolution import ConvStep, DeconvStep
from demitasse.backends.numpy.steps.elementwise import BatchNormStep, ScaleStep, activation
from demitasse.backends.numpy.steps.inner_product import InnerProductStep
from demitasse.backends.numpy.steps.pooling import MaxStep
from demitasse.backends.step import Lowerings

LOWERINGS: Lowerings = {
    ops.Activation: (activation,),
    ops.BatchNorm: (BatchNormStep,),
    ops.Conv: (ConvStep,),
    ops.Deconv: (DeconvStep,),
    ops.InnerProduct: (InnerProductStep,),
    ops.Pool: (MaxStep,),
    ops.Scale: (ScaleStep,),
}
