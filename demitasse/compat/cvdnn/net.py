"""``cv2.dnn.Net`` over the engine's Net.

Source: OpenCV 4, ``modules/dnn/src/net.cpp``, ``net_impl.cpp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Self, overload

import numpy as np

from demitasse.compat.cvdnn.errors import error, failing_as
from demitasse.compat.cvdnn.flops import layer_flops
from demitasse.compat.cvdnn.imported import INPUTS, Imported, Shape, Weights, Which
from demitasse.compat.cvdnn.layer import Layer
from demitasse.compat.cvdnn.scalar import ScalarLike, as_scalar
from demitasse.compat.cvdnn.session import Session
from demitasse.compat.cvdnn.targets import check_backend, device_of
from demitasse.core.atomic import atomic_write
from demitasse.io.proto import NetParameter

__all__ = ["Net", "Weights"]

Names = list[str] | tuple[str, ...]
Shapes = Sequence[int] | Sequence[Sequence[int]]


class Net:
    """A net as ``readNetFromCaffe`` returns it; ``Net()`` is an empty one.

    Layers are called by name or number; number 0 are the inputs. Where the file gives no shapes of
    inputs, the net is made once ``setInput`` has given all of them.
    """

    def __init__(self) -> None:
        self._begin(Imported(NetParameter(), None, "an empty net"))

    def _begin(self, imported: Imported) -> None:
        self._imported, self._session = imported, Session(imported)

    @classmethod
    def _of(cls, message: NetParameter, weights: Weights | None, source: str) -> Self:
        """Return the net of a message."""
        self = cls()
        self._begin(Imported(message, weights, source))
        self._session.build({})
        return self

    # -- what it is ----------------------------------------------------------------------------

    def empty(self) -> bool:
        """Whether there are no layers."""
        return not self._imported.layers

    def getLayerNames(self) -> tuple[str, ...]:
        """Return the names of the layers, without the inputs."""
        return tuple(self._imported.names)

    def getLayerId(self, layer: str) -> int:
        """Return the number of a layer; -1 where there is none of this name."""
        return self._imported.numbers().get(layer, -1)

    def getLayerTypes(self) -> tuple[str, ...]:
        """Return the types of layers there are, in alphabetical order."""
        return tuple(sorted({layer.type for layer in self._imported.layers}))

    def getLayersCount(self, layerType: str) -> int:
        """Return how many layers of a type there are."""
        return Counter(layer.type for layer in self._imported.layers)[layerType]

    def getUnconnectedOutLayers(self) -> np.ndarray:
        """Return the numbers of the layers that no other reads, int32."""
        return np.array(self._imported.outputs(), np.int32)

    def getUnconnectedOutLayersNames(self) -> tuple[str, ...]:
        """Return the names of the layers that no other reads."""
        return tuple(self._imported.names[number - 1] for number in self._imported.outputs())

    @failing_as("getLayer")
    def getLayer(self, layerId: Which) -> Layer:
        """Return a layer by number or name, its parameters copied.

        Raises:
            error: There is none.
        """
        number = self._imported.number(layerId)
        if number == 0:
            return Layer(INPUTS, "", (), self._imported.inputs)
        message = self._imported.layers[number - 1]
        built = self._session.built
        blobs = () if built is None else built.layer(number).blobs
        copies = tuple(blob.cpu_data().copy() for blob in blobs)
        return Layer(self._imported.names[number - 1], message.type, copies, list(message.top))

    @failing_as("getParam")
    def getParam(self, layer: Which, numParam: int = 0) -> np.ndarray:
        """Return a copy of a parameter of a layer.

        Raises:
            error: There is no such layer or parameter.
        """
        found = self.getLayer(layer)
        self._need_param(found, numParam)
        return found.blobs[numParam]

    @failing_as("setParam")
    def setParam(self, layer: Which, numParam: int, blob: np.ndarray) -> None:
        """Replace the values of a parameter of a layer.

        Raises:
            error: There is no such layer or parameter, or it has another shape.
        """
        found = self.getLayer(layer)
        self._need_param(found, numParam)
        values = np.asarray(blob)
        if values.shape != found.blobs[numParam].shape:
            message = (
                f"parameter {numParam} of layer {found.name!r} is {found.blobs[numParam].shape}, "
                f"given is {values.shape}"
            )
            raise error(message)
        params = self._session.ready().layer(self._imported.number(layer)).blobs
        params[numParam].mutable_cpu_data()[...] = values

    @staticmethod
    def _need_param(layer: Layer, number: int) -> None:
        if not 0 <= number < len(layer.blobs):
            message = f"layer {layer.name!r} has {len(layer.blobs)} parameters, none is {number}"
            raise error(message)

    def _image_size(self) -> tuple[int, int]:
        """Return width and height of the first input, in pixels; (0, 0) where it is no image."""
        shape = next(iter(self._imported.declared.values()), ())
        return (shape[3], shape[2]) if len(shape) == 4 else (0, 0)

    # -- running -------------------------------------------------------------------------------

    @failing_as("setInput")
    def setInput(
        self, blob: np.ndarray, name: str = "", scalefactor: float = 1.0, mean: ScalarLike = ()
    ) -> None:
        """Take a copy of an input; its shape may be another than the file's.

        Args:
            blob: The values; whole numbers become floats.
            name: Which input; empty for the first.
            scalefactor: What values are multiplied by, after the mean is subtracted.
            mean: What is subtracted from each channel.

        Raises:
            error: There is no such input, or the values are no array of numbers.
        """
        inputs = self._imported.inputs
        if self.empty():
            return
        if not name and not inputs:
            message = "the net has no inputs; its layers read data themselves"
            raise error(message)
        wanted = name or inputs[0]
        if wanted not in inputs:
            message = f"no input {wanted!r}; there are {', '.join(inputs)}"
            raise error(message)
        if not isinstance(blob, np.ndarray) or blob.dtype.kind not in "uif" or not blob.size:
            given = f"{blob.dtype} {blob.shape}" if isinstance(blob, np.ndarray) else type(blob)
            message = f"input {wanted!r} must be an array of numbers, not empty; it is {given}"
            raise error(message)
        self._session.given[wanted] = _scaled(blob, float(scalefactor), mean)

    @overload
    def forward(self, outputName: str | None = None) -> np.ndarray: ...
    @overload
    def forward(self, outputName: Names) -> tuple[np.ndarray, ...]: ...

    @failing_as("forward")
    def forward(self, outputName: str | Names | None = None) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the net as far as it is asked for.

        Args:
            outputName: The name of a layer, or several; empty for the last layer.

        Returns:
            The first output of the layer, or a tuple of those of several.

        Raises:
            error: The net is empty, an input is missing, or there is no such layer.
        """
        session = self._session
        if outputName is None or isinstance(outputName, str):
            return session.outputs([outputName or session.last()])[0][0]
        return tuple(tops[0] for tops in session.outputs(list(outputName) or [session.last()]))

    @failing_as("forwardAndRetrieve")
    def forwardAndRetrieve(self, outBlobNames: Names) -> tuple[tuple[np.ndarray, ...], ...]:
        """Run the net and return all outputs of each of the layers.

        Raises:
            error: See ``forward``.
        """
        return tuple(map(tuple, self._session.outputs(list(outBlobNames))))

    # -- where it runs -------------------------------------------------------------------------

    @failing_as("setPreferableBackend")
    def setPreferableBackend(self, backendId: int) -> None:
        """Do nothing: the device follows the target.

        Raises:
            error: The number is no backend's.
        """
        check_backend(backendId)

    @failing_as("setPreferableTarget")
    def setPreferableTarget(self, targetId: int) -> None:
        """Run on the GPU for the CUDA targets, else on the processor.

        Raises:
            error: The number is no target's.
        """
        self._session.move(device_of(targetId))

    def enableFusion(self, fusion: bool) -> None:
        """Do nothing: what runs as one gives the same numbers."""

    def enableWinograd(self, useWinograd: bool) -> None:
        """Do nothing: the device chooses how it convolves."""

    # -- figures -------------------------------------------------------------------------------

    def getPerfProfile(self) -> tuple[int, np.ndarray]:
        """Return how long the last ``forward`` took, and each layer of it, in nanoseconds.

        Layers that ran as one count for the first of them. On a GPU only the total is measured.

        Shapes: timings (layers,), float64.
        """
        total, layers = self._session.timings
        return total, np.array(layers, np.float64)

    @failing_as("getLayersShapes")
    def getLayersShapes(
        self, netInputShapes: Shapes
    ) -> tuple[np.ndarray, tuple[tuple[np.ndarray, ...], ...], tuple[tuple[np.ndarray, ...], ...]]:
        """Return the numbers of all layers, and the shapes of what they read and give.

        Args:
            netInputShapes: The shape of the input, or of each of the inputs.

        Raises:
            error: The net cannot take such inputs.
        """
        pairs = self._session.shapes(_shape_list(netInputShapes))
        arrays = [
            tuple(tuple(np.array(shape, np.int32) for shape in pair[side]) for pair in pairs)
            for side in (0, 1)
        ]
        return np.arange(len(pairs), dtype=np.int32), arrays[0], arrays[1]

    @failing_as("getFLOPS")
    def getFLOPS(self, *where: Shapes | int) -> int:
        """Return how many floating point operations a pass takes, as OpenCV counts them.

        Args:
            where: Perhaps the number of a layer; the shape of the input, or of each of them.

        Raises:
            error: There is no such layer, or the net cannot take such inputs.
        """
        numbers, pairs = self._asked(where)
        built = self._session.ready()
        return sum(layer_flops(built.layer(n), *pairs[n]) for n in numbers if n)

    @failing_as("getMemoryConsumption")
    def getMemoryConsumption(self, *where: Shapes | int) -> tuple[int, int]:
        """Return the bytes of the parameters and of what the layers give.

        Args:
            where: As for ``getFLOPS``.

        Raises:
            error: See ``getFLOPS``.
        """
        numbers, pairs = self._asked(where)
        built = self._session.ready()
        weights = sum(blob.count for n in numbers if n for blob in built.layer(n).blobs)
        values = sum(prod(shape) for n in numbers for shape in pairs[n][1])
        return 4 * weights, 4 * values

    def _asked(
        self, where: tuple[Shapes | int, ...]
    ) -> tuple[list[int], list[tuple[list[Shape], list[Shape]]]]:
        """Sort out ``(shapes)`` and ``(layerId, shapes)``: numbers of layers, shapes of all."""
        match where:
            case [int(layer), shapes] if not isinstance(shapes, int):
                return [self._imported.number(layer)], self._session.shapes(_shape_list(shapes))
            case [shapes] if not isinstance(shapes, int):
                pairs = self._session.shapes(_shape_list(shapes))
                return list(range(len(pairs))), pairs
        message = f"give the shapes of the inputs, perhaps after a layer's number; not {where}"
        raise error(message)

    def dump(self) -> str:
        """Return the graph of the layers in the language of Graphviz."""
        names = [INPUTS, *self._imported.names]
        layers = zip(names[1:], self._imported.layers, strict=True)
        nodes = [f'\t"{name}" [label="{name}\\n{layer.type}" shape=box]' for name, layer in layers]
        edges = [f'\t"{names[a]}" -> "{names[b]}"' for a, b in self._imported.edges()]
        return "\n".join(["digraph G {", *nodes, *edges, "}", ""])

    def dumpToFile(self, path: str) -> None:
        """Write what ``dump`` returns to a file."""
        with atomic_write(path) as file:
            file.write(self.dump().encode())

    def __repr__(self) -> str:
        return f"cvdnn.Net({len(self._imported.layers)} layers)"


def _scaled(blob: np.ndarray, scale: float, mean: ScalarLike) -> np.ndarray:
    """Return (blob - mean) * scale as a new float32 array; axis 1 are the channels."""
    means = as_scalar(mean, "mean")
    values = blob.astype(np.float32)
    channels = blob.shape[1] if blob.ndim > 1 else 1
    if any(means) and channels > len(means):
        message = f"mean has four numbers, which is too few for the channels of {blob.shape}"
        raise error(message)
    if scale != 1:
        values *= np.float32(scale)
    if any(means):
        shift = np.array(means[:channels], np.float64) * -scale
        values += np.reshape(shift.astype(np.float32), (-1,) + (1,) * max(blob.ndim - 2, 0))
    return values


def _shape_list(given: Shapes) -> list[Shape]:
    """Return shapes, given as one or as several."""
    rows = [given] if np.ndim(given[0] if len(given) else 0) == 0 else list(given)
    return [tuple(map(int, np.asarray(row))) for row in rows]
