"""A net as OpenCV's importer sees it: its inputs are layer 0, the other layers follow from 1 on.

Names that come twice get ``_1``, ``_2`` and so on. Blobs have no names of their own: what is asked
for is a layer, and a layer that runs in place does not change what the one before it gave.

Source: OpenCV 4, ``modules/dnn/src/caffe/caffe_importer.cpp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import net as engine
from demitasse.compat.cvdnn.defaults import read_as_opencv
from demitasse.compat.cvdnn.errors import error
from demitasse.core.device import Device
from demitasse.errors import DemitasseError
from demitasse.graph import filter_net
from demitasse.io.proto import LayerParameter, NetParameter, Phase, upgrade_net
from demitasse.layers import Layer

__all__ = ["INPUTS", "Built", "Imported", "Shape", "Weights", "Which"]

Shape = tuple[int, ...]
Weights = Path | NetParameter
Which = int | str

INPUTS = "_input"
"""OpenCV's name of layer 0."""


@dataclass(frozen=True)
class Built:
    """A net of the engine, and where it has the layers of the file.

    Attributes:
        net: The net.
        places: For each layer, from 1 on, its index in the net; 0 for layer 0.
        untrained: Names of the layers whose parameters were not read, as no weights were given.
    """

    net: engine.Net
    places: tuple[int, ...]
    untrained: tuple[str, ...]

    def layer(self, number: int) -> Layer:
        """Return a layer, from 1 on."""
        return self.net.layers[self.places[number]]

    def tops(self, number: int) -> list[str]:
        """Return the names of the blobs that a layer writes."""
        return self._names(self.net.structure.top_ids(self.places[number]))

    def bottoms(self, number: int) -> list[str]:
        """Return the names of the blobs that a layer reads."""
        return self._names(self.net.structure.bottom_ids(self.places[number]))

    def _names(self, blobs: list[int]) -> list[str]:
        return [self.net.blob_names[blob] for blob in blobs]


class Imported:
    """A net's message in today's format, with what OpenCV derives from it.

    Args:
        message: The net as its text says.
        weights: A file or message of weights; None for none.
        source: What messages call the text.

    Attributes:
        inputs: The names of the inputs.
        declared: The shapes that the text gives for them; empty ones where it gives none.
        layers: The layers that take part in phase TEST, without those of type Input.
        names: Their names, no two alike.

    Raises:
        DemitasseError: The message cannot be brought to today's format.
    """

    def __init__(self, message: NetParameter, weights: Weights | None, source: str) -> None:
        bare = list(message.input) if not message.input_dim and not message.input_shape else []
        upgrade_net(message)
        if bare:
            message.layer.insert(0, LayerParameter(name="input", type="Input", top=bare))
        message.state.phase = Phase.Value("TEST")
        self._message, _ = filter_net(message)
        for layer in self._message.layer:
            read_as_opencv(layer)
        self._weights, self._source = weights, source
        self.declared: dict[str, Shape] = {}
        for layer in self._inputs():
            shapes = [tuple(shape.dim) for shape in layer.input_param.shape] or [()]
            for i, top in enumerate(layer.top):
                self.declared[top] = shapes[min(i, len(shapes) - 1)]
        self.inputs = list(self.declared)
        self.layers = [layer for layer in self._message.layer if layer.type != "Input"]
        self.names = _unique([layer.name for layer in self.layers])

    def numbers(self) -> dict[str, int]:
        """Return the number of each layer by its name."""
        return {name: number for number, name in enumerate([INPUTS, *self.names])}

    def number(self, layer: Which) -> int:
        """Return the number of a layer given by name or number.

        Raises:
            error: There is none.
        """
        if isinstance(layer, str):
            found = self.numbers().get(layer)
            if found is None:
                pairs = zip(self.names, self.layers, strict=True)
                writers = [name for name, message in pairs if layer in message.top]
                hint = f"; blob {layer!r} is given by layer {writers[-1]!r}" if writers else ""
                message = f"no layer {layer!r}{hint}; there are {', '.join(self.names)}"
                raise error(message)
            return found
        if isinstance(layer, bool) or not isinstance(layer, (int, np.integer)):
            message = f"a layer is called by its name or number, not by {layer!r}"
            raise error(message)
        if not 0 <= layer <= len(self.names):
            message = f"no layer {layer}; they are 0, the inputs, to {len(self.names)}"
            raise error(message)
        return int(layer)

    def outputs(self) -> list[int]:
        """Return the numbers of the layers nothing of which is read."""
        writer: dict[str, int] = {}
        read: set[int] = set()
        for number, layer in enumerate(self.layers, 1):
            read.update(writer[bottom] for bottom in layer.bottom if bottom in writer)
            writer.update(dict.fromkeys(layer.top, number))
        return [number for number in range(1, len(self.layers) + 1) if number not in read]

    def edges(self) -> list[tuple[int, int]]:
        """Return who reads whom: pairs of the writer's number and the reader's, 0 for an input."""
        writer, found = dict.fromkeys(self.inputs, 0), list[tuple[int, int]]()
        for number, layer in enumerate(self.layers, 1):
            found += [(writer[bottom], number) for bottom in layer.bottom if bottom in writer]
            writer.update(dict.fromkeys(layer.top, number))
        return found

    def build(self, given: Mapping[str, Shape], device: Device | None) -> Built | None:
        """Make the net and load its weights; None as long as the shape of an input is missing.

        Args:
            given: Shapes of inputs, for those whose shape the text does not give.
            device: Where it shall run; None asks the configuration.

        Raises:
            DemitasseError: Its layers do not fit together, or the weights are not the net's.
        """
        shapes = {name: shape or given.get(name, ()) for name, shape in self.declared.items()}
        if not all(shapes.values()):
            return None
        for layer in self._inputs():
            del layer.input_param.shape[:]
            for top in layer.top:
                layer.input_param.shape.add(dim=shapes[top])
        try:
            net = engine.Net(self._message, "TEST", device=device)
        except DemitasseError as fault:
            raise fault.at(self._source) from None
        untrained: tuple[str, ...] = tuple(net.params)
        if self._weights is not None:
            missing = net.load(self._weights).missing
            if missing:
                message = f"the weights have none for layers {', '.join(missing)}"
                raise error(message)
            self._weights, untrained = None, ()
        return Built(net, self._places(net), untrained)

    def _inputs(self) -> list[LayerParameter]:
        return [layer for layer in self._message.layer if layer.type == "Input"]

    def _places(self, net: engine.Net) -> tuple[int, ...]:
        """Return where the net has the layers: in their order, with splits in between."""
        places, wanted = [0], iter(self.layers)
        layer = next(wanted, None)
        for index, made in enumerate(net.layers):
            if layer is not None and (made.name, made.param.type) == (layer.name, layer.type):
                places.append(index)
                layer = next(wanted, None)
        return tuple(places)


def _unique(names: list[str]) -> list[str]:
    """Number names that come again, as OpenCV does."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found
