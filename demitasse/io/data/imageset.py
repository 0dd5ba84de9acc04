"""Databases of image files that a list names, with labels or with the objects in them.

Source: Caffe, ``tools/convert_imageset.cpp`` and ``src/caffe/util/io.cpp``; SSD (weiliu89/caffe),
``tools/convert_annoset.cpp``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.core.log import get_logger
from demitasse.core.paths import read_bytes, read_failure, read_text
from demitasse.errors import DataError
from demitasse.io.data.databases.annotated import add_object
from demitasse.io.data.databases.annotation_files import read_objects
from demitasse.io.data.databases.database import Database
from demitasse.io.data.databases.writing import Records, resumable_database
from demitasse.io.data.images.decode import decode_image
from demitasse.io.data.images.encode import encode_image, need_encoder
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.sources.order import Order
from demitasse.io.data.threads import THREADS, ahead
from demitasse.io.proto import AnnotatedDatum, Datum

__all__ = ["Annotations", "Converted", "ImageSet", "convert_imageset"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Annotations:
    """What records of the type ``AnnotatedDatum`` hold.

    Attributes:
        label_type: Kind of the files that the list names beside images: xml, json or txt; None
            where it has labels, as for classification.
        labels: Numbers of the classes that those files name.
    """

    label_type: str | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageSet:
    """What becomes of the images of a list.

    Attributes:
        gray: Store one channel, in place of blue, green, red.
        resize_height: Height in pixels; 0, or a width of 0, leaves the size as it is.
        resize_width: Width in pixels.
        min_dim: Images whose shorter side is shorter than this are enlarged to it, in pixels; they
            keep their proportions, and ``resize_height`` does not count.
        max_dim: Where the longer side would be longer than this, it is made as long; 0 for any.
        check_size: Refuse images whose number of values differs from the first one's.
        encoded: Store the bytes of image files, in the format of each file.
        encode_type: Store the bytes of files of this format: jpg, png, ...; empty for none.
        shuffle: Store them in another order.
        seed: What that order depends on.
        annotations: What is known of the images beside one label; records are ``AnnotatedDatum``
            then, and ``Datum`` with None.
    """

    gray: bool = False
    resize_height: int = 0
    resize_width: int = 0
    min_dim: int = 0
    max_dim: int = 0
    check_size: bool = False
    encoded: bool = False
    encode_type: str = ""
    shuffle: bool = False
    seed: int = 0
    annotations: Annotations | None = None

    @property
    def keeps_size(self) -> bool:
        """Whether images are stored in the size they have."""
        return not (self.resize_height or self.resize_width or self.min_dim or self.max_dim)

    @property
    def has_objects(self) -> bool:
        """Whether the list names a file of objects for each image."""
        return self.annotations is not None and self.annotations.label_type is not None

    def resize(self, pixels: np.ndarray) -> np.ndarray:
        """Return an image in the size it is to have. Shapes: (C, H, W) -> (C, H', W'), uint8."""
        sides = pixels.shape[1:]
        if self.min_dim or self.max_dim:
            scale = float(self._scale(min(sides), max(sides)))
            if scale == 1:
                return pixels
            height, width = (round(side * scale) for side in sides)
            return resize_image(pixels, height, width, 1 / scale)
        if self.resize_height > 0 and self.resize_width > 0:
            return resize_image(pixels, self.resize_height, self.resize_width)
        return pixels

    def _scale(self, shorter: int, longer: int) -> np.float32:
        """Return what the sides are multiplied with, in the numbers that SSD computes with."""
        scale = np.float32(1)
        if self.min_dim and shorter < self.min_dim:
            scale = np.float32(self.min_dim) / np.float32(shorter)
        if self.max_dim and int(scale * np.float32(longer)) > self.max_dim:
            scale = np.float32(self.max_dim) / np.float32(longer)
        return scale


class Line(NamedTuple):
    """A line of the list.

    Attributes:
        name: Of an image.
        label: Its label; -1 where there is a file of objects.
        objects: The name of that file.
    """

    name: str
    label: int
    objects: str = ""


class Converted(NamedTuple):
    """What a conversion did: how many records it wrote, and how many lines it left out."""

    written: int
    skipped: int


class _Record(NamedTuple):
    """A record, and how many values its image has."""

    message: Datum | AnnotatedDatum
    values: int


def convert_imageset(
    root: str,
    source: Path,
    out: Path,
    how: ImageSet | None = None,
    *,
    backend: str = "LMDB",
    overwrite: bool = False,
    resume: bool = False,
    skip: bool = True,
    threads: int = THREADS,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write the images of a list as a database, with the keys ``00000000_NAME``, ...

    Args:
        root: What stands before each name; a folder, with its slash.
        source: The list, with lines ``name label``; names may hold spaces.
        out: The folder to make; it appears when it is complete.
        how: What becomes of the images.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        overwrite: Whether to replace what is at ``out``.
        resume: Whether to go on where an earlier call was interrupted.
        skip: Whether to leave images out that cannot be read, with a warning, as Caffe does.
        threads: How many images are decoded at the same time.
        progress: Is told after each line how many are done, of how many.

    Returns:
        How many records this call wrote, and how many lines it left out.

    Raises:
        ConfigError: There is no such backend or format.
        DataError: The list or, unless skipped, an image cannot be read; or see
            ``resumable_database``.
        OSError: The database cannot be written, e.g. because the disk is full.
    """
    how = how or ImageSet()
    if how.encode_type:
        need_encoder(how.encode_type)
    lines = read_lines(source, objects=how.has_objects)
    if how.shuffle:
        log.info("Shuffling data")
        order = Order(len(lines), how.seed, "convert_imageset", shuffle=True).of_round(0)
        lines = [lines[number] for number in order.tolist()]
    log.info("A total of %d images.", len(lines))
    digest = hashlib.sha256("\n".join(map(str, lines)).encode("utf-8", "surrogateescape"))
    settings = {**asdict(how), "root": root, "list": digest.hexdigest()}
    with resumable_database(out, backend, settings, overwrite=overwrite, resume=resume) as database:
        first = _lines_done(database)
        if first:
            log.info("Going on after line %d", first)
        work = partial(_read_or_fault, root, how)
        writer = _Writer(database, how, skip=skip)
        with closing(ahead(work, lines[first:], threads)) as results:
            for number, result in enumerate(results, first):
                writer.add(number, lines[number], result)
                if progress is not None:
                    progress(number + 1, len(lines))
        if writer.skipped and writer.skipped == len(lines):
            message = f"none of its {len(lines)} images can be read under {root!r}"
            raise DataError(message, str(source))
        writer.finish()
    return Converted(writer.written, writer.skipped)


def read_lines(source: Path, *, objects: bool = False) -> list[Line]:
    """Read a list: on each line a name, a space, and a label, or a file of objects.

    As in Caffe, a label is the number that the text begins with, or 0.

    Raises:
        DataError: It cannot be read, or holds no lines.
    """
    try:
        text = read_text(source)
    except OSError as error:
        message = f"the list of images cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source)) from error
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        message = "the list of images is empty; it needs lines 'path label'"
        raise DataError(message, str(source))
    parts = (line.rpartition(" ") for line in lines)
    if objects:
        return [Line(name, -1, file.strip()) for name, _, file in parts]
    return [Line(name if space else label, _label(label)) for name, space, label in parts]


def _label(text: str) -> int:
    found = re.match(r"\s*([+-]?\d{1,18})", text, re.ASCII)
    return int(found[1]) if found else 0


class _Writer:
    """Puts records into a database, in order, and leaves out what cannot be read."""

    def __init__(self, database: Database, how: ImageSet, *, skip: bool) -> None:
        self._records = Records(database)
        self._check, self._skip = how.check_size, skip
        self._size = _first_size(database, how) if how.check_size else None
        self.skipped = 0

    @property
    def written(self) -> int:
        return self._records.count

    def add(self, number: int, line: Line, result: _Record | DataError) -> None:
        if isinstance(result, DataError):
            self._leave_out(result)
            return
        if self._check:
            self._size = self._size or result.values
            if result.values != self._size:
                message = f"has {result.values} values, the first image has {self._size}"
                raise DataError(message, line.name)
        key = f"{number:08d}_{line.name}".encode("utf-8", "surrogateescape")
        if self._records.add(key, result.message):
            self._tell()

    def finish(self) -> None:
        """Write what is left."""
        self._records.commit()
        self._tell()

    def _tell(self) -> None:
        log.info("Processed %d files.", self.written)

    def _leave_out(self, error: DataError) -> None:
        if not self._skip:
            raise error
        self.skipped += 1
        log.warning("Left out: %s", error)


def _read_or_fault(root: str, how: ImageSet, line: Line) -> _Record | DataError:
    """Return the record of an image, or what is wrong with it."""
    path = f"{root}{line.name}"
    try:
        return _read(path, root, line, how)
    except (OSError, ValueError) as error:  # no such file, or no name that a file can have
        return DataError(getattr(error, "strerror", None) or str(error), path)
    except DataError as error:
        return DataError(error.message, path)


def _read(path: str, root: str, line: Line, how: ImageSet) -> _Record:
    content = read_bytes(path)
    original = decode_image(content, "gray" if how.gray else "color")
    pixels = how.resize(original)
    datum = Datum(label=line.label)
    kind = how.encode_type or (_ending(path) if how.encoded else "")
    if not kind:
        datum.channels, datum.height, datum.width = pixels.shape
        datum.data = np.ascontiguousarray(pixels).tobytes()
    elif how.keeps_size and _is_already(path, kind):
        datum.data = content
    else:
        datum.data = encode_image(pixels, kind)
    datum.encoded = bool(kind)
    if how.annotations is None:
        return _Record(datum, pixels.size)
    record = AnnotatedDatum(datum=datum)
    if how.annotations.label_type is not None:
        record.type = AnnotatedDatum.BBOX
        file, size = Path(f"{root}{line.objects}"), original.shape[1:]
        _add_objects(record, file, how.annotations.label_type, how.annotations.labels, size)
    return _Record(record, pixels.size)


def _add_objects(
    record: AnnotatedDatum,
    file: Path,
    kind: str,
    labels: Mapping[str, int],
    size: tuple[int, ...],
) -> None:
    """Add the objects that a file names; where there is none, as in SSD, there are no objects."""
    if file.exists():
        for one in read_objects(file, kind, labels, (size[0], size[1])):
            add_object(record, one.label, one.box, difficult=one.difficult)


def _ending(path: str) -> str:
    return path.rpartition(".")[2].lower()


def _is_already(path: str, kind: str) -> bool:
    """Whether a file is named like one of that format."""
    return _ending(path) == kind.lower() or (_ending(path), kind.lower()) == ("jpeg", "jpg")


def _lines_done(database: Database) -> int:
    """Return how many lines lie before the first that may be missing."""
    last = database.last_key()
    return 0 if last is None else int(last.partition(b"_")[0]) + 1


def _first_size(database: Database, how: ImageSet) -> int | None:
    """Return the number of values of the first image, if there is one already."""
    if database.last_key() is None:
        return None
    with closing(database.new_cursor()) as cursor:
        content = bytes(cursor.value())
    annotated = how.annotations is not None
    datum = AnnotatedDatum.FromString(content).datum if annotated else Datum.FromString(content)
    if datum.encoded:
        return decode_image(datum.data).size
    return datum.channels * datum.height * datum.width
