"""A net as OpenCV's importer reads it: layer 0 is the inputs, the other layers follow from 1 on.

Repeated names get the suffixes ``_1``, ``_2``, ... A Convolution is a layer for each of its tops,
and has the top's name. Callers request layers, not blobs, and a layer that runs in place does not
change the output of the layer before it.

Source: OpenCV 4, ``modules/dnn/src/caffe/caffe_importer.cpp``, ``lrn_layer.cpp``,
``prior_box_layer.cpp``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from demitasse import net as engine
from demitasse.compat.cvdnn.errors import error
from demitasse.compat.cvdnn.own_layers import classes, with_own_layers
from demitasse.core.device import Device
from demitasse.errors import DemitasseError, ErrorCode
from demitasse.graph import filter_net
from demitasse.io.proto import LayerParameter, NetParameter, Phase, upgrade_net
from demitasse.layers import Layer

T = TypeVar("T")
Shape = tuple[int, ...]
Weights = Path | NetParameter
LayerId = int | str

INPUTS = "_input"
"""OpenCV's name of layer 0."""


@dataclass(frozen=True)
class ImportedLayer:
    """A layer as OpenCV counts layers.

    Attributes:
        message: The file's layer.
        part: Index of the only bottom and top of a Convolution; None for all of another layer.
    """

    name: str
    message: LayerParameter
    part: int | None = None

    @property
    def type(self) -> str:
        """OpenCV's name of the type."""
        kind = self.message.type
        return "Convolution" if kind == "ConvolutionDepthwise" else kind

    @property
    def bottoms(self) -> list[str]:
        """Names of the bottoms."""
        return list(self.of(self.message.bottom))

    @property
    def tops(self) -> list[str]:
        """Names of the tops."""
        return list(self.of(self.message.top))

    def of(self, values: Sequence[T]) -> Sequence[T]:
        """Return those values, one for each bottom or top of the message, that are the layer's."""
        return values if self.part is None else values[self.part : self.part + 1]


@dataclass(frozen=True)
class BuiltNet:
    """A net of the engine, with the indices of the layers.

    Attributes:
        layers: The layers, from layer 1 on.
        indices: Index in the net of each layer; 0 for layer 0.
        untrained: Names of layers with parameters that were not given.
        own: Names of layers that classes of the user compute.
    """

    net: engine.Net
    layers: Sequence[ImportedLayer]
    indices: tuple[int, ...]
    untrained: list[str]
    own: list[str]

    def layer(self, number: int) -> Layer:
        """Return a layer, numbered from 1."""
        return self.net.layers[self.indices[number]]

    def tops(self, number: int) -> list[str]:
        """Return the names of a layer's tops."""
        return self._names(number, self.net.structure.top_ids(self.indices[number]))

    def bottoms(self, number: int) -> list[str]:
        """Return the names of a layer's bottoms."""
        return self._names(number, self.net.structure.bottom_ids(self.indices[number]))

    def _names(self, number: int, blobs: list[int]) -> list[str]:
        return [self.net.blob_names[blob] for blob in self.layers[number - 1].of(blobs)]


class ImportedNet:
    """A net's upgraded message, with OpenCV's layer numbers and names.

    Attributes:
        inputs: Names of the inputs.
        declared: Declared shapes of the inputs; empty if undeclared.
        layers: Layers of phase TEST, without Input layers.
        names: Unique names of the layers.
    """

    def __init__(self, message: NetParameter, weights: Weights | None, source: str) -> None:
        shapeless = list(message.input) if not message.input_dim and not message.input_shape else []
        upgrade_net(message)
        if shapeless:
            message.layer.insert(0, LayerParameter(name="input", type="Input", top=shapeless))
        message.state.phase = Phase.Value("TEST")
        self._message, _ = filter_net(message)
        for layer in self._message.layer:
            _apply_opencv_defaults(layer)
        self._weights, self._source = weights, source
        self.declared: dict[str, Shape] = {}
        for layer in self._inputs():
            shapes = [tuple(shape.dim) for shape in layer.input_param.shape] or [()]
            for i, top in enumerate(layer.top):
                self.declared[top] = shapes[min(i, len(shapes) - 1)]
        self.inputs = list(self.declared)
        self.layers = _imported(self._message)
        self.names = [layer.name for layer in self.layers]

    def numbers(self) -> dict[str, int]:
        """Return the number of each layer by name."""
        return {name: number for number, name in enumerate([INPUTS, *self.names])}

    def number(self, layer: LayerId) -> int:
        """Return the number of a layer given by name or number; an unknown one is an error."""
        if isinstance(layer, str):
            number = self.numbers().get(layer)
            if number is None:
                writers = [one.name for one in self.layers if layer in one.tops]
                hint = f"; blob {layer!r} is a top of layer {writers[-1]!r}" if writers else ""
                message = f"unknown layer {layer!r}{hint}; known are {', '.join(self.names)}"
                raise error(message, code=ErrorCode.UNKNOWN, layer=layer)
            return number
        if isinstance(layer, bool) or not isinstance(layer, (int, np.integer)):
            message = f"got {layer!r}, expected the name or the number of a layer"
            raise error(message, code=ErrorCode.INVALID, layer=layer)
        if not 0 <= layer <= len(self.names):
            message = f"got layer {layer}, expected 0 (the inputs) to {len(self.names)}"
            raise error(message, code=ErrorCode.OUT_OF_RANGE, layer=layer)
        return int(layer)

    def outputs(self) -> list[int]:
        """Return the numbers of the layers whose tops have no reader."""
        read = {writer for writer, _ in self.edges()}
        return [number for number in range(1, len(self.layers) + 1) if number not in read]

    def edges(self) -> list[tuple[int, int]]:
        """Return the edges of the graph: pairs of writer and reader; 0 for an input."""
        writer, edges = dict.fromkeys(self.inputs, 0), list[tuple[int, int]]()
        for number, layer in enumerate(self.layers, 1):
            edges += [(writer[bottom], number) for bottom in layer.bottoms if bottom in writer]
            writer.update(dict.fromkeys(layer.tops, number))
        return edges

    def own(self) -> list[str]:
        """Return the names of the layers whose types have classes of the user now."""
        return [one.name for one in self._message.layer if one.type in classes]

    def build(
        self, input_shapes: Mapping[str, Shape], device: Device | None, old: BuiltNet | None = None
    ) -> BuiltNet | None:
        """Build the net and load its weights; return None if the shape of an input is unknown.

        ``input_shapes`` are those of inputs without a declared shape. The weights are those of
        ``old``, if there is one.
        """
        shapes = {
            name: shape or input_shapes.get(name, ()) for name, shape in self.declared.items()
        }
        if not all(shapes.values()):
            return None
        for layer in self._inputs():
            del layer.input_param.shape[:]
            for top in layer.top:
                layer.input_param.shape.add(dim=shapes[top])
        try:
            net = engine.Net(with_own_layers(self._message), "TEST", device=device)
        except DemitasseError as fault:
            raise fault.at(self._source) from None
        untrained = list(net.params) if old is None else old.untrained
        if old is not None:
            net.share_trained_layers_with(old.net)
        elif self._weights is not None:
            missing = net.load(self._weights).missing
            if missing:
                message = f"the weights contain no parameters of layers {', '.join(missing)}"
                raise error(message, code=ErrorCode.MISSING, layer=missing[0])
            self._weights, untrained = None, []
        return BuiltNet(net, self.layers, self._indices(net), untrained, self.own())

    def _inputs(self) -> list[LayerParameter]:
        return [layer for layer in self._message.layer if layer.type == "Input"]

    def _indices(self, net: engine.Net) -> tuple[int, ...]:
        """Return the indices of the layers in the net, which also contains splits."""
        indices, made = [0], iter(enumerate(net.layers))
        for layer in self.layers:
            message, index = layer.message, indices[-1]
            if not layer.part:  # further parts are of the same layer of the net
                index = next(
                    i for i, one in made
                    if one.name == message.name and one.param.type in {message.type, "Python"}
                )  # fmt: skip
            indices.append(index)
        return tuple(indices)


def _imported(net: NetParameter) -> list[ImportedLayer]:
    """Return the layers of a net without Input layers, with OpenCV's names."""
    seen: Counter[str] = Counter()
    layers: dict[str, ImportedLayer] = {}
    for message in net.layer:
        repetitions = seen[message.name]
        seen[message.name] += 1
        name = f"{message.name}_{repetitions}" if repetitions else message.name
        made = [ImportedLayer(name, message)]
        if message.type == "Convolution":
            made = [ImportedLayer(top, message, part) for part, top in enumerate(message.top)]
        for layer in made if message.type != "Input" else ():
            if layer.name in layers:
                text = (
                    f"layer {message.name!r} is called {layer.name!r} by OpenCV, the name of "
                    "another layer; give the Convolution's top another name"
                )
                raise error(text, code=ErrorCode.DUPLICATE, layer=layer.name)
            layers[layer.name] = layer
    return list(layers.values())


def _apply_opencv_defaults(layer: LayerParameter) -> None:
    """Set OpenCV's defaults in a layer, in place, where they differ from Caffe's.

    LRN: alpha defaults to 0.0001 instead of 1, and k is always 1. PriorBox: boxes are clipped to
    the image unless the file disables it, and sizes keep their fractions. Log: the natural
    logarithm of the bottom, whatever ``log_param`` has.
    """
    layer.ClearField("log_param")
    if layer.type == "LRN":
        if not layer.lrn_param.HasField("alpha"):
            layer.lrn_param.alpha = 1e-4
        layer.lrn_param.k = 1
    if layer.type == "PriorBox":
        layer.prior_box_param.truncate_sizes = False
        if not layer.prior_box_param.HasField("clip"):
            layer.prior_box_param.clip = True
