"""Cards of models that were published for Caffe, recognized by the hash of their weights.

The cards are the files in ``zoo``: without net and weights, and with a table ``[recognise]`` of
hashes of weights and names of nets. A matching hash selects a card; a matching name suggests one.

Files of labels in ``zoo`` stand in for those that are not beside the weights. ImageNet's contain
our names of the 1000 synsets of ILSVRC2012, in the order of their ids: WordNet's first word, or a
clearer one where the word is ambiguous.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from demitasse.core.paths import is_file, regular_file
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode, WeightsError
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import (
    FileOverrides,
    Table,
    card_from_table,
    card_values,
    parse_card,
)
from demitasse.io.proto import read_net
from demitasse.io.weights.formats import read_weights

ZOO = Path(__file__).parent / "zoo"
MOST = 64


@dataclass(frozen=True)
class PublishedCard:
    """A published card.

    Attributes:
        key: Name of the card in messages and flags.
        files: SHA-1 and SHA-256 of files of weights.
        contents: Hashes of the parameters, see ``content_hash``.
        nets: Names of the nets in their prototxts.
    """

    key: str
    name: str
    files: frozenset[str]
    contents: frozenset[str]
    nets: tuple[str, ...]

    @property
    def recognisable(self) -> bool:
        """True if a hash of the weights is known; otherwise only the net's name is."""
        return bool(self.files or self.contents)

    def values(self) -> dict[str, object]:
        """Return the raw tables of the card, without ``[recognise]``."""
        values = card_values(ZOO / f"{self.key}.toml")
        del values["recognise"]
        return values

    def card(self, overrides: FileOverrides) -> Card:
        """Return the card for a copy of the model; its other files are in the weights' folder."""
        values = self.values()
        model = values["model"]
        named = model.get("labels") if isinstance(model, dict) else None
        files = [*overrides.weights, *([overrides.net] if overrides.net else [])]
        folder = files[0].parent if files else Path()
        overrides = replace(overrides, labels=overrides.labels or zoo_labels(named, folder))
        table = Table(values, f"published card {self.key!r}")
        return card_from_table(table, folder, overrides, labels_optional=True)


def zoo_labels(name: object, folder: Path) -> Path | None:
    """Return the file of labels with this name in ``zoo``, if the weights' folder has none."""
    if not isinstance(name, str) or is_file(folder / name) or not is_file(ZOO / name):
        return None
    return ZOO / name


@cache
def published_cards() -> tuple[PublishedCard, ...]:
    """Return all published cards, sorted by key."""
    found = []
    for path in sorted(ZOO.glob("*.toml")):
        table = parse_card(path)
        marks, name = table.table("recognise"), table.table("model").text("name")
        files = (*marks.names("sha1", MOST), *marks.names("sha256", MOST))
        contents, nets = marks.names("contents", MOST), marks.names("nets", MOST)
        marks.close()
        found.append(PublishedCard(path.stem, name, frozenset(files), frozenset(contents), nets))
    return tuple(found)


def published_card(key: str) -> PublishedCard:
    """Return the published card with this key."""
    known = {one.key: one for one in published_cards()}
    if key not in known:
        message = (
            f"there is no published card {key!r}{suggestion(key, known)}; `demitasse card --list` "
            "shows them"
        )
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="card", got=key)
    return known[key]


def recognize(weights: Sequence[Path]) -> PublishedCard | None:
    """Return the card of a published file of weights; None for other files."""
    return _card_of(weights[0], file_hashes(weights[0])) if len(weights) == 1 else None


@lru_cache
def _card_of(weights: Path, digests: tuple[str, ...]) -> PublishedCard | None:
    """Return the card of a file with these hashes, by its contents where no card has them."""
    for one in published_cards():
        if one.files.intersection(digests):
            return one
    contents = content_hash(weights)
    return next((one for one in published_cards() if contents in one.contents), None)


def similar_cards(net: Path) -> list[PublishedCard]:
    """Return the cards of nets with this name and input size.

    Nets that were trained on other data may have the same name, so a card is only a suggestion.
    """
    message = read_net(net).message
    inputs = (layer for layer in message.layer if layer.type == "Input")
    sizes = [tuple(shape.dim[2:]) for layer in inputs for shape in layer.input_param.shape]
    name = message.name.casefold()
    called = [one for one in published_cards() if name in {net.casefold() for net in one.nets}]
    similar = []
    for one in called:
        table = parse_card(ZOO / f"{one.key}.toml").table("preprocess")
        sides = table.sides("crop") or table.sides("size")  # none if variable
        if (sides * 2 if len(sides) == 1 else sides) in {(), *sizes}:
            similar.append(one)
    return similar


def file_hashes(path: Path) -> tuple[str, str]:
    """Return SHA-1, which Caffe's Model Zoo gives, and SHA-256 of a file, in hexadecimal digits.

    SHA-1 identifies files; nothing relies on its collision resistance.
    """
    old, new = hashlib.sha1(usedforsecurity=False), hashlib.sha256()
    try:
        with regular_file(path).open("rb") as file:
            while part := file.read(1 << 20):
                old.update(part)
                new.update(part)
    except OSError as error:
        reason = error.strerror or str(error)
        raise WeightsError(reason, code=ErrorCode.UNREADABLE).at(str(path)) from None
    return old.hexdigest(), new.hexdigest()


def content_hash(path: Path) -> str:
    """Return SHA-256 of the parameters in a file, independent of the file's format.

    The hash covers all layers with parameters, sorted by name: the name, and for each parameter its
    shape without leading axes of length 1, which old files have, and its values as float32.
    """
    digest = hashlib.sha256()
    for layer, arrays in sorted(read_weights(path).items()):
        for index, array in sorted(arrays.items()):
            shape = list(array.shape)
            while shape and shape[0] == 1:
                del shape[0]
            digest.update(f"{layer}\0{index}\0{shape}\0".encode())
            digest.update(np.ascontiguousarray(array, "<f4").data)
    return digest.hexdigest()
