"""What the data behind a data layer looks like, as far as its first records tell."""

from __future__ import annotations

from collections.abc import Sized
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from demitasse.core.paths import resolve_path
from demitasse.errors import DemitasseError
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.decode import read_image
from demitasse.io.data.sources.image_list import read_image_list
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.proto import DataParameter, Datum, LayerParameter

__all__ = ["Peek", "mean_shape", "peek"]

MOST = 1000
"""Records of a database that are looked at."""


@dataclass(frozen=True)
class Peek:
    """What is known of the records of a data layer.

    Attributes:
        shape: (C, H, W) of the first image, or None.
        labels: The least and the greatest label of those looked at, or None.
        count: How many records there are, or None.
    """

    shape: tuple[int, ...] | None = None
    labels: tuple[float, float] | None = None
    count: int | None = None


def peek(layer: LayerParameter, base: Path | None) -> Peek:
    """Look at the data of a layer; says nothing where they are not there or not readable."""
    try:
        if layer.type == "Data":
            return _database(layer.data_param, base)
        if layer.type == "ImageData":
            return _images(layer, base)
    except (DemitasseError, OSError, ValueError):
        pass  # whoever runs the net will say what is wrong
    return Peek()


def mean_shape(layer: LayerParameter, base: Path | None) -> tuple[int, ...] | None:
    """Return (C, H, W) of the mean file of a layer, or None."""
    if not layer.transform_param.mean_file:
        return None
    try:
        return read_mean(resolve_path(layer.transform_param.mean_file, base)).shape
    except DemitasseError:
        return None


def _database(param: DataParameter, base: Path | None) -> Peek:
    path = resolve_path(param.source, base)
    labels: list[int] = []
    shape: tuple[int, ...] | None = None
    with closing(open_db(path, DataParameter.DB.Name(param.backend))) as database:
        with closing(database.new_cursor()) as cursor:
            for _, value in islice(records(cursor), MOST):
                datum = Datum.FromString(bytes(value))
                labels.append(datum.label)
                shape = shape or datum_to_array(datum).shape
        count = len(database) if isinstance(database, Sized) else None
    return Peek(shape, (min(labels), max(labels)) if labels else None, count)


def _images(layer: LayerParameter, base: Path | None) -> Peek:
    param = layer.image_data_param

    def find(name: str) -> Path:
        return resolve_path(param.root_folder + name, base)

    entries = read_image_list(resolve_path(param.source, base), find)
    labels = [label for entry in entries for label in entry.labels]
    shape: tuple[int, ...] | None = (3 if param.is_color else 1, param.new_height, param.new_width)
    if not param.new_height:
        try:
            shape = read_image(find(entries[0].name)).shape
        except DemitasseError:
            shape = None
    return Peek(shape, (min(labels), max(labels)), len(entries))
