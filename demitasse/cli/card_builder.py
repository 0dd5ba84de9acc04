"""Model cards built from files and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.paths import is_file, resolve_path
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import FileOverrides, Table, card_from_table
from demitasse.inference.cards.preprocessing import TrainingPreprocess, training_preprocess
from demitasse.inference.cards.published import published_card, recognize
from demitasse.io.proto import NetParameter, read_net

Values = dict[str, object]


@dataclass(frozen=True)
class CardRequest:
    """What the flags of the verb ``card`` say.

    Attributes:
        net: The prototxt.
        weights: The files of weights.
        known: Name of a published card to begin with, or an empty text.
        train: The prototxt that the net was trained with.
        labels: The file with the names of the classes.
        mean: Numbers, a file, or "none".
        softmax: Whether scores are brought to probabilities.
        flags: The others by name; None where one was not given.
    """

    net: Path
    weights: Sequence[Path]
    known: str
    train: Path | None
    labels: Path | None
    mean: str | None
    softmax: bool
    flags: Mapping[str, object]


def build_card(draft: CardRequest) -> tuple[Card, Path | None]:
    """Return the card, and the file that its labels come from, if they come from one.

    Raises:
        ConfigError: Something is missing, which it names; or what is there cannot be.
    """
    message = read_net(draft.net).message
    published = published_card(draft.known) if draft.known else recognize(draft.weights)
    tables = published.values() if published else _guessed(message)
    model, how = _table(tables, "model"), _table(tables, "preprocess")
    model |= {
        "name": draft.flags.get("name") or model.get("name") or message.name,
        **_given(draft.flags, ("task", "source", "licence")),
    }
    if draft.flags.get("input_"):
        model["input"] = draft.flags["input_"]
    if draft.flags.get("output"):
        model["output"] = list(_texts(draft.flags["output"]))
    if draft.softmax:
        _table(tables, "classify")["softmax"] = True
    mean_file = _prepare(draft, how)
    if not published:
        _need_all(model, how)
    folder = draft.weights[0].parent
    labels = draft.labels
    named = model.get("labels")
    if labels is None and isinstance(named, str) and is_file(folder / named):
        labels = folder / named
    given = FileOverrides(draft.net, draft.weights, labels, mean_file)
    place = f"published card {published.key!r}" if published else "the card"
    return card_from_table(Table(tables, place), folder, given, labels_optional=True), labels


def _prepare(draft: CardRequest, how: Values) -> Path | None:
    """Fill in how images are prepared; return the file of a mean image."""
    mean_file = None
    if draft.train is not None:
        mean_file = _as_trained(draft, how)
    how |= _given(draft.flags, ("channels", "resize"))
    for key in ("size", "crop"):
        if draft.flags.get(key):
            how[key] = _whole(key, str(draft.flags[key]))
    if draft.flags.get("scale"):
        how["scale"] = _numbers("scale", str(draft.flags["scale"]))
    if draft.mean is None:
        return mean_file
    if is_file(draft.mean):
        return Path(draft.mean)
    how["mean"] = [] if draft.mean == "none" else _numbers("mean", draft.mean)
    return None


def _as_trained(draft: CardRequest, how: Values) -> Path | None:
    """Fill in what the training net says; return the file of its mean image."""
    assert draft.train is not None
    trained = training_preprocess(draft.train)
    if trained is None:
        message = f"{draft.train} has no layer that reads images, with a transform_param"
        raise ConfigError(
            message, code=ErrorCode.MISSING, file=str(draft.train), field="transform_param"
        )
    how["mean"] = list(trained.mean)
    for key, value in (("crop", trained.crop), ("size", trained.size)):
        if value:
            how[key] = list(value)
    if trained.scale != 1.0:
        how["scale"] = trained.scale
    if trained.channels:
        how["channels"] = trained.channels
    return _mean_file(draft, trained)


def _mean_file(draft: CardRequest, trained: TrainingPreprocess) -> Path | None:
    if not trained.mean_file or draft.mean is not None:
        return None
    assert draft.train is not None
    here = draft.train.parent / Path(trained.mean_file).name
    found = here if is_file(here) else resolve_path(trained.mean_file, draft.train.parent)
    if not is_file(found):
        message = (
            f"{draft.train} subtracts the mean image {trained.mean_file}, which is not there; name "
            "it, or values in its place, with --mean"
        )
        raise ConfigError(message, code=ErrorCode.NOT_FOUND, file=trained.mean_file, flag="--mean")
    return found


def _guessed(net: NetParameter) -> Values:
    """Return what a net itself tells: its task, where its last layer has only one."""
    model: Values = {}
    types = [layer.type for layer in net.layer]
    if "DetectionOutput" in types:
        model["task"] = "detect"
    elif types[-1:] == ["Softmax"] and net.layer[-1].softmax_param.axis == 1:
        model["task"] = "classify"
    how: Values = {}
    inputs = [shape for layer in net.layer for shape in layer.input_param.shape]
    if len(inputs) == 1 and list(inputs[0].dim[1:2]) == [1]:
        how["channels"] = "gray"
    return {"model": model, "preprocess": how}


def _need_all(model: Values, how: Values) -> None:
    """Ask for what is not known of a net that is not published."""
    missing = []
    if "task" not in model:
        missing.append("--task: what the net does")
    if "channels" not in how:
        missing.append("--channels: bgr (databases of Caffe's tools hold blue first), rgb or gray")
    if "mean" not in how:
        missing.append(
            "--mean: what was subtracted in training, a number for each channel, a file or none; "
            "or --train: the prototxt of the training"
        )
    if missing:
        message = "what images are to be like is not in the net's files; say " + "; ".join(missing)
        raise ConfigError(
            message,
            code=ErrorCode.MISSING,
            flags=["--" + text.partition(":")[0].removeprefix("--") for text in missing],
        )


def _table(tables: Values, name: str) -> Values:
    """Return a table, made where there is none."""
    found = tables.setdefault(name, {})
    assert isinstance(found, dict)
    return found


def _given(flags: Mapping[str, object], names: Sequence[str]) -> Values:
    return {name: flags[name] for name in names if flags.get(name)}


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, tuple | list) else [str(value)]


def _whole(flag: str, text: str) -> object:
    try:
        values = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        message = f"--{flag} takes pixels, or height,width, not {text!r}"
        raise ConfigError(message, code=ErrorCode.INVALID, flag=f"--{flag}", got=text) from None
    return values[0] if len(values) == 1 else values


def _numbers(flag: str, text: str) -> object:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        message = f"--{flag} takes numbers with commas between them, or a file; not {text!r}"
        raise ConfigError(message, code=ErrorCode.INVALID, flag=f"--{flag}", got=text) from None
    return values[0] if len(values) == 1 else values
