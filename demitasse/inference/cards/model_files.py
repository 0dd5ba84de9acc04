"""Resolve a model argument (card, folder, prototxt, weights) to its files and its card."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demitasse.core.device import Device
from demitasse.core.paths import check_exists, is_file, is_folder
from demitasse.core.text import command_line
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import CARD, ONNX, FileOverrides, read_card
from demitasse.inference.cards.predictor import Arrays, Predictor, load_weights, run_net
from demitasse.inference.cards.published import published_card, recognize, similar_cards
from demitasse.io.data.images.codecs import IMAGES, VIDEOS
from demitasse.net import Net

Name = str | os.PathLike[str]

WEIGHTS = {".caffemodel", ".h5", ".npz", ".safetensors"}
"""Suffixes of files of weights."""


@dataclass(frozen=True)
class ModelFiles:
    """Files of a model: its prototxt and weights; and its card, or None."""

    net: Path
    weights: tuple[Path, ...]
    card: Card | None


def load_model(
    source: Name,
    weights: Name | Sequence[Name] = (),
    *,
    card: str = "",
    labels: Name | None = None,
    mean: Name | None = None,
    device: str | Device | None = None,
    threshold: float | None = None,
) -> Predictor:
    """Load a model for images; warn of layers that the weights lack.

    Args:
        source: A card (``.toml``), a folder with a card ``model.toml``, a prototxt, or a file of
            weights in the same folder as its prototxt.
        weights: The weights; required for a prototxt. Published weights are recognized.
        card: Name of a published card, for weights that are not recognized.
        labels: File with the names of the classes, one per line.
        mean: File with the mean image, ``.npy`` or ``.binaryproto``.
        device: Device of the net; defaults to the configuration's.
        threshold: Lowest score of a detector's boxes; defaults to the card's.

    Raises:
        ConfigError: The model has no card, or its card is invalid.
        DataError: The file or folder does not exist.
    """
    resolved = find_card(source, weights, card=card, labels=labels, mean=mean)
    made = Predictor(resolved, device=device, threshold=threshold)
    if made.missing:
        files, layers = ", ".join(map(str, resolved.weights)), ", ".join(made.missing)
        message = f"{files}: no weights for {layers}, which keep initial values; check the net"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return made


def find_card(
    source: Name, weights: Name | Sequence[Name] = (), *, card: str = "",
    labels: Name | None = None, mean: Name | None = None,
) -> Card:  # fmt: skip
    """Return the card of a model; see ``load_model``.

    Raises:
        ConfigError: The model has no card, or its card is invalid.
        DataError: The file or folder does not exist.
    """
    path = Path(source)
    check_exists(path)
    label_file, mean_file = (None if one is None else Path(one) for one in (labels, mean))
    overrides = FileOverrides(None, _paths(weights), label_file, mean_file)
    if is_folder(path) or path.suffix == ".toml":
        if card:
            message = f"{path} has its own card; omit the published card {card!r}"
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="card", got=card)
        file = path / CARD if is_folder(path) else path
        if file != path and not is_file(file):
            others = sorted(one.name for one in path.glob("*.toml"))[:5]
            there = f"; it contains the cards {', '.join(others)}" if others else ""
            message = (
                f"{path} contains no card {CARD}{there}. Name a card, or write one: demitasse card "
                "NET WEIGHTS"
            )
            raise ConfigError(message, code=ErrorCode.NOT_FOUND, file=str(file))
        return read_card(file, overrides)
    if path.suffix == ONNX:
        found = _onnx_card(path, card, overrides)
        if found is None:
            message = (
                f"{path} does not say how its images are prepared. Write a card: "
                f"{command_line('card', path)}"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="card")
        return found
    net, files = _net_and_weights(path, overrides.weights)
    return _published(net, files, card, overrides)


def find_model(source: Name, weights: Name | Sequence[Name] = ()) -> ModelFiles:
    """Return the files of a model with or without a card; see ``load_model``."""
    path, files = Path(source), _paths(weights)
    check_exists(path)
    if is_folder(path) or path.suffix == ".toml":
        given = find_card(path, files)
        assert given.net is not None
        return ModelFiles(given.net, given.weights, given)
    if path.suffix == ONNX:
        return ModelFiles(path, (), _onnx_card(path, "", FileOverrides(weights=files)))
    net, files = _net_and_weights(path, files)
    known = recognize(files)
    card = None if known is None else known.card(FileOverrides(net, files))
    return ModelFiles(net, files, card)


def _paths(names: Name | Sequence[Name]) -> tuple[Path, ...]:
    several = (names,) if isinstance(names, str | os.PathLike) else names
    return tuple(Path(one) for one in several)


def _net_and_weights(path: Path, weights: Sequence[Path]) -> tuple[Path, tuple[Path, ...]]:
    """Return the prototxt and the weights that ``path``, which is one of them, stands for."""
    if path.suffix in WEIGHTS:
        if weights:
            message = f"{path} and {weights[0]} are both weights; name the net's prototxt"
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="weights")
        return _net_beside(path), (path,)
    if not weights and path.suffix.lower() in IMAGES | VIDEOS:
        message = f"{path} is an image or a video, expected a model; are two arguments swapped?"
        raise ConfigError(message, code=ErrorCode.INVALID, field="source")
    if not weights:
        message = (
            f"{path} is a net without weights; give them with --weights (in Python: weights=), or "
            "name a card (.toml) or a folder with one"
        )
        raise ConfigError(message, code=ErrorCode.MISSING, field="weights")
    return path, tuple(weights)


def _published(net: Path, weights: Sequence[Path], card: str, overrides: FileOverrides) -> Card:
    known = published_card(card) if card else recognize(weights)
    if known is not None:
        return known.card(FileOverrides(net, weights, overrides.labels, overrides.mean))
    maybe = "Write a card"
    if near := [one.key for one in similar_cards(net)]:
        maybe = (
            f"The net has the name of the published card {near[0]!r}: if the weights belong to "
            f"that model, or were trained with its preprocessing, add --card {near[0]}. Otherwise "
            "write a card"
        )
    message = (
        f"{', '.join(map(str, weights))}: these weights are unknown, and so is the preprocessing "
        f"of their images. {maybe}: {command_line('card', net, *weights)}"
    )
    raise ConfigError(message, code=ErrorCode.UNKNOWN, field="weights")


def _onnx_card(model: Path, card: str, overrides: FileOverrides) -> Card | None:
    """Return the card of an ONNX file: the published one, or one beside the file, or None."""
    if overrides.weights:
        message = f"{model} has its own weights; omit {overrides.weights[0]}"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="weights")
    if card:
        return published_card(card).card(replace(overrides, net=model))
    for path in (model.with_suffix(".toml"), model.with_name(CARD)):
        if is_file(path):
            found = read_card(path, overrides)
            if found.net is not None and found.net.resolve() == model.resolve():
                return found
    return None


def _net_beside(weights: Path) -> Path:
    """Return the one prototxt in the folder of the weights that belongs to them."""
    names = ["deploy.prototxt", f"{weights.stem}.prototxt", f"{weights.stem}_deploy.prototxt"]
    for name in names:
        if is_file(weights.with_name(name)):
            return weights.with_name(name)
    others = sorted(weights.parent.glob("*deploy*.prototxt"))
    if len(others) == 1:
        return others[0]
    message = (
        f"{weights} is a file of weights, and its folder has none of {', '.join(names)}, nor a "
        f"single *deploy*.prototxt; name the net's prototxt, and --weights {weights}"
    )
    raise ConfigError(message, code=ErrorCode.NOT_FOUND, field="net")


class LoadedModel:
    """A net of phase TEST with its weights, names of outputs, and its card's predictor or None."""

    def __init__(self, files: ModelFiles, device: str | None, outputs: Sequence[str] = ()) -> None:
        self.predictor: Predictor | None = None
        if files.card is not None:
            card = replace(files.card, outputs=tuple(outputs) or files.card.outputs)
            self.predictor = Predictor(card, device=device)
            self.net, self.outputs = self.predictor.net, list(self.predictor.outputs)
        else:
            self.net = Net(files.net, "TEST", device=device, keep_blobs=list(outputs) or "outputs")
            self.outputs = list(outputs) or list(self.net.outputs)
            load_weights(self.net, files.weights)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a batch."""
        return run_net(self.net, inputs, self.outputs)
