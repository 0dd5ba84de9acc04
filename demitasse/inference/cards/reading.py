"""Cards as they are written: TOML files with nothing in them that is run.

Sizes are bounded, unknown keys are refused with the nearest known one, and files are looked for
beside the card alone (see ``inside``). Files given by whoever runs the model take the place of
those that the card names, wherever they are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.log import get_logger
from demitasse.core.paths import read_bytes
from demitasse.errors import ConfigError
from demitasse.inference.cards.card import (
    CHANNELS,
    MOST_PIXELS,
    RESIZES,
    TASKS,
    Anchors,
    Card,
    Detect,
    Preprocess,
)
from demitasse.inference.cards.inside import file_inside
from demitasse.inference.cards.table import Table

__all__ = [
    "CARD",
    "Given",
    "card_of",
    "parsed",
    "read_card",
    "read_labels",
    "values_in",
]

CARD = "model.toml"
"""What a card in a folder is called."""

FORMAT = 1
"""The version of the schema."""

LARGEST_CARD, LARGEST_LABELS = 1 << 20, 1 << 24
"""Bytes of the files."""

MOST_LABELS, MOST_FILES, MOST_MAPS = 100_000, 16, 64

log = get_logger(__name__)


@dataclass(frozen=True)
class Given:
    """Files that whoever runs the model names.

    Attributes:
        net: The prototxt.
        weights: The files of weights.
        labels: A file with the names of the classes.
        mean: A file with the mean image.
    """

    net: Path | None = None
    weights: Sequence[Path] = ()
    labels: Path | None = None
    mean: Path | None = None


def read_card(path: Path, given: Given | None = None) -> Card:
    """Read a card and find its files.

    Raises:
        ConfigError: It cannot be read, says what it cannot say, or a file is not there.
    """
    card = card_of(parsed(path), path.parent, given or Given())
    if card.net is None or not card.weights:
        lacking = "net" if card.net is None else "weights"
        message = f"[model] {lacking} is missing: a file beside the card, or given to the program"
        raise ConfigError(message).at(str(path))
    return card


def parsed(path: Path) -> Table:
    """Return the outermost table of a card; see ``values_in``."""
    return Table(values_in(path), str(path))


def values_in(path: Path) -> dict[str, object]:
    """Return what a card holds, as it stands there.

    Raises:
        ConfigError: The file cannot be read, or is no TOML.
    """
    try:
        if path.stat().st_size > LARGEST_CARD:
            message = f"a card has at most {LARGEST_CARD} bytes"
            raise ConfigError(message).at(str(path))
        return tomllib.loads(read_bytes(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        message = f"the card cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(message).at(str(path)) from None


def card_of(table: Table, folder: Path, given: Given, *, lenient: bool = False) -> Card:
    """Return what a card says.

    Args:
        table: Its outermost table.
        folder: Where its files are.
        given: Files that take the place of those it names.
        lenient: Whether a file with labels may be missing, which is told.

    Raises:
        ConfigError: It says what it cannot say, or a file is not there.
    """
    table.whole("format", FORMAT, FORMAT, FORMAT)
    model, preprocess = table.table("model"), table.table("preprocess")
    classify, detect = table.table("classify"), table.table("detect")
    table.close()
    net, weights = model.text("net"), model.names("weights", MOST_FILES)
    card = Card(
        task=model.choice("task", TASKS),
        preprocess=_preprocess(preprocess, folder, given),
        net=given.net or (file_inside(folder, net) if net else None),
        weights=tuple(given.weights or (file_inside(folder, name) for name in weights)),
        name=model.text("name"),
        input=model.text("input"),
        outputs=model.names("output", MOST_FILES),
        labels=_labels(model, folder, given, lenient=lenient),
        batch=model.whole("batch", 0, 1 << 16, 0),
        softmax=classify.flag("softmax"),
        detect=_detect(detect),
        source=model.text("source"),
        licence=model.text("licence"),
    )
    for one in (model, classify):
        one.close()
    return card


def _preprocess(table: Table, folder: Path, given: Given) -> Preprocess:
    channels = table.choice("channels", list(CHANNELS))
    counts = {1, CHANNELS[channels]}
    size, crop = table.sides("size", MOST_PIXELS), table.sides("crop", MOST_PIXELS)
    resize = table.choice("resize", RESIZES, "warp")
    if resize == "short side" and len(size) != 1:
        message = 'resize = "short side" needs size = the length of that side, one number of pixels'
        raise table.refuse(message)
    if resize == "none" and size:
        message = 'resize = "none" leaves images as they are; leave size out'
        raise table.refuse(message)
    scale = table.numbers("scale", counts, (1.0,))
    made = Preprocess(
        channels,
        size * 2 if resize == "warp" and len(size) == 1 else size,
        resize,
        crop * 2 if len(crop) == 1 else crop,
        _mean(table, counts, folder, given),
        scale,
    )
    table.close()
    return made


def _mean(table: Table, counts: set[int], folder: Path, given: Given) -> tuple[float, ...] | Path:
    if not table.holds_text("mean"):
        values = table.numbers("mean", counts)
        return values if given.mean is None else given.mean
    name = table.text("mean")
    return given.mean or file_inside(folder, name)


def _detect(table: Table) -> Detect:
    anchors = table.table("anchors") if table.has("anchors") else None
    made = Detect(
        threshold=table.number("threshold", 0, 1, 0.5),
        boxes=table.text("boxes"),
        scores=table.text("scores"),
        anchors=None if anchors is None else _anchors(anchors),
        overlap=table.number("overlap", 0, 1, 0.45),
        background=table.whole("background", -1, MOST_LABELS, 0),
    )
    table.close()
    if bool(made.boxes) != bool(made.scores) or bool(made.boxes) != (made.anchors is not None):
        message = (
            "boxes, scores and [detect.anchors] go together: the outputs with predicted boxes and "
            "their scores, and what the boxes are relative to. A net with a layer DetectionOutput "
            "needs none of them"
        )
        raise table.refuse(message)
    return made


def _anchors(table: Table) -> Anchors:
    sizes = table.lists("sizes", MOST_MAPS)
    steps = table.numbers("steps", range(1, MOST_MAPS + 1))
    made = Anchors(sizes, steps, table.numbers("variance", {4}, (0.1, 0.1, 0.2, 0.2)))
    table.close()
    if len(sizes) != len(steps) or min(min(row) for row in sizes) <= 0 or min(steps) <= 0:
        message = (
            f"sizes has {len(sizes)} lists and steps {len(steps)} numbers; each map of the net has "
            "one of both, all above 0"
        )
        raise table.refuse(message)
    return made


def _labels(model: Table, folder: Path, given: Given, *, lenient: bool) -> tuple[str, ...]:
    """Return the labels in a card, or in the file that it names: a text is a file."""
    is_file = model.holds_text("labels")
    labels = model.names("labels", MOST_LABELS)
    if given.labels is not None:
        return read_labels(given.labels)
    if not is_file:
        return labels
    try:
        return read_labels(file_inside(folder, labels[0]))
    except ConfigError:
        if not lenient:
            raise
        log.warning(
            "There is no file %s in %s: classes are shown by their numbers. --labels names a file",
            labels[0],
            folder,
        )
        return ()


def read_labels(path: Path) -> tuple[str, ...]:
    """Read the names of classes, one in a line, in the order of their numbers.

    Raises:
        ConfigError: The file cannot be read, or has too many or too long lines.
    """
    try:
        if path.stat().st_size > LARGEST_LABELS:
            message = f"a file of labels has at most {LARGEST_LABELS} bytes"
            raise ConfigError(message).at(str(path))
        lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    except OSError as error:
        message = f"the labels cannot be read: {error.strerror or error}"
        raise ConfigError(message).at(str(path)) from None
    if len(lines) > MOST_LABELS:
        message = f"there are {len(lines)} labels; at most {MOST_LABELS} are taken"
        raise ConfigError(message).at(str(path))
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.strip()[:1000] for line in lines)
