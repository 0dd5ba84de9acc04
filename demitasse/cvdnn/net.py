"""``cv2.dnn.Net`` over the engine's Net.

Source: OpenCV 4, ``modules/dnn/src/net.cpp``, ``net_impl.cpp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from time import perf_counter_ns
from typing import Self, overload

import numpy as np

from demitasse.atomic import atomic_write
from demitasse.cvdnn.detections import filled_up
from demitasse.cvdnn.errors import error, failing_as
from demitasse.cvdnn.flops import layer_flops
from demitasse.cvdnn.imported import INPUTS, Built, Imported, Shape, Weights
from demitasse.cvdnn.layer import Layer
from demitasse.cvdnn.scalar import ScalarLike, as_scalar
from demitasse.cvdnn.targets import check_backend, device_of
from demitasse.device import Device
from demitasse.plan.stopwatch import Stopwatch
from demitasse.proto import NetParameter

__all__ = ["Net", "Weights"]

Which = int | str
Names = list[str] | tuple[str, ...]
Shapes = Sequence[int] | Sequence[Sequence[int]]


class Net:
    """A net as ``readNetFromCaffe`` returns it; ``Net()`` is an empty one.

    Layers are called by name or number; number 0 are the inputs. Where the file gives no shapes of
    inputs, the net is made once ``setInput`` has given all of them.
    """

    def __init__(self) -> None:
        self._imported = Imported(NetParameter(), None, "an empty net")
        self._built: Built | None = None
        self._device: Device | None = None
        self._given: dict[str, np.ndarray] = {}
        self._timings: tuple[int, list[float]] = (0, [])

    @classmethod
    def _of(cls, message: NetParameter, weights: Weights | None, source: str) -> Self:
        """Return the net of a message."""
        self = cls()
        self._imported = Imported(message, weights, source)
        self._built = self._imported.build({}, None)
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
        number = self._number(layerId)
        if number == 0:
            return Layer(INPUTS, "", (), self._imported.inputs)
        message = self._imported.layers[number - 1]
        blobs = () if self._built is None else self._built.layer(number).blobs
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
        params = self._ready().layer(self._number(layer)).blobs
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

    def _number(self, layer: Which) -> int:
        names = self._imported.names
        if isinstance(layer, str):
            number = self.getLayerId(layer)
            if number < 0:
                writers = [
                    name
                    for name, message in zip(names, self._imported.layers, strict=True)
                    if layer in message.top
                ]
                hint = f"; blob {layer!r} is given by layer {writers[-1]!r}" if writers else ""
                message = f"no layer {layer!r}{hint}; there are {', '.join(names)}"
                raise error(message)
            return number
        if isinstance(layer, bool) or not isinstance(layer, (int, np.integer)):
            message = f"a layer is called by its name or number, not by {layer!r}"
            raise error(message)
        if not 0 <= layer <= len(names):
            message = f"no layer {layer}; they are 0, the inputs, to {len(names)}"
            raise error(message)
        return int(layer)

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
        self._given[wanted] = _scaled(blob, float(scalefactor), mean)

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
        if outputName is None or isinstance(outputName, str):
            return self._outputs([outputName or self._last()])[0][0]
        return tuple(tops[0] for tops in self._outputs(list(outputName) or [self._last()]))

    @failing_as("forwardAndRetrieve")
    def forwardAndRetrieve(self, outBlobNames: Names) -> tuple[tuple[np.ndarray, ...], ...]:
        """Run the net and return all outputs of each of the layers.

        Raises:
            error: See ``forward``.
        """
        return tuple(map(tuple, self._outputs(list(outBlobNames))))

    def _last(self) -> str:
        if self.empty():
            message = "the net is empty; read one with readNetFromCaffe"
            raise error(message)
        return self._imported.names[-1]

    def _outputs(self, names: list[str]) -> list[list[np.ndarray]]:
        """Return copies of what layers give, having run the net from one to the next.

        So each is read before a layer that runs in place writes over it.
        """
        numbers = [self._number(name) for name in names]
        if 0 in numbers:
            message = f"{INPUTS!r} are the inputs; name a layer that computes"
            raise error(message)
        built = self._ready()
        if built.untrained:
            message = (
                f"layers {', '.join(built.untrained)} have parameters and no weights were given; "
                "give readNetFromCaffe the caffemodel, too"
            )
            raise error(message)
        missing = [name for name in self._imported.inputs if name not in self._given]
        if missing:
            message = f"inputs {', '.join(missing)} are missing; call setInput for each"
            raise error(message)
        for name, values in self._given.items():
            built.net.set_input(name, values)
        found: dict[int, list[np.ndarray]] = {}
        start = 0
        with self._timed(built):
            for number in sorted(set(numbers)):
                place = built.places[number]
                built.net.forward(start, place)
                found[number] = self._tops(built, number)
                start = place + 1
        return [found[number] for number in numbers]

    def _tops(self, built: Built, number: int) -> list[np.ndarray]:
        tops = [built.net.blobs[name].cpu_data().copy() for name in built.tops(number)]
        layer = built.layer(number)
        if not tops:
            message = f"layer {layer.name!r} ({layer.param.type}) has no outputs"
            raise error(message)
        if layer.param.type == "DetectionOutput":
            images = built.net.blobs[built.bottoms(number)[0]].shape[0]
            keep = layer.param.detection_output_param.keep_top_k
            return [filled_up(tops[0], images, keep)]
        return tops

    @contextmanager
    def _timed(self, built: Built) -> Iterator[None]:
        """Note how long layers take, where that does not make a device wait."""
        net = built.net
        watch = Stopwatch(net.plan, net.synchronize) if net.device.shares_host else None
        begin = perf_counter_ns()
        with watch or nullcontext():
            yield
        total = perf_counter_ns() - begin
        seconds = [0.0 if watch is None else watch.forward[i] for i in built.places[1:]]
        self._timings = (total, [1e9 * s for s in seconds])

    def _ready(self) -> Built:
        """Return the net of the engine, made at last where shapes of inputs were missing."""
        if self._built is None:
            given = {name: values.shape for name, values in self._given.items()}
            self._built = self._imported.build(given, self._device)
        if self._built is None:
            message = (
                f"the file gives no shapes of inputs {', '.join(self._imported.inputs)}; "
                "call setInput for each"
            )
            raise error(message)
        return self._built

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
        self._device = device_of(targetId)
        if self._built is not None:
            self._built.net.to(self._device)

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
        total, layers = self._timings
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
        pairs = self._shapes(netInputShapes)
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
        built = self._ready()
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
        built = self._ready()
        weights = sum(blob.count for n in numbers if n for blob in built.layer(n).blobs)
        values = sum(prod(shape) for n in numbers for shape in pairs[n][1])
        return 4 * weights, 4 * values

    def _asked(
        self, where: tuple[Shapes | int, ...]
    ) -> tuple[list[int], list[tuple[list[Shape], list[Shape]]]]:
        """Sort out ``(shapes)`` and ``(layerId, shapes)``: numbers of layers, shapes of all."""
        match where:
            case [int(layer), shapes] if not isinstance(shapes, int):
                return [self._number(layer)], self._shapes(shapes)
            case [shapes] if not isinstance(shapes, int):
                pairs = self._shapes(shapes)
                return list(range(len(pairs))), pairs
        message = f"give the shapes of the inputs, perhaps after a layer's number; not {where}"
        raise error(message)

    def _shapes(self, given: Shapes) -> list[tuple[list[Shape], list[Shape]]]:
        """Return for each layer the shapes of what it reads and gives; computes nothing."""
        shapes = _shape_list(given)
        inputs = self._imported.inputs
        if len(shapes) != len(inputs):
            message = f"the inputs are {', '.join(inputs)}; given are {len(shapes)} shapes"
            raise error(message)
        by_name = dict(zip(inputs, shapes, strict=True))
        if self._built is None:
            self._built = self._imported.build(by_name, self._device)
        built = self._ready()
        for name, shape in by_name.items():
            built.net.blobs[name].reshape(shape)
        built.net.reshape()
        blobs = built.net.blobs
        pairs = [(shapes, shapes)]
        for number in range(1, len(built.places)):
            sides = (built.bottoms(number), built.tops(number))
            read, made = ([blobs[name].shape for name in side] for side in sides)
            pairs.append((read, made))
        return pairs

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
