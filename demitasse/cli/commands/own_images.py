"""dataset, new and deploy: from a folder of images to a trained net in use."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from demitasse.cli import options
from demitasse.cli.command import Command
from demitasse.cli.errors import echo, fail, input_errors
from demitasse.cli.options import FILE, FOLDER, option, switch
from demitasse.cli.render import print_json
from demitasse.core.text import shell_words

replace_option = switch("--overwrite", "Replace existing files.")


def _size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """Return height and width of "64" or "48x64"."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})(?:[x,](\d{1,6}))?", text, re.ASCII)
    if found is None:
        message = f"got {text!r}, expected pixels, such as 64, or HxW, such as 48x64"
        raise click.BadParameter(message)
    return int(found[1]), int(found[2] or found[1])


@click.command(cls=Command)
@click.argument("source", metavar="PHOTOS", type=FOLDER)
@click.argument("out", type=FOLDER)
@option(
    "--size", "Resize the images to this size.", default="64", metavar="PIXELS|HxW", callback=_size
)
@switch("--gray", "Store one channel: brightness.")
@option(
    "--test", "Part of each class that is kept for the test.",
    options.FloatRange(0, 1, min_open=True, max_open=True), 0.2,
)  # fmt: skip
@option(
    "--max_per_class",
    "Take this many images of a class at most, chosen by the seed. [default: all]",
    click.IntRange(min=2),
)
@option("--seed", "Seed of the split and of the order.", click.IntRange(0, (1 << 32) - 1), 0)
@option(
    "--on_error", "Raise an error for an unreadable image, or skip it with a warning.",
    ["raise", "skip"], "raise",
)  # fmt: skip
@options.threads_option
@options.overwrite_option
@options.json_option
def dataset_command(
    source: Path, out: Path, size: tuple[int, int], gray: bool, test: float,
    max_per_class: int | None, seed: int, on_error: str, threads: int | None, overwrite: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Make databases for training and test of the images in class folders.

    PHOTOS has a folder of images for each class. OUT gets train_lmdb, test_lmdb, their lists,
    labels.txt and mean.binaryproto. OUT appears when it is complete; after an interruption, run the
    command again.
    """
    from demitasse.cli.progress import line_progress
    from demitasse.io.data.dataset import DatasetOptions, make_dataset
    from demitasse.io.data.threads import THREADS

    chosen = DatasetOptions(size, gray, test, seed, max_per_class, skip=on_error == "skip")
    with line_progress() as progress:
        made = make_dataset(
            source, out, chosen, overwrite=overwrite, threads=threads or THREADS, progress=progress
        )
    if as_json:
        print_json({**asdict(made), "folder": str(out)})
        return
    for channel, value in enumerate(made.mean):
        echo(f"mean_value channel [{channel}]: {value:g}")
    echo(
        f"{out}: {len(made.labels)} classes, {made.train} images for training, {made.test} to test"
    )
    echo(f"Next: demitasse new --data {shell_words(out)}")


@click.command(cls=Command)
@option("--data", "Folder of `demitasse dataset`, for classes, size and mean.", FOLDER)
@option("--classes", "Number of classes, without --data.", click.IntRange(min=2))
@option(
    "--net name", "The net. [default: lenet for small gray images, else cifar10_quick]",
    ["lenet", "cifar10_quick", "resnet20", "squeezenet"],
)  # fmt: skip
@option(
    "--size", "Size of the images, without --data. [default: the net's]", metavar="PIXELS|HxW",
    callback=_size,
)  # fmt: skip
@switch("--gray", "Images have one channel, without --data.")
@option("--out -o", "Folder of the files. [default: this folder]", FOLDER, default=".")
@replace_option
def new_command(
    data: Path | None, classes: int | None, name: str | None, size: tuple[int, int] | None,
    gray: bool, out: Path, overwrite: bool,
) -> None:  # fmt: skip
    """Write train_val.prototxt and solver.prototxt, to start from.

    With --data, classes, size, mean and databases are those of the folder. squeezenet is for
    fine-tuning: its layers have the names of the published weights of SqueezeNet 1.1, except for
    the last layer.
    """
    from demitasse.core.atomic import write_bytes
    from demitasse.examples.nets import NETS, StartData, default_net, net_files
    from demitasse.io.data.dataset import read_dataset

    prefix = "" if out == Path() else f"{out.as_posix()}/"
    if data is not None:
        if size is not None or gray:
            fail("--size and --gray are for nets without --data; the data has its own")
        found = read_dataset(data)
        if classes is not None and classes != len(found.labels):
            fail(f"got --classes {classes}, but {data} has {len(found.labels)}; omit the flag")
        sources = ((data / "train_lmdb").as_posix(), (data / "test_lmdb").as_posix())
        mean = tuple(round(value, 2) for value in found.mean)
        start = StartData(len(found.labels), found.shape, mean, sources, found.train, found.test)
    elif classes is None:
        fail("give the folder of `demitasse dataset` by --data, or a number by --classes")
    else:
        side = NETS[name or ("lenet" if gray else "cifar10_quick")].size
        shape = (1 if gray else 3, *(size or (side, side)))
        sources = (f"{prefix}train_lmdb", f"{prefix}test_lmdb")
        start = StartData(classes, shape, (127.5,) * shape[0], sources)
    chosen = name or default_net(start.shape)
    texts = net_files(chosen, start, prefix)
    _need_new([out / file for file in texts], overwrite=overwrite)
    out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        write_bytes(out / file, text.encode("utf-8", "surrogateescape"))
    echo(f"Wrote {' and '.join(str(out / file) for file in texts)}: {chosen}, "
         f"{start.classes} classes, images of {'x'.join(map(str, start.shape))}")  # fmt: skip
    weights = " --weights squeezenet_v1.1.caffemodel" if chosen == "squeezenet" else ""
    echo(f"Next: demitasse train --solver {shell_words(out / 'solver.prototxt')}{weights}")


def _need_new(files: list[Path], *, overwrite: bool) -> None:
    existing = [str(file) for file in files if file.exists()]
    if existing and not overwrite:
        fail(f"{' and '.join(existing)} exist; replace by --overwrite, or write elsewhere by --out")


@click.command(cls=Command)
@click.argument("net", metavar="TRAIN_VAL", type=FILE)
@option("--weights", "The trained weights.", FILE, multiple=True, required=True)
@options.labels_option
@option("--mean", "Mean, in place of that of the data layer.", metavar="NUMBERS|FILE|none")
@option("--out -o", "Folder of the files. [default: the folder of TRAIN_VAL]", FOLDER)
@options.shape_option("Shape of an input, in place of that of the data.")
@replace_option
@options.state_options
def deploy_command(
    net: Path, weights: tuple[Path, ...], labels: Path | None, mean: str | None, out: Path | None,
    shapes: dict[str, tuple[int, ...]], overwrite: bool, state: dict[str, Any],
) -> None:  # fmt: skip
    """Write the deploy net of a training net, and its model card.

    Writes deploy.prototxt and model.toml. Data layers become inputs, losses become Softmax or
    Sigmoid or are left out, metrics are left out. The card has the preprocessing of the data layer
    and the labels. Weights, labels and mean outside of the folder are copied into it.
    """
    from demitasse.cli.deployment import deploy

    folder = out or net.parent
    _need_new([folder / "deploy.prototxt", folder / "model.toml"], overwrite=overwrite)
    with input_errors():
        write = deploy(
            net, weights, labels, mean, folder, shapes=shapes, overwrite=overwrite, **state
        )
    done = write()
    for note in done.notes:
        echo(note)
    echo(f"Wrote {' and '.join(map(str, done.files))}")
    if done.has_card:
        echo(f"Next: demitasse run {shell_words(folder)} IMAGE...")
