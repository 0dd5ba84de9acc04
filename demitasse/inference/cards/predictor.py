"""Predictor: a trained net that takes images and returns predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from demitasse.core.deprecated import renamed_arguments
from demitasse.core.device import Device
from demitasse.core.log import get_logger
from demitasse.core.text import command_line
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.graph import filter_phase
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import ONNX
from demitasse.inference.cards.outputs import output_decoder
from demitasse.inference.cards.predictions import Prediction
from demitasse.inference.cards.preprocessing import PreparedImage, Preprocessor
from demitasse.io.data.images.codecs import Color, pixels_of, read_image
from demitasse.io.proto import read_net
from demitasse.io.weights.load import load_files
from demitasse.layers.checks import at_least
from demitasse.net import Net

if TYPE_CHECKING:
    from PIL.Image import Image

Item = TypeVar("Item")

BATCH_SIZE = 16

PIXEL_AXES = {(2, ()), (3, (1,)), (3, (3,))}
"""Number of axes, and sizes of the axes after height and width, of an image's pixels."""

log = get_logger(__name__)

Arrays = dict[str, np.ndarray]
"""Values by name of the blob."""


@runtime_checkable
class Picture(Protocol):
    """An image of Pillow, which is not imported."""

    mode: str
    """Channels: "L", "RGB", ..."""

    def getexif(self) -> object:
        """Return the metadata of a camera."""


class Predictor:
    """A net with the preprocessing of its images and the decoding of its outputs.

    A pickled predictor contains the card; unpickling loads the net from the card's files. The net
    runs in one thread at a time.

    Args:
        card: The model's card, with net and weights.
        device: Device of the net; defaults to the configuration's.
        threshold: Lowest score of returned boxes; defaults to the card's.

    Attributes:
        card: The model's card.
        net: The net, in phase TEST.
        input: Name of the net's input for images.
        outputs: Names of the decoded blobs.
        missing: Layers that no file has weights for, so that the initial weights stay.
        prepare: Preprocesses an image's pixels, uint8, BGR.
        read: Decodes the outputs of a batch, given the views of its images.

    Raises:
        ConfigError: The card does not fit the net.
        WeightsError: The weights cannot be read, or do not fit the net.
    """

    def __init__(
        self, card: Card, *, device: str | Device | None = None, threshold: float | None = None
    ) -> None:
        if card.net is not None and card.net.suffix == ONNX:
            message = (
                f"got {card.net}, expected a prototxt and weights, which this command writes: "
                f"{command_line('import', card.net)}"
            )
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="net")
        if card.net is None or not card.weights:
            message = "the card names no net or no weights; a predictor needs both"
            raise ConfigError(message, code=ErrorCode.MISSING)
        if not has_inputs(card.net):
            words = [word for one in card.weights for word in ("--weights", one)]
            message = (
                f"got {card.net}, which reads its data itself, expected a net with inputs; write "
                f"its deploy net and card by: {command_line('deploy', card.net, *words)}"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="input")
        self.card = card
        self._arguments = (None if device is None else str(device), threshold)
        detect = card.detect
        wanted = card.outputs or ((detect.boxes, detect.scores) if detect.boxes else ())
        self.net = Net(card.net, "TEST", device=device, keep_blobs=list(wanted) or "outputs")
        self.outputs = list(wanted) or self.net.outputs
        self.input = _input(self.net, card.input)
        shape = self.net.blob_by_name(self.input).shape
        if len(shape) != 4:
            message = f"input {self.input!r} is {shape}; images need (N, C, H, W)"
            raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, blob=self.input, got=shape)
        self.prepare = Preprocessor(card.preprocess, (shape[1], shape[2], shape[3]))
        softmax = card.softmax and not _ends_in_softmax(self.net, self.outputs)
        self.read = output_decoder(card, softmax=softmax, threshold=threshold)
        self.missing = load_weights(self.net, card.weights)

    def __reduce__(self) -> tuple[Callable[..., Predictor], tuple[object, ...]]:
        return _unpickled, (self.card, *self._arguments)

    @renamed_arguments(batch="batch_size")
    def predict(self, images: object, batch_size: int = BATCH_SIZE) -> list[Prediction]:
        """Return the model's predictions for images.

        Args:
            images: One or several, each a file, an image of Pillow, or pixels, uint8, RGB of shape
                (H, W, 3) or gray of shape (H, W).
            batch_size: Largest number of images in a batch.

        Returns:
            One prediction per image, in order.

        Raises:
            DataError: An image cannot be read.
            ConfigError: An image has another type, or the batch size is below 1.
        """
        several = list(images) if isinstance(images, list | tuple) else [images]
        predictions = []
        for _, prediction in self.stream(several, self.pixels, batch_size):
            if isinstance(prediction, DataError):
                raise prediction
            predictions.append(prediction)
        return predictions

    @renamed_arguments(batch="batch_size")
    def stream(
        self,
        items: Iterable[Item],
        pixels: Callable[[Item], np.ndarray],
        batch_size: int = BATCH_SIZE,
    ) -> Iterator[tuple[Item, Prediction | DataError]]:
        """Yield predictions for many images, in order, one batch at a time.

        Args:
            items: Identifiers of the images; read lazily.
            pixels: Returns an item's pixels like ``demitasse.io.data.read_image``: uint8, BGR.
                Shape: (C, H, W). May raise DataError.
            batch_size: Largest number of images in a batch.

        Yields:
            Each item with its prediction, or with the error that its image raised.
        """
        at_least(1, "batch_size", batch_size)
        largest = min(batch_size, self.card.batch or batch_size)
        waiting: list[tuple[Item, PreparedImage | DataError]] = []
        count, shape = 0, None
        for item in items:
            ready: PreparedImage | DataError
            try:
                ready = self.prepare(pixels(item))
            except DataError as error:
                ready = error
            else:
                if count and ready.values.shape != shape:
                    yield from self._predicted(waiting)
                    waiting, count = [], 0
                count, shape = count + 1, ready.values.shape
            waiting.append((item, ready))
            if count in {0, largest}:
                yield from self._predicted(waiting)
                waiting, count = [], 0
        yield from self._predicted(waiting)

    @property
    def color(self) -> Color:
        """Color mode in which image files are decoded for the net."""
        return "gray" if self.card.preprocess.channels == "gray" else "color"

    def pixels(self, image: object) -> np.ndarray:
        """Return an image's pixels, BGR. Shape: (C, H, W), uint8.

        Raises:
            DataError: A file cannot be read.
            ConfigError: The image is neither a file, an image of Pillow nor an array of pixels.
        """
        if isinstance(image, str | os.PathLike):
            return read_image(Path(image), self.color)
        if isinstance(image, Picture):
            try:
                return pixels_of(cast("Image", image), self.color)
            except ValueError as error:
                raise ConfigError(str(error), code=ErrorCode.INVALID, field="images") from None
        what = f"a {type(image).__name__}"
        if isinstance(image, np.ndarray):
            axes = (image.ndim, image.shape[2:])
            if image.dtype == np.uint8 and image.size and axes in PIXEL_AXES:
                return image[None] if image.ndim == 2 else image[:, :, ::-1].transpose(2, 0, 1)
            what = f"an array {image.shape} of {image.dtype}"
        message = (
            "an image is a file, an image of Pillow, or uint8 pixels, RGB (H, W, 3) or gray "
            f"(H, W); got {what}"
        )
        raise ConfigError(message, code=ErrorCode.INVALID, field="images")

    def _predicted(
        self, waiting: Sequence[tuple[Item, PreparedImage | DataError]]
    ) -> Iterator[tuple[Item, Prediction | DataError]]:
        """Run a batch; yield its items with their predictions or errors."""
        ready = [one for _, one in waiting if isinstance(one, PreparedImage)]
        predictions: Iterator[Prediction] = iter(())
        if ready:
            batch = {self.input: np.stack([one.values for one in ready])}
            outputs = run_net(self.net, batch, self.outputs)
            predictions = iter(self.read(outputs, [one.view for one in ready]))
        for item, one in waiting:
            yield item, one if isinstance(one, DataError) else next(predictions)

    def __repr__(self) -> str:
        return f"Predictor({self.card.name or self.net.name!r}, {self.card.task})"


def _unpickled(card: Card, device: str | None, threshold: float | None) -> Predictor:
    return Predictor(card, device=device, threshold=threshold)


def has_inputs(net: Path) -> bool:
    """Return False for a training net, whose data layers read the data in phase TEST."""
    message = read_net(net).message
    tested, _ = filter_phase(message, "TEST", message.state.level, ())
    return any(layer.type == "Input" for layer in tested.layer)


def _input(net: Net, name: str) -> str:
    """Return the name of the input for images."""
    if name in net.inputs:
        return name
    if len(net.inputs) == 1 and not name:
        return net.inputs[0]
    fault = f"[model] input of the card is {name!r}" if name else "[model] input is missing"
    message = f"{fault}; the net's inputs are {', '.join(net.inputs)}"
    code = ErrorCode.UNKNOWN if name else ErrorCode.MISSING
    raise ConfigError(message, code=code, field="input", got=name)


def _ends_in_softmax(net: Net, outputs: Sequence[str]) -> bool:
    made_by = {
        net.blob_names[top]: layer.type
        for index, layer in enumerate(net.layers)
        for top in net.structure.top_ids(index)
    }
    return all(made_by.get(name) == "Softmax" for name in outputs)


def load_weights(net: Net, weights: Sequence[Path]) -> list[str]:
    """Load files of weights; log a warning for each layer without weights, and return these."""
    missing = load_files(net, weights)
    for layer in missing:
        log.warning("No file has weights for layer %s; the initial weights stay", layer)
    return missing


def run_net(net: Net, inputs: Mapping[str, np.ndarray], outputs: Iterable[str]) -> Arrays:
    """Run a net on arrays, under its lock; return copies of some blobs."""
    with net.lock:
        for name, array in inputs.items():
            net.set_input(name, array)
        net.forward()
        return {name: net.blob_by_name(name).cpu_data().copy() for name in outputs}
