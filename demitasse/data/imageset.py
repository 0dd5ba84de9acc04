"""Databases of image files that a list names.

Source: Caffe, ``tools/convert_imageset.cpp`` and ``src/caffe/util/io.cpp``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.data.databases.database import Database
from demitasse.data.databases.writing import Records, resumable_database
from demitasse.data.images.decode import decode_image
from demitasse.data.images.encode import encode_image, need_encoder
from demitasse.data.images.resize import resize_image
from demitasse.data.sources.order import Order
from demitasse.data.threads import THREADS, ahead
from demitasse.errors import DataError
from demitasse.log import get_logger
from demitasse.paths import regular
from demitasse.proto import Datum

__all__ = ["Converted", "ImageSet", "convert_imageset"]

log = get_logger(__name__)


@dataclass(frozen=True)
class ImageSet:
    """What becomes of the images of a list.

    Attributes:
        gray: Store one channel, in place of blue, green, red.
        resize_height: Height in pixels; 0, or a width of 0, leaves the size as it is.
        resize_width: Width in pixels.
        check_size: Refuse images whose number of values differs from the first one's.
        encoded: Store the bytes of image files, in the format of each file.
        encode_type: Store the bytes of files of this format: jpg, png, ...; empty for none.
        shuffle: Store them in another order.
        seed: What that order depends on.
    """

    gray: bool = False
    resize_height: int = 0
    resize_width: int = 0
    check_size: bool = False
    encoded: bool = False
    encode_type: str = ""
    shuffle: bool = False
    seed: int = 0

    @property
    def resized(self) -> bool:
        """Whether images get another size."""
        return self.resize_height > 0 and self.resize_width > 0


class Line(NamedTuple):
    """A line of the list: the name of an image and its label."""

    name: str
    label: int


class Converted(NamedTuple):
    """What a conversion did: how many records it wrote, and how many lines it left out."""

    written: int
    skipped: int


class _Record(NamedTuple):
    """A record, and how many values its image has."""

    datum: Datum
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
    lines = read_lines(source)
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


def read_lines(source: Path) -> list[Line]:
    """Read a list: on each line a name, a space, and a label.

    As in Caffe, a label is the number that the text begins with, or 0.

    Raises:
        DataError: It cannot be read, or holds no lines.
    """
    try:
        text = regular(source).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        message = f"the list of images cannot be read: {error.strerror}"
        raise DataError(message, str(source)) from error
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        message = "the list of images is empty; it needs lines 'path label'"
        raise DataError(message, str(source))
    parts = (line.rpartition(" ") for line in lines)
    return [Line(name if space else label, _label(label)) for name, space, label in parts]


def _label(text: str) -> int:
    found = re.match(r"\s*([+-]?\d{1,18})", text, re.ASCII)
    return int(found[1]) if found else 0


class _Writer:
    """Puts records into a database, in order, and leaves out what cannot be read."""

    def __init__(self, database: Database, how: ImageSet, *, skip: bool) -> None:
        self._records = Records(database)
        self._check, self._skip = how.check_size, skip
        self._size = _first_size(database) if how.check_size else None
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
        if self._records.add(key, result.datum):
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
        return _read(path, line.label, how)
    except (OSError, ValueError) as error:  # no such file, or no name that a file can have
        return DataError(getattr(error, "strerror", None) or str(error), path)
    except DataError as error:
        return DataError(error.message, path)


def _read(path: str, label: int, how: ImageSet) -> _Record:
    content = regular(path).read_bytes()
    pixels = decode_image(content, "gray" if how.gray else "color")
    if how.resized:
        pixels = resize_image(pixels, how.resize_height, how.resize_width)
    datum = Datum()
    kind = how.encode_type or (_ending(path) if how.encoded else "")
    if not kind:
        datum.channels, datum.height, datum.width = pixels.shape
        datum.data = np.ascontiguousarray(pixels).tobytes()
    elif not how.resize_height and not how.resize_width and _is_already(path, kind):
        datum.data = content
    else:
        datum.data = encode_image(pixels, kind)
    datum.label = label
    datum.encoded = bool(kind)
    return _Record(datum, pixels.size)


def _ending(path: str) -> str:
    return path.rpartition(".")[2].lower()


def _is_already(path: str, kind: str) -> bool:
    """Whether a file is named like one of that format."""
    return _ending(path) == kind.lower() or (_ending(path), kind.lower()) == ("jpeg", "jpg")


def _lines_done(database: Database) -> int:
    """Return how many lines lie before the first that may be missing."""
    last = database.last_key()
    return 0 if last is None else int(last.partition(b"_")[0]) + 1


def _first_size(database: Database) -> int | None:
    """Return the number of values of the first image, if there is one already."""
    if database.last_key() is None:
        return None
    with closing(database.new_cursor()) as cursor:
        datum = Datum.FromString(bytes(cursor.value()))
    if datum.encoded:
        return decode_image(datum.data).size
    return datum.channels * datum.height * datum.width
