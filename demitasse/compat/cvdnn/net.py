"""``cv2.dnn.Net`` over the engine's Net, read from Caffe's files or from buffers.

Source: OpenCV 4, ``modules/dnn/src/net.cpp``, ``net_impl.cpp``, ``dnn_read.cpp``,
``caffe/caffe_importer.cpp``.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter_ns
from typing import Any, overload

import numpy as np

from demitasse.blob import Blob
from demitasse.compat.cvdnn.boxes import padded_detections
from demitasse.compat.cvdnn.errors import also_named, error, failing_as
from demitasse.compat.cvdnn.flops import layer_flops
from demitasse.compat.cvdnn.images import ScalarLike, as_scalar
from demitasse.compat.cvdnn.importer import INPUTS, BuiltNet, ImportedNet, LayerId, Shape, Weights
from demitasse.compat.cvdnn.targets import BACKENDS, device_of, name_of
from demitasse.core.atomic import write_bytes
from demitasse.core.device import Device
from demitasse.core.paths import is_file
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.io.proto.read import text_of_file
from demitasse.io.proto.read_binary import parsed
from demitasse.plan.report import Stopwatch

INPUT_TYPE = "__NetInputLayer__"
"""Type of layer 0, as OpenCV counts it."""

Names = list[str] | tuple[str, ...]
Shapes = Sequence[int] | Sequence[Sequence[int]]


@dataclass(eq=False)
class Layer:
    """A layer of a net; the type is empty for layer 0, the inputs."""

    name: str
    type: str
    tops: Sequence[str]
    _number: int
    _net: "Net"

    @property
    def blobs(self) -> tuple[np.ndarray, ...]:
        """Copies of the parameters. Assigned arrays replace them; a bias left out is 0."""
        return tuple(blob.cpu_data().copy() for blob in self._params())

    @blobs.setter
    def blobs(self, values: Sequence[np.ndarray]) -> None:
        with failing_as("blobs"):
            self._net._replace_blobs(self, [np.asarray(value) for value in values])

    def _params(self) -> Sequence[Blob]:
        """Return the parameters; none of layer 0, or before the net is built."""
        built = self._net._built
        return built.layer(self._number).blobs if built and self._number else ()

    def outputNameToIndex(self, outputName: str) -> int:
        """Return the index of the output with this name; -1 if it does not exist."""
        return list(self.tops).index(outputName) if outputName in self.tops else -1


class Net:
    """A net as ``readNetFromCaffe`` returns it; ``Net()`` is empty.

    Layers are identified by name or number; layer 0 is the inputs. If the file declares no shapes
    of inputs, the net is built after ``setInput`` of all inputs.
    """

    def __init__(self) -> None:
        self._imported = ImportedNet(NetParameter(), None, "an empty net")
        self._built: BuiltNet | None = None  # the engine's net, once all shapes of inputs are known
        self._device: Device | None = None
        self._ran = False
        self._inputs: dict[str, np.ndarray] = {}
        self._timings: tuple[int, list[float]] = (0, [])  # of the last pass, in nanoseconds

    # -- structure ------------------------------------------------------------------------------

    def empty(self) -> bool:
        """Return True if the net has no layers."""
        return not self._imported.layers

    def getLayerNames(self) -> tuple[str, ...]:
        """Return the names of the layers, without the inputs."""
        return tuple(self._imported.names)

    def getLayerId(self, layer: str) -> int:
        """Return the number of a layer; -1 for an unknown name."""
        return self._imported.numbers().get(layer, -1)

    def getLayerTypes(self) -> tuple[str, ...]:
        """Return the types of the layers and of layer 0, in alphabetical order."""
        return tuple(sorted({INPUT_TYPE, *(layer.type for layer in self._imported.layers)}))

    def getLayersCount(self, layerType: str) -> int:
        """Return the number of layers of a type."""
        return [INPUT_TYPE, *(layer.type for layer in self._imported.layers)].count(layerType)

    def getUnconnectedOutLayers(self) -> np.ndarray:
        """Return the numbers of the layers without readers, int32."""
        return np.array(self._imported.outputs(), np.int32)

    def getUnconnectedOutLayersNames(self) -> tuple[str, ...]:
        """Return the names of the layers without readers."""
        return tuple(self._imported.names[number - 1] for number in self._imported.outputs())

    @also_named(layerName="layerId")
    @failing_as("getLayer")
    def getLayer(self, layerId: LayerId) -> Layer:
        """Return a layer by number or name.

        Here and below, a layer or parameter that does not exist is an ``error``.
        """
        number = self._imported.number(layerId)
        if number == 0:
            return Layer(INPUTS, "", self._imported.inputs, 0, self)
        layer = self._imported.layers[number - 1]
        return Layer(layer.name, layer.type, layer.tops, number, self)

    def _replace_blobs(self, layer: Layer, values: list[np.ndarray]) -> None:
        """Replace all parameters of a layer; shapes may differ by axes of length 1."""
        built = self._ready()
        shapes = [blob.shape for blob in layer._params()]
        given = [value.shape for value in values]
        values += [np.zeros(shape) for shape in shapes[max(1, len(values)) :]]
        lengths = [[n for n in shape if n != 1] for shape in shapes]
        if lengths != [[n for n in value.shape if n != 1] for value in values]:
            message = f"parameters of layer {layer.name!r} are {shapes}, got {given}"
            raise error(message, code=ErrorCode.SHAPE_MISMATCH, layer=layer.name, got=given)
        target = built.layer(layer._number)
        for blob, value in zip(target.blobs, values, strict=True):
            blob.mutable_cpu_data()[...] = value.reshape(blob.shape)
        if target.name in built.untrained:
            built.untrained.remove(target.name)

    @also_named(layerName="layer")
    @failing_as("getParam")
    def getParam(self, layer: LayerId, numParam: int = 0) -> np.ndarray:
        """Return a copy of a parameter of a layer."""
        return self._param(self.getLayer(layer), numParam).cpu_data().copy()

    @staticmethod
    def _param(layer: Layer, number: int) -> Blob:
        params = layer._params()
        if not 0 <= number < len(params):
            message = f"layer {layer.name!r} has {len(params)} parameters, none is {number}"
            raise error(message, code=ErrorCode.OUT_OF_RANGE, layer=layer.name, param=number)
        return params[number]

    @also_named(layerName="layer")
    @failing_as("setParam")
    def setParam(self, layer: LayerId, numParam: int, blob: np.ndarray) -> None:
        """Replace the values of a parameter of a layer; another shape is an ``error``."""
        info, values = self.getLayer(layer), np.asarray(blob)
        param = self._param(info, numParam)
        if values.shape != (shape := param.shape):
            message = f"parameter {numParam} of layer {info.name!r} is {shape}, got {values.shape}"
            raise error(message, code=ErrorCode.SHAPE_MISMATCH, layer=info.name, param=numParam)
        param.mutable_cpu_data()[...] = values

    def _image_size(self) -> tuple[int, int]:
        """Return width and height of the first input, in pixels; (0, 0) if it is not an image."""
        shape = next(iter(self._imported.declared.values()), ())
        return (shape[3], shape[2]) if len(shape) == 4 else (0, 0)

    # -- running -------------------------------------------------------------------------------

    @failing_as("setInput")
    def setInput(
        self, blob: np.ndarray, name: str = "", scalefactor: float | None = 1.0,
        mean: ScalarLike | None = (),
    ) -> None:  # fmt: skip
        """Copy an input, by default the first; its shape may differ from the declared one.

        Integers are converted to float32. ``scalefactor`` multiplies after the subtraction of the
        mean of each channel.

        Raises:
            error: The input does not exist, or the values are not an array of numbers.
        """
        inputs = self._imported.inputs
        if self.empty():
            return
        if not name and not inputs:
            message = "the net has no inputs; its layers read data themselves"
            raise error(message, code=ErrorCode.MISSING, field="name")
        key = name or inputs[0]
        if key not in inputs:
            message = f"unknown input {key!r}; known are {', '.join(inputs)}"
            raise error(message, code=ErrorCode.UNKNOWN, blob=key)
        if not isinstance(blob, np.ndarray) or blob.dtype.kind not in "uif" or not blob.size:
            what = f"{blob.dtype} {blob.shape}" if isinstance(blob, np.ndarray) else type(blob)
            message = f"input {key!r} must be an array of numbers, not empty; it is {what}"
            raise error(message, code=ErrorCode.INVALID, blob=key)
        self._inputs[key] = _scaled(blob, float(1 if scalefactor is None else scalefactor), mean)

    @overload
    def forward(self, outputName: str | None = None) -> np.ndarray: ...
    @overload
    def forward(self, outputName: Names) -> tuple[np.ndarray, ...]: ...
    @overload
    def forward(self, outputName: object, outputBlobs: object) -> tuple[np.ndarray, ...]: ...
    @overload
    def forward(
        self, outputName: object = None, *, outputBlobs: object
    ) -> tuple[np.ndarray, ...]: ...

    @also_named(outBlobNames="outputName")
    @failing_as("forward")
    def forward(
        self, outputName: Any = None, outputBlobs: Any = ...
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the net up to a layer, or several; return the first output, or a tuple of them.

        The default is the last layer. ``forward(outputBlobs, outputName)`` returns all outputs of a
        layer, and writes nothing to ``outputBlobs``.

        Raises:
            error: The net is empty, an input is missing, or a layer does not exist.
        """
        # outputBlobs comes first in the order of arguments with a name
        wanted = outputBlobs if isinstance(outputBlobs, str) else outputName
        if wanted is None or isinstance(wanted, str):
            [tops] = self._run([wanted or self._last()])
            return tops[0] if outputBlobs is ... else tuple(tops)
        return tuple(tops[0] for tops in self._run(list(wanted) or [self._last()]))

    @failing_as("forwardAndRetrieve")
    def forwardAndRetrieve(self, outBlobNames: Names) -> tuple[tuple[np.ndarray, ...], ...]:
        """Run the net and return all outputs of the layers; errors are those of ``forward``."""
        return tuple(map(tuple, self._run(list(outBlobNames))))

    def _build(self, shapes: Mapping[str, Shape]) -> None:
        """Build the engine's net, unless it exists or the shape of an input is unknown."""
        if self._built is None:
            self._built = self._imported.build(shapes, self._device)

    def _ready(self) -> BuiltNet:
        """Return the engine's net, built with the shapes of the inputs if necessary."""
        self._build({name: values.shape for name, values in self._inputs.items()})
        if self._built is None:
            message = (
                f"the file declares no shapes of inputs {', '.join(self._imported.inputs)}; "
                "call setInput for each"
            )
            raise error(message, code=ErrorCode.MISSING, blob=self._imported.inputs[0])
        return self._built

    def _last(self) -> str:
        """Return the name of the last layer."""
        if not self._imported.layers:
            message = "the net is empty; read one with readNetFromCaffe"
            raise error(message, code=ErrorCode.BAD_STATE)
        return self._imported.names[-1]

    def _run(self, names: list[str]) -> list[list[np.ndarray]]:
        """Run the net up to each of the layers; return copies of their outputs.

        Each output is copied before a layer that runs in place overwrites it.
        """
        numbers = [self._imported.number(name) for name in names]
        if 0 in numbers:
            message = f"layer {INPUTS!r} is the inputs; name another layer"
            raise error(message, code=ErrorCode.INVALID, layer=INPUTS)
        missing = [name for name in self._imported.inputs if name not in self._inputs]
        if missing:
            message = f"inputs {', '.join(missing)} are missing; call setInput for each"
            raise error(message, code=ErrorCode.MISSING, blob=missing[0])
        if not self._ran and self._built is not None and self._built.own != self._imported.own():
            shapes = {name: values.shape for name, values in self._inputs.items()}
            self._built = self._imported.build(shapes, self._device, self._built)
        self._ran = True
        built = self._ready()
        if built.untrained:
            message = (
                f"layers {', '.join(built.untrained)} have parameters and no weights were given; "
                "pass the caffemodel to readNetFromCaffe"
            )
            raise error(message, code=ErrorCode.MISSING, layer=built.untrained[0])
        for name, values in self._inputs.items():
            built.net.set_input(name, values)
        results: dict[int, list[np.ndarray]] = {}
        start = 0
        with self._timed(built):
            for number in sorted(set(numbers)):
                index = built.indices[number]
                if index >= start:  # parts of one Convolution are computed together
                    built.net.forward(start, index)
                results[number] = self._tops(built, number)
                start = index + 1
        return [results[number] for number in numbers]

    def _tops(self, built: BuiltNet, number: int) -> list[np.ndarray]:
        tops = [built.net.blobs[name].cpu_data().copy() for name in built.tops(number)]
        layer = built.layer(number)
        if not tops:
            message = f"layer {layer.name!r} ({layer.param.type}) has no outputs"
            raise error(message, code=ErrorCode.MISSING, layer=layer.name)
        if layer.param.type == "DetectionOutput":
            images = built.net.blobs[built.bottoms(number)[0]].shape[0]
            keep = layer.param.detection_output_param.keep_top_k
            return [padded_detections(tops[0], images, keep)]
        return tops

    @contextmanager
    def _timed(self, built: BuiltNet) -> Iterator[None]:
        """Measure the time of the layers, except on devices that would have to synchronize."""
        net = built.net
        watch = Stopwatch(net.plan, net.synchronize) if net.device.shares_host else None
        begin = perf_counter_ns()
        with watch or nullcontext():
            yield
        total = perf_counter_ns() - begin
        seconds = [0.0 if watch is None else watch.forward[i] for i in built.indices[1:]]
        self._timings = (total, [1e9 * s for s in seconds])

    def _shapes(self, inputs: Sequence[Shape]) -> list[tuple[list[Shape], list[Shape]]]:
        """Return the shapes of bottoms and tops of each layer, without a forward pass."""
        names = self._imported.inputs
        if len(inputs) != len(names):
            message = f"got {len(inputs)} shapes, expected those of inputs {', '.join(names)}"
            raise error(
                message, code=ErrorCode.COUNT_MISMATCH, got=len(inputs), expected=len(names)
            )
        by_name = dict(zip(names, inputs, strict=True))
        self._build(by_name)
        built = self._ready()
        blobs = built.net.blobs
        for name, shape in by_name.items():
            blobs[name].reshape(shape)
        built.net.reshape()
        pairs = [(list(inputs), list(inputs))]
        for number in range(1, len(built.indices)):
            sides = (built.bottoms(number), built.tops(number))
            read, made = ([blobs[name].shape for name in side] for side in sides)
            pairs.append((read, made))
        return pairs

    # -- device ---------------------------------------------------------------------------------

    @failing_as("setPreferableBackend")
    def setPreferableBackend(self, backendId: int) -> None:
        """Check the number; the target selects the device."""
        name_of(backendId, BACKENDS)

    @failing_as("setPreferableTarget")
    def setPreferableTarget(self, targetId: int) -> None:
        """Run on the GPU for the CUDA targets, else on the CPU; unknown numbers are an error."""
        self._device = device_of(targetId)
        if self._built is not None:
            self._built.net.to(self._device)

    def enableFusion(self, fusion: bool) -> None:
        """Do nothing: fusion does not change results."""

    def enableWinograd(self, useWinograd: bool) -> None:
        """Do nothing: the device selects the algorithm."""

    # -- statistics ------------------------------------------------------------------------------

    def getPerfProfile(self) -> tuple[int, np.ndarray]:
        """Return the times of the last ``forward`` and of its layers, in nanoseconds.

        The time of fused layers counts for the first one. A GPU measures only the total.

        Shapes: timings (layers,), float64.
        """
        total, layers = self._timings
        return total, np.array(layers, np.float64)

    @also_named(netInputShape="netInputShapes")
    @failing_as("getLayersShapes")
    def getLayersShapes(
        self, netInputShapes: Shapes
    ) -> tuple[np.ndarray, tuple[tuple[np.ndarray, ...], ...], tuple[tuple[np.ndarray, ...], ...]]:
        """Return the numbers of all layers, and the shapes of their inputs and outputs.

        Shapes of the input, or of each input, that do not fit the net are an ``error``.
        """
        pairs = self._shapes(_shape_list(netInputShapes))
        arrays = [
            tuple(tuple(np.array(shape, np.int32) for shape in pair[side]) for pair in pairs)
            for side in (0, 1)
        ]
        return np.arange(len(pairs), dtype=np.int32), arrays[0], arrays[1]

    @also_named(netInputShape="netInputShapes")
    @failing_as("getFLOPS")
    def getFLOPS(
        self, *where: Shapes | int, layerId: int | None = None, netInputShapes: Shapes | None = None
    ) -> int:
        """Return the floating point operations of a forward pass, counted like OpenCV.

        Pass the shape of the input, or of each input, optionally after the number of a layer.

        Raises:
            error: The layer does not exist, or the shapes do not fit the net.
        """
        numbers, pairs = self._shapes_for((layerId, *where, netInputShapes))
        built = self._ready()
        return sum(layer_flops(built.layer(n), *pairs[n]) for n in numbers if n)

    @also_named(netInputShape="netInputShapes")
    @failing_as("getMemoryConsumption")
    def getMemoryConsumption(
        self, *where: Shapes | int, layerId: int | None = None, netInputShapes: Shapes | None = None
    ) -> tuple[int, int]:
        """Return the bytes of the parameters and of the outputs of layers; see ``getFLOPS``."""
        numbers, pairs = self._shapes_for((layerId, *where, netInputShapes))
        built = self._ready()
        weights = sum(blob.count for n in numbers if n for blob in built.layer(n).blobs)
        values = sum(prod(shape) for n in numbers for shape in pairs[n][1])
        return 4 * weights, 4 * values

    def _shapes_for(
        self, given: tuple[Shapes | int | None, ...]
    ) -> tuple[list[int], list[tuple[list[Shape], list[Shape]]]]:
        """Return layer numbers and all shapes for ``(shapes)`` or ``(layerId, shapes)``."""
        match where := [one for one in given if one is not None]:
            case [int(layer), shapes] if not isinstance(shapes, int):
                return [self._imported.number(layer)], self._shapes(_shape_list(shapes))
            case [shapes] if not isinstance(shapes, int):
                pairs = self._shapes(_shape_list(shapes))
                return list(range(len(pairs))), pairs
        message = f"got {where}, expected shapes of inputs, optionally after a layer's number"
        raise error(message, code=ErrorCode.INVALID)

    def dump(self) -> str:
        """Return the graph of the layers in Graphviz's language."""
        names, layers = [INPUTS, *self._imported.names], self._imported.layers
        nodes = [f'\t"{one.name}" [label="{one.name}\\n{one.type}" shape=box]' for one in layers]
        edges = [f'\t"{names[a]}" -> "{names[b]}"' for a, b in self._imported.edges()]
        return "\n".join(["digraph G {", *nodes, *edges, "}", ""])

    def dumpToFile(self, path: str) -> None:
        """Write the result of ``dump`` to a file."""
        write_bytes(path, self.dump().encode())

    def __repr__(self) -> str:
        return f"cvdnn.Net({len(self._imported.layers)} layers)"


def _scaled(blob: np.ndarray, scale: float, mean: ScalarLike | None) -> np.ndarray:
    """Return (blob - mean) * scale as a new float32 array; axis 1 is the channel axis."""
    means = as_scalar(mean, "mean")
    values = blob.astype(np.float32)
    channels = blob.shape[1] if blob.ndim > 1 else 1
    if any(means) and channels > len(means):
        message = f"mean has four numbers, which is too few for the channels of {blob.shape}"
        raise error(message, code=ErrorCode.COUNT_MISMATCH, field="mean", got=len(means))
    if scale != 1:
        values *= np.float32(scale)
    if any(means):
        shift = np.array(means[:channels], np.float64) * -scale
        values += np.reshape(shift.astype(np.float32), (-1,) + (1,) * max(blob.ndim - 2, 0))
    return values


def _shape_list(shapes: Shapes) -> list[Shape]:
    """Return a list of shapes, for one shape or several."""
    rows = [shapes] if np.ndim(shapes[0] if len(shapes) else 0) == 0 else list(shapes)
    return [tuple(map(int, np.asarray(row))) for row in rows]


Buffer = bytes | bytearray | memoryview | np.ndarray
Source = str | os.PathLike[str] | Buffer

WEIGHTS, TEXTS = (".caffemodel", ".h5"), (".prototxt",)


@also_named(bufferProto="prototxt", bufferModel="caffeModel")
@failing_as("readNetFromCaffe")
def readNetFromCaffe(prototxt: Source, caffeModel: Source | None = "") -> Net:
    """Read a net and its weights.

    Args:
        prototxt: Path of the prototxt, or its contents: bytes, a bytearray or an array of uint8.
        caffeModel: Path of the weights, or their contents; empty or None for a net without
            parameters.

    Raises:
        error: A file cannot be read, or the weights do not fit the net.
    """
    if isinstance(prototxt, (str, os.PathLike)):
        source = os.fspath(prototxt)
        text = text_of_file(prototxt)
    else:
        source = "prototxt buffer"
        text = _contents(prototxt, "prototxt").decode("utf-8", "surrogateescape")
    message = parse_text(text, NetParameter, source)
    weights: Weights | None = None
    if isinstance(caffeModel, (str, os.PathLike)):
        weights = Path(caffeModel) if os.fspath(caffeModel) else None
        if weights is not None and not is_file(weights):
            missing = f"{weights}: No such file or directory"
            raise error(missing, code=ErrorCode.NOT_FOUND, file=str(weights))
    elif caffeModel is not None:
        encoded = _contents(caffeModel, "caffeModel")
        if encoded:
            weights = parsed(encoded, NetParameter, "caffeModel buffer", WeightsError)
    net = Net()
    net._imported = ImportedNet(message, weights, source)
    net._build({})
    return net


@failing_as("readNet")
def readNet(
    model: Source = "", config: Source = "", framework: Source = "", *,
    bufferModel: Buffer | None = None, bufferConfig: Buffer = b"",
) -> Net:  # fmt: skip
    """Read a net from two files in either order: ``readNet(model, config="", framework="")``.

    Also ``readNet("caffe", bufferModel, bufferConfig)``, with the contents of the files.

    Args:
        model: Path of the weights or of the prototxt, recognized by the suffix.
        config: Path of the other file.
        framework: "caffe", or empty.
        bufferModel: Contents of the weights.
        bufferConfig: Contents of the prototxt.

    Raises:
        error: The files are not Caffe's, or cannot be read.
    """
    if bufferModel is not None:
        model, config, framework = framework or model, bufferModel, bufferConfig
    if not isinstance(config, (str, os.PathLike)):
        if not isinstance(model, str) or model.lower() != "caffe":
            message = f"only nets of 'caffe' are read, not of {model!r}"
            raise error(message, code=ErrorCode.UNSUPPORTED, field="framework", got=model)
        return readNetFromCaffe(framework, config)
    if not isinstance(model, (str, os.PathLike)):
        message = "contents of files are read with readNet('caffe', bufferModel, bufferConfig)"
        raise error(message, code=ErrorCode.INVALID, field="model")
    first, second = os.fspath(model), os.fspath(config)
    if _ends(first, TEXTS) or _ends(second, WEIGHTS):
        first, second = second, first
    known = _ends(first, WEIGHTS) or _ends(second, TEXTS)
    if not known and str(framework).lower() != "caffe":
        message = (
            f"{first or second!r} does not have a suffix of Caffe's files; only .prototxt and "
            ".caffemodel are read"
        )
        raise error(message, code=ErrorCode.UNSUPPORTED, file=first or second)
    if not second:
        message = f"{first!r} needs the .prototxt that describes its net, as config"
        raise error(message, code=ErrorCode.MISSING, field="config")
    return readNetFromCaffe(second, first)


def _ends(path: str, endings: tuple[str, ...]) -> bool:
    return path.lower().endswith(endings)


def _contents(buffer: object, what: str) -> bytes:
    if isinstance(buffer, np.ndarray):
        if buffer.dtype != np.uint8:
            message = f"{what} as an array must be of uint8, it is {buffer.dtype}"
            raise error(message, code=ErrorCode.DTYPE_MISMATCH, field=what)
        return buffer.tobytes()
    if isinstance(buffer, (bytes, bytearray, memoryview)):
        return bytes(buffer)
    message = f"{what} must be a path or the contents of a file, it is {type(buffer).__name__}"
    raise error(message, code=ErrorCode.INVALID, field=what)
