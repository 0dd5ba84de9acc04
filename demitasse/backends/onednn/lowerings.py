"""The backend's Steps, by operation: oneDNN's first, and numpy's for what oneDNN declines."""

from demitasse.backends import ops
from demitasse.backends.numpy.lowerings import LOWERINGS as NUMPY
from demitasse.backends.onednn.steps.activation import ActivationStep
from demitasse.backends.onednn.steps.batch_norm import BatchNormStep
from demitasse.backends.onednn.steps.concat import ConcatStep
from demitasse.backends.onednn.steps.convolutions import convolution
from demitasse.backends.onednn.steps.crop import CropStep
from demitasse.backends.onednn.steps.deconvolution import DeconvStep
from demitasse.backends.onednn.steps.dropout import DropoutStep
from demitasse.backends.onednn.steps.elementwise import CombinationStep, ElementwiseStep
from demitasse.backends.onednn.steps.eltwise import SumStep
from demitasse.backends.onednn.steps.fixed import FixedStep
from demitasse.backends.onednn.steps.gates import AxpyStep, GatedScaleStep
from demitasse.backends.onednn.steps.inner_product import InnerProductStep
from demitasse.backends.onednn.steps.interpolation import InterpolationStep
from demitasse.backends.onednn.steps.lengths import LengthsStep
from demitasse.backends.onednn.steps.lrn import LRNStep
from demitasse.backends.onednn.steps.mvn import MVNStep
from demitasse.backends.onednn.steps.permute import PermuteStep
from demitasse.backends.onednn.steps.pooling import PoolStep
from demitasse.backends.onednn.steps.prelu import PReLUStep
from demitasse.backends.onednn.steps.pyramid import PyramidStep
from demitasse.backends.onednn.steps.recurrent import RecurrentStep
from demitasse.backends.onednn.steps.recurrent_forward import RecurrentForwardStep
from demitasse.backends.onednn.steps.region_pooling import RegionMeansStep, RegionPoolStep
from demitasse.backends.onednn.steps.scale import ScaleStep
from demitasse.backends.onednn.steps.shuffle import ShuffleStep
from demitasse.backends.onednn.steps.slice import SliceStep
from demitasse.backends.onednn.steps.softmax import SoftmaxStep
from demitasse.backends.onednn.steps.softmax_loss import SoftmaxLossStep
from demitasse.backends.onednn.steps.split import SplitStep
from demitasse.backends.step import Lowerings

__all__ = ["LOWERINGS"]

LOWERINGS: Lowerings = {
    ops.Activation: (ActivationStep, ElementwiseStep, *NUMPY[ops.Activation]),
    ops.Axpy: (AxpyStep,),
    ops.BatchNorm: (BatchNormStep, *NUMPY[ops.BatchNorm]),
    ops.Concat: (ConcatStep, *NUMPY[ops.Concat]),
    ops.Conv: (convolution, *NUMPY[ops.Conv]),
    ops.Crop: (CropStep,),
    ops.Deconv: (DeconvStep, *NUMPY[ops.Deconv]),
    ops.Dropout: (DropoutStep,),
    ops.Eltwise: (SumStep, CombinationStep, *NUMPY[ops.Eltwise]),
    ops.Fixed: (FixedStep,),
    ops.InnerProduct: (InnerProductStep, *NUMPY[ops.InnerProduct]),
    ops.Interpolation: (InterpolationStep,),
    ops.LRN: (LRNStep, *NUMPY[ops.LRN]),
    ops.MVN: (MVNStep,),
    ops.Normalize: (LengthsStep,),
    ops.Permute: (PermuteStep,),
    ops.Pool: (PoolStep, *NUMPY[ops.Pool]),
    ops.PReLU: (PReLUStep,),
    ops.Recurrent: (RecurrentForwardStep, RecurrentStep),
    ops.Pyramid: (PyramidStep,),
    ops.RegionMeans: (RegionMeansStep,),
    ops.RegionPool: (RegionPoolStep,),
    ops.Scale: (ScaleStep, GatedScaleStep, *NUMPY[ops.Scale]),
    ops.Shuffle: (ShuffleStep,),
    ops.Slice: (SliceStep,),
    ops.Softmax: (SoftmaxStep,),
    ops.SoftmaxLoss: (SoftmaxLossStep,),
    ops.Split: (SplitStep, *NUMPY[ops.Split]),
}
