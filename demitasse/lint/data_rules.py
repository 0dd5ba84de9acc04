"""Rules about data layers: files, sizes, means, labels."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from demitasse.core.paths import resolve_path, rooted_path
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.io.data.databases.database import Database, open_db, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.databases.hdf5 import read_list
from demitasse.io.data.images.codecs import read_image
from demitasse.io.data.redaction import read_list_file
from demitasse.io.data.sources.image_list import read_image_list
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.proto import DataParameter, Datum, LayerParameter
from demitasse.layers.metadata import field_value, has_field
from demitasse.lint.net_view import NetView

Reader = Callable[[LayerParameter, Path, Path | None], object]

IMAGENET_RED, IMAGENET_BLUE = 123.68, 103.94  # the average pixel of ImageNet


def missing_files(view: NetView) -> None:
    """Report missing sources and means."""
    for index, field, name, path in view.files():
        if path is None:
            view.report("warning", "missing-file", index, f"cannot find {field} {name!r}")


def wrong_sources(view: NetView) -> None:
    """Report sources and means that exist, but are of another kind than their layer reads."""
    for index, field, name, path in view.files():
        read = READERS.get("mean_file" if field == "mean_file" else view.facts[index].source)
        try:
            if path is not None and read is not None:
                read(view.layers[index], path, view.base)
        except DataError as error:
            if error.code != ErrorCode.UNAVAILABLE:  # a library that is not installed
                view.report("error", "wrong-source", index, f"{name!r}: {error.message}")
        except (DemitasseError, OSError, ValueError):
            pass  # of another setting, or a file that cannot be read


IMAGE_LISTS = (
    "image_data_param.source", "dense_image_data_param.source", "window_data_param.source",
)  # fmt: skip

READERS: dict[str, Reader] = {
    "data_param.source": lambda layer, path, _: _open(layer.data_param, path).close(),
    "hdf5_data_param.source": lambda _, path, base: read_list(path, base),
    "mean_file": lambda _, path, __: read_mean(path),
    **dict.fromkeys(IMAGE_LISTS, lambda _, path, __: read_list_file(path, "list of images")),
}
"""Field of a source or mean -> function that raises a DataError for a source of another kind."""


def no_loss(view: NetView) -> None:
    """Report a net that reads training data but has no loss."""
    data = next((i for i, facts in enumerate(view.facts) if facts.records and facts.source), None)
    if view.phase == "TRAIN" and data is not None and not view.losses:
        message = "the net reads data in phase TRAIN, but has no loss in this phase"
        view.report("warning", "no-loss", data, message)


def mirror_in_test(view: NetView) -> None:
    """Report mirroring in TEST: Caffe mirrors at random in every phase."""
    if view.phase != "TEST":
        return
    for index, layer in enumerate(view.layers):
        if layer.transform_param.mirror:
            message = "mirror: true applies in TEST, too; results change at random"
            view.report("warning", "mirror-in-test", index, message)


def means(view: NetView) -> None:
    """Report means of scaled pixels, and means in the order red, green, blue."""
    for index, layer in enumerate(view.layers):
        values, scale = list(layer.transform_param.mean_value), layer.transform_param.scale
        if 0 < scale <= 0.1 and values and 0 < max(values) <= 1:
            scaled = ", ".join(f"{value / scale:g}" for value in values)
            message = (
                f"mean_value is subtracted before scale {scale:g}, from pixels of 0 to 255; for "
                f"a mean of scaled pixels, write {scaled}"
            )
            view.report("warning", "mean-before-scale", index, message)
        near_red = values and abs(values[0] - IMAGENET_RED) < 2
        if len(values) == 3 and near_red and abs(values[2] - IMAGENET_BLUE) < 2:
            message = (
                "mean_value looks like ImageNet's mean in the order red, green, blue; Caffe's "
                "images are in the order blue, green, red (104, 117, 123)"
            )
            view.report("warning", "mean-in-rgb", index, message)


def crops(view: NetView) -> None:
    """Report crops larger than the image or the mean, and means of another size."""
    for index, layer in enumerate(view.layers):
        crop, mean = layer.transform_param.crop_size, mean_shape(layer, view.base)
        if not (view.facts[index].records and (crop or mean)):
            continue
        shape = sample_data(layer, view.base).shape
        for what, dims in (("image", shape), ("mean", mean)):
            if crop and dims and crop > min(dims[1:]):
                message = f"crop_size {crop} is larger than the {what} ({dims[1]} x {dims[2]})"
                view.report("error", "crop-size", index, message)
        if shape and mean and shape[1:] != mean[1:]:
            message = (
                f"the first image is {shape[1]} x {shape[2]}, the mean {mean[1]} x {mean[2]}; "
                "they must be equal, as the crop comes afterwards"
            )
            view.report("error", "mean-size", index, message)


def label_range(view: NetView) -> None:
    """Report labels beyond the number of scores."""
    samples: dict[int, DataSample] = {}
    for index, layer in enumerate(view.layers):
        if view.facts[index].bottom_kinds.get(1) != "classes" or len(layer.bottom) < 2:
            continue
        scores, labels = view.through(view.sources[index][0]), view.sources[index][1]
        classes = _outputs(view, scores)
        if labels is None or classes is None:
            continue
        if labels not in samples:
            samples[labels] = sample_data(view.layers[labels], view.base)
        ends, ignored = samples[labels].labels, _ignored(layer)
        if ends and any(not 0 <= label < classes and label not in ignored for label in ends):
            message = (
                f"labels of {view.layers[labels].name!r} go from {ends[0]:g} to {ends[1]:g}, but "
                f"the scores are for {classes} classes, 0 to {classes - 1}"
            )
            view.report("error", "label-range", index, message)


def _outputs(view: NetView, index: int | None) -> int | None:
    """Return the number of classes of a layer's scores, or None."""
    path = "" if index is None else view.facts[index].num_output
    if index is None or not path:
        return None
    layer = view.layers[index]
    on_axis_1 = field_value(layer, f"{path.partition('.')[0]}.axis") == 1
    return int(field_value(layer, path)) or None if on_axis_1 else None


def _ignored(layer: LayerParameter) -> set[int]:
    """Return the ignored labels."""
    paths = ("loss_param.ignore_label", "accuracy_param.ignore_label")
    ignored = {int(field_value(layer, path)) for path in paths if has_field(layer, path)}
    return ignored | set(layer.seg_accuracy_param.ignore_label)


RULES = (no_loss, missing_files, wrong_sources, mirror_in_test, means, crops, label_range)


MOST_RECORDS = 1000
"""Limit of records that are read from a database."""


@dataclass(frozen=True)
class DataSample:
    """Properties of the first records of a data layer, where known."""

    shape: tuple[int, ...] | None = None  # (C, H, W) of the first image
    labels: tuple[float, float] | None = None  # least and greatest label of the read records


def sample_data(layer: LayerParameter, base: Path | None) -> DataSample:
    """Read the first records of a data layer; missing or unreadable data give no properties."""
    try:
        if layer.type == "Data":
            return _database(layer.data_param, base)
        if layer.type == "ImageData":
            return _images(layer, base)
    except (DemitasseError, OSError, ValueError):
        pass  # a run of the net reports the error
    return DataSample()


def mean_shape(layer: LayerParameter, base: Path | None) -> tuple[int, ...] | None:
    """Return (C, H, W) of the mean file of a layer, or None."""
    if not layer.transform_param.mean_file:
        return None
    try:
        return read_mean(resolve_path(layer.transform_param.mean_file, base)).shape
    except DemitasseError:
        return None


def _database(param: DataParameter, base: Path | None) -> DataSample:
    labels: list[int] = []
    shape: tuple[int, ...] | None = None
    with (
        closing(_open(param, resolve_path(param.source, base))) as database,
        closing(database.new_cursor()) as cursor,
    ):
        for _, value in islice(records(cursor), MOST_RECORDS):
            datum = Datum.FromString(bytes(value))
            labels.append(datum.label)
            shape = shape or datum_to_array(datum).shape
    return DataSample(shape, (min(labels), max(labels)) if labels else None)


def _open(param: DataParameter, path: Path) -> Database:
    return open_db(path, DataParameter.DB.Name(param.backend))


def _images(layer: LayerParameter, base: Path | None) -> DataSample:
    param = layer.image_data_param
    find = partial(rooted_path, param.root_folder, base=base)
    entries = read_image_list(resolve_path(param.source, base), find)
    labels = [label for entry in entries for label in entry.labels]
    shape: tuple[int, ...] | None = (3 if param.is_color else 1, param.new_height, param.new_width)
    if not param.new_height:
        try:
            shape = read_image(find(entries[0].name)).shape
        except DemitasseError:
            shape = None
    return DataSample(shape, (min(labels), max(labels)))
