"""Layer types by name: built-in types, users' types and those of installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from demitasse.core.deprecated import deprecated_names, renamed_arguments
from demitasse.core.plugins import import_plugins
from demitasse.core.text import nearest
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.io.proto import LayerParameter, fork_of_type
from demitasse.layers.base import Layer
from demitasse.layers.checks import SETTINGS, nonfinite_fields
from demitasse.layers.context import LayerContext
from demitasse.layers.metadata import LayerMetadata, register_metadata, unregister_metadata

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["CATALOG", "create_layer", "layer_class", "layer_types", "register_layer", "unregister"]

_MODULES = {
    "accuracy": "Accuracy SegAccuracy",
    "activations": (
        "AbsVal BNLL Clip ELU GELU HardSwish PReLU ReLU ReLU6 Sigmoid Swish TanH Threshold"
    ),
    "argmax": "ArgMax",
    "batch_selection": "BatchReindex Filter",
    "convolution": (
        "Convolution ConvolutionDepthwise Deconvolution DepthwiseConvolution NdConvolution"
    ),
    "data_layers.data": "AnnotatedData Data",
    "data_layers.hdf5": "HDF5Data HDF5Output",
    "data_layers.image_data": "DenseImageData ImageData ImageSegData",
    "detection.cascade": "BoxGroupOutput DecodeBBox",
    "detection.mining": "BoxAnnotatorOHEM",
    "detection.yolo_output": "YoloDetectionOutput Yolov3DetectionOutput",
    "exp_log_power": "Exp Log Power",
    "input": "Input Parameter",
    "losses.multibox_loss": "MultiBoxLoss",
    "losses.smooth_l1_loss": "SmoothL1Loss SmoothL1LossOHEM",
    "losses.softmax_loss": "SoftmaxWithLoss SoftmaxWithLossOHEM",
    "permute": "Permute Reorg ShuffleChannel",
    "pooling": "NdPooling Pooling",
    "recurrent": "LSTM LSTMUnit RNN",
    "region_pooling": "PSROIPooling ROIAlign ROIPooling",
    "reshape": "Flatten Reshape Squeeze",
    "scale_bias": "Bias Scale",
}
"""Types by module, where the module has another name than the type."""

_FOLDERS = {
    "": (
        "Axpy BatchNorm BN Concat Crop Dropout Eltwise Embed Im2col InnerProduct Interp LRN MVN "
        "Normalize Python Reduction Silence Slice Softmax Split SPP Tile Upsample"
    ),
    "data_layers.": "DummyData MemoryData WindowData",
    "detection.": "DetectionEvaluate DetectionOutput PriorBox Proposal",
    "losses.": (
        "CenterLoss ContrastiveLoss EuclideanLoss FocalLoss HingeLoss InfogainLoss "
        "MultinomialLogisticLoss SigmoidCrossEntropyLoss TripletLoss"
    ),
}
"""Types by folder, where the module has the name of the type in snake case."""

CATALOG = {
    name: f"demitasse.layers.{module}"
    for module, names in _MODULES.items()
    for name in names.split()
}
for _folder, _names in _FOLDERS.items():
    for _name in _names.split():
        _module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _name).lower()
        CATALOG[_name] = f"demitasse.layers.{_folder}{_module}"

Creator = Callable[[LayerParameter, str, LayerContext], Layer]
T = TypeVar("T", bound=Creator)

_creators: dict[str, Creator] = {}
GROUP = "demitasse.layers"


@renamed_arguments(facts="metadata")
def register_layer(*names: str, metadata: LayerMetadata | None = None) -> Callable[[T], T]:
    """Return a decorator that registers a class, or a factory function, under type names.

    Args:
        names: Types.
        metadata: Metadata for ``lint``, ``summary`` and others, for types that are not in the
            catalogue: parameters, inputs of backward, and so on.

    A definition that runs again, as in a cell of a notebook, replaces the first.

    Raises:
        NetError: A name is taken, or missing; or the class is not derived from ``Layer``.
    """
    if not names or not all(isinstance(name, str) for name in names):
        message = f"got {names}, expected names of types; write @register_layer('Mine')"
        raise NetError(message, code=ErrorCode.INVALID, field="names")

    def add(creator: T) -> T:
        if isinstance(creator, type) and not issubclass(creator, Layer):
            message = (
                f"got class {creator.__name__}, expected a subclass of demitasse.Layer; nets name "
                "a caffe.Layer by type: 'Python' and python_param, without register_layer"
            )
            raise NetError(message, code=ErrorCode.INVALID, field="creator")
        for name in names:
            taken = _creators.get(name, creator)
            built_in = name in CATALOG and CATALOG[name] != creator.__module__
            if built_in or _definition(taken) != _definition(creator):
                message = f"layer type {name!r} is already registered; choose another name"
                raise NetError(message, code=ErrorCode.DUPLICATE, type=name)
            _creators[name] = creator
            if metadata is not None:
                register_metadata(name, metadata)
        if isinstance(creator, type) and issubclass(creator, Layer):
            creator.type, creator.traceable = names[0], names[0] in CATALOG
        return creator

    return add


def _definition(creator: Creator) -> tuple[str, str]:
    """Return module and name of a class or function."""
    return creator.__module__, getattr(creator, "__qualname__", "")


def unregister(name: str) -> None:
    """Undo :func:`register_layer` for a name."""
    _creators.pop(name, None)
    unregister_metadata(name)


def layer_types() -> list[str]:
    """Return all known type names, sorted."""
    return sorted({*CATALOG, *_creators, *(point.name for point in _points(tuple(sys.path)))})


def layer_class(name: str) -> Creator:
    """Return the class or factory function of a type.

    Raises:
        NetError: The type is unknown; the message names similar types, and its fork if known.
        ConfigError: A module that the setting ``plugins`` names cannot be imported.
    """
    if name not in _creators and name in CATALOG:
        import_module(CATALOG[name])
    if name not in _creators:
        import_plugins()
    if name not in _creators:
        for point in _points(tuple(sys.path)):
            if point.name == name:
                loaded = point.load()
                _creators.setdefault(name, loaded)
    if name not in _creators:
        raise NetError(_unknown(name), code=ErrorCode.UNKNOWN, type=name)
    return _creators[name]


def create_layer(param: LayerParameter, phase: str, context: LayerContext) -> Layer:
    """Return the layer of a message; raise ConfigError for a setting that is NaN or infinite."""
    for field, value in nonfinite_fields(param, SETTINGS):
        message = f"got {field} {value}, expected a finite number"
        raise ConfigError(message, code=ErrorCode.NOT_FINITE, field=field, got=value)
    return layer_class(param.type)(param, phase, context)


@cache
def _points(path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of the packages on ``sys.path``; cached."""
    from importlib.metadata import entry_points  # slower than all other imports here

    return list(entry_points(group=GROUP))


def _unknown(name: str) -> str:
    known = layer_types()
    near = nearest(name, known, count=3, cutoff=0.75)
    parts = [f"unknown layer type {name!r}"]
    forks = fork_of_type(name)
    if forks:
        parts.append(f"it comes from {forks} and is not implemented here")
    if near:
        parts.append(f"did you mean {' or '.join(near)}?")
    parts.append(f"demitasse.layers.layer_types() lists the {len(known)} that are known")
    parts.append("for a layer of your own, name its file by --plugins, or import it")
    return "; ".join(parts)


__getattr__ = deprecated_names(__name__, {"register": "register_layer"})
