"""Rules about layers and their neighbours, deprecated fields, and what layers refuse at set-up.

For the last, the net is set up as for training, but not run. Layers are set up on the device
``numpy``, which allocates the memory of a blob when the blob is first used.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from demitasse.core.text import escaped, suggestion
from demitasse.errors import DemitasseError, ErrorCode
from demitasse.graph import moved_weight
from demitasse.io.proto import LayerParameter, NetParameter, Phase, fork_of_type
from demitasse.layers.checks import SETTINGS, nonfinite_fields
from demitasse.layers.metadata import field_value, has_field
from demitasse.layers.registry import CATALOG, layer_types
from demitasse.lint.findings import Finding
from demitasse.lint.net_view import IN_PHASE, NetView, ScopedFinding
from demitasse.net import Net
from demitasse.net.build import layer_label


def duplicate_names(view: NetView) -> None:
    """Report layers of the same name: weights are loaded by layer name."""
    seen: set[str] = set()
    for index, layer in enumerate(view.layers):
        if layer.name in seen:
            message = "another layer has the same name; weights are loaded by layer name"
            view.report("warning", "duplicate-name", index, message)
        seen.add(layer.name)


def nonfinite_settings(view: NetView) -> None:
    """Report numbers that are NaN or infinite."""
    for index, layer in enumerate(view.layers):
        for field, value in nonfinite_fields(layer, SETTINGS):
            view.report(
                "error", "not-finite", index, f"got {field} {value}, expected a finite number"
            )


def unknown_types(view: NetView) -> None:
    """Report unknown layer types."""
    known = layer_types()
    for index, layer in enumerate(view.layers):
        if layer.type not in known:
            forks = fork_of_type(layer.type)
            origin = f"; the type is from {forks}" if forks else suggestion(layer.type, known)
            view.report(
                "error", "unknown-type", index, f"unknown layer type {layer.type!r}{origin}"
            )


def unused_blobs(view: NetView) -> None:
    """Report blobs without readers, in nets with a loss."""
    if not view.losses:
        return
    known = layer_types()
    for index, layer in enumerate(view.layers):
        facts = view.facts[index]
        if index in view.losses or facts.result or not (facts.known or layer.type in known):
            continue
        for blob, readers in zip(layer.top, view.readers[index], strict=True):
            if not readers:
                message = (
                    f"no layer reads its top {blob!r}{IN_PHASE}, which is printed as an output; "
                    "remove the layer, or read the top by a Silence layer"
                )
                view.report("warning", "unused-blob", index, message)


def batch_norm(view: NetView) -> None:
    """Report learning rates of averages, batch statistics in TEST, and a missing Scale."""
    for index, layer in view.of_type("BatchNorm"):
        param = layer.batch_norm_param
        roles = [one.role for one in view.facts[index].params_of(layer, view.phase)]
        averages = [
            spec for spec, role in zip(layer.param, roles, strict=False) if role == "average"
        ]
        # files of NVCaffe's BatchNorm, which has a scale, have the rates of scale and bias first
        if any(spec.lr_mult for spec in averages) and "scale" not in roles:
            message = (
                "lr_mult of BatchNorm must be 0 (its blobs are averages, not learned); remove the "
                "param entries"
            )
            view.report("error", "batch-norm-lr", index, message)
        if param.HasField("use_global_stats"):
            if view.phase == "TRAIN" and param.use_global_stats and view.losses:
                message = "use_global_stats: true in TRAIN: the averages are not updated"
                view.report("note", "batch-norm-stats", index, message)
            if view.phase == "TEST" and not param.use_global_stats:
                message = (
                    "use_global_stats: false in TEST: results depend on the rest of the batch; "
                    "remove the field, so that the phase decides"
                )
                view.report("warning", "batch-norm-stats", index, message)
        following = view.following(index)
        if following and not following & {"Scale", "Bias"} and not param.scale_bias:
            message = "no Scale follows, so factor and shift are not learned"
            view.report("note", "batch-norm-scale", index, message)


def bias_before_batch_norm(view: NetView) -> None:
    """Report a bias before BatchNorm, which subtracts the bias."""
    for index, layer in enumerate(view.layers):
        facts = view.facts[index]
        roles = {one.role for one in facts.params_of(layer, view.phase)}
        if view.following(index) == {"BatchNorm"} and facts.num_output and "bias" in roles:
            message = "the BatchNorm below subtracts the bias; set bias_term: false"
            view.report("note", "useless-bias", index, message)


def zero_weights(view: NetView) -> None:
    """Report weights without a filler: all units then compute the same."""
    if view.phase != "TRAIN" or not view.losses:
        return
    for index, layer in enumerate(view.layers):
        params = view.facts[index].params_of(layer, view.phase)
        fillers = {one.filler for one in params if one.role == "weight"}
        if not layer.blobs and any(not has_field(layer, filler) for filler in fillers):
            message = (
                "without a weight_filler, weights start at 0 (unless loaded) and all units compute "
                'the same; add e.g. weight_filler { type: "xavier" }'
            )
            view.report("warning", "zero-weights", index, message)


def overwritten_outputs(view: NetView) -> None:
    """Report in-place layers that overwrite a blob which another layer's backward needs."""
    if view.phase != "TRAIN":
        return
    reported: set[int] = set()
    for index, layer in enumerate(view.layers):
        for bottom, (below, above) in enumerate(zip(layer.bottom, layer.top, strict=False)):
            if below != above:
                continue
            for writer, top in view.writers(index, bottom):
                if writer not in reported and _needs(view, writer, top, index):
                    reported.add(writer)
                    message = (
                        f"it overwrites in place the output of {view.layers[writer].name!r} "
                        f"({view.layers[writer].type}), whose backward needs the output; use "
                        "another top"
                    )
                    view.report("error", "in-place", index, message)


def _needs(view: NetView, writer: int, top: int, index: int) -> bool:
    """Return True if a layer's backward needs a top that another layer overwrites."""
    reads = view.facts[writer].reads_in_backward(view.layers[writer], view.phase)
    if reads & {"tops", ("first top", "second top", "")[min(top, 2)]}:
        return True
    facts = view.facts[index]
    harmless = {"signs": facts.preserves_sign, "tops with gradient": facts.stops_gradient}
    return any(
        what in reads and not when.is_met(view.layers[index], view.phase)
        for what, when in harmless.items()
    )


def losses_of_losses(view: NetView) -> None:
    """Report layers before a loss that the loss contains, and a ReLU before a loss."""
    for index in range(len(view.layers)):
        contained = view.facts[index].contains
        source = view.sources[index][0] if view.sources[index] else None
        if not contained or source is None:
            continue
        kind = view.layers[source].type
        if kind in contained:
            message = (
                f"it contains a {kind}, like {view.layers[source].name!r} before it; remove that "
                "layer in training"
            )
            view.report("warning", "twice", index, message)
        elif kind == "ReLU":
            message = (
                f"ReLU {view.layers[source].name!r} before it removes negative scores; usually "
                "the last layer before a loss has no activation"
            )
            view.report("warning", "relu-before-loss", index, message)


def weighted_and_read(view: NetView) -> None:
    """Report loss weights on tops with readers: the weight moves, and others are lost."""
    for index, layer in enumerate(view.layers):
        for blob, weight, readers in zip(
            layer.top, layer.loss_weight, view.readers[index], strict=False
        ):
            if weight and readers:
                view.report("warning", "moved-weight", index, moved_weight(blob))


def dropout_only_in_test(view: NetView) -> None:
    """Report Dropout in TEST only, where it has no effect."""
    for index, layer in view.of_type("Dropout"):
        p, rules = layer.dropout_param, layer.include
        only_test = rules and all(rule.HasField("phase") and rule.phase for rule in rules)
        if only_test and p.scale_train and not p.sample_weights_test:
            message = "the layer is in TEST only, where Dropout has no effect"
            view.report("warning", "dropout-in-test", index, message)


def frozen(view: NetView) -> None:
    """Report training with all learning rates at 0."""
    if view.phase != "TRAIN" or not view.losses:
        return
    rates: dict[int, list[float]] = {}
    for index, layer in enumerate(view.layers):
        if not view.facts[index].known:
            return  # an unknown layer may learn
        for place, one in enumerate(view.facts[index].params_of(layer, view.phase)):
            if one.role != "average":
                rate = layer.param[place].lr_mult if place < len(layer.param) else 1.0
                rates.setdefault(index, []).append(rate)
    if rates and not any(any(rate) for rate in rates.values()):
        message = "all layers have lr_mult: 0, so nothing is learned"
        view.report("warning", "all-frozen", next(iter(rates)), message)


RULES = (
    unknown_types, duplicate_names, nonfinite_settings, overwritten_outputs, batch_norm,
    unused_blobs, zero_weights, losses_of_losses, weighted_and_read, dropout_only_in_test, frozen,
    bias_before_batch_norm,
)  # fmt: skip

DEPRECATED = {
    "data_param": "rand_skip force_encoded_color scale mean_file crop_size mirror",
    "image_data_param": "rand_skip scale mean_file crop_size mirror",
    "window_data_param": "scale mean_file crop_size mirror",
    "dummy_data_param": "num channels height width",
    "concat_param": "concat_dim",
    "slice_param": "slice_dim",
    "loss_param": "normalize",
}
"""Fields of layers that have a newer field in their place, or no effect."""


def deprecated_fields(
    net: NetParameter, name: str, lines: Sequence[int | None] = ()
) -> Iterator[Finding]:
    """Yield findings on old formats and deprecated fields of a net before its upgrade."""
    if net.layers:
        oldest = any(layer.HasField("layer") for layer in net.layers)
        age = "2013 (layers with a layer inside)" if oldest else "2014 (layers, types in capitals)"
        message = f"the net has the format of {age}; run `demitasse upgrade net`"
        yield Finding("warning", "old-format", message, name)
    if net.input:
        message = "inputs are given as fields of the net; use an Input layer"
        yield Finding("note", "old-input", message, name)
    for layer, line in itertools.zip_longest(net.layers or net.layer, lines):
        if layer is not None:
            yield from _layer_fields(layer, name if line is None else f"{name}:{line}")


def _layer_fields(layer: Any, name: str) -> Iterator[Finding]:
    if layer.type == "BatchNorm" and len(layer.param) == 3 and any(s.lr_mult for s in layer.param):
        message = (
            "its three blobs are averages, not learned, with lr_mult read as 0; remove the param "
            "entries"
        )
        yield Finding("note", "batch-norm-lr", message, f"{name}: layer {layer.name!r}")
    known = {field.name for field in layer.DESCRIPTOR.fields}
    for message_name, fields in DEPRECATED.items():
        if message_name not in known or not layer.HasField(message_name):
            continue
        set_fields = {field.name for field, _ in getattr(layer, message_name).ListFields()}
        given = [field for field in fields.split() if field in set_fields]
        if given:
            message = f"{message_name} has the deprecated {' and '.join(given)}"
            yield Finding("note", "old-field", message, f"{name}: layer {layer.name!r}")


ENVIRONMENT = {
    ErrorCode.UNAVAILABLE, ErrorCode.UNTRUSTED, ErrorCode.OUT_OF_MEMORY, ErrorCode.IN_USE,
}  # fmt: skip
"""Codes of errors that come from this machine, not from the net."""

CHANNELS, SIDES = (3, 1), (256, 28)
"""Sizes of images that are tried where the data is missing."""

IMAGE_SOURCES = {"Data": "data_param", "ImageData": "image_data_param"}
"""Layer type -> field of its source and batch size, for layers of images with one label each."""


def set_up(view: NetView) -> None:
    """Report the first layer whose set-up raises an error.

    Nets with layers of other packages, or in Python, are left out: their set-up is code that lint
    must not run. With missing data, only errors that images of every tried size give are reported.
    """
    if any(layer.type == "Python" or layer.type not in CATALOG for layer in view.layers):
        return
    missing = [index for index, _, _, path in view.files() if path is None]
    if any(view.layers[i].type not in IMAGE_SOURCES for i in missing):
        return
    sizes = itertools.product(CHANNELS, SIDES) if missing else [(0, 0)]
    errors = [_error(view, dict.fromkeys(missing, size)) for size in sizes]
    error = errors[0]
    if error is None or error.code in ENVIRONMENT or any(str(one) != str(error) for one in errors):
        return
    for index, layer in enumerate(view.layers):
        if error.place.startswith(escaped(layer_label(layer), one_line=True)):
            view.report("error", "set-up", index, error.message)
            return
    finding = Finding("error", "set-up", str(error), view.name)
    view.findings.append(ScopedFinding(finding, finding))


def _error(view: NetView, sizes: Mapping[int, tuple[int, int]]) -> DemitasseError | None:
    """Return the error of the net's set-up, or None.

    ``sizes`` has channels and side of images for each data layer that an Input layer replaces.
    """
    net = NetParameter(name=view.name)
    net.state.phase = Phase.Value(view.phase)
    net.layer.extend(_harmless(layer, sizes.get(i)) for i, layer in enumerate(view.layers))
    logger = logging.getLogger("demitasse")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the rules report what a net would warn of
    try:
        Net(net, device="numpy", base_dir=view.base, optimize=False).close()
    except DemitasseError as error:
        return error
    except OSError:  # of the machine, such as too many open files
        pass
    finally:
        logger.setLevel(level)
    return None


def _harmless(layer: LayerParameter, size: tuple[int, int] | None) -> LayerParameter:
    """Return a layer without rules, or the layer in its place."""
    copy = deepcopy(layer)
    copy.ClearField("include")
    copy.ClearField("exclude")
    if layer.type == "HDF5Output":  # its set-up writes a file
        copy.type = "Silence"
    elif size is not None and (
        batch := field_value(layer, f"{IMAGE_SOURCES[layer.type]}.batch_size")
    ):  # without a batch size the data layer refuses its fields before it opens its source
        copy.type = "Input"
        side = layer.transform_param.crop_size or size[1]
        shapes = ((batch, size[0], side, side), (batch,))
        for shape in shapes[: len(layer.top)]:
            copy.input_param.shape.add(dim=shape)
    return copy
