"""convert_imageset and others: databases of images, of published data sets, of features.

Source: Caffe, ``tools``, ``examples/mnist``, ``examples/siamese`` and ``examples/cifar10``; SSD
(weiliu89/caffe), ``tools/convert_annoset.cpp``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from demitasse.cli import options
from demitasse.cli.command import Command
from demitasse.cli.errors import echo, fail
from demitasse.cli.options import FILE, FOLDER, json_option, option, overwrite_option, switch
from demitasse.cli.render import print_json


def make_image_set(
    root: str, source: Path, out: Path, *, as_json: bool, backend: str, overwrite: bool,
    resume: bool, on_error: str, threads: int | None, **images: Any,
) -> None:  # fmt: skip
    """Make a database of images and print its size; ``images`` are fields of ``ImageSet``."""
    from demitasse.cli.progress import line_progress
    from demitasse.io.data.imageset import ImageSet, convert_imageset
    from demitasse.io.data.threads import THREADS

    for side in ("resize_height", "resize_width"):
        images[side] = max(images[side], 0)
    with line_progress() as progress:
        done = convert_imageset(
            root, source, out, ImageSet(**images), backend=backend, overwrite=overwrite,
            resume=resume, skip=on_error == "skip", threads=threads or THREADS, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json({"database": str(out), **done._asdict()})
        return
    left_out = f", {done.skipped} images skipped" if done.skipped else ""
    echo(f"{out}: {done.written} records written{left_out}")


image_set_options = options.option_group(
    "flags",
    dict,
    click.argument("root", metavar="ROOTFOLDER/"),
    click.argument("source", metavar="LISTFILE", type=FILE),
    click.argument("out", metavar="DB_NAME", type=FOLDER),
    switch("--gray", "Store one channel: brightness."),
    switch("--shuffle", "Store the images in random order."),
    option("--seed", "Seed of --shuffle.", int, 0),
    options.backend_option(),
    option(
        "--resize_width", "Resize to this width, in pixels. [default: 0, no resizing]", int,
        default=0,
    ),
    option(
        "--resize_height", "Resize to this height, in pixels. [default: 0, no resizing]", int,
        default=0,
    ),
    switch("--check_size", "Refuse images of different sizes."),
    switch("--encoded", "Store the bytes of image files."),
    option(
        "--encode_type", "Store the bytes of files of this format; convert other formats.",
        default="", show_default=False, metavar="jpg|png|...",
    ),
    overwrite_option,
    switch("--resume", "Resume an interrupted run with the same flags."),
    option(
        "--on_error", "Skip unreadable images with a warning, or raise an error.",
        ["skip", "raise"], "skip",
    ),
    options.threads_option,
    json_option,
)  # fmt: skip
"""Adds the flags of databases of images; the command gets ``flags``, by name."""


@click.command(cls=Command)
@image_set_options
def convert_imageset_command(flags: dict[str, Any]) -> None:
    """Make a database of the images in a list.

    LISTFILE has lines "NAME LABEL"; ROOTFOLDER/ is the folder of the images, or, as in Caffe, a
    prefix of each name. The database appears when it is complete; --resume continues an
    interrupted run.
    """
    make_image_set(**flags)


@click.command(cls=Command)
@image_set_options
@option(
    "--anno_type", "Second column of LISTFILE: a label, or the name of a file of objects.",
    ["classification", "detection"], "classification",
)  # fmt: skip
@option(
    "--label_type",
    "Format of files of objects: VOC's, COCO's, or lines of class, xmin, ymin, xmax, ymax.",
    ["xml", "json", "txt"], "xml",
)  # fmt: skip
@option("--label_map_file", "Names and numbers of the classes, a LabelMap prototxt.", FILE)
@switch("--check_label", "Refuse duplicate names of classes.")
@option(
    "--min_dim", "Enlarge images with a shorter side, in pixels. [default: 0, none]", int, default=0
)
@option("--max_dim", "Shrink longer sides to this, in pixels. [default: 0, none]", int, default=0)
def convert_annoset_command(
    flags: dict[str, Any], anno_type: str, label_type: str, label_map_file: Path | None,
    check_label: bool, min_dim: int, max_dim: int,
) -> None:  # fmt: skip
    """Make a database of the images in a list and their objects.

    LISTFILE has lines "NAME LABEL", or for --anno_type detection "NAME OBJECTS", the name of a file
    of objects; ROOTFOLDER/ is the folder of both, or a prefix of each name. AnnotatedData layers
    read the database, which appears when it is complete.
    """
    from demitasse.io.data.databases.annotation_files import read_labels
    from demitasse.io.data.imageset import Annotations

    annotations = Annotations()
    if anno_type == "detection":
        if label_map_file is None and label_type != "txt":
            fail(f"--label_map_file is missing: {label_type} files name classes")
        labels = read_labels(label_map_file, check=check_label) if label_map_file else {}
        annotations = Annotations(label_type, labels)
    make_image_set(
        **flags, min_dim=max(min_dim, 0), max_dim=max(max_dim, 0), annotations=annotations
    )


def print_record_counts(written: Mapping[Path, int], *, as_json: bool) -> None:
    """Print the number of records of each database."""
    if as_json:
        print_json({str(path): count for path, count in written.items()})
        return
    for path, count in written.items():
        echo(f"{path}: {count} records")


@click.group()
def convert_command() -> None:
    """Make databases of published data sets."""


@convert_command.command(cls=Command)
@click.argument("source", type=FOLDER)
@click.argument("out", type=FOLDER, required=False)
@options.backend_option(help="Kind of databases.")
@overwrite_option
@json_option
def mnist(source: Path, out: Path | None, backend: str, overwrite: bool, as_json: bool) -> None:
    """Make mnist_train_lmdb and mnist_test_lmdb, or LevelDBs.

    SOURCE is the folder with MNIST's four files, gzipped or not; OUT is the folder of the
    databases, by default SOURCE.
    """
    from demitasse.io.data.databases.mnist import convert

    written = convert(source, out, overwrite=overwrite, backend=backend)
    print_record_counts(written, as_json=as_json)


@click.command(cls=Command)
@click.argument("images", type=FILE)
@click.argument("labels", type=FILE)
@click.argument("out", metavar="DB_NAME", type=FOLDER)
@options.backend_option()
@overwrite_option
@json_option
def convert_mnist_data_command(
    images: Path, labels: Path, out: Path, backend: str, overwrite: bool, as_json: bool
) -> None:
    """Make a database of MNIST's files.

    IMAGES and LABELS are two of its four files, gzipped or not.
    """
    from demitasse.io.data.databases.mnist import convert_files

    count = convert_files(images, labels, out, overwrite=overwrite, backend=backend)
    print_record_counts({out: count}, as_json=as_json)


@click.command(cls=Command)
@click.argument("images", type=FILE)
@click.argument("labels", type=FILE)
@click.argument("out", metavar="DB_NAME", type=FOLDER)
@options.backend_option("LEVELDB")
@option("--seed", "Seed of the pairs.", click.IntRange(min=0), 0)
@overwrite_option
@json_option
def convert_mnist_siamese_data_command(
    images: Path, labels: Path, out: Path, backend: str, seed: int, overwrite: bool, as_json: bool
) -> None:
    """Make a database of pairs of MNIST's images.

    IMAGES and LABELS are two of its four files, gzipped or not. There are as many pairs as
    images, drawn at random; the label is 1 where both show the same digit.
    """
    from demitasse.io.data.databases.mnist import convert_pairs

    count = convert_pairs(images, labels, out, seed, overwrite=overwrite, backend=backend)
    print_record_counts({out: count}, as_json=as_json)


@click.command(cls=Command)
@click.argument("source", metavar="INPUT_FOLDER", type=FOLDER)
@click.argument("out", metavar="OUTPUT_FOLDER", type=FOLDER)
@click.argument("backend", metavar="DB_TYPE", type=options.BACKEND)
@overwrite_option
@json_option
def convert_cifar_data_command(
    source: Path, out: Path, backend: str, overwrite: bool, as_json: bool
) -> None:
    """Make databases of CIFAR-10's files.

    INPUT_FOLDER holds data_batch_1.bin to data_batch_5.bin and test_batch.bin; DB_TYPE is lmdb or
    leveldb. Makes cifar10_train_DB_TYPE and cifar10_test_DB_TYPE in OUTPUT_FOLDER.
    """
    from demitasse.io.data.databases.cifar import convert

    print_record_counts(convert(source, out, backend, overwrite=overwrite), as_json=as_json)


@click.command(cls=Command)
@click.argument("database", type=FILE)
@click.argument("out", type=FILE, required=False)
@options.backend_option(help="Kind of database.")
@json_option
def compute_image_mean_command(
    database: Path, out: Path | None, backend: str, as_json: bool
) -> None:
    """Compute the mean image of a database.

    Prints the mean of each channel. OUT, if given, is written: a .npy file by its extension, else a
    .binaryproto.
    """
    import numpy as np

    from demitasse.cli.progress import line_progress
    from demitasse.core.atomic import atomic_write
    from demitasse.io.data.transform.mean import compute_mean
    from demitasse.io.proto import floats, write_binary

    with line_progress() as progress:
        mean = compute_mean(database, backend, progress)
    array = floats(mean).reshape(mean.channels, mean.height, mean.width)
    if out is not None and out.suffix == ".npy":
        with atomic_write(out) as file:
            np.save(file, array)
    elif out is not None:
        write_binary(out, mean)
    channels = array.mean((1, 2)).tolist()
    if as_json:
        print_json({"shape": list(array.shape), "channel_means": channels})
        return
    for index, value in enumerate(channels):
        echo(f"mean_value channel [{index}]: {value:g}")


@click.command(cls=Command)
@click.argument("weights", type=FILE)
@click.argument("model", metavar="NET", type=FILE)
@click.argument("keep_blobs", metavar="BLOB[,BLOB]")
@click.argument("databases", metavar="DB_NAME[,DB_NAME]")
@click.argument("batches", type=click.IntRange(min=1))
@click.argument("backend", metavar="DB_TYPE", type=options.BACKEND)
@click.argument("mode", metavar="[CPU|GPU]", required=False, type=click.Choice(["CPU", "GPU"]))
@click.argument("gpu", metavar="[DEVICE_ID=0]", required=False, default="0")
@options.device_option("Device to run on, in place of CPU or GPU.")
@overwrite_option
@json_option
def extract_features_command(
    weights: Path, model: Path, keep_blobs: str, databases: str, batches: int, backend: str,
    mode: str | None, gpu: str, device: str | None, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write blobs of a net as databases of features.

    NET is a prototxt with a data layer; BATCHES batches are run in phase TEST. Each blob is written
    to the database at its position, a record for each item, with keys 0000000000, ...; DB_TYPE is
    lmdb or leveldb.
    """
    names = options.split_names(keep_blobs)
    paths = [Path(path) for path in options.split_names(databases)]
    if len(names) != len(paths):
        fail(f"got {len(names)} blobs and {len(paths)} databases; give a database for each blob")
    if min(len({*names}), len({*paths})) < len(names):
        fail(f"got {keep_blobs} and {databases}; give each blob and each database once")
    from demitasse.cli.evaluation import load_weights_into, write_features
    from demitasse.cli.progress import line_progress
    from demitasse.core.log import get_logger
    from demitasse.net import Net

    if mode is not None and not device:
        number = options.gpu_numbers(gpu.removeprefix("DEVICE_ID="))[0]
        device = f"cuda:{number}" if mode == "GPU" else "cpu"
    with Net(model, "TEST", device=device, keep_blobs=names) as net:
        get_logger(__name__).info("Use %s.", net.device)
        load_weights_into(net, [weights])
        outputs = dict(zip(names, paths, strict=True))
        with line_progress() as progress:
            written = write_features(
                net, outputs, batches, backend, overwrite=overwrite, progress=progress
            )
    print_record_counts(written, as_json=as_json)
