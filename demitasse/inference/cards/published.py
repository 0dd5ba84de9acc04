"""Cards for models that were published for Caffe, and which files of weights they belong to.

They are the files in ``zoo``: cards without a net and weights, and with a table ``[recognise]``:
digests of the weights, and names of nets. Digests decide; a name only makes for a suggestion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError
from demitasse.inference.cards.card import MOST_PIXELS, Card
from demitasse.inference.cards.digests import contents_digest, file_digests
from demitasse.inference.cards.reading import Given, card_of, parsed, values_in
from demitasse.inference.cards.table import Table
from demitasse.io.proto import read_net

__all__ = ["Published", "published", "published_named", "recognised", "similar"]

ZOO = Path(__file__).parent / "zoo"
MOST = 64


@dataclass(frozen=True)
class Published:
    """A published card.

    Attributes:
        key: What it is called in messages and flags.
        name: What the model is called.
        files: SHA-1 and SHA-256 of files of weights.
        contents: Digests of the parameters in them, see ``contents_digest``.
        nets: What the nets are called in their prototxts.
    """

    key: str
    name: str
    files: frozenset[str]
    contents: frozenset[str]
    nets: tuple[str, ...]

    @property
    def recognisable(self) -> bool:
        """Whether a digest of the weights is known; else only the net's name is."""
        return bool(self.files or self.contents)

    def values(self) -> dict[str, object]:
        """Return what the card holds, as it stands there, without what it is recognised by."""
        values = values_in(ZOO / f"{self.key}.toml")
        del values["recognise"]
        return values

    def card(self, given: Given) -> Card:
        """Return the card for somebody's copy of the model.

        Args:
            given: The net and the weights; other files are looked for beside the weights.

        Raises:
            ConfigError: A file that it needs is not there.
        """
        table = Table(self.values(), f"published card {self.key!r}")
        folder = given.weights[0].parent if given.weights else Path()
        return card_of(table, folder, given, lenient=True)


@cache
def published() -> tuple[Published, ...]:
    """Return all published cards, in the order of their names."""
    found = []
    for path in sorted(ZOO.glob("*.toml")):
        table = parsed(path)
        marks, name = table.table("recognise"), table.table("model").text("name")
        files = (*marks.names("sha1", MOST), *marks.names("sha256", MOST))
        contents, nets = marks.names("contents", MOST), marks.names("nets", MOST)
        marks.close()
        found.append(Published(path.stem, name, frozenset(files), frozenset(contents), nets))
    return tuple(found)


def published_named(key: str) -> Published:
    """Return the card of a name.

    Raises:
        ConfigError: There is none.
    """
    known = {one.key: one for one in published()}
    if key not in known:
        message = (
            f"there is no published card {key!r}{suggestion(key, known)}; `demitasse card --list` "
            "shows them"
        )
        raise ConfigError(message)
    return known[key]


def recognised(weights: Sequence[Path]) -> Published | None:
    """Return the card for a published file of weights, or None for any other.

    Raises:
        WeightsError: The file cannot be read.
    """
    if len(weights) != 1:
        return None
    digests = frozenset(file_digests(weights[0]))
    for one in published():
        if digests & one.files:
            return one
    contents = contents_digest(weights[0])
    return next((one for one in published() if contents in one.contents), None)


def similar(net: Path) -> list[Published]:
    """Return cards whose nets are called like this one and take images of the same size.

    That is no proof: nets trained on other data keep their names.

    Raises:
        PrototxtError: The net cannot be read.
    """
    message = read_net(net).message
    sizes = [
        tuple(shape.dim[2:])
        for layer in message.layer
        if layer.type == "Input"
        for shape in layer.input_param.shape
    ]
    name = message.name.casefold()
    called = [one for one in published() if name in {net.casefold() for net in one.nets}]
    return [one for one in called if _taken(one) in {(), *sizes}]


def _taken(one: Published) -> tuple[int, ...]:
    """Return the height and width of the input that a card makes; empty where they vary."""
    table = parsed(ZOO / f"{one.key}.toml").table("preprocess")
    sides = table.sides("crop", MOST_PIXELS) or table.sides("size", MOST_PIXELS)
    return sides * 2 if len(sides) == 1 else sides
