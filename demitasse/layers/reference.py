"""What is said about every layer type in one place: the reference pages and their tests read it.

How a type computes, what shapes it takes and what it refuses stands in its class's docstring; what
the fields are, in ``caffe.proto``. This table says the rest, and tests hold it to the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from demitasse.backends.cupy import lowerings as cupy
from demitasse.backends.cupy.steps import activation as cupy_activation
from demitasse.backends.numpy import lowerings as numpy
from demitasse.backends.numpy.steps import activation as numpy_activation
from demitasse.backends.onednn import lowerings as onednn
from demitasse.backends.onednn.steps import activation as onednn_activation
from demitasse.backends.ops import Activation
from demitasse.backends.step import Lowerings

__all__ = [
    "BACKENDS",
    "FAMILIES",
    "FURTHER_NAMES",
    "REFERENCE",
    "Entry",
    "first_name",
    "lowered_by",
    "support",
]

Gradient = Literal["gradient", "source", "none"]
Judge = Literal["Caffe", "OpenCV", "definition", ""]

_TABLES: Mapping[str, tuple[Lowerings, Mapping[str, object]]] = {
    "cpu": (onednn.LOWERINGS, {**numpy_activation.FUNCTIONS, **onednn_activation.FUNCTIONS}),
    "numpy": (numpy.LOWERINGS, numpy_activation.FUNCTIONS),
    "cuda": (cupy.LOWERINGS, cupy_activation.FUNCTIONS),
}

BACKENDS = tuple(_TABLES)
"""What users run on. The backends for tests, ``strict`` and ``readonly``, have no Steps."""


@dataclass(frozen=True)
class Entry:
    """One layer class.

    Attributes:
        family: Under which heading it stands.
        fields: The messages of a LayerParameter that it reads, or single fields of them.
        op: Name of the operation a backend may lower, or of the function of an Activation; or
            empty.
        gradient: Whether a gradient passes ("gradient"), starts here ("source": it has no bottoms)
            or ends here ("none").
        judge: Whose recorded outputs it was compared with; "definition": values of its formula,
            computed with 50 digits; empty: nobody's.
        host: Whether its work is done on the host, on every device.
    """

    family: str
    fields: tuple[str, ...] = ()
    op: str = ""
    gradient: Gradient = "gradient"
    judge: Judge = "Caffe"
    host: bool = False


def _entry(
    family: str,
    fields: str = "",
    op: str = "",
    gradient: Gradient = "gradient",
    judge: Judge = "Caffe",
    *,
    host: bool = False,
) -> Entry:
    return Entry(family, tuple(fields.split()), op, gradient, judge, host)


VISION, NEURONS, NORMAL = "Windows and maps", "Neurons", "Normalisation"
DENSE, SHAPES, LOSSES = "Products, sums and sequences", "Shapes and selections", "Losses"
METRICS, DATA, DETECTION = "Metrics", "Data, inputs and outputs", "Detection"
FAMILIES = (VISION, NEURONS, NORMAL, DENSE, SHAPES, LOSSES, METRICS, DATA, DETECTION)
"""The headings, in order."""

REFERENCE: Mapping[str, Entry] = {
    # -- windows and maps
    "Convolution": _entry(VISION, "convolution_param", "Conv"),
    "Deconvolution": _entry(VISION, "convolution_param", "Deconv"),
    "Im2col": _entry(VISION, "convolution_param"),
    "Interp": _entry(VISION, "interp_param", judge=""),
    "Pooling": _entry(VISION, "pooling_param", "Pool"),
    "Reorg": _entry(VISION, "reorg_param", judge=""),
    "SPP": _entry(VISION, "spp_param"),
    "Upsample": _entry(VISION, "upsample_param", judge=""),
    # -- neurons
    "AbsVal": _entry(NEURONS),
    "BNLL": _entry(NEURONS),
    "Clip": _entry(NEURONS, "clip_param"),
    "Dropout": _entry(NEURONS, "dropout_param", "Dropout"),
    "ELU": _entry(NEURONS, "elu_param"),
    "Exp": _entry(NEURONS, "exp_param"),
    "GELU": _entry(NEURONS, "", "gelu", judge="definition"),
    "Log": _entry(NEURONS, "log_param"),
    "Power": _entry(NEURONS, "power_param"),
    "PReLU": _entry(NEURONS, "prelu_param"),
    "ReLU": _entry(NEURONS, "relu_param", "relu"),
    "ReLU6": _entry(NEURONS, "relu6_param", judge=""),
    "Sigmoid": _entry(NEURONS, "", "sigmoid"),
    "Swish": _entry(NEURONS, "swish_param"),
    "TanH": _entry(NEURONS, "", "tanh"),
    "Threshold": _entry(NEURONS, "threshold_param", gradient="none"),
    # -- normalisation
    "BatchNorm": _entry(NORMAL, "batch_norm_param", "BatchNorm"),
    "BN": _entry(NORMAL, "bn_param", judge=""),
    "LRN": _entry(NORMAL, "lrn_param", "LRN"),
    "MVN": _entry(NORMAL, "mvn_param"),
    "Normalize": _entry(NORMAL, "norm_param", judge="OpenCV"),
    "Softmax": _entry(NORMAL, "softmax_param", "Softmax"),
    # -- products, sums and sequences
    "Axpy": _entry(DENSE, judge=""),
    "Bias": _entry(DENSE, "bias_param"),
    "Eltwise": _entry(DENSE, "eltwise_param", "Eltwise"),
    "Embed": _entry(DENSE, "embed_param"),
    "InnerProduct": _entry(DENSE, "inner_product_param", "InnerProduct"),
    "LSTM": _entry(DENSE, "recurrent_param", "Recurrent"),
    "LSTMUnit": _entry(DENSE),
    "Reduction": _entry(DENSE, "reduction_param"),
    "RNN": _entry(DENSE, "recurrent_param", "Recurrent"),
    "Scale": _entry(DENSE, "scale_param", "Scale"),
    # -- shapes and selections
    "BatchReindex": _entry(SHAPES),
    "Concat": _entry(SHAPES, "concat_param", "Concat"),
    "Crop": _entry(SHAPES, "crop_param"),
    "Filter": _entry(SHAPES),
    "Flatten": _entry(SHAPES, "flatten_param"),
    "Permute": _entry(SHAPES, "permute_param", judge="OpenCV"),
    "Reshape": _entry(SHAPES, "reshape_param"),
    "ShuffleChannel": _entry(SHAPES, "shuffle_channel_param", judge=""),
    "Silence": _entry(SHAPES, gradient="none"),
    "Slice": _entry(SHAPES, "slice_param"),
    "Split": _entry(SHAPES, "", "Split"),
    "Tile": _entry(SHAPES, "tile_param"),
    # -- losses
    "CenterLoss": _entry(LOSSES, "center_loss_param", judge=""),
    "ContrastiveLoss": _entry(LOSSES, "contrastive_loss_param"),
    "EuclideanLoss": _entry(LOSSES),
    "FocalLoss": _entry(LOSSES, "focal_loss_param loss_param softmax_param", judge=""),
    "HingeLoss": _entry(LOSSES, "hinge_loss_param"),
    "InfogainLoss": _entry(LOSSES, "infogain_loss_param loss_param"),
    "MultinomialLogisticLoss": _entry(LOSSES),
    "SigmoidCrossEntropyLoss": _entry(LOSSES, "loss_param"),
    "SmoothL1Loss": _entry(LOSSES, "smooth_l1_loss_param", judge=""),
    "SoftmaxWithLoss": _entry(LOSSES, "loss_param softmax_param", "SoftmaxLoss"),
    "TripletLoss": _entry(LOSSES, "triplet_loss_param", judge=""),
    # -- metrics
    "Accuracy": _entry(METRICS, "accuracy_param", gradient="none"),
    "ArgMax": _entry(METRICS, "argmax_param", gradient="none"),
    "SegAccuracy": _entry(METRICS, "seg_accuracy_param", gradient="none", judge=""),
    # -- data, inputs and outputs
    "Data": _entry(DATA, "data_param transform_param", gradient="source", host=True),
    "DummyData": _entry(DATA, "dummy_data_param", gradient="source", judge="", host=True),
    "HDF5Data": _entry(DATA, "hdf5_data_param data_param.prefetch", gradient="source", host=True),
    "HDF5Output": _entry(DATA, "hdf5_output_param", gradient="none", judge="", host=True),
    "ImageData": _entry(
        DATA, "image_data_param transform_param data_param.prefetch", gradient="source", host=True
    ),
    "ImageSegData": _entry(
        DATA,
        "image_data_param transform_param data_param.prefetch",
        gradient="source",
        judge="",
        host=True,
    ),
    "Input": _entry(DATA, "input_param", gradient="source"),
    "MemoryData": _entry(
        DATA, "memory_data_param transform_param", gradient="source", judge="", host=True
    ),
    "Parameter": _entry(DATA, "parameter_param", gradient="source"),
    "Python": _entry(DATA, "python_param", judge="", host=True),
    "WindowData": _entry(
        DATA,
        "window_data_param transform_param data_param.prefetch",
        gradient="source",
        judge="",
        host=True,
    ),
    # -- detection
    "DetectionOutput": _entry(
        DETECTION, "detection_output_param", gradient="none", judge="OpenCV", host=True
    ),
    "PriorBox": _entry(DETECTION, "prior_box_param", gradient="none", judge="OpenCV"),
    "PSROIPooling": _entry(DETECTION, "psroi_pooling_param", judge=""),
    "ROIPooling": _entry(DETECTION, "roi_pooling_param", judge=""),
}
"""First name of a layer class -> what is said about it."""

FURTHER_NAMES: Mapping[str, str] = {
    "ConvolutionDepthwise": "Convolution",
    "DepthwiseConvolution": "Convolution",
}
"""Type of the catalogue -> the one whose class it shares."""


def first_name(name: str) -> str:
    """Return the type of the catalogue under which ``name`` is described."""
    return FURTHER_NAMES.get(name, name)


@cache
def lowered_by(backend: str) -> frozenset[str]:
    """Return what one of ``BACKENDS`` has Steps for, as its own dictionaries say.

    Returns:
        Names of operations, and of functions of an Activation.
    """
    lowerings, functions = _TABLES[backend]
    return frozenset(op.__name__ for op in lowerings if op is not Activation) | set(functions)


def support(name: str) -> dict[str, str]:
    """Return how each backend runs a type: "lowered", "portable" or "host".

    Args:
        name: A type of the catalogue.

    Returns:
        For each of ``BACKENDS``: "lowered" where it has a faster way for at least the usual
        options, "portable" where the layer's own code runs on its arrays, "host" where the work
        is done on the host whatever the device.
    """
    entry = REFERENCE[first_name(name)]
    if entry.host:
        return dict.fromkeys(BACKENDS, "host")
    return {
        backend: "lowered" if entry.op in lowered_by(backend) else "portable"
        for backend in BACKENDS
    }
