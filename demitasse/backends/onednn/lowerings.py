"""The backend's Steps, by operation: oneDNN's first, and numpy's for what oneDNN declines."""

from contextlib import suppress

from demitasse.backends import ops
from demitasse.backends.numpy.lowerings import LOWERINGS as NUMPY
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.activation import PReLUStep
from demitasse.backends.onednn.steps.channel_scale import AxpyStep, ChannelScaleStep
from demitasse.backends.onednn.steps.concat import ConcatStep
from demitasse.backends.onednn.steps.convolution import ConvStep, WindowStep
from demitasse.backends.onednn.steps.deconvolution import DeconvStep
from demitasse.backends.onednn.steps.elementwise import (
    CombinationStep,
    ConstantStep,
    DropoutStep,
    ElementwiseStep,
    SumStep,
)
from demitasse.backends.onednn.steps.fused_convolutions import GroupedPointwiseStep
from demitasse.backends.onednn.steps.lrn import L2NormalizeStep, LRNStep
from demitasse.backends.onednn.steps.norm import BatchNormStep, MVNStep, ScaleStep
from demitasse.backends.onednn.steps.pooling import (
    InterpolationStep,
    PoolStep,
    PSROIPoolStep,
    ROIPoolStep,
    SpatialPyramidPoolStep,
)
from demitasse.backends.onednn.steps.products import InnerProductStep
from demitasse.backends.onednn.steps.recurrent import RecurrentForwardStep, RecurrentStep
from demitasse.backends.onednn.steps.row_convolution import FullWidthConvStep
from demitasse.backends.onednn.steps.slice import (
    CropStep,
    PermuteStep,
    ShuffleStep,
    SliceStep,
    SplitStep,
)
from demitasse.backends.onednn.steps.softmax import SoftmaxLossStep, SoftmaxStep
from demitasse.backends.step import Declined, Lowerings, Operands


def _convolution(engine: Engine, op: ops.Conv, at: Operands) -> WindowStep[ops.Conv]:
    """Return the Step of a convolution.

    Raises:
        Declined: There is none.
    """
    for special in (FullWidthConvStep, GroupedPointwiseStep):
        with suppress(Declined):
            return special(engine, op, at)
    return ConvStep(engine, op, at)


LOWERINGS: Lowerings = {
    ops.Activation: (ElementwiseStep, *NUMPY[ops.Activation]),
    ops.Axpy: (AxpyStep,),
    ops.BatchNorm: (BatchNormStep, *NUMPY[ops.BatchNorm]),
    ops.Concat: (ConcatStep, *NUMPY[ops.Concat]),
    ops.Conv: (_convolution, *NUMPY[ops.Conv]),
    ops.Crop: (CropStep,),
    ops.Deconv: (DeconvStep, *NUMPY[ops.Deconv]),
    ops.Dropout: (DropoutStep,),
    ops.Eltwise: (SumStep, CombinationStep, *NUMPY[ops.Eltwise]),
    ops.Constant: (ConstantStep,),
    ops.InnerProduct: (InnerProductStep, *NUMPY[ops.InnerProduct]),
    ops.Interpolation: (InterpolationStep,),
    ops.LRN: (LRNStep, *NUMPY[ops.LRN]),
    ops.MVN: (MVNStep,),
    ops.L2Normalize: (L2NormalizeStep,),
    ops.Permute: (PermuteStep,),
    ops.Pool: (PoolStep, *NUMPY[ops.Pool]),
    ops.PReLU: (PReLUStep,),
    ops.Recurrent: (RecurrentForwardStep, RecurrentStep),
    ops.SpatialPyramidPool: (SpatialPyramidPoolStep,),
    ops.PSROIPool: (PSROIPoolStep,),
    ops.ROIPool: (ROIPoolStep,),
    ops.Scale: (ScaleStep, ChannelScaleStep, *NUMPY[ops.Scale]),
    ops.Shuffle: (ShuffleStep,),
    ops.Slice: (SliceStep,),
    ops.Softmax: (SoftmaxStep,),
    ops.SoftmaxLoss: (SoftmaxLossStep,),
    ops.Split: (SplitStep, *NUMPY[ops.Split]),
}
