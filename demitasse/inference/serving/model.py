"""A served model: its inputs and outputs, and one net per worker thread."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from demitasse.core.log import json_ready
from demitasse.core.text import suggestion
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.inference.cards.model_files import LoadedModel, ModelFiles
from demitasse.inference.cards.predictor import Arrays
from demitasse.inference.cards.preprocessing import Preprocessor, View
from demitasse.inference.serving.messages import InferRequest, Tensor, datatype_of
from demitasse.inference.serving.parsing import read_request
from demitasse.io.data.images.codecs import Color, decode_image, opened

ANSWER = "answer"
"""Name of the output with predictions in JSON, decoded by the model's card."""

MAX_PIXELS = 1 << 25
"""Largest decoded image, in pixels: 33.5 million."""

MEASURED = 0.05
"""Seconds in which passes are timed."""


class TensorSpec(NamedTuple):
    """An input or output of a model: name, the protocol's datatype, and shape, -1 for any length.

    ``_asdict`` returns the protocol's description.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class PreparedRequest(NamedTuple):
    """A validated request."""

    inputs: Arrays  # of all inputs of the net
    views: Sequence[View] = ()  # of the images; empty if no predictions are requested
    rows: int = 1  # length of the first axis


class PreparedImages(NamedTuple):
    """Preprocessed images, float32 of shape (N, C, H, W), and their views."""

    values: np.ndarray
    views: Sequence[View]


class ImageReader(NamedTuple):
    """Decodes up to ``max_batch`` images, and preprocesses them by a card, in any process."""

    prepare: Preprocessor
    color: Color
    max_batch: int

    def read(self, tensor: Tensor) -> PreparedImages:
        """Return the images of a tensor.

        Raises:
            DataError: An image cannot be read; the message names the tensor and the image.
        """
        files = tensor.values
        if files.ndim != 1 or not 1 <= len(files) <= self.max_batch:
            message = (
                f"input {tensor.name!r}: images are a tensor of one axis with 1 to "
                f"{self.max_batch} elements, not {list(files.shape)}"
            )
            raise DataError(
                message, code=ErrorCode.SHAPE_MISMATCH, tensor=tensor.name, got=files.shape
            )
        ready = []
        for index, content in enumerate(files):
            try:
                ready.append(self.prepare(_decoded(content, self.color)))
            except DataError as error:
                message = f"input {tensor.name!r}, image {index}: {error.message}"
                raise DataError(message, code=error.code, tensor=tensor.name, image=index) from None
        if len({one.values.shape for one in ready}) > 1:
            message = (
                f"input {tensor.name!r}: the images become arrays of different shapes; send images "
                "of one size, or one image per request"
            )
            raise DataError(message, code=ErrorCode.SHAPE_MISMATCH, tensor=tensor.name)
        return PreparedImages(np.stack([one.values for one in ready]), [one.view for one in ready])


class RequestReader(NamedTuple):
    """Reads requests to a model with their images, in any process."""

    model: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    images: Mapping[str, ImageReader]  # by the name of the input

    def read(
        self, body: bytes | bytearray, json_length: int | None
    ) -> tuple[InferRequest, dict[str, PreparedImages]]:
        """Return a request, and its images by the name of the input; see ``decode``."""
        return self.decode(read_request(memoryview(body), json_length))

    def decode(self, request: InferRequest) -> tuple[InferRequest, dict[str, PreparedImages]]:
        """Return a request without its image files, and the images by the name of the input.

        Raises:
            DataError: The request does not fit the model; the message names the tensor.
        """
        given = [tensor.name for tensor in request.inputs]
        _check_known("input", given, self.inputs)
        _check_known("output", request.outputs or (), self.outputs)
        missing = [name for name in self.inputs if name not in given]
        if missing:
            message = f"inputs lacks {', '.join(map(repr, missing))} of model {self.model!r}"
            raise DataError(message, code=ErrorCode.MISSING, tensor=missing[0])
        images: dict[str, PreparedImages] = {}
        tensors = list(request.inputs)
        for index, tensor in enumerate(tensors):
            if tensor.datatype != "BYTES":
                continue
            if tensor.name not in self.images:
                message = f"input {tensor.name!r} of model {self.model!r} takes no images (BYTES)"
                raise DataError(message, code=ErrorCode.DTYPE_MISMATCH, tensor=tensor.name)
            images[tensor.name] = self.images[tensor.name].read(tensor)
            tensors[index] = replace(tensor, values=np.empty(0, object))
        return replace(request, inputs=tensors), images

    def image(self, content: bytes) -> tuple[InferRequest, dict[str, PreparedImages]]:
        """Return the request whose only input is an image file; see ``decode``."""
        tensors = [Tensor(name, np.array([content], object)) for name in self.images]
        outputs = {ANSWER: False} if ANSWER in self.outputs else None
        return self.decode(InferRequest(tensors, outputs))


class Runner:
    """A net with its weights, for one thread, on the configuration's device by default."""

    def __init__(self, files: ModelFiles, device: str | None) -> None:
        self.model = LoadedModel(files, device)
        self.net, self.outputs = self.model.net, self.model.outputs
        self._carries_state = any(layer.has_state for layer in self.net.layers)

    def shapes(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of blobs."""
        return {name: self.net.blob_by_name(name).shape for name in names}

    def set_rows(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Reshape the inputs to a number of items; return the shapes of the outputs."""
        inputs = self.shapes(self.net.inputs)
        return self.reshape({name: (rows, *shape[1:]) for name, shape in inputs.items()})

    def reshape(self, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Reshape the inputs, without a forward pass; return the shapes of the outputs."""
        for name, shape in inputs.items():
            self.net.blob_by_name(name).reshape(shape)
        self.net.reshape()
        return self.shapes(self.outputs)

    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the outputs, with -1 for a number of rows that values decide."""
        shapes, inputs, own = self.shapes(self.outputs), self.shapes(self.net.inputs), []
        for place in self.net.structure.bindings():
            with suppress(DemitasseError):  # a layer may take one number of rows alone
                place.layer.run_reshape(place.bottom, place.top)
            for blob in place.top if place.layer.rows_axis is not None else ():
                own.append((blob, blob.shape))
                sizes = enumerate(blob.shape)
                blob.reshape([n + (axis == place.layer.rows_axis) for axis, n in sizes])
        longer = self.shapes(self.outputs)
        for blob, shape in own:
            blob.reshape(shape)
        self.reshape(inputs)
        return {
            name: tuple(n if n == m else -1 for n, m in zip(shape, longer[name], strict=True))
            for name, shape in shapes.items()
        }

    def warm_up(self, max_batch: int, *, can_batch: bool) -> None:
        """Run the net once on zeros, in the thread that will run it.

        The memories get the size of the largest batch first: Steps depend on their addresses.
        """
        for rows in (max_batch, 1) if can_batch else ():
            self.set_rows(rows)
        self._run(self._zeros())

    def pass_seconds(self) -> float:
        """Return the seconds of the shortest pass on zeros, of as many as MEASURED seconds allow.

        Other processes of the server start meanwhile, which disturb some passes.
        """
        zeros, shortest, end = self._zeros(), math.inf, time.perf_counter() + MEASURED
        while (start := time.perf_counter()) < end:
            self._run(zeros)
            shortest = min(shortest, time.perf_counter() - start)
        return shortest

    def _run(self, inputs: Arrays) -> Arrays:
        """Run the net, and restore the states of recurrent layers: no pass continues another."""
        if not self._carries_state:
            return self.model.run(inputs)
        roll_back = self.net.savepoint()
        outputs = self.model.run(inputs)
        roll_back()
        return outputs

    def _zeros(self) -> Arrays:
        shapes = self.shapes(self.net.inputs)
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def run(self, requests: Sequence[PreparedRequest]) -> list[Arrays]:
        """Run requests as one batch, along the first axis; return the outputs of each."""
        inputs = {
            name: np.concatenate([request.inputs[name] for request in requests])
            if len(requests) > 1
            else requests[0].inputs[name]
            for name in self.net.inputs
        }
        outputs, predictor = self._run(inputs), self.model.predictor
        results, end = [outputs], 0
        if len(requests) > 1:
            results = []
            for request in requests:
                start, end = end, end + request.rows
                results.append({name: array[start:end] for name, array in outputs.items()})
        for request, arrays in zip(requests, results, strict=True):
            if request.views and predictor is not None:
                predictions = predictor.read({**arrays}, request.views)
                texts = [json.dumps(json_ready(one.as_dict())).encode() for one in predictions]
                arrays[ANSWER] = np.array(texts, object)
        return results


class Model:
    """A model with a name: its inputs, outputs and batching.

    Args:
        name: Name for clients.
        files: The model's files.
        device: Device of the nets; defaults to the configuration's.
        max_batch: Largest number of items in a batch.

    Attributes:
        inputs: Inputs. With a card, the input for images also accepts encoded images.
        can_batch: True if the first axis of all inputs and outputs counts items, of any number;
            otherwise requests must have the net's declared shapes.
    """

    def __init__(self, name: str, files: ModelFiles, device: str | None, max_batch: int) -> None:
        self.name, self._files, self._device = name, files, device
        first = Runner(files, device)
        self._spare: Runner | None = first
        card = files.card
        self.max_batch = min(max_batch, card.batch or max_batch) if card else max_batch
        declared = first.shapes(first.net.inputs)
        self.can_batch = free = _any_batch_size(first, declared)
        self.inputs = [_spec(first, one, shape, free=free) for one, shape in declared.items()]
        given = first.output_shapes()
        self.outputs = [_spec(first, one, shape, free=free) for one, shape in given.items()]
        self._predictor = predictor = first.model.predictor
        if predictor is not None and predictor.card.task != "features":
            rows = -1 if free else declared[predictor.input][0]
            self.outputs.append(TensorSpec(ANSWER, "BYTES", (rows,)))
        images: dict[str, ImageReader] = {}
        if predictor is not None:
            reader = ImageReader(predictor.prepare, predictor.color, self.max_batch)
            images[predictor.input] = reader
        inputs, outputs = ([spec.name for spec in one] for one in (self.inputs, self.outputs))
        self.reader = RequestReader(name, inputs, outputs, images)

    def runner(self) -> Runner:
        """Return a net for exclusive use by one thread."""
        spare, self._spare = self._spare, None
        return spare or Runner(self._files, self._device)

    def metadata(self) -> dict[str, object]:
        """Return the protocol's metadata of the model."""
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "demitasse",
            "inputs": [spec._asdict() for spec in self.inputs],
            "outputs": [spec._asdict() for spec in self.outputs],
        }

    def config(self) -> dict[str, object]:
        """Return Triton's configuration of the tensors, whose shapes lack the batch's axis."""
        first = 1 if self.can_batch else 0
        inputs, outputs = (
            [
                {"name": one.name, "dims": list(one.shape[first:]),
                 "data_type": f"TYPE_{one.datatype.replace('BYTES', 'STRING')}"}
                for one in specs
            ]
            for specs in (self.inputs, self.outputs)
        )  # fmt: skip
        return {
            "name": self.name,
            "platform": "demitasse",
            "backend": "demitasse",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": self.max_batch if self.can_batch else 0,
            "input": inputs,
            "output": outputs,
        }

    def prepare(
        self, request: InferRequest, images: Mapping[str, PreparedImages]
    ) -> PreparedRequest:
        """Validate a request.

        Args:
            request: The request.
            images: Its images, as returned by ``reader``.

        Raises:
            DataError: The request does not fit the model; the message names the tensor.
        """
        specs = {spec.name: spec for spec in self.inputs}
        arrays: Arrays = {}
        views: Sequence[View] = []
        for tensor in request.inputs:
            name, values = tensor.name, tensor.values
            if name in images:
                values, views = images[name].values, images[name].views
            self._check_fit(tensor, values, specs[name])
            arrays[name] = values
        rows = {len(array) for array in arrays.values()} if self.can_batch else {1}
        if len(rows) > 1:
            lengths = ", ".join(f"{name!r} {len(array)}" for name, array in arrays.items())
            message = f"the inputs must have equal numbers of items, they have: {lengths}"
            raise DataError(message, code=ErrorCode.COUNT_MISMATCH)
        predicts = request.outputs is None or ANSWER in request.outputs
        if not predicts or not any(spec.name == ANSWER for spec in self.outputs):
            views = []
        elif not views and self._predictor is not None:
            if self._predictor.card.needs_colors:
                message = (
                    f"output {ANSWER!r} of model {self.name!r} has the colors of an image; send "
                    "images (BYTES), or name other outputs"
                )
                raise DataError(message, code=ErrorCode.MISSING, tensor=ANSWER)
            views = _identity_views(arrays[self._predictor.input])
        return PreparedRequest(arrays, views, rows.pop())

    def tensors(self, request: InferRequest, outputs: Arrays) -> list[Tensor]:
        """Return the requested outputs, in the order of the request or of the model."""
        names = request.outputs or [spec.name for spec in self.outputs]
        return [Tensor(name, outputs[name]) for name in names]

    def _check_fit(self, tensor: Tensor, values: np.ndarray, spec: TensorSpec) -> None:
        """Refuse another type or shape, which determine the memory of a forward pass."""
        if datatype_of(values.dtype) != spec.datatype:
            message = (
                f"input {spec.name!r} of model {self.name!r} is {spec.datatype}, not "
                f"{tensor.datatype}"
            )
            raise DataError(message, code=ErrorCode.DTYPE_MISMATCH, tensor=spec.name)
        shape = values.shape
        same = len(shape) == len(spec.shape) and all(
            wanted in (-1, length) for wanted, length in zip(spec.shape, shape, strict=True)
        )
        if not same:
            what = "its images become" if tensor.datatype == "BYTES" else "its shape is"
            message = (
                f"input {spec.name!r} of model {self.name!r} must have shape {list(spec.shape)}; "
                f"{what} {list(shape)}"
            )
            raise DataError(message, code=ErrorCode.SHAPE_MISMATCH, tensor=spec.name, got=shape)
        if self.can_batch and not 1 <= len(values) <= self.max_batch:
            message = (
                f"input {spec.name!r} has {len(values)} items; model {self.name!r} takes 1 to "
                f"{self.max_batch} at once"
            )
            raise DataError(message, code=ErrorCode.OUT_OF_RANGE, tensor=spec.name, got=len(values))


def _decoded(content: bytes, color: Color) -> np.ndarray:
    with opened(content) as image:
        if image.width * image.height > MAX_PIXELS:
            message = (
                f"{image.width} x {image.height} pixels; at most {MAX_PIXELS} are decoded here"
            )
            raise DataError(message, code=ErrorCode.LIMIT)
    return decode_image(content, color)


def _identity_views(array: np.ndarray) -> list[View]:
    """Return identity views: the images are the net's input. Shape: (N, C, H, W)."""
    size = (array.shape[2], array.shape[3])
    return [View(size, size, (0, 0), size)] * len(array)


def _any_batch_size(runner: Runner, declared: Mapping[str, tuple[int, ...]]) -> bool:
    """Return True if the outputs have one row per row of the inputs, for any number of rows."""
    if not all(declared.values()) or len({shape[0] for shape in declared.values()}) != 1:
        return False
    try:
        return all(
            shape[:1] == (rows,) for rows in (3, 2) for shape in runner.set_rows(rows).values()
        )
    except DemitasseError:
        return False
    finally:
        runner.reshape(declared)


def _spec(runner: Runner, name: str, shape: tuple[int, ...], *, free: bool) -> TensorSpec:
    dtype = datatype_of(np.dtype(str(runner.net.blob_by_name(name).dtype)))
    return TensorSpec(name, dtype, (-1, *shape[1:]) if free else shape)


def _check_known(
    what: str, given: Sequence[str] | Mapping[str, object], known: Sequence[str]
) -> None:
    for name in given:
        if name not in known:
            near = suggestion(name[:100], known)
            message = f"unknown {what} {name[:100]!r}; {what}s are {', '.join(known)}{near}"
            raise DataError(message, code=ErrorCode.UNKNOWN, tensor=name[:100])
