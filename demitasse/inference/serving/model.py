"""A model as the server sees it: what it takes and returns; each thread has a net of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from demitasse.core.text import suggestion
from demitasse.errors import DataError, DemitasseError
from demitasse.inference.cards.loaded import Loaded
from demitasse.inference.cards.opening import Found
from demitasse.inference.cards.preparing import View
from demitasse.inference.cards.running import Arrays
from demitasse.inference.serving.messages import InferRequest, Tensor, datatype_of
from demitasse.io.data.images.decode import Color, decode_image, opened

__all__ = ["ANSWER", "Model", "Port", "Runner", "Work"]

ANSWER = "answer"
"""The output that says in JSON, by the model's card, what the others mean."""

MOST_PIXELS = 1 << 25
"""Of an image that is decoded: 33.5 million."""


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: What it is called.
        datatype: The protocol's name for its type.
        shape: Its shape; -1 where any length will do.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it as the protocol describes it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, eq=False)
class Work:
    """What a net is to do for one request.

    Attributes:
        inputs: An array for each of the net's inputs.
        views: Where what the net sees lies in its images; empty where no answers are wanted.
        rows: Length of the first axis.
    """

    inputs: Arrays
    views: Sequence[View] = field(default=())
    rows: int = 1


class Runner:
    """A net with its weights, for one thread.

    Args:
        found: The model's files.
        device: Where it runs; None asks the configuration.
    """

    def __init__(self, found: Found, device: str | None) -> None:
        self.model = Loaded(found, device)
        self.net, self.outputs = self.model.net, self.model.outputs

    def shapes(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of blobs."""
        return {name: self.net.blob_by_name(name).shape for name in names}

    def reshape(self, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Give the inputs other shapes; return those of the outputs. Nothing is computed."""
        for name, shape in inputs.items():
            self.net.blob_by_name(name).reshape(shape)
        self.net.reshape()
        return self.shapes(self.outputs)

    def run(self, works: Sequence[Work]) -> list[Arrays]:
        """Run several requests as one batch, along the first axis; return the outputs of each."""
        inputs = {name: _joined([work.inputs[name] for work in works]) for name in self.net.inputs}
        outputs, predictor = self.model.run(inputs), self.model.predictor
        if len(works) == 1:
            found = [outputs]
        else:
            ends = np.cumsum([work.rows for work in works])[:-1]
            parts_of = {name: np.split(array, ends) for name, array in outputs.items()}
            found = [{name: parts_of[name][i] for name in outputs} for i in range(len(works))]
        for work, arrays in zip(works, found, strict=True):
            if work.views and predictor is not None:
                answers = predictor.read({**arrays}, work.views)
                texts = [json.dumps(answer.as_dict()).encode() for answer in answers]
                arrays[ANSWER] = np.array(texts, object)
        return found


class Model:
    """A model with a name: what it takes, and whether requests can be joined.

    Args:
        name: What clients call it.
        found: Its files.
        device: Where it runs; None asks the configuration.
        max_batch: The most items of a run.

    Attributes:
        name: As given.
        inputs: What it takes. Where it has a card, its first input takes images, too.
        outputs: What it returns.
        joins: Whether items are on the first axis of all inputs and outputs, and any number of them
            goes; else a request has the shapes that the net declares.
        max_batch: The most items of a run.
    """

    def __init__(self, name: str, found: Found, device: str | None, max_batch: int) -> None:
        self.name, self._found, self._device = name, found, device
        first = Runner(found, device)
        self._spare: Runner | None = first
        card = found.card
        self.max_batch = min(max_batch, card.batch or max_batch) if card else max_batch
        declared = first.shapes(first.net.inputs)
        self.joins = self.max_batch > 0 and _any_number(first, declared)
        free = self.joins
        self.inputs = [_port(first, one, free=free) for one in first.net.inputs]
        self.outputs = [_port(first, one, free=free) for one in first.outputs]
        self._predictor = predictor = first.model.predictor
        if predictor is not None and predictor.card.task != "features":
            rows = -1 if free else declared[predictor.input][0]
            self.outputs.append(Port(ANSWER, "BYTES", (rows,)))

    def runner(self) -> Runner:
        """Return a net that no other thread has."""
        spare, self._spare = self._spare, None
        return spare or Runner(self._found, self._device)

    def metadata(self) -> dict[str, object]:
        """Return what the protocol says of a model."""
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "demitasse",
            "inputs": [port.as_dict() for port in self.inputs],
            "outputs": [port.as_dict() for port in self.outputs],
        }

    def work(self, request: InferRequest) -> Work:
        """Return what is to be done for a request; images are decoded and prepared.

        Raises:
            DataError: The request does not fit the model; the message names the tensor.
        """
        given = {tensor.name: tensor for tensor in request.inputs}
        ports = {port.name: port for port in self.inputs}
        _need_known("input", given, list(ports))
        _need_known("output", request.outputs or (), [port.name for port in self.outputs])
        missing = [name for name in ports if name not in given]
        if missing:
            message = f"inputs lacks {', '.join(map(repr, missing))} of model {self.name!r}"
            raise DataError(message)
        arrays: Arrays = {}
        views: list[View] = []
        for name, tensor in given.items():
            values = tensor.values
            if tensor.datatype == "BYTES":
                values, views = self._images(tensor)
            self._need_fitting(tensor, values, ports[name])
            arrays[name] = values
        rows = {len(array) for array in arrays.values()} if self.joins else {1}
        if len(rows) > 1:
            lengths = ", ".join(f"{name!r} {len(array)}" for name, array in arrays.items())
            message = f"the inputs must have as many items each, they have: {lengths}"
            raise DataError(message)
        wants_answer = request.outputs is None or ANSWER in request.outputs
        if not wants_answer or not any(port.name == ANSWER for port in self.outputs):
            views = []
        elif not views and self._predictor is not None:
            views = _own_views(arrays[self._predictor.input])
        return Work(arrays, views, rows.pop())

    def tensors(self, request: InferRequest, outputs: Arrays) -> list[Tensor]:
        """Return the outputs that are wanted, in the order of the request or of the model."""
        names = request.outputs or [port.name for port in self.outputs]
        return [Tensor(name, outputs[name]) for name in names]

    def _need_fitting(self, tensor: Tensor, values: np.ndarray, port: Port) -> None:
        """Refuse values of another type or shape: how much memory a run takes follows from it."""
        if datatype_of(values.dtype) != port.datatype:
            message = (
                f"input {port.name!r} of model {self.name!r} is {port.datatype}, not "
                f"{tensor.datatype}"
            )
            raise DataError(message)
        shape = values.shape
        same = len(shape) == len(port.shape) and all(
            wanted in (-1, length) for wanted, length in zip(port.shape, shape, strict=True)
        )
        if not same:
            what = "its images become" if tensor.datatype == "BYTES" else "its shape is"
            message = (
                f"input {port.name!r} of model {self.name!r} must have shape {list(port.shape)}; "
                f"{what} {list(shape)}"
            )
            raise DataError(message)
        if self.joins and not 1 <= len(values) <= self.max_batch:
            message = (
                f"input {port.name!r} has {len(values)} items; model {self.name!r} takes 1 to "
                f"{self.max_batch} at once"
            )
            raise DataError(message)

    def _images(self, tensor: Tensor) -> tuple[np.ndarray, list[View]]:
        """Decode and prepare images as the card says. Shape: (N, C, H, W), float32."""
        predictor = self._predictor
        if predictor is None or tensor.name != predictor.input:
            message = f"input {tensor.name!r} of model {self.name!r} takes no images (BYTES)"
            raise DataError(message)
        files = tensor.values
        if files.ndim != 1 or not 1 <= len(files) <= max(self.max_batch, 1):
            message = (
                f"input {tensor.name!r}: images are a tensor of one axis with 1 to "
                f"{self.max_batch} elements, not {list(files.shape)}"
            )
            raise DataError(message)
        ready = []
        for index, content in enumerate(files):
            try:
                ready.append(predictor.prepare(_decoded(content, predictor.color)))
            except DataError as error:
                message = f"input {tensor.name!r}, image {index}: {error.message}"
                raise DataError(message) from None
        if len({one.values.shape for one in ready}) > 1:
            message = (
                f"input {tensor.name!r}: the images become arrays of different shapes; send images "
                "of one size, or one in a request"
            )
            raise DataError(message)
        return np.stack([one.values for one in ready]), [one.view for one in ready]


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _decoded(content: bytes, color: Color) -> np.ndarray:
    with opened(content) as image:
        if image.width * image.height > MOST_PIXELS:
            message = (
                f"{image.width} x {image.height} pixels; at most {MOST_PIXELS} are decoded here"
            )
            raise DataError(message)
    return decode_image(content, color)


def _own_views(array: np.ndarray) -> list[View]:
    """Return views of images that are the net's input itself. Shape: (N, C, H, W)."""
    size = (array.shape[2], array.shape[3])
    return [View(size, size, (0, 0), size)] * len(array)


def _any_number(runner: Runner, declared: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the outputs have a row for each row of the inputs, whatever their number."""
    if not all(declared.values()) or not declared:
        return False
    if len({shape[0] for shape in declared.values()}) > 1:
        return False
    try:
        return all(
            all(shape[:1] == (rows,) for shape in _of_rows(runner, declared, rows).values())
            for rows in (3, 2)
        )
    except DemitasseError:
        return False
    finally:
        runner.reshape(declared)


def _of_rows(
    runner: Runner, declared: Mapping[str, tuple[int, ...]], rows: int
) -> dict[str, tuple[int, ...]]:
    return runner.reshape({name: (rows, *shape[1:]) for name, shape in declared.items()})


def _port(runner: Runner, name: str, *, free: bool) -> Port:
    blob = runner.net.blob_by_name(name)
    shape = (-1, *blob.shape[1:]) if free else blob.shape
    return Port(name, datatype_of(np.dtype(str(blob.dtype))), shape)


def _need_known(what: str, given: Sequence[str] | Mapping[str, object], known: list[str]) -> None:
    for name in given:
        if name not in known:
            near = suggestion(name[:100], known)
            message = f"there is no {what} {name[:100]!r}; {what}s are {', '.join(known)}{near}"
            raise DataError(message)
