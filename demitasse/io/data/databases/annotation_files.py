"""Files that say which objects are in an image, and where: of VOC, of COCO, and plain text.

Source: SSD (weiliu89/caffe), ``src/caffe/util/io.cpp`` (``ReadXMLToAnnotatedDatum``, ...).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from demitasse.core.log import get_logger
from demitasse.core.paths import read_bytes
from demitasse.errors import ConfigError, DataError
from demitasse.io.proto import LabelMap
from demitasse.io.proto.read import read_text

__all__ = ["LABEL_TYPES", "Object", "read_labels", "read_objects"]

log = get_logger(__name__)


DAMAGE = (
    ElementTree.ParseError, ArithmeticError, AttributeError, LookupError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip
"""What damaged files, and those of another kind, raise."""


LONGEST_SIDE = 1 << 31
"""Pixels that an image has at most on a side."""


class Object(NamedTuple):
    """An object in an image.

    Attributes:
        label: Its class.
        box: xmin, ymin, xmax, ymax, in units of the image.
        difficult: Whether it is hard to find, or a crowd.
    """

    label: int
    box: tuple[float, float, float, float]
    difficult: bool = False


class _Found(NamedTuple):
    """What a file says: the image's height and width, if it does, and objects in pixels."""

    size: tuple[int, int] | None
    objects: list[tuple[str, tuple[float, float, float, float], bool]]


def read_labels(path: Path, *, check: bool = False) -> dict[str, int]:
    """Read the classes' names and numbers from a LabelMap, a prototxt.

    Args:
        path: The file.
        check: Whether to refuse names that are there twice; otherwise the last one counts.

    Raises:
        PrototxtError: It cannot be read.
        ConfigError: A name is there twice.
    """
    items = read_text(path, LabelMap).item
    labels = {item.name: item.label for item in items}
    if check and len(labels) < len(items):
        counts = Counter(item.name for item in items)
        twice = sorted(name for name, count in counts.items() if count > 1)
        message = f"{path} has more than one class called {', '.join(twice)}; rename all but one"
        raise ConfigError(message)
    return labels


def read_objects(
    path: Path, kind: str, labels: Mapping[str, int], size: tuple[int, int]
) -> list[Object]:
    """Read the objects in an image.

    Boxes that reach beyond the image, or are the wrong way round, are kept, with a warning.

    Args:
        path: The file.
        kind: One of ``LABEL_TYPES``.
        labels: Numbers of the classes' names; text files hold numbers already.
        size: Height and width of the image, for where the file does not tell them, in pixels.

    Raises:
        ConfigError: A class has no number.
        DataError: The file cannot be read.
    """
    try:
        content = read_bytes(path)
        found = LABEL_TYPES[kind](content)
    except OSError as error:
        raise DataError(error.strerror or str(error), str(path)) from error
    except DAMAGE as error:
        message = f"is no {kind} file of objects as VOC, COCO or SSD has them: {error!r}"
        raise DataError(message, str(path)) from error
    height, width = found.size or size
    if found.size not in {None, size}:
        log.warning("%s: the image is %d x %d pixels, not %d x %d", path, *size, height, width)
    if min(height, width) < 1 or max(height, width) > LONGEST_SIDE:
        message = f"says that the image has {height} x {width} pixels"
        raise DataError(message, str(path))
    objects = []
    for name, (xmin, ymin, xmax, ymax), difficult in found.objects:
        inside = 0 <= xmin <= xmax <= width and 0 <= ymin <= ymax <= height
        if not inside:
            box = (xmin, ymin, xmax, ymax)
            log.warning("%s: the box %s does not lie in %d x %d", path, box, height, width)
        label = int(name) if kind == "txt" else _label(name, labels, path)
        box = (xmin / width, ymin / height, xmax / width, ymax / height)
        objects.append(Object(label, box, difficult))
    return objects


def _label(name: str, labels: Mapping[str, int], path: Path) -> int:
    if name not in labels:
        message = f"{path} has an object of class {name!r}, which is not in the label map"
        raise ConfigError(message)
    return labels[name]


class _Elements(ElementTree.TreeBuilder):
    """Elements of a document without a type: what that declares may be of any size, and anywhere.

    The parser knows one in every encoding, and says so before it reads what it declares.
    """

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        message = f"it declares a type of document, {name!r}, which such files do not"
        raise ValueError(message)


def _xml(content: bytes) -> _Found:
    """Read a file of VOC or ILSVRC."""
    root = ElementTree.fromstring(content, ElementTree.XMLParser(target=_Elements()))
    sides = [root.findtext(f"size/{side}") for side in ("height", "width")]
    size = None if None in sides else (int(sides[0] or 0), int(sides[1] or 0))
    return _Found(size, list(map(_voc_object, root.findall("object"))))


def _voc_object(
    element: ElementTree.Element,
) -> tuple[str, tuple[float, float, float, float], bool]:
    xmin, ymin, xmax, ymax = (
        float(element.findtext(f"bndbox/{edge}", "0")) for edge in ("xmin", "ymin", "xmax", "ymax")
    )
    name = element.findtext("name")
    if name is None:
        message = "an object has no name"
        raise ValueError(message)
    difficult = element.findtext("difficult", "0").strip() == "1"
    return name.strip(), (xmin, ymin, xmax, ymax), difficult


def _json(content: bytes) -> _Found:
    """Read what COCO says about one image."""
    root: dict[str, Any] = json.loads(content)
    image = root.get("image", {})
    has_size = "height" in image and "width" in image
    objects = []
    for one in root["annotation"]:
        x, y, width, height = map(float, one["bbox"])
        crowd = bool(int(one.get("iscrowd", 0)))
        objects.append((str(one["category_id"]), (x, y, x + width, y + height), crowd))
    return _Found((int(image["height"]), int(image["width"])) if has_size else None, objects)


def _text(content: bytes) -> _Found:
    """Read numbers: class, xmin, ymin, xmax, ymax, and so on, as far as there are five."""
    words = iter(content.decode().split())
    rows: Iterator[tuple[str, ...]] = zip(words, words, words, words, words, strict=False)
    objects = []
    for name, *edges in rows:
        xmin, ymin, xmax, ymax = map(float, edges)
        objects.append((str(int(name)), (xmin, ymin, xmax, ymax), False))
    return _Found(None, objects)


LABEL_TYPES: dict[str, Callable[[bytes], _Found]] = {"xml": _xml, "json": _json, "txt": _text}
"""Kind of file -> what reads its content."""
