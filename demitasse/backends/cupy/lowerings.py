"""The cupy backend's Steps, by operation: kernels of our own, and matrix products by cuBLAS."""

from demitasse.backends import ops
from demitasse.backends.cupy.steps.accuracy import AccuracyStep
from demitasse.backends.cupy.steps.activation import ActivationStep
from demitasse.backends.cupy.steps.batch_norm import BatchNormStep
from demitasse.backends.cupy.steps.concat import ConcatStep
from demitasse.backends.cupy.steps.convolution import ConvStep
from demitasse.backends.cupy.steps.deconvolution import DeconvStep
from demitasse.backends.cupy.steps.dropout import DropoutStep
from demitasse.backends.cupy.steps.eltwise import SumStep
from demitasse.backends.cupy.steps.inner_product import InnerProductStep
from demitasse.backends.cupy.steps.lrn import LRNStep
from demitasse.backends.cupy.steps.pair_loss import PairLossStep
from demitasse.backends.cupy.steps.pooling import pool
from demitasse.backends.cupy.steps.scale import ScaleStep
from demitasse.backends.cupy.steps.softmax import SoftmaxStep
from demitasse.backends.cupy.steps.softmax_loss import SoftmaxLossStep
from demitasse.backends.cupy.steps.split import SplitStep
from demitasse.backends.step import Lowerings

__all__ = ["LOWERINGS"]

LOWERINGS: Lowerings = {
    ops.Accuracy: (AccuracyStep,),
    ops.Activation: (ActivationStep,),
    ops.BatchNorm: (BatchNormStep,),
    ops.Concat: (ConcatStep,),
    ops.Conv: (ConvStep,),
    ops.Deconv: (DeconvStep,),
    ops.Dropout: (DropoutStep,),
    ops.Eltwise: (SumStep,),
    ops.InnerProduct: (InnerProductStep,),
    ops.LRN: (LRNStep,),
    ops.PairLoss: (PairLossStep,),
    ops.Pool: (pool,),
    ops.Scale: (ScaleStep,),
    ops.Softmax: (SoftmaxStep,),
    ops.SoftmaxLoss: (SoftmaxLossStep,),
    ops.Split: (SplitStep,),
}
