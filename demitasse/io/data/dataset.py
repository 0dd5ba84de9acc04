"""Data sets of class folders: lists, databases for training and test, labels and the mean.

A data set is a folder with ``labels.txt``, the lists ``train.txt`` and ``test.txt``, the LMDBs
``train_lmdb`` and ``test_lmdb``, and ``mean.binaryproto``, the mean of the training images.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demitasse.core.atomic import partial_folder, put_in_place
from demitasse.core.log import get_logger
from demitasse.core.paths import code_of, read_text, real_path
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.databases.database import open_db
from demitasse.io.data.images.codecs import IMAGES, files_in
from demitasse.io.data.imageset import ImageSet, convert_imageset, read_lines
from demitasse.io.data.sources.sampler import EpochPermutation
from demitasse.io.data.threads import THREADS
from demitasse.io.data.transform.mean import compute_mean, read_mean
from demitasse.io.proto import write_binary

log = get_logger(__name__)

LABELS, MEAN = "labels.txt", "mean.binaryproto"
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
"""Names of folders, in lower case, that hold parts of a data set rather than a class."""

PARTS = ("train", "test")
NAMES = {LABELS, MEAN, *(f"{part}{end}" for part in PARTS for end in (".txt", "_lmdb"))}
"""Names of the files and folders of a data set."""

MOST = 1 << 16  # largest side of an image, in pixels


@dataclass(frozen=True)
class DatasetOptions:
    """Options of a data set.

    Attributes:
        size: Height and width of the stored images, in pixels.
        gray: Store one channel instead of BGR.
        test: Fraction of each class that is kept for the test.
        max_per_class: Largest number of images of a class; None for no limit.
        skip: Skip unreadable images with a warning instead of raising an error.
    """

    size: tuple[int, int] = (64, 64)
    gray: bool = False
    test: float = 0.2
    seed: int = 0
    max_per_class: int | None = None
    skip: bool = False


@dataclass(frozen=True)
class Dataset:
    """A data set; ``mean`` is the mean of each channel of the training images, from 0 to 255."""

    folder: Path
    labels: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    train: int
    test: int


def make_dataset(
    source: Path, out: Path, options: DatasetOptions | None = None, *, overwrite: bool = False,
    threads: int = THREADS, progress: Callable[[int, int], None] | None = None,
) -> Dataset:  # fmt: skip
    """Write the images of class folders as a data set; ``out`` appears when it is complete.

    The classes are the sorted names of the subfolders of ``source``. Each class is split by the
    seed, and the images of all classes are shuffled. ``progress`` is called after each image with
    the images done and the number of images.

    Raises:
        ConfigError: An option is out of range.
        DataError: ``source`` has no two classes, a class has no images, an image cannot be read, or
            ``out`` exists.
    """
    options = options or DatasetOptions()
    _check_options(options)
    _check_out(source, out, overwrite=overwrite)
    classes = _classes(source)
    lists = _split(classes, options)
    total = sum(map(len, lists.values()))
    out = real_path(out) if out.is_symlink() else out
    height, width = options.size
    how = ImageSet(gray=options.gray, resize_height=height, resize_width=width)
    with partial_folder(out) as partial:
        folder = partial / "dataset"
        folder.mkdir()
        _write_lines(folder / LABELS, list(classes))
        done = 0
        for part, lines in lists.items():
            file, database = folder / f"{part}.txt", folder / f"{part}_lmdb"
            _write_lines(file, lines)

            def report(count: int, _: int, done: int = done) -> None:
                if progress is not None:
                    progress(done + count, total)

            converted = convert_imageset(
                f"{source}/", file, database, how, skip=options.skip, threads=threads,
                progress=report,
            )  # fmt: skip
            if converted.skipped:  # the list has the images that were read
                _write_lines(file, [lines[int(key.partition(b"_")[0])] for key in _keys(database)])
            done += len(lines)
        found = {line.label for line in read_lines(folder / "train.txt")}
        lost = [name for label, name in enumerate(classes) if label not in found]
        if lost:
            names = ", ".join(map(repr, lost))
            message = f"no training image of {names} can be read; see the warnings"
            raise DataError(message, code=ErrorCode.UNREADABLE, classes=lost)
        write_binary(folder / MEAN, compute_mean(folder / "train_lmdb"))
        made = read_dataset(folder)
        _check_out(source, out, overwrite=overwrite)  # files may have come meanwhile
        put_in_place(folder, out)
    return replace(made, folder=out)


def read_dataset(folder: Path) -> Dataset:
    """Return the data set in a folder."""
    missing = sorted(name for name in NAMES if not (folder / name).exists())
    if missing:
        message = (
            f"got a folder without {', '.join(missing)}, expected a data set; make one by: "
            f"demitasse dataset PHOTOS {folder}"
        )
        raise DataError(message, str(folder), code=ErrorCode.NOT_FOUND, files=missing)
    try:
        labels = read_text(folder / LABELS).removesuffix("\n").split("\n")
    except OSError as error:
        message = error.strerror or str(error)
        raise DataError(message, str(folder / LABELS), code=code_of(error)) from error
    mean = read_mean(folder / MEAN)
    channels, height, width = mean.shape
    train, test = (len(_keys(folder / f"{part}_lmdb")) for part in PARTS)
    values = tuple(mean.mean((1, 2), dtype=np.float64).tolist())
    return Dataset(folder, tuple(labels), (channels, height, width), values, train, test)


def _check_options(options: DatasetOptions) -> None:
    good_size = all(1 <= side <= MOST for side in options.size)
    fields = {
        "size": (good_size, f"height and width from 1 to {MOST}"),
        "test": (0 < options.test < 1, "a fraction above 0 and below 1"),
        "seed": (0 <= options.seed < 1 << 32, "a number from 0 to 4294967295"),
        "max_per_class": ((options.max_per_class or 2) >= 2, "at least 2"),
    }
    for field, (valid, expected) in fields.items():
        if not valid:
            value = getattr(options, field)
            message = f"got {field} {value}, expected {expected}"
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field=field, got=value)


def _check_out(source: Path, out: Path, *, overwrite: bool) -> None:
    """Refuse to write into the images, or over anything but a data set."""
    if real_path(out).is_relative_to(real_path(source)):
        message = f"lies in {source}, whose folders are classes; write the data set elsewhere"
        raise DataError(message, str(out), code=ErrorCode.CONFLICT)
    if not out.exists():
        return
    names = {one.name for one in out.iterdir()} if out.is_dir() else {out.name}
    if not names:
        return
    if not overwrite:
        message = "exists already; write elsewhere, or replace the data set by --overwrite"
        raise DataError(message, str(out), code=ErrorCode.EXISTS)
    if not out.is_dir() or LABELS not in names or not names <= NAMES:
        message = "is no folder with a data set alone, so it is not overwritten"
        raise DataError(message, str(out), code=ErrorCode.EXISTS)


def _classes(source: Path) -> dict[str, list[str]]:
    """Return the classes, each with its images relative to the folder of all classes."""
    try:
        folders = sorted(
            one for one in source.iterdir() if one.is_dir() and not one.name.startswith(".")
        )
        loose = [one for one in source.iterdir() if one.suffix.lower() in IMAGES]
        classes = {
            one.name: [path.relative_to(source).as_posix() for path in files_in(one, IMAGES)]
            for one in folders
        }
    except OSError as error:
        message = f"the folder of images cannot be read: {error.strerror or error}"
        raise DataError(message, str(error.filename or source), code=code_of(error)) from error
    if len(classes) < 2:
        message = (
            f"got {len(classes)} class folders and {len(loose)} images beside, expected a folder "
            f"for each class, and at least two: {source.name}/CLASS/IMAGE"
        )
        raise DataError(message, str(source), code=ErrorCode.MISSING, got=len(classes))
    empty = [name for name, images in classes.items() if not images]
    if empty:
        names = ", ".join(map(repr, empty))
        message = f"got class folders without images: {names}; add images, or remove the folders"
        raise DataError(message, str(source), code=ErrorCode.NOT_FOUND, classes=empty)
    for name in [*classes, *(image for images in classes.values() for image in images)]:
        if any(end in name for end in "\n\r\0"):
            message = f"got a line break in the name {name!r}, expected a line for a name"
            raise DataError(message, str(source), code=ErrorCode.INVALID, got=name)
    if {name.lower() for name in classes} <= SPLITS:
        largest = max(classes, key=lambda name: len(classes[name]))
        message = "The classes are %s; if the classes are within these folders, give one folder: %s"
        log.warning(message, " and ".join(classes), source / largest)
    if loose:
        log.warning("Left out %d images in %s that are in no class folder", len(loose), source)
    return classes


def _split(classes: dict[str, list[str]], options: DatasetOptions) -> dict[str, list[str]]:
    """Return shuffled lines for training and test; both have each class of two images or more."""
    lists: dict[str, list[str]] = {part: [] for part in PARTS}
    for label, (name, images) in enumerate(classes.items()):
        chosen = _shuffled(images, options.seed, f"class/{name}")[: options.max_per_class]
        count = min(max(round(len(chosen) * options.test), 1), len(chosen) - 1)
        if not count:
            log.warning("Class %r has a single image, so no image for the test", name)
        lists["test"] += [f"{image} {label}" for image in chosen[:count]]
        lists["train"] += [f"{image} {label}" for image in chosen[count:]]
    if not lists["test"]:
        message = "got a single image in each class, expected two or more: for training and test"
        raise DataError(message, code=ErrorCode.MISSING)
    return {part: _shuffled(lines, options.seed, part) for part, lines in lists.items()}


def _shuffled(items: list[str], seed: int, name: str) -> list[str]:
    order = EpochPermutation(len(items), seed, f"dataset/{name}", shuffle=True).of_round(0)
    return [items[number] for number in order.tolist()]


def _write_lines(file: Path, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))


def _keys(database: Path) -> list[bytes]:
    keys = []
    with closing(open_db(database)) as opened, closing(opened.new_cursor()) as cursor:
        while cursor.valid():
            keys.append(cursor.key())
            cursor.next()
    return keys
