"""Deployment of a training net: the deploy net, the model card and copies of their files."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from demitasse.cli.card_builder import build_card
from demitasse.core.atomic import atomic_write, write_bytes
from demitasse.core.log import get_logger
from demitasse.core.paths import is_file, resolve_path
from demitasse.core.text import command_line, shell_words
from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.inference.cards.card import CHANNELS, Card
from demitasse.inference.cards.card_file import CARD, ONNX, format_card
from demitasse.inference.cards.model_files import WEIGHTS, ModelFiles
from demitasse.inference.cards.predictor import Predictor, has_inputs
from demitasse.inference.cards.preprocessing import training_preprocess
from demitasse.interop.deploy import DeployNet, deploy_net
from demitasse.io.data.databases.database import open_db
from demitasse.io.data.databases.datum import datum_of, datum_to_array
from demitasse.io.proto import LayerParameter, write_text
from demitasse.io.weights.load import load_files
from demitasse.net import Net

log = get_logger(__name__)

DEPLOY = "deploy.prototxt"

IMAGES = {"Data", "ImageData", "DenseImageData", "AnnotatedData", "WindowData"}
"""Layers that read images."""


class Deployed(NamedTuple):
    """Written files; notes on removed and replaced layers, and on a missing card."""

    files: list[Path]
    notes: list[str]
    has_card: bool


def deploy(
    train: Path, weights: Sequence[Path], labels: Path | None, mean: str | None, folder: Path, *,
    overwrite: bool, **options: Any,
) -> Callable[[], Deployed]:  # fmt: skip
    """Load the card of a training net, and return the function that writes it and the deploy net.

    ``options`` are those of ``deploy_net``.
    """
    made = deploy_net(train, weights, **options)
    with TemporaryDirectory() as temporary:
        card, reason = _derived_card(made, train, Path(temporary) / DEPLOY, weights, labels, mean)
        if card is not None:
            Predictor(card, device="numpy").net.close()
    files = [] if card is None else [*card.weights, *([labels] if labels else [])]
    if card is not None and isinstance(card.preprocess.mean, Path):
        files.append(card.preprocess.mean)
    stored = _targets(folder, files, train, overwrite=overwrite)

    def write() -> Deployed:
        folder.mkdir(parents=True, exist_ok=True)
        notes = list(made.notes)
        write_text(folder / DEPLOY, made.message)
        if card is None:
            place = shell_words(folder / DEPLOY)
            notes.append(f"no model card: {reason}; write one by: demitasse card {place} WEIGHTS")
            if is_file(folder / CARD):
                notes.append(f"{folder / CARD} is the card of an earlier net; remove or replace it")
            return Deployed([folder / DEPLOY], notes, has_card=False)
        copied = [target for file, target in stored.items() if target != file]
        for file, target in stored.items():
            if target != file:
                with file.open("rb") as old, atomic_write(target) as new:
                    shutil.copyfileobj(old, new)
        how = card.preprocess
        if isinstance(how.mean, Path):
            how = replace(how, mean=stored[how.mean])
        kept = tuple(stored[one] for one in card.weights)
        placed = replace(card, net=folder / DEPLOY, weights=kept, preprocess=how)
        names = None if labels is None else stored[labels]
        write_bytes(folder / CARD, format_card(placed, folder, names).encode())
        return Deployed([folder / DEPLOY, folder / CARD, *copied], notes, has_card=True)

    return write


def trains(model: Path, weights: Sequence[Path]) -> bool:
    """Return True for the prototxt of a training net, with weights."""
    plain = is_file(model) and model.suffix not in {*WEIGHTS, ".toml", ONNX}
    return bool(weights) and plain and not has_inputs(model)


@contextmanager
def _as_caffe_files(files: ModelFiles) -> Iterator[ModelFiles]:
    """Return files that Caffe reads; an imported ONNX file is removed at the end."""
    if files.net.suffix != ONNX:
        yield files
        return
    from demitasse.cli.evaluation import imported_net

    with TemporaryDirectory(prefix="demitasse-") as folder:
        net, weights = Path(folder, "net.prototxt"), Path(folder, "net.caffemodel")
        imported_net(files.net, net, weights, device="numpy").close()
        card = None if files.card is None else replace(files.card, net=net, weights=(weights,))
        yield ModelFiles(net, (weights,), card)


@contextmanager
def ready_files(
    files: ModelFiles, labels: Path | None = None, mean: Path | str | None = None
) -> Iterator[ModelFiles]:
    """Return files of a Caffe net with inputs: those given, or others, removed at the end.

    An ONNX file is imported. A deploy net takes the place of a training net; a missing card is
    derived if the data layers define the preprocessing, with the given labels and mean.
    """
    with _as_caffe_files(files) as caffe:
        if has_inputs(caffe.net):
            yield caffe
            return
        with TemporaryDirectory(prefix="demitasse-") as folder:
            file, card = Path(folder, DEPLOY), caffe.card
            try:
                made = deploy_net(caffe.net, caffe.weights)
                if card is not None:
                    write_text(file, made.message)
                    card = replace(card, net=file)
                else:
                    card, reason = _derived_card(made, caffe.net, file, caffe.weights, labels, mean)
                    missing = "" if card else f"; no card: {reason}"
                    log.info("deploy net of %s in memory%s", caffe.net, missing)
            except ConfigError as error:
                lacks_shape = error.code is ErrorCode.MISSING and "blob" in error.details
                if lacks_shape or error.details.get("flag") == "--mean":  # or lacks a stage
                    words = [word for one in caffe.weights for word in ("--weights", one)]
                    error.message += f", to: {command_line('deploy', caffe.net, *words)}"
                raise
            yield ModelFiles(file, caffe.weights, card)


def _derived_card(
    made: DeployNet, train: Path, file: Path, weights: Sequence[Path], labels: Path | None,
    mean: Path | str | None = None,
) -> tuple[Card | None, str]:  # fmt: skip
    """Write a deploy net, check its weights, and derive its card; or return why there is none."""
    write_text(file, made.message)
    with Net(file, "TEST", device="numpy") as net:
        if missing := list(load_files(net, weights)):
            message = (
                f"got no weights for {', '.join(map(repr, missing))} in "
                f"{', '.join(map(str, weights))}; give the weights that the training of the net "
                "wrote"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="weights", layers=missing)
        shape = tuple(net.blobs[made.outputs[0]].shape)
    inputs = [one for one in made.message.layer if one.type == "Input"]
    read = {top for one in inputs for top in one.top}
    source = next((one for one in made.tested if not one.bottom and read & set(one.top)), None)
    if source is None or source.type not in IMAGES:
        kind = "no layer" if source is None else f"layer {source.name!r} ({source.type})"
        return None, f"{kind} does not define the preprocessing of images"
    if len(inputs) != 1:
        return None, f"the net has {len(inputs)} inputs, and images one"
    dims = list(inputs[0].input_param.shape[0].dim)
    if len(dims) != 4 or dims[1] not in CHANNELS.values():
        reason = f"input {inputs[0].top[0]!r} has the shape {dims}, which is no gray or BGR image"
        return None, reason
    name = made.outputs[0]
    kind = next((one.type for one in reversed(made.message.layer) if name in one.top), "")
    flags: dict[str, object] = {"channels": "gray" if dims[1] == 1 else "bgr", "output": [name]}
    is_map = len(shape) == 4 and max(shape[2:]) > 1
    flags["task"] = "features" if kind != "Softmax" else "segment" if is_map else "classify"
    try:
        has_transform = training_preprocess(train) is not None
    except ConfigError as error:
        return None, error.message
    size = _record_size(source, train.parent)
    if size and list(size) != dims[2:]:
        flags["size"] = f"{size[0]},{size[1]}"
    card, _ = build_card(
        file, weights, train=train if has_transform else None, labels=labels,
        mean=mean or (None if has_transform else "none"), flags=flags,
    )  # fmt: skip
    if card.labels and kind == "Softmax" and len(card.labels) != shape[1]:
        message = f"got {len(card.labels)} labels in {labels}, expected {shape[1]}, one for a score"
        raise ConfigError(
            message, code=ErrorCode.COUNT_MISMATCH, field="labels", got=len(card.labels)
        )
    return card, ""


def _record_size(source: LayerParameter, folder: Path) -> tuple[int, int] | None:
    """Return height and width of the first image of a data layer; None if it cannot be read."""
    if source.transform_param.HasField("resize_param"):
        return None
    if source.type == "ImageData":
        from demitasse.lint.data_rules import sample_data

        shape = sample_data(source, folder).shape
        return None if shape is None else (shape[1], shape[2])
    if source.type not in {"Data", "AnnotatedData"}:
        return None
    p = source.data_param
    try:
        path, backend = resolve_path(p.source, folder), p.DB.Name(p.backend)
        with closing(open_db(path, backend)) as database, closing(database.new_cursor()) as cursor:
            _, height, width = datum_to_array(datum_of(cursor.value())).shape
    except (DemitasseError, OSError, ValueError):
        return None
    return (height, width) if height else None


def _targets(
    folder: Path, files: Sequence[Path], train: Path, *, overwrite: bool
) -> dict[Path, Path]:
    """Return the place of each file in the folder: its own, or that of a copy."""
    found: dict[Path, Path] = {}
    taken = {(folder / name).resolve() for name in (DEPLOY, CARD)}
    if train.resolve() in taken:
        message = f"got {train}, whose deploy net has the same name; write elsewhere by --out"
        raise ConfigError(message, code=ErrorCode.CONFLICT, file=str(train))
    for file in dict.fromkeys(files):
        inside = file.resolve().is_relative_to(folder.resolve())
        target = file if inside else folder / file.name
        is_other = not inside and target.exists() and not cmp(file, target, shallow=False)
        if target.resolve() in taken or (is_other and not overwrite):
            message = f"got {file}, whose copy would replace {target}; write elsewhere by --out"
            raise ConfigError(message, code=ErrorCode.EXISTS, file=str(target))
        taken.add(target.resolve())
        found[file] = target
    return found
