"""Model cards built from files and flags."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from demitasse.core.paths import is_file, resolve_path
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.card import Card
from demitasse.inference.cards.card_file import FileOverrides, Table, card_from_table
from demitasse.inference.cards.preprocessing import training_preprocess
from demitasse.inference.cards.published import published_card, recognize, zoo_labels
from demitasse.io.proto import NetParameter, read_net

Values = dict[str, object]


def build_card(
    net: Path, weights: Sequence[Path], *, known: str | None = None, train: Path | None = None,
    labels: Path | None = None, mean: Path | str | None = None, flags: Values,
) -> tuple[Card, Path | None]:  # fmt: skip
    """Return the card, and the file of its labels; None if the card lists the labels.

    ``known`` names a published card to start from; ``train`` is the prototxt of the training.
    ``mean`` is a file, or a text: numbers, the name of a file, or "none". ``flags`` are the other
    flags of the command ``card``; empty values are as if not given.
    """
    message = read_net(net).message
    published = published_card(known) if known else recognize(weights)
    tables = published.values() if published else _guess(message)
    model, how = _subtable(tables, "model"), _subtable(tables, "preprocess")
    model |= _given_flags(flags, ("name", "task", "source", "licence", "input", "output"))
    model["name"] = model.get("name") or message.name
    if flags.get("softmax"):
        _subtable(tables, "classify")["softmax"] = True
    mean_file = None if train is None else _apply_training(train, how, need_mean=mean is None)
    _apply_flags(flags, how)
    if isinstance(mean, Path) or (mean is not None and is_file(mean)):
        mean_file = Path(mean)
    elif mean is not None:
        how["mean"] = [] if mean == "none" else _numbers("mean", mean)
    if not published:
        _check_complete(model, how if mean_file is None else how | {"mean": mean_file})
    folder = weights[0].parent
    named = model.get("labels")
    if labels is None and isinstance(named, str) and is_file(folder / named):
        labels = folder / named
    listed = zoo_labels(named, folder) if published and labels is None else None
    given = FileOverrides(net, weights, labels or listed, mean_file)
    place = f"published card {published.key!r}" if published else "the card"
    return card_from_table(Table(tables, place), folder, given, labels_optional=True), labels


def _apply_flags(flags: Values, how: Values) -> None:
    """Fill in the preprocessing that flags define."""
    how |= _given_flags(flags, ("channels", "resize"))
    for key in ("size", "crop", "scale"):
        if flags.get(key):
            how[key] = _numbers(key, str(flags[key]), pixels=key != "scale")


def _apply_training(train: Path, how: Values, *, need_mean: bool) -> Path | None:
    """Fill in the training net's preprocessing; return the file of its mean image, if needed."""
    trained = training_preprocess(train)
    if trained is None:
        message = f"{train} has no data layer with a transform_param"
        raise ConfigError(message, code=ErrorCode.MISSING, file=str(train), field="transform_param")
    how["mean"] = trained.mean
    how |= _given_flags(vars(trained), ("crop", "size", "channels"))
    if trained.scale != 1.0:
        how["scale"] = trained.scale
    if not trained.mean_file or not need_mean:
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
