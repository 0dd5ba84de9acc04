"""From what names a model - a card, a folder, a prototxt and weights - to its card."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.device import Device
from demitasse.core.paths import is_file, is_folder
from demitasse.errors import ConfigError
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.predictor import Predictor
from demitasse.inference.cards.published import published_named, recognised, similar
from demitasse.inference.cards.reading import CARD, Given, read_card

__all__ = ["Found", "Name", "find_card", "find_model", "load_model"]

Name = str | os.PathLike[str]

WEIGHTS = {".caffemodel", ".h5", ".npz", ".safetensors"}
"""Endings of files of weights."""


@dataclass(frozen=True)
class Found:
    """A model, with or without a card.

    Attributes:
        net: Its prototxt.
        weights: Its weights.
        card: What is known of its images and outputs; None for weights that nothing is known of.
    """

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
    """Load a model that says what is on images.

    Args:
        source: A card (``.toml``), a folder with a card ``model.toml``, a net's prototxt, or a file
            of weights with its prototxt beside it.
        weights: The weights; needed for a prototxt. Published ones are recognised.
        card: Name of a published card to go by, where the weights are not recognised.
        labels: A file with the names of the classes, one in a line.
        mean: A file with the mean image, ``.npy`` or ``.binaryproto``.
        device: Where it runs; None asks the configuration.
        threshold: Least score of the boxes that a detector returns; None for the card's.

    Raises:
        ConfigError: There is no card, or it cannot be what it says.
    """
    found = find_card(source, weights, card=card, labels=labels, mean=mean)
    return Predictor(found, device=device, threshold=threshold)


def find_card(
    source: Name,
    weights: Name | Sequence[Name] = (),
    *,
    card: str = "",
    labels: Name | None = None,
    mean: Name | None = None,
) -> Card:
    """Return the card of a model; see ``load_model``."""
    path = Path(source)
    some = (weights,) if isinstance(weights, str | os.PathLike) else weights
    given = Given(
        None,
        tuple(Path(one) for one in some),
        None if labels is None else Path(labels),
        None if mean is None else Path(mean),
    )
    if is_folder(path) or path.suffix == ".toml":
        if card:
            message = f"{path} has a card of its own; leave out the published one, {card!r}"
            raise ConfigError(message)
        return read_card(_card_in(path) if is_folder(path) else path, given)
    if path.suffix in WEIGHTS:
        if given.weights:
            message = f"{path} and {given.weights[0]} are both weights; name the net's prototxt"
            raise ConfigError(message)
        return _published(_net_beside(path), [path], card, given)
    if not given.weights:
        message = (
            f"{path} is a net without weights; give them with --weights (in Python: weights=), or "
            "name a card (.toml) or a folder with one"
        )
        raise ConfigError(message)
    return _published(path, given.weights, card, given)


def find_model(source: Name, weights: Name | Sequence[Name] = ()) -> Found:
    """Return the files of a model, which may have no card; see ``load_model``.

    Raises:
        ConfigError: There is no net, there are no weights, or a card cannot be what it says.
    """
    path = Path(source)
    some = (weights,) if isinstance(weights, str | os.PathLike) else weights
    files = tuple(Path(one) for one in some)
    if is_folder(path) or path.suffix == ".toml":
        card: Card | None = find_card(path, files)
        assert card is not None
        assert card.net is not None
        return Found(card.net, card.weights, card)
    if path.suffix in WEIGHTS and not files:
        path, files = _net_beside(path), (path,)
    known = recognised(files) if files else None
    card = find_card(path, files) if known is not None or not files else None
    return Found(path, files, card)


def _published(net: Path, weights: Sequence[Path], card: str, given: Given) -> Card:
    known = published_named(card) if card else recognised(weights)
    if known is None:
        raise ConfigError(_unknown(net, weights))
    return known.card(Given(net, weights, given.labels, given.mean))


def _unknown(net: Path, weights: Sequence[Path]) -> str:
    """Say what can be done about weights that nothing is known of."""
    near = [one.key for one in similar(net)]
    maybe = (
        f" The net is called like that of the published card {near[0]!r}: if the weights are those "
        f"of that model, or were trained on images prepared like its, add --card {near[0]}."
        if near
        else ""
    )
    return (
        f"{', '.join(map(str, weights))}: these weights are not known, so it is not known how "
        f"images are prepared for them.{maybe} Otherwise write a card: demitasse card {net} "
        f"{' '.join(map(str, weights))}"
    )


def _card_in(folder: Path) -> Path:
    path = folder / CARD
    if not is_file(path):
        others = sorted(one.name for one in folder.glob("*.toml"))[:5]
        there = f"; cards there are called {', '.join(others)}" if others else ""
        message = (
            f"{folder} holds no card {CARD}{there}. Name a card, or write one: demitasse card NET "
            "WEIGHTS"
        )
        raise ConfigError(message)
    return path


def _net_beside(weights: Path) -> Path:
    """Return the prototxt that lies beside weights, where it is clear which one."""
    names = ["deploy.prototxt", f"{weights.stem}.prototxt", f"{weights.stem}_deploy.prototxt"]
    for name in names:
        if is_file(weights.with_name(name)):
            return weights.with_name(name)
    others = sorted(weights.parent.glob("*deploy*.prototxt"))
    if len(others) == 1:
        return others[0]
    message = (
        f"{weights} is a file of weights, and none of {', '.join(names)} lies beside it, nor one "
        f"other *deploy*.prototxt; name the net's prototxt, and --weights {weights}"
    )
    raise ConfigError(message)
