"""The backend's Steps, by operation: of kernels first, and numpy's for what those decline."""

from importlib import import_module

from demitasse.backends import ops
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.numpy.lowerings import LOWERINGS as NUMPY
from demitasse.backends.step import AnyStep, Lowering, Lowerings, Operands


def _step(module: str, name: str) -> Lowering:
    """Return a lowering that imports its Step at the first use: few nets have most layers."""

    def lower(engine: Engine, op: ops.Op, at: Operands) -> AnyStep:
        steps = import_module(f"demitasse.backends.cpu.steps.{module}")
        step: AnyStep = getattr(steps, name)(engine, op, at)
        return step

    return lower


LOWERINGS: Lowerings = {
    ops.Activation: (_step("elementwise", "ElementwiseStep"), *NUMPY[ops.Activation]),
    ops.AffineBatchNorm: (_step("norm", "NormStep"),),
    ops.Axpy: (_step("channel_scale", "ChannelScaleStep"),),
    ops.BatchNorm: (_step("norm", "NormStep"), *NUMPY[ops.BatchNorm]),
    ops.Bias: (_step("norm", "NormStep"),),
    ops.Concat: (_step("copies", "ConcatStep"),),
    ops.Conv: (ConvStep, *NUMPY[ops.Conv]),
    ops.Crop: (_step("copies", "CropStep"),),
    ops.Deconv: (_step("deconvolution", "DeconvStep"), *NUMPY[ops.Deconv]),
    ops.Dropout: (_step("elementwise", "DropoutStep"),),
    ops.Eltwise: (_step("elementwise", "SumStep"), _step("elementwise", "CombinationStep")),
    ops.Constant: (_step("elementwise", "ConstantStep"),),
    ops.Embed: (_step("copies", "EmbedStep"),),
    ops.InnerProduct: (_step("products", "InnerProductStep"), *NUMPY[ops.InnerProduct]),
    ops.Interpolation: (_step("pooling", "InterpolationStep"),),
    ops.LRN: (_step("lrn", "LRNStep"),),
    ops.MVN: (_step("norm", "MVNStep"),),
    ops.Normalize: (_step("lrn", "NormalizeStep"),),
    ops.Permute: (_step("copies", "PermuteStep"),),
    ops.Pool: (_step("pooling", "PoolStep"), *NUMPY[ops.Pool]),
    ops.PReLU: (_step("channel_scale", "PReLUStep"),),
    ops.Recurrent: (_step("recurrent", "RecurrentStep"),),
    ops.SpatialPyramidPool: (_step("pooling", "SpatialPyramidPoolStep"),),
    ops.Repeat: (_step("copies", "RepeatStep"),),
    ops.PSROIPool: (_step("pooling", "RegionStep"),),
    ops.ROIPool: (_step("pooling", "RegionStep"),),
    ops.Scale: (
        _step("norm", "NormStep"),
        _step("channel_scale", "ChannelScaleStep"),
        *NUMPY[ops.Scale],
    ),
    ops.Shuffle: (_step("copies", "ShuffleStep"),),
    ops.Slice: (_step("copies", "SliceStep"),),
    ops.Softmax: (_step("softmax", "SoftmaxStep"),),
    ops.SoftmaxLoss: (_step("softmax", "SoftmaxLossStep"),),
    ops.Split: (_step("copies", "SplitStep"),),
    ops.Tile: (_step("copies", "TileStep"),),
}
