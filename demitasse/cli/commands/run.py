"""run, predict, serve and card: use a trained net."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse.cli import options
from demitasse.cli.command import Command
from demitasse.cli.errors import (
    MODEL_OR_DATA,
    echo,
    fail,
    input_errors,
    print_stderr,
    wrong_usage,
)
from demitasse.cli.options import FILE, FOLDER, POSITIVE, FloatRange, device_options, option, switch
from demitasse.core.text import shell_words

if TYPE_CHECKING:
    from demitasse.inference.prediction.parts import Format
    from demitasse.inference.serving.model import Model

weights_files = option("--weights", "Weights of a net given as a prototxt.", FILE, multiple=True)


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", type=FILE)
@click.argument("images", metavar="IMAGE...", nargs=-1)
@weights_files
@option(
    "--card card", "Use this published card, for weights that are not recognised.", default="",
    show_default=False, metavar="NAME",
)  # fmt: skip
@options.labels_option
@option("--mean", "Subtract this mean image, .npy or .binaryproto.", FILE)
@option("--top", "Show this many classes or objects. [default: 5 classes, all objects]", POSITIVE)
@option("--threshold", "Hide objects with lower scores. [default: the card's]", FloatRange(0, 1))
@option("--batch", "Most images per forward pass.", POSITIVE, 16)
@option("--every", "Step between the frames of videos and animations.", POSITIVE, 1)
@option(
    "--draw", "Write images with the predictions, or the net's images, as PNG, to a folder.", FOLDER
)
@option("--masks", "Write the class of every pixel, as PNG, to a folder.", FOLDER)
@switch("--json lines", "Print a line of JSON for each image.")
@device_options
@click.pass_context
def run_command(
    ctx: click.Context, model: Path, images: tuple[str, ...], weights: tuple[Path, ...], card: str,
    labels: Path | None, mean: Path | None, top: int | None, threshold: float | None, batch: int,
    every: int, draw: Path | None, masks: Path | None, lines: bool, device: str | None,
) -> None:  # fmt: skip
    """Run a trained net on images and print its predictions.

    MODEL is a model card (.toml), a folder with a card model.toml, an .onnx file with its card
    beside it, a prototxt with --weights, or weights with their prototxt beside them; published
    weights are recognised. IMAGEs are files, folders, videos (with OpenCV), or - for names on
    standard input.

    Unreadable images are reported on standard error and skipped; the exit code is then 3.
    """
    from demitasse.cli.deployment import ready_files, trains
    from demitasse.cli.run_images import ImageInput, ImageWriter, json_line, read_images, text_lines
    from demitasse.core.paths import check_exists
    from demitasse.core.text import escaped
    from demitasse.errors import ConfigError, DataError, ErrorCode
    from demitasse.inference.cards import Predictor, find_card
    from demitasse.inference.cards.model_files import ModelFiles
    from demitasse.inference.cards.published import recognize

    if not images:
        check_exists(model)
        fail("Missing argument 'IMAGE...'.")
    with input_errors():
        if not card and trains(model, weights) and recognize(weights) is None:
            found = ModelFiles(model, weights, None)
        else:
            known = find_card(model, weights, card=card, labels=labels, mean=mean)
            assert known.net is not None
            found = ModelFiles(known.net, known.weights, known)
        with ready_files(found, labels, mean) as ready:
            if ready.card is None:
                text = f"{model} does not say how images are prepared; give a card (.toml)"
                raise ConfigError(text, code=ErrorCode.MISSING, field="card")
            predictor = Predictor(ready.card, device=device, threshold=threshold)
    shown = read_images(images, predictor.color, every)
    drawings = None if draw is None else ImageWriter(draw)
    classes = None if masks is None else ImageWriter(masks)
    broken = False
    for image, answer in predictor.stream(shown, ImageInput.pixels, batch):
        if isinstance(answer, DataError):
            broken = True
            print_stderr(f"error: {escaped(f'{image.name}: {answer.message}')}")
        else:
            if drawings is not None:
                drawings.draw(image, answer)
            if classes is not None:
                classes.mask(image, answer)
        if lines:
            echo(json_line(image, answer, top))
        elif not isinstance(answer, DataError):
            echo(text_lines(image, answer, top))
    if broken:
        ctx.exit(MODEL_OR_DATA)


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", type=FILE)
@click.argument("inputs", metavar="INPUT...", nargs=-1)
@weights_files
@option("--out -o", "The folder of parts; with --join, the file.", FILE, required=True)
@option(
    "--shard", "Share of this process, from 0; auto asks MPI, a Slurm array or a Kubernetes job.",
    default="0/1", metavar="i/n|auto",
)  # fmt: skip
@option("--batch", "Items per forward pass.", POSITIVE, 16)
@option(
    "--format kind",
    "Write arrays of the outputs, or a line of JSON per item, as the card defines.",
    ["npz", "jsonl"], "npz",
)  # fmt: skip
@option(
    "--output keep_blobs", "Write this blob in place of the outputs. Repeatable.", metavar="BLOB",
    multiple=True,
)  # fmt: skip
@switch("--force", "Replace a part of another model, other items or another batch size.")
@switch("--join", "Join the parts in the folder MODEL into one file.")
@device_options
def predict_command(
    model: Path, inputs: tuple[str, ...], weights: tuple[Path, ...], out: Path, shard: str,
    batch: int, kind: Format, keep_blobs: tuple[str, ...], force: bool, join: bool,
    device: str | None,
) -> None:  # fmt: skip
    """Run a trained net on many inputs and write its outputs in parts.

    MODEL is as for run; arrays and databases need no published weights or card. INPUTs are images,
    folders and lists (.txt) of images, or one LMDB or LevelDB database, or one file of arrays
    (.npy, .npz, .h5). A part is written completely or not at all, and an existing part is not
    written again. demitasse predict --join FOLDER -o FILE joins the parts.
    """
    from demitasse.cli.deployment import ready_files
    from demitasse.cli.progress import line_progress
    from demitasse.inference.cards.model_files import find_model
    from demitasse.inference.prediction import BatchRunner, find_shard, join_parts, make_part
    from demitasse.inference.prediction.items import find_items

    if join:
        if inputs:
            fail("--join takes one folder of parts and no INPUT")
        count = join_parts(model, out)
        echo(f"{out}: {count} parts")
        return
    if not inputs:
        fail("Missing argument 'INPUT...'.")
    with wrong_usage():
        part = find_shard(shard, os.environ)
    if shard.startswith("auto"):
        echo(f"Shard {part}, from {part.where}")
    with ExitStack() as imported:
        with input_errors():
            files = imported.enter_context(ready_files(find_model(model, weights)))
            runner = BatchRunner(files, device, keep_blobs)
            items = find_items(inputs, runner.net.inputs)
        with line_progress() as progress:
            path, made = make_part(
                out, part, runner, items,
                batch_size=batch, kind=kind, force=force, progress=progress,
            )  # fmt: skip
    echo(f"{path}: {'made' if made else 'exists already'}")


MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""Pattern of a model's name."""


@click.command(cls=Command)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@weights_files
@option(
    "--host", "Address to listen on; the default accepts connections from this machine alone.",
    default="127.0.0.1", metavar="ADDRESS",
)  # fmt: skip
@option("--port", "Port to listen on; 0 for a free port.", click.IntRange(0, 65535), 8000)
@option("--workers", "Threads per model, each with its own net.", POSITIVE, 1)
@option("--max_batch", "Most items per forward pass.", POSITIVE, 16)
@option(
    "--max_delay", "Milliseconds that a request waits for a larger batch. [default: 0]",
    FloatRange(0, 60_000), default=0.0, metavar="MS",
)  # fmt: skip
@option(
    "--max_queue", "Requests that can wait for a model; further requests get status 503.", POSITIVE,
    128,
)  # fmt: skip
@option("--max_bytes", "Most bytes of a request.", POSITIVE, 1 << 25)
@option(
    "--timeout", "Time limit of receiving a request, and again of answering it.",
    FloatRange(0.001, 86_400), 60.0, metavar="SECONDS",
)  # fmt: skip
@device_options
def serve_command(
    models: tuple[str, ...], weights: tuple[Path, ...], max_delay: float, max_bytes: int,
    timeout: float, **settings: Any,
) -> None:  # fmt: skip
    """Serve trained nets over HTTP, by KServe's protocol, version 2.

    Each MODEL is a card (.toml), a folder with a card model.toml, an .onnx file, weights with their
    prototxt beside them, or one prototxt with --weights; NAME=MODEL sets the name for clients.
    SIGTERM and Ctrl-C stop the server after the requests under way.
    """
    from demitasse.cli.deployment import ready_files
    from demitasse.inference.cards.model_files import find_model
    from demitasse.inference.serving.app import Limits
    from demitasse.inference.serving.server import ServerConfig, serve

    named = [_name_and_path(text) for text in models]
    names = [name for name, _ in named]
    for name, path in named:
        if names.count(name) > 1:
            fail(f"two models have the name {name!r}; name them: one={path}")
    if weights and len(models) > 1:
        fail("--weights needs a single MODEL; give files of weights beside their prototxts")
    how = ServerConfig(**settings, max_delay=max_delay / 1000, limits=Limits(max_bytes, timeout))
    with ExitStack() as imported:
        with input_errors():
            found = {}
            for name, path in named:
                found[name] = imported.enter_context(ready_files(find_model(path, weights)))
        serve(found, how, _print_models)


def _name_and_path(text: str) -> tuple[str, Path]:
    given = re.fullmatch(rf"({MODEL_NAME})=(.+)", text, re.DOTALL)
    if given is not None:
        return given[1], Path(given[2])
    path = Path(text)
    stem = (path if path.is_dir() else path.with_suffix("")).resolve().name
    name = path.resolve().parent.name if path.name == "model.toml" else stem
    if re.fullmatch(MODEL_NAME, name) is None:
        fail(f"{name!r} cannot be a model's name; give a name: NAME={text}")
    return name, path


def _print_models(address: str, models: Sequence[Model]) -> None:
    for model in models:
        inputs = ", ".join(f"{port.name} {list(port.shape)}" for port in model.inputs)
        joined = f"up to {model.max_batch} at once" if model.can_batch else "one request at a time"
        echo(f"{address}/v2/models/{model.name}  {inputs}, {joined}")
    if address.startswith(("http://127.", "http://[::1]")):
        echo("Only this machine can connect; --host 0.0.0.0 opens the server to the network")
    echo("Ready")


def _show_list(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    del param
    if not wanted:
        return
    from demitasse.cli.render import table
    from demitasse.inference.cards.published import published_cards

    rows = [(one.key, one.name, "yes" if one.recognisable else "no") for one in published_cards()]
    echo(table(("card", "model", "recognised"), rows))
    ctx.exit()


@click.command(cls=Command)
@click.argument("net", type=FILE)
@click.argument("weights", metavar="WEIGHTS...", nargs=-1, type=FILE)
@switch(
    "--list", "Print the published cards and exit.", is_eager=True, expose_value=False,
    callback=_show_list,
)  # fmt: skip
@option("--out", "File of the card. [default: model.toml beside NET]", FILE)
@switch("--overwrite", "Replace an existing card.")
@option("--card known", "Start from this published card.", metavar="NAME")
@option("--train", "Prototxt of the training, for mean, scale, crop and size.", FILE)
@option("--task", "Task of the net.", ["classify", "detect", "segment", "image", "features"])
@option("--channels", "Order of the net's channels.", ["bgr", "rgb", "gray", "y", "l"])
@option("--size", "Resize images to this size.", metavar="PIXELS|H,W")
@option(
    "--resize",
    "Resize to --size: both sides, the short side, by this factor, or not. [default: warp]",
    ["warp", "short side", "factor", "none"],
)
@option("--crop", "Crop the centre to this size.", metavar="PIXELS|H,W")
@option(
    "--mean",
    "Subtract this from pixels of 0 to 255: a number for each channel, with commas between, "
    "a file, or none.",
    metavar="NUMBERS|FILE|none",
)
@option("--scale", "Multiply by this after the mean. [default: 1]", metavar="NUMBERS")
@options.labels_option
@option("--input", "Input of the net, if it has several.", metavar="BLOB")
@option(
    "--output", "Read this blob. Repeatable. [default: the net's outputs]", metavar="BLOB",
    multiple=True,
)  # fmt: skip
@switch("--softmax", "Apply softmax to the scores of classes.")
@option("--name", "Name of the model. [default: the net's name]")
@option("--source", "Origin of the model.")
@option("--licence", "Licence of the model.")
def card_command(
    net: Path, weights: tuple[Path, ...], out: Path | None, overwrite: bool, known: str | None,
    train: Path | None, labels: Path | None, mean: str | None, **flags: object,
) -> None:  # fmt: skip
    """Write a model card, which defines a net's preprocessing and labels for `demitasse run`.

    NET is a prototxt, or an .onnx file without WEIGHTS. Published weights are recognised. For other
    weights, flags give what NET and --train do not define. The card names files relative to its
    folder; the model is loaded as a check.
    """
    from demitasse.cli.card_builder import build_card
    from demitasse.cli.deployment import ready_files
    from demitasse.core.atomic import write_bytes
    from demitasse.inference.cards.card_file import CARD, ONNX, format_card
    from demitasse.inference.cards.model_files import ModelFiles
    from demitasse.inference.cards.predictor import Predictor

    if bool(weights) == (net.suffix == ONNX):
        fail("WEIGHTS are needed with a prototxt, and not with an .onnx file")
    path = out or net.parent / CARD
    if path.exists() and not overwrite:
        fail(f"{path} exists; replace it by --overwrite, or give another file by --out")
    given = ModelFiles(net, weights, None)
    with input_errors(), ready_files(given, labels, mean) as ready:
        if ready.card is not None and not known:  # a training net defines most of it
            how = ready.card.preprocess
            derived: dict[str, object] = {
                "task": ready.card.task, "channels": how.channels, "output": ready.card.outputs,
                "size": ",".join(map(str, how.size)),
            }  # fmt: skip
            flags = derived | {key: value for key, value in flags.items() if value}
            train = train or net
        card, label_file = build_card(
            ready.net,
            ready.weights,
            known=known,
            train=train,
            labels=labels,
            mean=mean,
            flags=flags,
        )
        Predictor(card, device="numpy").net.close()
        card = replace(card, net=net, weights=weights)
        text = format_card(card, path.parent, label_file)
    write_bytes(path, text.encode())
    echo(f"Wrote {path}: demitasse run {shell_words(path)} IMAGE...")
    if mean and not (known or train or flags.get("scale")) and card.preprocess.scale == (1.0,):
        echo("No scale: if the training multiplied pixels, as by 0.00390625, give it by --scale")
