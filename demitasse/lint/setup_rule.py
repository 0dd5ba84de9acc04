"""The rule about what layers refuse at their set-up: their fields, and the shapes of their bottoms.

The net is set up as for training, but not run. Layers are set up on the device ``numpy``, which
allocates the memory of a blob when the blob is first used.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from demitasse.core.paths import resolve_path
from demitasse.core.text import escaped
from demitasse.errors import ConfigError, DemitasseError, ErrorCode
from demitasse.io.proto import LayerParameter, NetParameter, Phase
from demitasse.layers.metadata import field_value
from demitasse.layers.registry import CATALOG
from demitasse.lint.findings import Finding
from demitasse.lint.net_view import NetView, ScopedFinding
from demitasse.net import Net
from demitasse.net.build import layer_label

ENVIRONMENT = {
    ErrorCode.UNAVAILABLE, ErrorCode.UNTRUSTED, ErrorCode.OUT_OF_MEMORY, ErrorCode.IN_USE,
}  # fmt: skip
"""Codes of errors that come from this machine, not from the net."""

CHANNELS, SIDES = (3, 1), (256, 28)
"""Sizes of images that are tried where the data is missing."""

IMAGE_SOURCES = {"Data": "data_param", "ImageData": "image_data_param"}
"""Layer type -> field of its source and batch size, for layers of images with one label each."""


def set_up(view: NetView) -> None:
    """Report the first layer that refuses its fields or its bottoms.

    Nets with layers of other packages, or in Python, are left out: their set-up is code that lint
    must not run. With missing data, only errors that images of every tried size give are reported.
    """
    if any(layer.type == "Python" or layer.type not in CATALOG for layer in view.layers):
        return
    missing = [i for i in range(len(view.layers)) if _lacks_data(view, i)]
    if any(view.layers[i].type not in IMAGE_SOURCES for i in missing):
        return
    sizes = itertools.product(CHANNELS, SIDES) if missing else [(0, 0)]
    errors = [_error(view, dict.fromkeys(missing, size)) for size in sizes]
    first = errors[0]
    if first is None or any(str(error) != str(first) for error in errors):
        return
    if first.code not in ENVIRONMENT:
        _report(view, first)


def _report(view: NetView, error: DemitasseError) -> None:
    for index, layer in enumerate(view.layers):
        if error.place.startswith(escaped(layer_label(layer), one_line=True)):
            view.report("error", "set-up", index, error.message)
            return
    finding = Finding("error", "set-up", str(error), view.name)
    view.findings.append(ScopedFinding(finding, finding))


def _error(view: NetView, sizes: Mapping[int, tuple[int, int]]) -> DemitasseError | None:
    """Return the error of the net's set-up, or None.

    Args:
        view: The net.
        sizes: Data layer that an Input layer replaces -> channels and side of its images.
    """
    net = NetParameter(name=view.name)
    net.state.phase = Phase.Value(view.phase)
    for index, layer in enumerate(view.layers):
        net.layer.extend(_harmless(layer, sizes.get(index)))
    try:
        with _without_warnings():
            Net(net, device="numpy", base_dir=view.base, optimize=False).close()
    except DemitasseError as error:
        return error
    except OSError:  # of the machine, such as too many open files
        return None
    return None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Log errors alone: the rules report what a net would warn of."""
    logger = logging.getLogger("demitasse")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _harmless(layer: LayerParameter, size: tuple[int, int] | None) -> Iterator[LayerParameter]:
    """Yield a layer without rules, or the layer in its place."""
    copy = LayerParameter()
    copy.CopyFrom(layer)
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
    yield copy


def _lacks_data(view: NetView, index: int) -> bool:
    """Return True if a data layer names a file that does not exist."""
    layer, facts = view.layers[index], view.facts[index]
    names = [field_value(layer, facts.source) if facts.source else ""]
    names += [layer.transform_param.mean_file]
    try:
        return any(name and not resolve_path(name, view.base).exists() for name in names)
    except (ConfigError, OSError):  # an impossible name
        return True
