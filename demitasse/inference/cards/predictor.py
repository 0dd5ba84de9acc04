"""Predictor: a trained net that takes images as they are and says what is on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from demitasse.core.device import Device
from demitasse.errors import ConfigError, DataError
from demitasse.inference.cards.answers import Answer
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.outputs import reader_of
from demitasse.inference.cards.preparing import Prepared, Preparer
from demitasse.inference.cards.running import load_weights, run_net
from demitasse.io.data.images.decode import Color, read_image
from demitasse.net import Net

__all__ = ["Predictor"]

Item = TypeVar("Item")

BATCH = 16


@runtime_checkable
class Picture(Protocol):
    """An image of Pillow, which is not imported for this."""

    mode: str
    """Its channels: "L", "RGB", ..."""

    def convert(self, mode: str) -> object:
        """Return it with other channels."""


class Predictor:
    """A net, how images are prepared for it, and what its outputs mean.

    It may be pickled: what is stored is the card, and the net is made anew from its files where it
    is loaded. A net runs in one thread at a time.

    Args:
        card: What describes the model; its net and weights are there.
        device: Where it runs; None asks the configuration.
        threshold: Least score of the boxes that are returned; None for the card's.

    Attributes:
        card: As given.
        net: The net, in phase TEST.
        input: The name of the net's input that images go to.
        outputs: Names of the blobs that are read.
        prepare: Makes of an image's pixels, uint8, blue first, what the net takes.
        read: Makes answers of the outputs of a batch and of the views of its images.

    Raises:
        ConfigError: Card and net do not fit together.
        WeightsError: The weights cannot be read, or do not fit the net.
    """

    def __init__(
        self, card: Card, *, device: str | Device | None = None, threshold: float | None = None
    ) -> None:
        if card.net is None or not card.weights:
            message = "the card names no net or no weights; a predictor needs both"
            raise ConfigError(message)
        self.card = card
        self._given = (None if device is None else str(device), threshold)
        detect = card.detect
        wanted = card.outputs or ((detect.boxes, detect.scores) if detect.boxes else ())
        self.net = Net(card.net, "TEST", device=device, keep=list(wanted) or "outputs")
        self.outputs = list(wanted) or self.net.outputs
        self.input = _input(self.net, card.input)
        shape = self.net.blob_by_name(self.input).shape
        if len(shape) != 4:
            message = f"input {self.input!r} is {shape}; images need (N, C, H, W)"
            raise ConfigError(message)
        self.prepare = Preparer(card.preprocess, (shape[1], shape[2], shape[3]))
        softmax = card.softmax and not _ends_in_softmax(self.net, self.outputs)
        self.read = reader_of(card, softmax=softmax, threshold=threshold)
        load_weights(self.net, card.weights)

    def __reduce__(self) -> tuple[Callable[..., Predictor], tuple[object, ...]]:
        return _made_again, (self.card, *self._given)

    def predict(self, images: object, batch: int = BATCH) -> list[Answer]:
        """Return what the model says of images.

        Args:
            images: One or several, each a file, an image of Pillow, or pixels, uint8, red first, of
                shape (H, W, 3), or (H, W) for brightness alone.
            batch: The most images that run at once.

        Returns:
            An answer for each image, in order.

        Raises:
            DataError: An image cannot be read.
            ConfigError: An image is none of these.
        """
        several = list(images) if isinstance(images, list | tuple) else [images]
        answers = []
        for _, answer in self.stream(several, self.pixels, batch):
            if isinstance(answer, DataError):
                raise answer
            answers.append(answer)
        return answers

    def stream(
        self, items: Iterable[Item], pixels: Callable[[Item], np.ndarray], batch: int = BATCH
    ) -> Iterator[tuple[Item, Answer | DataError]]:
        """Yield what the model says of many images, in their order, a batch at a time.

        Args:
            items: What stands for the images; taken as they are needed.
            pixels: Returns an image's pixels, as ``demitasse.io.data.read_image`` does: uint8, blue
                first. Shape: (C, H, W). May raise DataError.
            batch: The most images that run at once.

        Yields:
            Each item, and what the model says of it, or why it cannot be read.
        """
        if batch < 1:
            message = f"batch must be at least 1, it is {batch}"
            raise ConfigError(message)
        most = min(batch, self.card.batch or batch)
        waiting: list[tuple[Item, Prepared | DataError]] = []
        count, shape = 0, None
        for item in items:
            ready: Prepared | DataError
            try:
                ready = self.prepare(pixels(item))
            except DataError as error:
                ready = error
            else:
                if count and ready.values.shape != shape:
                    yield from self._answered(waiting)
                    waiting, count = [], 0
                count, shape = count + 1, ready.values.shape
            waiting.append((item, ready))
            if count in {0, most}:
                yield from self._answered(waiting)
                waiting, count = [], 0
        yield from self._answered(waiting)

    @property
    def color(self) -> Color:
        """How files of images are decoded for the net."""
        return "gray" if self.card.preprocess.channels == "gray" else "color"

    def pixels(self, image: object) -> np.ndarray:
        """Return an image's pixels, blue first. Shape: (C, H, W), uint8.

        Raises:
            DataError: A file cannot be read.
            ConfigError: It is no file, no image of Pillow and no array of pixels.
        """
        if isinstance(image, str | os.PathLike):
            return read_image(Path(image), self.color)
        if isinstance(image, Picture):
            image = np.asarray(image.convert("L" if image.mode in {"1", "L"} else "RGB"))
        if (
            not isinstance(image, np.ndarray)
            or image.dtype != np.uint8
            or not image.size
            or (image.ndim, image.shape[2:]) not in {(2, ()), (3, (1,)), (3, (3,))}
        ):
            what = (
                f"an array {image.shape} of {image.dtype}"
                if isinstance(image, np.ndarray)
                else f"a {type(image).__name__}"
            )
            message = (
                "an image is a file, an image of Pillow, or pixels of uint8, (H, W, 3) with red "
                f"first or (H, W); given is {what}"
            )
            raise ConfigError(message)
        return image[None] if image.ndim == 2 else image[:, :, ::-1].transpose(2, 0, 1)

    def _answered(
        self, waiting: Sequence[tuple[Item, Prepared | DataError]]
    ) -> Iterator[tuple[Item, Answer | DataError]]:
        """Run a batch; yield its items with their answers, and those that are broken."""
        ready = [one for _, one in waiting if isinstance(one, Prepared)]
        answers = iter(self._run(ready) if ready else [])
        for item, one in waiting:
            yield item, one if isinstance(one, DataError) else next(answers)

    def _run(self, images: Sequence[Prepared]) -> list[Answer]:
        batch = np.stack([one.values for one in images])
        outputs = run_net(self.net, {self.input: batch}, self.outputs)
        return self.read(outputs, [one.view for one in images])

    def __repr__(self) -> str:
        return f"Predictor({self.card.name or self.net.name!r}, {self.card.task})"


def _made_again(card: Card, device: str | None, threshold: float | None) -> Predictor:
    return Predictor(card, device=device, threshold=threshold)


def _input(net: Net, name: str) -> str:
    """Return the input that images go to."""
    if name in net.inputs:
        return name
    if len(net.inputs) == 1 and not name:
        return net.inputs[0]
    if not net.inputs:
        message = (
            "the net has no inputs: it reads data itself, as nets for training do. Take its deploy "
            "prototxt, whose first layer is of type Input"
        )
        raise ConfigError(message)
    given = f"[model] input of the card is {name!r}" if name else "[model] input is missing"
    message = f"{given}; the net's inputs are {', '.join(net.inputs)}"
    raise ConfigError(message)


def _ends_in_softmax(net: Net, outputs: Sequence[str]) -> bool:
    """Whether a layer Softmax makes the output."""
    made_by = {
        net.blob_names[top]: layer.type
        for index, layer in enumerate(net.layers)
        for top in net.structure.top_ids(index)
    }
    return all(made_by.get(name) == "Softmax" for name in outputs)
