"""Databases of listed image files, with labels or annotated objects.

Source: Caffe, ``tools/convert_imageset.cpp`` and ``src/caffe/util/io.cpp``; SSD (weiliu89/caffe),
``tools/convert_annoset.cpp``.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.core.extras import lacks_extra
from demitasse.core.hashing import sha256
from demitasse.core.log import get_logger
from demitasse.core.paths import code_of, read_bytes, rooted_path
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.bad_records import located
from demitasse.io.data.databases.annotation_files import read_objects
from demitasse.io.data.databases.database import Database
from demitasse.io.data.databases.datum import add_object, datum_of
from demitasse.io.data.databases.writing import Records, resumable_database
from demitasse.io.data.images.codecs import decode_image, encode_image, need_encoder
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.redaction import read_list_file
from demitasse.io.data.sources.sampler import EpochPermutation
from demitasse.io.data.threads import THREADS, map_ahead
from demitasse.io.proto import AnnotatedDatum, Datum

log = get_logger(__name__)


@dataclass(frozen=True)
class Annotations:
    """Options of ``AnnotatedDatum`` records: numbers of class names, type of annotation files.

    The type is xml, json or txt; None if the list has class labels.
    """

    label_type: str | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageSet:
    """Options of the conversion of an image list.

    Attributes:
        gray: Store one channel instead of BGR.
        resize_height: Height in pixels; 0, or a width of 0, keeps the size.
        resize_width: Width in pixels.
        min_dim: Enlarge images to this length of the shorter side, in pixels. Keeps the aspect
            ratio and overrides ``resize_height``.
        max_dim: Limit of the longer side, in pixels; 0: no limit.
        check_size: Refuse images with another number of values than the first.
        encoded: Store the bytes of image files, each in its own format.
        encode_type: Store image files of this format: jpg, png, ...; empty: raw pixels.
        shuffle: Shuffle the list.
        seed: Seed of the shuffle.
        annotations: Options of ``AnnotatedDatum`` records; None: write ``Datum`` records.
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

    def resize(self, pixels: np.ndarray) -> np.ndarray:
        """Resize an image by these options. Shapes: (C, H, W) -> (C, H', W'), uint8."""
        sides = pixels.shape[1:]
        if self.min_dim or self.max_dim:
            shorter, longer = np.float32(min(sides)), np.float32(max(sides))  # SSD's precision
            scale = np.float32(1)
            if self.min_dim and shorter < self.min_dim:
                scale = np.float32(self.min_dim) / shorter
            if self.max_dim and int(scale * longer) > self.max_dim:
                scale = np.float32(self.max_dim) / longer
            if scale == 1:
                return pixels
            factor = float(scale)
            height, width = (round(side * factor) for side in sides)
            return resize_image(pixels, height, width, 1 / factor)
        if self.resize_height > 0 and self.resize_width > 0:
            return resize_image(pixels, self.resize_height, self.resize_width)
        return pixels


LABEL = re.compile(r"\s*([+-]?\d{1,18})", re.ASCII)
"""The number that a label begins with."""


class Line(NamedTuple):
    """A line of the list: an image, and its label or (with label -1) its annotation file."""

    name: str
    label: int
    objects: str = ""


class Converted(NamedTuple):
    """Result of a conversion: records written, and lines skipped."""

    written: int
    skipped: int


_Record = tuple[Datum | AnnotatedDatum, int]  # a record, and the number of values of its image


def convert_imageset(
    root: str, source: Path, out: Path, how: ImageSet | None = None, *, backend: str = "LMDB",
    overwrite: bool = False, resume: bool = False, skip: bool = True, threads: int = THREADS,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:  # fmt: skip
    """Write the images of a list as a database, with the keys ``00000000_NAME``, ...

    Args:
        root: Folder of the files; or, as in Caffe, a text that each name continues.
        source: The list, with lines ``name label``; names may contain spaces.
        out: Folder to create; it appears when complete.
        how: Options of the conversion.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        overwrite: Replace the database at ``out``.
        resume: Continue an interrupted call.
        skip: Skip unreadable images with a warning, as Caffe does.
        threads: Number of threads that decode images.
        progress: Called after each line with the lines done and the number of lines.

    Raises:
        ConfigError: The backend or format is unknown.
        DataError: The list or, without ``skip``, an image cannot be read; or see
            ``resumable_database``.
        OSError: The database cannot be written, e.g. the disk is full.
    """
    how = how or ImageSet()
    if how.encode_type:
        need_encoder(how.encode_type)
    lines = read_lines(source, objects=bool(how.annotations and how.annotations.label_type))
    if how.shuffle:
        log.info("Shuffling data")
        order = EpochPermutation(len(lines), how.seed, "convert_imageset", shuffle=True).of_round(0)
        lines = [lines[number] for number in order.tolist()]
    log.info("A total of %d images.", len(lines))
    digest = sha256("\n".join(map(str, lines)).encode("utf-8", "surrogateescape"))
    settings = {**asdict(how), "root": root, "list": digest.hexdigest()}
    with resumable_database(out, backend, settings, overwrite=overwrite, resume=resume) as database:
        last = database.last_key()
        first = 0 if last is None else int(last.partition(b"_")[0]) + 1
        if first:
            log.info("Resuming after line %d", first)
        work = partial(_read_or_fault, root, how)
        writer = _Writer(database, how, skip=skip)
        with closing(map_ahead(work, lines[first:], threads)) as results:
            for number, result in enumerate(results, first):
                writer.add(number, lines[number], result)
                if progress is not None:
                    progress(number + 1, len(lines))
        if writer.skipped and writer.skipped == len(lines):
            message = f"none of its {len(lines)} images can be read in {root!r}"
            message += _separator_fault(lines[0])
            raise DataError(message, str(source), code=ErrorCode.NOT_FOUND, got=len(lines))
        writer.records.commit()
        writer.log_progress()
    return Converted(writer.records.count, writer.skipped)


def read_lines(source: Path, *, objects: bool = False) -> list[Line]:
    """Read a list; each line is a name, a space, and a label or the name of an annotation file.

    As in Caffe, a label is the leading number of its text, or 0; texts without one are warned of.
    """
    text = read_list_file(source, "list of images")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        message = "the list of images is empty; write lines 'path label'"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    parts = (line.rpartition(" ") for line in lines)
    if objects:
        return [Line(name, -1, file.strip()) for name, _, file in parts]
    found, texts = list[Line](), list[str]()
    for name, space, label in parts:
        number = LABEL.match(label)
        if name and number is None:
            texts.append(label)
        found.append(Line(name if space else label, int(number[1]) if number else 0))
    if texts:
        message = "%s: got %d labels that are no numbers, such as %r; they are stored as 0"
        log.warning(message, source, len(texts), texts[0])
    return found


def _separator_fault(line: Line) -> str:
    """Return the end of an error for a line with other separators; else an empty text."""
    found = re.search(r"\t|\s$|\s[+-]?\d+$|^$", line.name)
    if found is None and (line.objects or line.label != -1):
        return ""
    return f"; got name {line.name!r}, expected lines NAME LABEL with one space and none at the end"


class _Writer:
    """Adds records to a database in order; skips unreadable images."""

    def __init__(self, database: Database, how: ImageSet, *, skip: bool) -> None:
        self.records = Records(database)
        self._check, self._skip = how.check_size, skip
        self._size = _first_size(database) if how.check_size else None
        self.skipped = 0

    def add(self, number: int, line: Line, result: _Record | DataError) -> None:
        if isinstance(result, DataError):
            if lacks_extra(result):
                raise result
            if not self._skip:
                result.message += "; leave out such images by --on_error skip"
                raise result
            self.skipped += 1
            log.warning("Skipped: %s", result)
            return
        record, size = result
        if self._check:
            self._size = self._size or size
            if size != self._size:
                code, expected = ErrorCode.COUNT_MISMATCH, self._size
                message = f"got {size} values, expected {expected} as in the first image"
                raise DataError(message, line.name, code=code, got=size, expected=expected)
        key = f"{number:08d}_{line.name}".encode("utf-8", "surrogateescape")
        if self.records.add(key, record):
            self.log_progress()

    def log_progress(self) -> None:
        log.info("Processed %d files.", self.records.count)


def _read_or_fault(root: str, how: ImageSet, line: Line) -> _Record | DataError:
    """Return the record of an image, or the error."""
    path = f"{root}{line.name}"
    try:
        path = str(rooted_path(root, line.name))
        objects = rooted_path(root, line.objects)
    except ConfigError as error:  # an impossible file name
        return located(error, path)
    try:
        return _read(path, objects, line, how)
    except OSError as error:
        reason, code = error.strerror or str(error), code_of(error)
        if code == ErrorCode.NOT_FOUND and root and not root.endswith("/"):
            reason += f"; there is no {root}/{line.name} either"
        reason += _separator_fault(line)
        return DataError(reason, path, code=code)
    except ValueError as error:  # a label of more than 32 bits
        return DataError(str(error), path, code=ErrorCode.INVALID)
    except DataError as error:  # of the image, or of the named file of its objects
        return error if error.source else located(error, path)


def _read(path: str, objects: Path, line: Line, how: ImageSet) -> _Record:
    content = read_bytes(path)
    original = decode_image(content, "gray" if how.gray else "color")
    pixels = how.resize(original)
    datum = Datum(label=line.label)
    ending = path.rpartition(".")[2].lower()
    kind = how.encode_type or (ending if how.encoded else "")
    same_format = ending == kind.lower() or (ending, kind.lower()) == ("jpeg", "jpg")
    if not kind:
        datum.channels, datum.height, datum.width = pixels.shape
        datum.data = np.ascontiguousarray(pixels).tobytes()
    elif same_format and not (how.resize_height or how.resize_width or how.min_dim or how.max_dim):
        datum.data = content
    else:
        datum.data = encode_image(pixels, kind)
    datum.encoded = bool(kind)
    if how.annotations is None:
        return datum, pixels.size
    record, label_type = AnnotatedDatum(datum=datum), how.annotations.label_type
    if label_type is not None:
        record.type = AnnotatedDatum.BBOX
        if objects.exists():  # as in SSD, a missing file has no objects
            labels, (_, H, W) = how.annotations.labels, original.shape
            for one in read_objects(objects, label_type, labels, (H, W)):
                add_object(record, one.label, one.box, difficult=one.difficult)
    return record, pixels.size


def _first_size(database: Database) -> int | None:
    """Return the number of values of the first stored image, or None."""
    if database.last_key() is None:
        return None
    with closing(database.new_cursor()) as cursor:
        datum = datum_of(cursor.value())
    if datum.encoded:
        return decode_image(datum.data).size
    return datum.channels * datum.height * datum.width
