"""Interface of reference models; other nets and recorded arrays as reference models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from demitasse.core.paths import reason_of
from demitasse.errors import DataError, ErrorCode
from demitasse.io.weights.npz import arrays_in

if TYPE_CHECKING:
    from demitasse.net import Net


@dataclass(frozen=True)
class Value:
    """An array that the reference model computed."""

    names: tuple[str, ...]  # of the array, then of its operation or module, most specific first
    array: np.ndarray  # on the host
    operation: str = ""  # in the other framework; empty if unknown
    kind: str = ""  # layer type that computes the same; empty if unknown


@dataclass(frozen=True)
class Parameter:
    """A parameter of the reference model.

    Attributes:
        name: Name in the reference model.
        array: The array, in Caffe's layout: the weight of an inner product is (M, K).
        role: "weight", "bias", "scale", "shift", "mean", "variance" or "slope"; empty if unknown.
    """

    name: str
    array: np.ndarray
    role: str = ""


class ReferenceModel(Protocol):
    """A model that a net is compared with."""

    name: str
    """Name in tables: the file's name."""

    outputs: tuple[str, ...]
    """Names of the outputs, as in ``Value.names``; empty if unknown."""

    ordered: bool
    """True if ``run`` returns arrays in the order of computation."""

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return input name -> shape, in order; None for a symbolic size."""

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return every intermediate array for these inputs."""

    def parameters(self) -> list[Parameter]:
        """Return the parameters, in the order of use; none by default."""
        return []


_KINDS = {
    "AbsVal": "Abs abs",
    "BatchNorm": "BatchNormalization batch_norm _native_batch_norm_legit_no_training",
    "Clip": "Clip clamp hardtanh",
    "Concat": "Concat cat",
    "Convolution": "Conv conv1d conv2d conv3d convolution",
    "Deconvolution": "ConvTranspose conv_transpose1d conv_transpose2d conv_transpose3d",
    "Dropout": "Dropout dropout",
    "ELU": "Elu elu",
    "Flatten": "Flatten flatten",
    "GELU": "Gelu gelu",
    "InnerProduct": "Gemm linear addmm",
    "LRN": "LRN",
    "PReLU": "PRelu prelu",
    "Permute": "Transpose permute transpose",
    "Pooling": "MaxPool AveragePool GlobalMaxPool GlobalAveragePool max_pool1d max_pool2d "
    "max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d adaptive_max_pool2d",
    "ReLU": "Relu LeakyRelu relu leaky_relu relu_",
    "Reshape": "Reshape reshape view",
    "Sigmoid": "Sigmoid sigmoid",
    "Slice": "Slice Split slice split chunk",
    "Softmax": "Softmax softmax _softmax",
    "TanH": "Tanh tanh",
}
_KIND = {operation: kind for kind, names in _KINDS.items() for operation in names.split()}

ROLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Convolution", "Deconvolution", "InnerProduct"), ("weight", "bias")),
    "PReLU": ("slope",),
}
"""Layer type -> roles of its parameters, in all frameworks."""

_BATCH_NORM_ROLES = ("scale", "shift", "mean", "variance")  # Caffe's scale and shift are a layer


def kind_of(operation: str) -> str:
    """Return the layer type equivalent to an operation, or an empty string."""
    return _KIND.get(operation, "")


def role_of(operation: str, position: int) -> str:
    """Return the role of an operation's parameter by its position after the data, from 0."""
    if operation == "MatMul" and position == 0:
        return "weight"
    kind = kind_of(operation)
    roles = _BATCH_NORM_ROLES if kind == "BatchNorm" else ROLES.get(kind, ())
    return roles[position] if 0 <= position < len(roles) else ""


def kinds_of_layers(net: Net) -> dict[str, str]:
    """Return layer name -> kind of operation: the layer's type, except for BatchNorm with Scale.

    Other frameworks compute both in one operation, whose result is the Scale's top.
    """
    found = {layer.name: layer.type for layer in net.layers}
    wrote: dict[str, str] = {}  # blob -> its last writer
    for at in net.structure.bindings():
        before = wrote.get(at.bottom[0].name, "") if at.bottom else ""
        if at.layer.type == "Scale" and found.get(before) == "BatchNorm":
            found[before], found[at.layer.name] = "BatchNorm without Scale", "BatchNorm"
        wrote |= {blob.name: at.layer.name for blob in at.top}
    return found


class ReferenceNet(ReferenceModel):
    """A net with its weights as a reference model; ``name`` stands in tables."""

    ordered = True

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name = net, name
        self.outputs = tuple(net.outputs)

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of the net's inputs."""
        return {name: self.net.blobs[name].shape for name in self.net.inputs}

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return the tops of all layers."""
        from demitasse.testing.comparison import run_net

        code: dict[str, dict[str, str]] = {}
        device = self.net.device
        found = run_net(self.net, device, arrays, backward=False, by_layer=True, code=code)
        tops = {layer: sum(one.layer == layer for one in found) for layer in self.net.layer_names}
        kinds = kinds_of_layers(self.net)
        return [
            # the layer's name distinguishes blobs written in place
            Value((*([one.layer] if tops[one.layer] == 1 else []), *one.wrote), one.array,
                  f"{one.type} on {device}", kinds[one.layer])
            for one in found
        ]  # fmt: skip


class RecordedArrays(ReferenceModel):
    """Arrays of a ``.npz`` file, inputs included, as a reference model."""

    outputs: tuple[str, ...] = ()
    ordered = False

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.arrays = read_arrays(path)

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return {}: recorded arrays need no input."""
        return {}

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return the recorded arrays."""
        del arrays
        return [Value((name,), array, "recorded") for name, array in self.arrays.items()]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` file by name; raise a DataError if it cannot be read."""
    try:
        return arrays_in(path)
    except (OSError, ValueError) as error:
        message = f"cannot be read as a .npz file of arrays: {reason_of(error, path)}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
