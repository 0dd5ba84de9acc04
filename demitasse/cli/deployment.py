"""Deployment of a training net: the deploy net, the model card and copies of their files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory

from demitasse.cli.card_builder import CardRequest, build_card
from demitasse.cli.onnx_models import as_caffe_files
from demitasse.core.atomic import atomic_write
from demitasse.core.log import get_logger
from demitasse.core.paths import is_file, resolve_path
from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.inference.cards.card import CHANNELS, Card
from demitasse.inference.cards.card_file import CARD, ONNX, format_card
from demitasse.inference.cards.model_files import WEIGHTS, ModelFiles
from demitasse.inference.cards.predictor import Predictor, has_inputs
from demitasse.inference.cards.preprocessing import training_preprocess
from demitasse.interop.deploy import DeployNet, deploy_net
from demitasse.io.data.databases.database import open_db
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.proto import Datum, LayerParameter, write_text
from demitasse.io.weights.load import load_files
from demitasse.net import Net

log = get_logger(__name__)

DEPLOY = "deploy.prototxt"

IMAGES = {"Data", "ImageData", "DenseImageData", "AnnotatedData", "WindowData"}
"""Layers that read images."""


@dataclass(frozen=True)
class Deployed:
    """Result of a deployment.

    Attributes:
        files: The files written.
        notes: Removed and replaced layers, and the reason for a missing card.
        has_card: True if a card was written.
    """

    files: list[Path]
    notes: list[str]
    has_card: bool


def deploy(
    train: Path,
    weights: Sequence[Path],
    labels: Path | None,
    folder: Path,
    *,
    shapes: Mapping[str, Sequence[int]],
    level: int = 0,
    stages: Sequence[str] = (),
    overwrite: bool = False,
) -> Callable[[], Deployed]:
    """Return the function that writes the deploy net and the card of a training net.

    The card is loaded with its weights before; see ``deploy_net``.

    Args:
        train: The prototxt of the training.
        weights: The trained weights.
        labels: File with the class names.
        folder: Folder of the files.
        shapes: Shapes of inputs, in place of those of the data.
        level: Level of the net's state.
        stages: Stages added to the file's state.
        overwrite: Replace files of the folder by copies with other contents.

    Raises:
        ConfigError: See ``deploy_net``; or a file is missing, does not fit, or would be replaced.
        WeightsError: The weights cannot be read, or do not fit the net.
    """
    made = deploy_net(train, weights, shapes=shapes, level=level, stages=stages)
    with TemporaryDirectory() as temporary:
        card, reason = _derived_card(made, train, Path(temporary) / DEPLOY, weights, labels)
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
            text = (
                f"no model card: {reason}; write one by: demitasse card {folder / DEPLOY} WEIGHTS"
            )
            return Deployed([folder / DEPLOY], [*notes, text], has_card=False)
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
        with atomic_write(folder / CARD) as opened:
            opened.write(format_card(placed, folder, names).encode())
        return Deployed([folder / DEPLOY, folder / CARD, *copied], notes, has_card=True)

    return write


def trains(model: Path, weights: Sequence[Path]) -> bool:
    """Return True for the prototxt of a training net, with weights."""
    plain = is_file(model) and model.suffix not in {*WEIGHTS, ".toml", ONNX}
    return bool(weights) and plain and not has_inputs(model)


@contextmanager
def ready_files(
    files: ModelFiles, labels: Path | None = None, mean: Path | str | None = None
) -> Iterator[ModelFiles]:
    """Return files of a Caffe net with inputs: those given, or others, removed at the end.

    Args:
        files: The files. An ONNX file is imported. A deploy net takes the place of a training net;
            a missing card is derived if the data layers define the preprocessing.
        labels: File with the class names, for a derived card.
        mean: File with the mean image, for a derived card; or a text, see ``CardRequest``.

    Raises:
        ConfigError: See ``deploy_net``; or the weights do not fit the net.
        DemitasseError: An ONNX file cannot be read, or onnx is not installed.
    """
    with as_caffe_files(files) as caffe, _with_inputs(caffe, labels, mean) as ready:
        yield ready


@contextmanager
def _with_inputs(
    files: ModelFiles, labels: Path | None, mean: Path | str | None
) -> Iterator[ModelFiles]:
    """Return Caffe's files of a net with inputs; see ``ready_files``."""
    if has_inputs(files.net):
        yield files
        return
    made = deploy_net(files.net, files.weights)
    with TemporaryDirectory(prefix="demitasse-") as folder:
        file, card = Path(folder, DEPLOY), files.card
        if card is not None:
            write_text(file, made.message)
            card = replace(card, net=file)
        else:
            card, reason = _derived_card(made, files.net, file, files.weights, labels, mean)
            log.info("deploy net of %s in memory%s", files.net, f"; no card: {reason}" * (not card))
        yield ModelFiles(file, files.weights, card)


def _derived_card(
    made: DeployNet,
    train: Path,
    file: Path,
    weights: Sequence[Path],
    labels: Path | None,
    mean: Path | str | None = None,
) -> tuple[Card | None, str]:
    """Write a deploy net, check its weights, and derive its card.

    Returns:
        The card, or None and why there is none.
    """
    write_text(file, made.message)
    source = _source(made)
    reason = _obstacle(made, source)
    with Net(file, "TEST", device="numpy") as net:
        _need_weights(load_files(net, weights), weights)
        shape = tuple(net.blobs[made.outputs[0]].shape)
    if reason:
        return None, reason
    assert source is not None
    return _card(train, file, made, source, weights, labels, mean, shape), ""


def _source(made: DeployNet) -> LayerParameter | None:
    """Return the data layer of phase TEST for the first input."""
    inputs = {top for one in made.message.layer if one.type == "Input" for top in one.top}
    return next((one for one in made.tested if not one.bottom and inputs & set(one.top)), None)


def _obstacle(made: DeployNet, source: LayerParameter | None) -> str:
    """Return the reason why no card can be derived; "" if there is none."""
    if source is None or source.type not in IMAGES:
        kind = "no layer" if source is None else f"layer {source.name!r} ({source.type})"
        return f"{kind} does not define the preprocessing of images"
    inputs = [one for one in made.message.layer if one.type == "Input"]
    if len(inputs) != 1:
        return f"the net has {len(inputs)} inputs, and images one"
    dims = list(inputs[0].input_param.shape[0].dim)
    if len(dims) != 4 or dims[1] not in CHANNELS.values():
        return f"input {inputs[0].top[0]!r} has the shape {dims}, which is no gray or BGR image"
    return ""


def _card(
    train: Path,
    file: Path,
    made: DeployNet,
    source: LayerParameter,
    weights: Sequence[Path],
    labels: Path | None,
    mean: Path | str | None,
    shape: tuple[int, ...],
) -> Card:
    """Return the card of a deploy net; ``shape`` is that of the first output."""
    (dims,) = [
        list(one.input_param.shape[0].dim) for one in made.message.layer if one.type == "Input"
    ]
    name = made.outputs[0]
    kind = _type_of(made, name)
    flags: dict[str, object] = {"channels": "gray" if dims[1] == 1 else "bgr", "output": [name]}
    is_map = len(shape) == 4 and max(shape[2:]) > 1
    flags["task"] = "features" if kind != "Softmax" else "segment" if is_map else "classify"
    has_transform = training_preprocess(train) is not None
    size = _record_size(source, train.parent)
    if size and list(size) != dims[2:]:
        flags["size"] = f"{size[0]},{size[1]}"
    request = CardRequest(
        net=file,
        weights=weights,
        known="",
        train=train if has_transform else None,
        labels=labels,
        mean=mean or (None if has_transform else "none"),
        softmax=False,
        flags=flags,
    )
    card, _ = build_card(request)
    if card.labels and kind == "Softmax" and len(card.labels) != shape[1]:
        message = f"got {len(card.labels)} labels in {labels}, expected {shape[1]}, one for a score"
        raise ConfigError(
            message, code=ErrorCode.COUNT_MISMATCH, field="labels", got=len(card.labels)
        )
    return card


def _need_weights(missing: Sequence[str], weights: Sequence[Path]) -> None:
    """Refuse files that lack weights of layers.

    Raises:
        ConfigError: The weights of a layer are missing.
    """
    if missing:
        message = (
            f"got no weights for {', '.join(map(repr, missing))} in "
            f"{', '.join(map(str, weights))}; give the weights that the training of the net wrote"
        )
        raise ConfigError(message, code=ErrorCode.MISSING, field="weights", layers=list(missing))


def _type_of(made: DeployNet, blob: str) -> str:
    return next((one.type for one in reversed(made.message.layer) if blob in one.top), "")


def _record_size(source: LayerParameter, folder: Path) -> tuple[int, int] | None:
    """Return height and width of a database's first image; None if it cannot be read."""
    if source.type not in {"Data", "AnnotatedData"} or source.transform_param.HasField(
        "resize_param"
    ):
        return None
    try:
        p = source.data_param
        backend = p.DB.Name(p.backend)
        with (
            closing(open_db(resolve_path(p.source, folder), backend)) as database,
            closing(database.new_cursor()) as cursor,
        ):
            shape = datum_to_array(Datum.FromString(bytes(cursor.value()))).shape
    except (DemitasseError, OSError, ValueError):
        return None
    return shape[1], shape[2]


def _targets(
    folder: Path, files: Sequence[Path], train: Path, *, overwrite: bool
) -> dict[Path, Path]:
    """Return the place of each file in the folder: its own, or that of a copy.

    Raises:
        ConfigError: A copy would replace another file.
    """
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
