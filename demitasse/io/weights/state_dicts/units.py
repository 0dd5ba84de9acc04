"""Modules of PyTorch: the parameters of a layer, or of a BatchNorm and its Scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.core.axes import shape_string
from demitasse.errors import ErrorCode, ShapeError, WeightsError
from demitasse.io.proto import LayerParameter
from demitasse.io.weights.running_averages import running_averages

__all__ = ["Tensors", "Unit", "units_of"]

Tensors = dict[str, np.ndarray]
"""Tensors of a module by name (weight, bias, running_mean, ...)."""

NAMES: Mapping[str, tuple[str, ...]] = {"Bias": ("bias",), "Parameter": ("value",)}
"""Layer type -> PyTorch's names of its parameters, if not weight and bias."""

AVERAGES = ("running_mean", "running_var")

LSTM_NAMES = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")

GATES = (0, 1, 3, 2)
"""Caffe's gates are i, f, o, g, PyTorch's i, f, g, o; the permutation is its own inverse."""


@dataclass(frozen=True)
class Unit:
    """The layers of one module.

    Attributes:
        layers: One layer, or a BatchNorm and its Scale.
    """

    layers: tuple[LayerParameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.layers)

    def __str__(self) -> str:
        """Return the names as written in a map file."""
        return " + ".join(self.names)

    def to_torch(self, blobs: Sequence[Sequence[np.ndarray]]) -> Tensors:
        """Return the module's tensors.

        Args:
            blobs: Parameters of each layer.

        Raises:
            WeightsError: PyTorch has no module with such parameters.
        """
        first, own = self.layers[0], [np.asarray(blob) for blob in blobs[0]]
        if first.type == "BatchNorm":
            averages = dict(zip(AVERAGES, running_averages(own[:3]), strict=True))
            return averages | _affine(own[3:5] if len(own) == 5 else blobs[-1], self)
        if first.type == "LSTM" and len(own) == 3:
            weight, bias, hidden = map(_exchanged, own)
            values = (weight, bias.reshape(-1), hidden, np.zeros_like(bias.reshape(-1)))
            return dict(zip(LSTM_NAMES, values, strict=True))
        names = NAMES.get(first.type, ("weight", "bias"))
        if len(own) > len(names):
            message = (
                f"layer {first.name!r} ({first.type}) has {len(own)} parameters; PyTorch has no "
                "such module, remove the layer from the map"
            )
            raise WeightsError(message, code=ErrorCode.UNSUPPORTED, layer=first.name, got=len(own))
        found = dict(zip(names, own, strict=False))
        for name, array in found.items():
            if name == "bias" or first.type == "PReLU":
                found[name] = array.reshape(-1)
            elif first.type in {"InnerProduct", "Embed"}:
                matrix = array.reshape(array.shape[-2:])
                turned = first.type == "InnerProduct" and first.inner_product_param.transpose
                found[name] = matrix.T if turned else matrix
        return found

    def to_caffe(
        self, tensors: Tensors, shapes: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[list[np.ndarray]]:
        """Return the parameters of each layer.

        Args:
            tensors: Tensors of the module.
            shapes: Shapes of the parameters of each layer.

        Raises:
            WeightsError: A tensor is missing or unexpected.
            ShapeError: The shape of a tensor differs.
        """
        wanted = self.to_torch([[np.broadcast_to(np.float32(1), one) for one in layer]
                                for layer in shapes])  # fmt: skip
        _need(self, tensors, wanted)
        first = self.layers[0]
        if first.type == "BatchNorm":
            averages = [tensors[name] for name in AVERAGES]
            found = [[*averages, np.ones(1, np.float32)]]
            affine = [tensors[name] for name in ("weight", "bias") if name in wanted]
            if affine and len(shapes[-1]) == 1:
                _need_no_bias(self, affine.pop())
            if len(self.layers) == 2:
                found.append(affine)
            else:
                found[0] += affine
        elif first.type == "LSTM" and len(shapes[0]) == 3:
            weight, bias, hidden, more = (tensors[name] for name in LSTM_NAMES)
            found = [[_exchanged(one) for one in (weight, bias + more, hidden)]]
        else:
            turned = first.type == "InnerProduct" and first.inner_product_param.transpose
            arrays = [tensors[name] for name in wanted]
            found = [[one.T if turned and one.ndim == 2 else one for one in arrays]]
        return [
            [array.reshape(shape) for array, shape in zip(layer, its, strict=True)]
            for layer, its in zip(found, shapes, strict=True)
        ]


def units_of(layers: Sequence[LayerParameter]) -> list[Unit]:
    """Return units of layers with parameters; a Scale behind a BatchNorm joins its unit."""
    found: list[Unit] = []
    normed: dict[str, int] = {}  # blob -> unit that ends with the BatchNorm making the blob
    for layer in layers:
        place = normed.pop(layer.bottom[0], None) if layer.bottom else None
        if layer.type == "Scale" and place is not None and len(layer.bottom) == 1:
            found[place] = Unit((*found[place].layers, layer))
            continue
        for top in layer.top:
            normed.pop(top, None)
        if layer.type == "BatchNorm":
            normed[layer.top[0]] = len(found)
        found.append(Unit((layer,)))
    return found


def _affine(blobs: Sequence[np.ndarray], unit: Unit) -> Tensors:
    """Return weight and bias of a normalization; PyTorch has both or neither."""
    if len(unit.layers) == 1 and len(blobs) != 2:
        return {}
    weight = blobs[0].reshape(-1)
    bias = blobs[1].reshape(-1) if len(blobs) > 1 else np.zeros(weight.shape, weight.dtype)
    return {"weight": weight, "bias": bias}


def _need_no_bias(unit: Unit, bias: np.ndarray) -> None:
    if bias.any():
        message = (
            f"the module of {unit} has a bias other than 0, but the Scale has none; set "
            "bias_term: true"
        )
        raise WeightsError(
            message, code=ErrorCode.INCOMPATIBLE, layer=unit.names[-1], field="bias_term"
        )


def _exchanged(array: np.ndarray) -> np.ndarray:
    """Return an array with the last two of four gates swapped. Shapes: (4 H, ...)."""
    gates = array.reshape(4, -1, *array.shape[1:])
    return gates[list(GATES)].reshape(array.shape)


def _need(unit: Unit, tensors: Tensors, wanted: Tensors) -> None:
    missing = [name for name in wanted if name not in tensors]
    extra = [name for name in tensors if name not in wanted]
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has the unexpected {', '.join(extra)}"] if extra else []
        message = f"the module of {unit} ({_types(unit)}) {' and '.join(parts)}"
        code = ErrorCode.MISSING if missing else ErrorCode.UNKNOWN
        raise WeightsError(message, code=code, layer=unit.names[0])
    for name, array in wanted.items():
        if array.shape != tensors[name].shape:
            got = tensors[name].shape
            message = (
                f"got {name} of the module of {unit} ({_types(unit)}) of {shape_string(got)}, "
                f"expected {shape_string(array.shape)}"
            )
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                layer=unit.names[0],
                param=name,
                got=got,
                expected=array.shape,
            )


def _types(unit: Unit) -> str:
    return " and ".join(layer.type for layer in unit.layers)
