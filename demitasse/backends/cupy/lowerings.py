"""The cupy backend's Steps, by operation: kernels of our own, and matrix products by cuBLAS."""

from demitasse.backends import ops
from demitasse.backends.cupy.steps.convolution import ConvStep, DeconvStep
from demitasse.backends.cupy.steps.copies import ConcatStep, SplitStep
from demitasse.backends.cupy.steps.elementwise import ActivationStep, DropoutStep, LRNStep, SumStep
from demitasse.backends.cupy.steps.losses import (
    AccuracyStep,
    PairLossStep,
    SoftmaxLossStep,
    SoftmaxStep,
)
from demitasse.backends.cupy.steps.norm import batch_norm
from demitasse.backends.cupy.steps.pooling import RegionStep, pool
from demitasse.backends.cupy.steps.products import InnerProductStep, ScaleStep
from demitasse.backends.step import Lowerings

LOWERINGS: Lowerings = {
    ops.Accuracy: (AccuracyStep,),
    ops.Activation: (ActivationStep,),
    ops.BatchNorm: (batch_norm,),
    ops.Concat: (ConcatStep,),
    ops.Conv: (ConvStep,),
    ops.Deconv: (DeconvStep,),
    ops.Dropout: (DropoutStep,),
    ops.Eltwise: (SumStep,),
    ops.InnerProduct: (InnerProductStep,),
    ops.LRN: (LRNStep,),
    ops.PairLoss: (PairLossStep,),
    ops.Pool: (pool,),
    ops.PSROIPool: (RegionStep,),
    ops.ROIPool: (RegionStep,),
    ops.Scale: (ScaleStep,),
    ops.Softmax: (SoftmaxStep,),
    ops.SoftmaxLoss: (SoftmaxLossStep,),
    ops.Split: (SplitStep,),
}
