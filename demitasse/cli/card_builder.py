"""Model cards built from files and flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse.core.paths import is_file, resolve_path
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import FileOverrides, Table, card_from_table
from demitasse.inference.cards.preprocessing import training_preprocess
from demitasse.inference.cards.published import published_card, recognize, zoo_labels
from demitasse.io.proto import NetParameter, read_net

Values = dict[str, object]


@dataclass(frozen=True)
class CardRequest:
    """Flags of the command ``card``.

    Attributes:
        known: Name of a published card to start from, or an empty text.
        mean: A file; or a text: numbers, the name of a file, or "none".
        flags: The other flags by name; None if not given.
    """

    net: Path
    weights: Sequence[Path]
    known: str
    train: Path | None
    labels: Path | None
    mean: Path | str | None
    softmax: bool
    flags: Mapping[str, object]


def build_card(request: CardRequest) -> tuple[Card, Path | None]:
    """Return the card, and the file of its labels; None if the card lists the labels."""
    message = read_net(request.net).message
    published = published_card(request.known) if request.known else recognize(request.weights)
    tables = published.values() if published else _guess(message)
    model, how = _subtable(tables, "model"), _subtable(tables, "preprocess")
    model |= _given_flags(request.flags, ("name", "task", "source", "licence"))
    model["name"] = model.get("name") or message.name
    if request.flags.get("input_"):
        model["input"] = request.flags["input_"]
    if request.flags.get("output"):
        output = request.flags["output"]
        names = output if isinstance(output, tuple | list) else [output]
        model["output"] = [str(name) for name in names]
    if request.softmax:
        _subtable(tables, "classify")["softmax"] = True
    mean_file = _fill_preprocessing(request, how)
    if not published:
        _check_complete(model, how if mean_file is None else how | {"mean": mean_file})
    folder = request.weights[0].parent
    labels = request.labels
    named = model.get("labels")
    if labels is None and isinstance(named, str) and is_file(folder / named):
        labels = folder / named
    listed = zoo_labels(named, folder) if published and labels is None else None
    given = FileOverrides(request.net, request.weights, labels or listed, mean_file)
    place = f"published card {published.key!r}" if published else "the card"
    return card_from_table(Table(tables, place), folder, given, labels_optional=True), labels


def _fill_preprocessing(request: CardRequest, how: Values) -> Path | None:
    """Fill in the preprocessing of images; return the file of a mean image."""
    mean_file = None if request.train is None else _apply_training(request, request.train, how)
    how |= _given_flags(request.flags, ("channels", "resize"))
    for key in ("size", "crop"):
        if request.flags.get(key):
            how[key] = _numbers(key, str(request.flags[key]), pixels=True)
    if request.flags.get("scale"):
        how["scale"] = _numbers("scale", str(request.flags["scale"]))
    if request.mean is None:
        return mean_file
    if isinstance(request.mean, Path) or is_file(request.mean):
        return Path(request.mean)
    how["mean"] = [] if request.mean == "none" else _numbers("mean", request.mean)
    return None


def _apply_training(request: CardRequest, train: Path, how: Values) -> Path | None:
    """Fill in the training net's preprocessing; return the file of its mean image."""
    trained = training_preprocess(train)
    if trained is None:
        message = f"{train} has no data layer with a transform_param"
        raise ConfigError(message, code=ErrorCode.MISSING, file=str(train), field="transform_param")
    how["mean"] = trained.mean
    how |= _given_flags(vars(trained), ("crop", "size", "channels"))
    if trained.scale != 1.0:
        how["scale"] = trained.scale
    if not trained.mean_file or request.mean is not None:
        return None
    here = train.parent / Path(trained.mean_file).name
    found = here if is_file(here) else resolve_path(trained.mean_file, train.parent)
    if not is_file(found):
        message = (
            f"cannot find the mean image {trained.mean_file} of {train}; give the file, or values, "
            "with --mean"
        )
        raise ConfigError(message, code=ErrorCode.NOT_FOUND, file=trained.mean_file, flag="--mean")
    return found


def _guess(net: NetParameter) -> Values:
    """Return the task and channels that follow from the layers of a net."""
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


def _check_complete(model: Values, how: Values) -> None:
    """Raise an error that names all missing flags of an unpublished net."""
    missing = {}
    if "task" not in model:
        missing["--task"] = "the task of the net"
    if "channels" not in how:
        missing["--channels"] = "bgr (as in databases of Caffe's tools), rgb or gray"
    if "mean" not in how:
        missing["--mean"] = (
            "the mean that training subtracted, a number for each channel, a file or none; "
            "or --train: the prototxt of the training"
        )
    if missing:
        texts = "; ".join(f"{flag}: {text}" for flag, text in missing.items())
        message = f"the net's files do not define its preprocessing; give {texts}"
        raise ConfigError(message, code=ErrorCode.MISSING, flags=list(missing))


def _subtable(tables: Values, name: str) -> Values:
    found = tables.setdefault(name, {})
    assert isinstance(found, dict)
    return found


def _given_flags(flags: Mapping[str, object], names: Sequence[str]) -> Values:
    return {name: flags[name] for name in names if flags.get(name)}


def _numbers(flag: str, text: str, *, pixels: bool = False) -> object:
    """Return one number or several; pixels are integers, and may have an x between."""
    try:
        parts = (text.replace("x", ",") if pixels else text).split(",")
        values = [int(part) if pixels else float(part) for part in parts]
    except ValueError:
        wanted = "pixels, or height,width" if pixels else "numbers with commas between, or a file"
        message = f"--{flag} takes {wanted}; got {text!r}"
        raise ConfigError(message, code=ErrorCode.INVALID, flag=f"--{flag}", got=text) from None
    return values[0] if len(values) == 1 else values
