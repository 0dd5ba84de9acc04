"""Rules about data layers: files, sizes, means, labels."""

from __future__ import annotations

from demitasse.core.paths import resolve_path
from demitasse.errors import ConfigError
from demitasse.io.proto import LayerParameter, TransformationParameter
from demitasse.layers.metadata import field_value, given
from demitasse.lint.peek import Peek, mean_shape, peek
from demitasse.lint.view import View

__all__ = ["RULES"]

IMAGENET_RED, IMAGENET_BLUE = 123.68, 103.94  # the average pixel of ImageNet


def missing_files(view: View) -> None:
    """Sources and means that are not there."""
    for index, layer in enumerate(view.layers):
        path = view.facts[index].source
        if not path:
            continue
        source = field_value(layer, path)
        names = {"source": source, "mean_file": layer.transform_param.mean_file}
        for field, name in names.items():
            if not name:
                continue
            try:
                there = resolve_path(name, view.base).exists()
            except (ConfigError, OSError):
                there = False
            if not there:
                message = f"{field} {name!r} is not there"
                view.say("warning", "missing-file", index, message)


def no_loss(view: View) -> None:
    """A net that reads data to train on, but has nothing to minimise."""
    data = next((i for i, facts in enumerate(view.facts) if facts.records and facts.source), None)
    if view.phase == "TRAIN" and data is not None and not view.losses:
        message = "the net reads data in phase TRAIN, but has no loss there: nothing is learned"
        view.say("warning", "no-loss", data, message)


def mirror_in_test(view: View) -> None:
    """Caffe mirrors at random in every phase."""
    if view.phase != "TEST":
        return
    for index, layer in enumerate(view.layers):
        if layer.transform_param.mirror:
            message = "mirror: true counts in TEST, too: results change at random"
            view.say("warning", "mirror-in-test", index, message)


def means(view: View) -> None:
    """The mean is subtracted before scaling, and pixels come blue, green, red."""
    for index, layer in enumerate(view.layers):
        if layer.HasField("transform_param"):
            _mean_before_scale(view, index, layer.transform_param)
            _mean_in_rgb(view, index, layer.transform_param)


def _mean_before_scale(view: View, index: int, param: TransformationParameter) -> None:
    values = list(param.mean_value)
    if 0 < param.scale <= 0.1 and values and 0 < max(values) <= 1:
        scaled = ", ".join(f"{value / param.scale:g}" for value in values)
        message = (
            f"mean_value is subtracted before scale {param.scale:g} is applied, from pixels of 0 "
            f"to 255; if it is meant for scaled pixels, write {scaled}"
        )
        view.say("warning", "mean-before-scale", index, message)


def _mean_in_rgb(view: View, index: int, param: TransformationParameter) -> None:
    if len(param.mean_value) != 3:
        return
    first, _, last = param.mean_value
    if abs(first - IMAGENET_RED) < 2 and abs(last - IMAGENET_BLUE) < 2:
        message = (
            "mean_value looks like ImageNet's mean in the order red, green, blue; Caffe's images "
            "are in the order blue, green, red (104, 117, 123)"
        )
        view.say("warning", "mean-in-rgb", index, message)


def crops(view: View) -> None:
    """Crops that are larger than the image or the mean, and means of another size."""
    for index, layer in enumerate(view.layers):
        if not (view.facts[index].records and layer.HasField("transform_param")):
            continue
        crop, mean = layer.transform_param.crop_size, mean_shape(layer, view.base)
        shape = peek(layer, view.base).shape
        for what, dims in (("image", shape), ("mean", mean)):
            if crop and dims and crop > min(dims[1:]):
                message = f"crop_size {crop} is larger than the {what} ({dims[1]} x {dims[2]})"
                view.say("error", "crop-size", index, message)
        if shape and mean and shape[1:] != mean[1:]:
            message = (
                f"the first image is {shape[1]} x {shape[2]}, the mean {mean[1]} x {mean[2]}; "
                "they must be equal, crop_size comes afterwards"
            )
            view.say("error", "mean-size", index, message)


def label_range(view: View) -> None:
    """Labels for which the scores have no place."""
    looked: dict[int, Peek] = {}
    for index, layer in enumerate(view.layers):
        if view.facts[index].bottom_kinds.get(1) != "classes" or len(layer.bottom) < 2:
            continue
        scores, labels = view.through(view.sources[index][0]), view.sources[index][1]
        classes = _outputs(view, scores)
        if labels is None or classes is None:
            continue
        data = looked.setdefault(labels, peek(view.layers[labels], view.base))
        if data.labels is None:
            continue
        ignored = _ignored(layer)
        beyond = [x for x in data.labels if not 0 <= x < classes and x not in ignored]
        if beyond:
            message = (
                f"labels of {view.layers[labels].name!r} go from {data.labels[0]:g} to "
                f"{data.labels[1]:g}, but there are scores for {classes} classes, 0 to "
                f"{classes - 1}"
            )
            view.say("error", "label-range", index, message)


def _outputs(view: View, index: int | None) -> int | None:
    """Return how many classes the scores of a layer are for."""
    path = "" if index is None else view.facts[index].num_output
    if index is None or not path:
        return None
    layer = view.layers[index]
    on_axis_1 = field_value(layer, f"{path.partition('.')[0]}.axis") == 1
    return int(field_value(layer, path)) or None if on_axis_1 else None


def _ignored(layer: LayerParameter) -> set[int]:
    """Return the labels that do not count."""
    paths = ("loss_param.ignore_label", "accuracy_param.ignore_label")
    ignored = {int(field_value(layer, path)) for path in paths if given(layer, path)}
    return ignored | set(layer.seg_accuracy_param.ignore_label)


RULES = (no_loss, missing_files, mirror_in_test, means, crops, label_range)
