"""Read and write model cards: TOML files, which contain no code.

Sizes are bounded, and unknown keys are refused with the most similar known key. A card names files
in its own folder only (see ``safe_path``). Files that the caller gives replace those of the card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from demitasse.core.config.files import parse_toml
from demitasse.core.log import get_logger
from demitasse.core.paths import is_file, read_bytes
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.card import (
    CHANNELS,
    COMPLETED,
    MAX_SIDE,
    OUTPUT_CHANNELS,
    RESIZES,
    TASKS,
    Anchors,
    Card,
    Detect,
    ImageOutput,
    Preprocess,
)
from demitasse.io.proto import LabelMap, parse_text

CARD = "model.toml"
"""Name of the card in a model's folder."""

ONNX = ".onnx"
"""Extension of a net in an ONNX file, which has its own weights."""

FORMAT = 1
"""Version of the schema."""

MAX_CARD, MAX_LABEL_FILE = 1 << 20, 1 << 24
"""Largest files, in bytes."""

MAX_LABELS, MAX_FILES, MAX_MAPS, MAX_FACTOR = 100_000, 16, 64, 16

log = get_logger(__name__)

MAX_TEXT = 2000
"""Longest text, in characters."""

MAX_NUMBER = 1e30
"""Largest absolute value of a number."""


@dataclass(frozen=True)
class FileOverrides:
    """Files of the caller, which replace those of a card."""

    net: Path | None = None
    weights: Sequence[Path] = ()
    labels: Path | None = None
    mean: Path | None = None


def read_card(path: Path, overrides: FileOverrides | None = None) -> Card:
    """Read a card and resolve its files.

    Raises:
        ConfigError: The card cannot be read, has an invalid entry, or a file is missing.
    """
    card = card_from_table(parse_card(path), path.parent, overrides or FileOverrides())
    if card.net is not None and card.net.suffix == ONNX:
        if card.weights:
            message = f"[model] net {card.net.name!r} has its own weights; leave weights out"
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="weights").at(str(path))
        return card
    if card.net is None or not card.weights:
        lacking = "net" if card.net is None else "weights"
        message = f"[model] {lacking} is missing: a file beside the card, or given to the program"
        raise ConfigError(message, code=ErrorCode.MISSING, field=lacking).at(str(path))
    return card


def parse_card(path: Path) -> Table:
    """Return the root table of a card."""
    return Table(card_values(path), str(path))


def card_values(path: Path) -> dict[str, object]:
    """Return the raw tables of a card."""
    content = _read_bounded(path, MAX_CARD, "the card")
    try:
        return parse_toml(content)
    except (ValueError, RecursionError) as error:
        message = f"the card cannot be read: {error}"
        raise ConfigError(message, code=ErrorCode.UNREADABLE).at(str(path)) from None


def _read_bounded(path: Path, most: int, what: str) -> bytes:
    try:
        if path.stat().st_size > most:
            message = f"{what} must have at most {most} bytes"
            raise ConfigError(message, code=ErrorCode.LIMIT).at(str(path))
        return read_bytes(path)
    except OSError as error:
        message = f"{what} cannot be read: {error.strerror or error}"
        raise ConfigError(message, code=ErrorCode.UNREADABLE).at(str(path)) from None


def card_from_table(
    table: Table, folder: Path, overrides: FileOverrides, *, labels_optional: bool = False
) -> Card:
    """Return the card in a table; a missing file of labels may only be a warning."""
    table.integer("format", FORMAT, FORMAT, FORMAT)
    model, preprocess, classify, detect, image = (
        table.table(name) for name in ("model", "preprocess", "classify", "detect", "image")
    )
    table.close()
    net, weights = model.text("net"), model.names("weights", MAX_FILES)
    task, how = model.choice("task", TASKS), _preprocess(preprocess, folder, overrides)
    if task == "image" and how.crop:
        preprocess.refuse("crop cuts the image, which task image shows whole; use size")
    card = Card(
        task, how, overrides.net or (safe_path(folder, net) if net else None),
        tuple(overrides.weights or (safe_path(folder, name) for name in weights)),
        name=model.text("name"), input=model.text("input"),
        outputs=model.names("output", MAX_FILES),
        labels=_labels(model, folder, overrides, optional=labels_optional),
        batch=model.integer("batch", 0, 1 << 16, 0), softmax=classify.flag("softmax"),
        detect=_detect(detect), image=_image(image, how) if task == "image" else ImageOutput(),
        source=model.text("source"), licence=model.text("licence"),
    )  # fmt: skip
    model.close()
    classify.close()
    return card


def _preprocess(table: Table, folder: Path, overrides: FileOverrides) -> Preprocess:
    channels = table.choice("channels", list(CHANNELS))
    counts = {1, CHANNELS[channels]}
    size, crop = table.sides("size"), table.sides("crop")
    resize = table.choice("resize", RESIZES, "warp")
    if resize == "short side" and len(size) != 1:
        table.refuse('resize = "short side" needs one size, the length of that side in pixels')
    if resize == "factor" and (len(size) != 1 or size[0] > MAX_FACTOR):
        table.refuse(f'resize = "factor" needs one size, the factor, from 1 to {MAX_FACTOR}')
    if resize == "none" and size:
        table.refuse('resize = "none" leaves images as they are; leave size out')
    scale = table.numbers("scale", counts, (1.0,))
    mean: tuple[float, ...] | Path
    if table.holds_text("mean"):
        name = table.text("mean")
        mean = overrides.mean or safe_path(folder, name)
    else:
        values = table.numbers("mean", counts)
        mean = overrides.mean or values
    table.close()
    size = size * 2 if resize == "warp" and len(size) == 1 else size
    crop = crop * 2 if len(crop) == 1 else crop
    return Preprocess(channels, size, resize, crop, mean, scale)


def _detect(table: Table) -> Detect:
    anchors = table.table("anchors") if table.has("anchors") else None
    made = Detect(
        table.number("threshold", 0, 1, 0.5), table.text("boxes"), table.text("scores"),
        None if anchors is None else _anchors(anchors), table.number("overlap", 0, 1, 0.45),
        table.integer("background", -1, MAX_LABELS, 0),
    )  # fmt: skip
    table.close()
    if bool(made.boxes) != bool(made.scores) or bool(made.boxes) != (made.anchors is not None):
        table.refuse(
            "boxes, scores and [detect.anchors] go together: the outputs with predicted boxes and "
            "their scores, and the anchors of the boxes. A net with a DetectionOutput layer needs "
            "none of them"
        )
    return made


def _image(table: Table, how: Preprocess) -> ImageOutput:
    """Return the meaning of an output image; by default that of the input."""
    channels = table.choice(
        "channels", list(OUTPUT_CHANNELS), "ab" if how.channels == "l" else how.channels
    )
    same = channels == how.channels
    completes = channels in COMPLETED or how.channels in COMPLETED.values()
    if completes and COMPLETED.get(channels) != how.channels:
        table.refuse(
            f'channels = "{channels}" does not go with "{how.channels}" of [preprocess]; an output '
            '"y" needs the input "y", and "ab" the input "l"'
        )
    if same and isinstance(how.mean, Path) and not table.has("mean"):
        table.refuse("mean is missing; the mean image of [preprocess] has the size of the input")
    mean = () if isinstance(how.mean, Path) or not same else how.mean
    counts = {1, OUTPUT_CHANNELS[channels]}
    made = ImageOutput(
        channels,
        table.numbers("mean", counts, mean),
        table.numbers("scale", counts, how.scale if same else (1.0,)),
    )
    table.close()
    if 0 in made.scale:
        table.refuse("scale must not be 0, because outputs are divided by it")
    return made


def _anchors(table: Table) -> Anchors:
    sizes = table.lists("sizes", MAX_MAPS)
    steps = table.numbers("steps", range(1, MAX_MAPS + 1))
    made = Anchors(sizes, steps, table.numbers("variance", {4}, (0.1, 0.1, 0.2, 0.2)))
    table.close()
    if len(sizes) != len(steps) or min(min(row) for row in sizes) <= 0 or min(steps) <= 0:
        table.refuse(
            f"sizes has {len(sizes)} lists and steps {len(steps)} numbers; each feature map needs "
            "one of both, all above 0"
        )
    return made


def _labels(
    model: Table, folder: Path, overrides: FileOverrides, *, optional: bool
) -> tuple[str, ...]:
    """Return a card's labels: a list, or the name of a file."""
    is_file = model.holds_text("labels")
    labels = model.names("labels", MAX_LABELS)
    if overrides.labels is not None:
        return read_labels(overrides.labels)
    if not is_file:
        return labels
    try:
        return read_labels(safe_path(folder, labels[0]))
    except ConfigError:
        if not optional:
            raise
        text = "There is no file %s in %s: classes are shown by their indices. Use --labels FILE"
        log.warning(text, labels[0], folder)
        return ()


def read_labels(path: Path) -> tuple[str, ...]:
    """Read the names of classes by index, one per line or, in a prototxt, as SSD's LabelMap."""
    content = _read_bounded(path, MAX_LABEL_FILE, "the file of labels")
    text = content.decode("utf-8-sig", "replace").rstrip()
    if path.suffix == ".prototxt":
        items = parse_text(text, LabelMap, str(path)).item
        names = {item.label: item.display_name or item.name for item in items}
    else:
        names = dict(enumerate(re.split("\r\n?|\n", text) if text else ()))
    count = max(names, default=-1) + 1
    if count > MAX_LABELS:
        message = f"there are {count} labels; at most {MAX_LABELS} are taken"
        raise ConfigError(message, code=ErrorCode.LIMIT).at(str(path))
    return tuple(names.get(i, str(i)).strip()[:1000] for i in range(count))


def format_card(card: Card, folder: Path, labels: Path | None = None) -> str:
    """Return a card as TOML text, for the folder of its files; without a file, with its labels.

    Raises:
        ConfigError: A file lies outside of the folder, or a name is not UTF-8.
    """
    how, detect = card.preprocess, card.detect
    mean = _file(how.mean, folder) if isinstance(how.mean, Path) else _one_or_all(how.mean)
    tables: dict[str, dict[str, object]] = {
        "model": {
            "name": card.name, "net": "" if card.net is None else _file(card.net, folder),
            "weights": _one_or_all([_file(path, folder) for path in card.weights]),
            "task": card.task, "input": card.input, "output": _one_or_all(card.outputs),
            "labels": _file(labels, folder) if labels else card.labels, "batch": card.batch,
            "source": card.source, "licence": card.licence,
        },
        "preprocess": {
            "channels": how.channels,
            "size": how.size if how.resize == "warp" else _one_or_all(how.size),
            "resize": "" if how.resize == "warp" else how.resize, "crop": how.crop, "mean": mean,
            "scale": "" if how.scale == (1.0,) else _one_or_all(how.scale),
        },
        "classify": {"softmax": card.softmax},
    }  # fmt: skip
    if card.task == "image":
        image = {name: _one_or_all(value) for name, value in vars(card.image).items()}
        tables["image"] = image | {"channels": card.image.channels}
    if card.task == "detect":
        tables["detect"] = {"threshold": detect.threshold}
        if detect.anchors is not None:
            names = ("overlap", "background", "boxes", "scores")
            tables["detect"] |= {name: getattr(detect, name) for name in names}
            tables["detect.anchors"] = dict(vars(detect.anchors))
    parts = [f"format = {FORMAT}\n"]
    for name, values in tables.items():
        # TOML equals JSON except for the DEL character; empty values and 0 are omitted
        lines = [
            f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
            for key, value in values.items()
            if value or isinstance(value, float)
        ]
        if lines:
            parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    text = "\n".join(parts)
    if wrong := re.search(".*[\ud800-\udfff].*", text):  # bytes of a file name or of a flag
        message = f"got {wrong[0]}, expected UTF-8, as all of a card is; use another name"
        raise ConfigError(message, code=ErrorCode.INVALID)
    return text


def _file(path: Path, folder: Path) -> str:
    """Return a file's path relative to the card's folder."""
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        message = (
            f"{path} lies outside of the card's folder, {folder}; a card names files beside it. "
            "Put them in one folder, or write the card to one above all of them with --out"
        )
        raise ConfigError(message, code=ErrorCode.UNTRUSTED, file=str(path)) from None


def _one_or_all(values: Sequence[object]) -> object:
    return values[0] if len(values) == 1 else list(values)


def safe_path(folder: Path, name: str) -> Path:
    """Return the path of a file in a card's folder or below.

    A card of another person must not reach other files of the user, not even by a symbolic link.
    """
    try:
        path = folder / name
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # circular links, a zero byte
        message = f"invalid file name {name!r}: {error}"
        raise ConfigError(message, code=ErrorCode.INVALID, file=name) from None
    if Path(name).is_absolute() or ".." in Path(name).parts or not is_inside:
        message = (
            f"{name!r} lies outside of the card's folder, {folder}; a card names files beside it. "
            "Name other files on the command line"
        )
        raise ConfigError(message, code=ErrorCode.UNTRUSTED, file=name)
    if not is_file(path):
        message = f"there is no file {name!r} in the card's folder, {folder}"
        raise ConfigError(message, code=ErrorCode.NOT_FOUND, file=name)
    return path


class Table:
    """A table of a card, whose entries are read one by one; ``place`` is its name in messages."""

    def __init__(self, values: Mapping[str, object], place: str) -> None:
        self._values, self._place = values, place
        self._read: list[str] = []

    def has(self, key: str) -> bool:
        """Return True if an entry exists, without reading it."""
        return key in self._values

    def holds_text(self, key: str) -> bool:
        """Return True if an entry is a text, without reading it."""
        return isinstance(self._values.get(key), str)

    def text(self, key: str) -> str:
        """Read a text; empty if the entry is missing."""
        needed = f"a text of at most {MAX_TEXT} characters"
        return str(self._entry(key, "", _is_text, needed))

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        """Read one of several words; without a default the entry is required."""
        value = self._values.get(key, default)
        near = suggestion(value, choices) if isinstance(value, str) else ""
        quoted = ", ".join(f'"{choice}"' for choice in choices)
        if not value:
            message = f"{key} is missing; use one of {quoted}"
            raise ConfigError(message, code=ErrorCode.MISSING, field=key).at(self._place)
        return str(self._entry(key, default, choices.__contains__, f"one of {quoted}", near))

    def names(self, key: str, most: int) -> tuple[str, ...]:
        """Read a text, or a list of at most ``most`` texts."""

        def valid(value: Any) -> bool:
            return _is_text(value) or (_is_list(value, most) and all(map(_is_text, value)))

        value = self._entry(key, (), valid, f"a text or a list of at most {most} texts")
        return (value,) if isinstance(value, str) else tuple(value)

    def flag(self, key: str) -> bool:
        """Read true or false; false if the entry is missing."""
        return bool(self._entry(key, False, lambda value: isinstance(value, bool), "true or false"))

    def integer(self, key: str, low: int, high: int, default: int) -> int:
        """Read an integer within limits."""

        def valid(value: Any) -> bool:
            return type(value) is int and low <= value <= high

        return int(self._entry(key, default, valid, f"a whole number from {low} to {high}"))

    def sides(self, key: str) -> tuple[int, ...]:
        """Read one length, or height and width, in pixels; empty if the entry is missing."""

        def valid(value: Any) -> bool:
            some = [value] if isinstance(value, int) else value
            return _is_list(some, 2) and all(
                type(one) is int and 1 <= one <= MAX_SIDE for one in some
            )

        needed = f"one number of pixels or [height, width], from 1 to {MAX_SIDE}"
        value = self._entry(key, (), valid, needed)
        return (value,) if isinstance(value, int) else tuple(value)

    def number(self, key: str, low: float, high: float, default: float) -> float:
        """Read a number within limits."""

        def valid(value: Any) -> bool:
            return _is_number(value) and low <= value <= high

        return float(self._entry(key, default, valid, f"a number from {low:g} to {high:g}"))

    def numbers(
        self, key: str, counts: Collection[int], default: Sequence[float] = ()
    ) -> tuple[float, ...]:
        """Read a number, or a list whose length is one of ``counts``."""

        def valid(value: Any) -> bool:
            some = [value] if _is_number(value) else value
            allowed = {*counts, len(default)}
            return _is_list(some) and len(some) in allowed and all(map(_is_number, some))

        needed = f"{' or '.join(map(str, sorted(counts)))} numbers"
        value = self._entry(key, default, valid, needed)
        return tuple(map(float, [value] if isinstance(value, int | float) else value))

    def lists(self, key: str, most: int) -> tuple[tuple[float, ...], ...]:
        """Read a list of lists of numbers."""

        def valid(value: Any) -> bool:
            rows = value if _is_list(value, most) else ()
            return len(rows) > 0 and all(
                _is_list(row, most) and row and all(map(_is_number, row)) for row in rows
            )

        value = self._entry(key, (), valid, f"a list of at most {most} lists of numbers")
        return tuple(tuple(map(float, row)) for row in value)

    def table(self, key: str) -> Table:
        """Read a table; empty if the entry is missing."""
        value = self._entry(key, {}, lambda one: isinstance(one, Mapping), f"a table, [{key}]")
        return Table(value, f"{self._place} [{key}]")

    def close(self) -> None:
        """Refuse entries that were not read."""
        for key in self._values:
            if key not in self._read:
                message = (
                    f"unknown entry {key!r}{suggestion(key, self._read)}; "
                    f"known are {', '.join(self._read)}"
                )
                raise ConfigError(message, code=ErrorCode.UNKNOWN, field=key).at(self._place)

    def refuse(self, message: str) -> NoReturn:
        """Raise an error about this table."""
        raise ConfigError(message, code=ErrorCode.INVALID).at(self._place)

    def _entry(
        self, key: str, default: object, valid: Callable[[Any], bool], needed: str, near: str = ""
    ) -> Any:
        """Read an entry, which must be ``needed``; ``near`` ends the message otherwise."""
        self._read.append(key)
        value = self._values.get(key, default)
        if not valid(value):
            text = repr(value)
            text = text if len(text) < 80 else f"{text[:80]}..."
            message = f"{key} must be {needed}, it is {text}{near}"
            raise ConfigError(message, code=ErrorCode.INVALID, field=key).at(self._place)
        return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_list(value: object, most: int = MAX_LABELS) -> bool:
    return isinstance(value, list | tuple) and len(value) <= most


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MAX_NUMBER <= value <= MAX_NUMBER
