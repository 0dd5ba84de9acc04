"""Annotation files of VOC (XML), COCO (JSON) and plain text.

Source: SSD (weiliu89/caffe), ``src/caffe/util/io.cpp`` (``ReadXMLToAnnotatedDatum``, ...).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.bad_records import read_file
from demitasse.io.proto import LabelMap
from demitasse.io.proto.read import read_text

log = get_logger(__name__)

DAMAGE = (
    ElementTree.ParseError, ArithmeticError, AttributeError, LookupError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip
"""Exceptions that damaged files, or files of another format, raise."""

EDGES = ("xmin", "ymin", "xmax", "ymax")

LONGEST_SIDE = 1 << 31  # largest height or width of an image, in pixels


Box = tuple[float, float, float, float]


class Object(NamedTuple):
    """An object in an image.

    Attributes:
        box: xmin, ymin, xmax, ymax, relative to the image.
        difficult: True if the object is hard to find, or a crowd.
    """

    label: int
    box: Box
    difficult: bool = False


_Annotation = tuple[tuple[int, int] | None, list[tuple[str, Box, bool]]]
"""Height and width of the image or None; class, box in pixels, and difficulty of each object."""


def read_labels(path: Path, *, check: bool = False) -> dict[str, int]:
    """Return the numbers of class names in a LabelMap; ``check`` refuses duplicate names."""
    items = read_text(path, LabelMap).item
    labels = {item.name: item.label for item in items}
    if check and len(labels) < len(items):
        counts = Counter(item.name for item in items)
        twice = sorted(name for name, count in counts.items() if count > 1)
        message = f"{path} has more than one class called {', '.join(twice)}; rename all but one"
        raise ConfigError(
            message, code=ErrorCode.DUPLICATE, field="name", file=str(path), got=", ".join(twice)
        )
    return labels


def read_objects(
    path: Path, kind: str, labels: Mapping[str, int], size: tuple[int, int]
) -> list[Object]:
    """Return the objects in an image.

    Boxes that leave the image or have negative size are kept, with a warning. ``size`` is height
    and width in pixels, for files without a size. Text files contain class numbers, other files
    class names, with their numbers in ``labels``.
    """
    content = read_file(path)
    try:
        own_size, found = LABEL_TYPES[kind](content)
    except DAMAGE as error:
        message = f"is no {kind} annotation file of VOC, COCO or SSD: {error!r}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE, kind=kind) from error
    height, width = own_size or size
    if own_size not in {None, size}:
        log.warning("%s: the image is %d x %d pixels, not %d x %d", path, *size, height, width)
    if min(height, width) < 1 or max(height, width) > LONGEST_SIDE:
        message = f"got an image of {height} x {width} pixels, expected 1 to {LONGEST_SIDE}"
        raise DataError(message, str(path), code=ErrorCode.OUT_OF_RANGE, got=(height, width))
    objects: list[Any] = found  # replaced one by one, to save memory
    for index, (name, box, difficult) in enumerate(found):
        xmin, ymin, xmax, ymax = box
        inside = 0 <= xmin <= xmax <= width and 0 <= ymin <= ymax <= height
        if not inside:
            log.warning("%s: the box %s leaves the image of %d x %d", path, box, height, width)
        if kind != "txt" and name not in labels:
            message = f"{path} has an object of class {name!r}, which is not in the label map"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, file=str(path), got=name)
        label = int(name) if kind == "txt" else labels[name]
        relative = (xmin / width, ymin / height, xmax / width, ymax / height)
        objects[index] = Object(label, relative, difficult)
    return objects


class _Elements(ElementTree.TreeBuilder):
    """Elements of a document without a DTD, whose entities could expand to any size."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        message = f"it declares the document type {name!r}; annotation files have none"
        raise ValueError(message)


def _xml(content: bytes) -> _Annotation:
    """Read a file of VOC or ILSVRC."""
    root = ElementTree.fromstring(content, ElementTree.XMLParser(target=_Elements()))
    sides = [root.findtext(f"size/{side}") for side in ("height", "width")]
    size = None if None in sides else (int(sides[0] or 0), int(sides[1] or 0))
    objects = []
    for element in root.findall("object"):
        edges = (element.findtext(f"bndbox/{edge}", "0") for edge in EDGES)
        xmin, ymin, xmax, ymax = map(float, edges)
        name = element.findtext("name")
        if name is None:
            message = "an object has no name"
            raise ValueError(message)
        difficult = element.findtext("difficult", "0").strip() == "1"
        objects.append((name.strip(), (xmin, ymin, xmax, ymax), difficult))
    return size, objects


def _json(content: bytes) -> _Annotation:
    """Read the COCO annotations of one image."""
    root: dict[str, Any] = json.loads(content)
    image = root.get("image", {})
    has_size = "height" in image and "width" in image
    objects = []
    for one in root["annotation"]:
        x, y, width, height = map(float, one["bbox"])
        crowd = bool(int(one.get("iscrowd", 0)))
        objects.append((str(one["category_id"]), (x, y, x + width, y + height), crowd))
    return (int(image["height"]), int(image["width"])) if has_size else None, objects


def _text(content: bytes) -> _Annotation:
    """Read groups of five numbers: class, xmin, ymin, xmax, ymax; drop an incomplete rest."""
    words = iter(content.decode("utf-8-sig").split())
    rows: Iterator[tuple[str, ...]] = zip(words, words, words, words, words, strict=False)
    objects = []
    for name, *edges in rows:
        xmin, ymin, xmax, ymax = map(float, edges)
        objects.append((str(int(name)), (xmin, ymin, xmax, ymax), False))
    return None, objects


LABEL_TYPES: dict[str, Callable[[bytes], _Annotation]] = {"xml": _xml, "json": _json, "txt": _text}
"""File type -> parser."""
