"""Checks of fields and bottoms; every error has a code, and details for programs.

A field is named by its path in the layer's message, for instance ``crop_param.offset``.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from numbers import Integral
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from demitasse.blob import Blob
from demitasse.core.axes import check_range
from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.proto import ConcatParameter, SliceParameter
from demitasse.memory import Head

# -- fields ------------------------------------------------------------------------------------


def positive(value: int, field: str) -> int:
    """Return ``value`` if it is above 0; raise ConfigError otherwise, as for a missing field."""
    if value <= 0:
        message = f"{field} must be above 0, it is {value or '0 or missing'}"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field=field, got=value)
    return value


def at_least(least: int, name: str, value: object) -> None:
    """Raise a ConfigError unless an argument or a field is a whole number from ``least`` on."""
    if not isinstance(value, Integral):
        message = f"got {name} {value!r}, expected a whole number"
        raise ConfigError(message, code=ErrorCode.INVALID, field=name, got=value)
    if value < least:
        message = f"got {name} {value}, expected at least {least}"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field=name, got=value)


def out_of_range(field: str, got: object, expected: str) -> ConfigError:
    """Return the error for a field whose value is outside its bounds."""
    text = f"{got:g}" if isinstance(got, float) else got
    message = f"{field} is {text}, expected {expected}"
    return ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field=field, got=got)


def missing(field: str, advice: str) -> ConfigError:
    """Return the error for a required field that is not given."""
    return ConfigError(f"{field} is missing; {advice}", code=ErrorCode.MISSING, field=field)


def wrong_count(field: str, got: int, expected: str) -> ConfigError:
    """Return the error for a repeated field that is given too often or too rarely."""
    message = f"{field} is given {got} times, expected {expected}"
    return ConfigError(message, code=ErrorCode.COUNT_MISMATCH, field=field, got=got)


def conflict(field: str, message: str) -> ConfigError:
    """Return the error for a field that excludes, or requires, another one."""
    return ConfigError(message, code=ErrorCode.CONFLICT, field=field)


def unsupported(field: str, message: str) -> ConfigError:
    """Return the error for a field that a layer does not implement."""
    return ConfigError(message, code=ErrorCode.UNSUPPORTED, field=field)


def pair(param: Message, path: str, first: str, second: str) -> tuple[Any, Any] | None:
    """Return two fields that are given together, or None; raise ConfigError for one of them."""
    given = [name for name in (first, second) if param.HasField(name)]
    if len(given) == 1:
        other = second if given[0] == first else first
        raise missing(f"{path}.{other}", f"give both {first} and {second}")
    return (getattr(param, first), getattr(param, second)) if given else None


def legacy_axis(param: ConcatParameter | SliceParameter, old: str, blob: Blob) -> int:
    """Return ``axis``, which may be negative, or the field ``old``, which may not; not both."""
    if not param.HasField(old):
        return blob.canonical_axis(param.axis)
    if param.HasField("axis"):
        raise conflict(old, f"axis and {old} are the same field; remove {old}")
    axis: int = getattr(param, old)
    if axis >= blob.num_axes:
        message = f"{old} {axis} is not an axis of bottom {blob.name!r} {blob.shape}"
        raise no_such_axis(message, field=old, got=axis)
    return axis


# -- bottoms -----------------------------------------------------------------------------------


def wrong_shapes(layer: str, expected: str, *blobs: Blob) -> ShapeError:
    """Return the error for bottoms of other shapes than expected, e.g. ``(N, C, H, W)``."""
    given = ", ".join(f"{blob.name!r} {blob.shape}" for blob in blobs)
    message = f"{layer} needs {expected}, got {given}"
    shapes = [blob.shape for blob in blobs]
    return ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=shapes, expected=expected)


def shape_mismatch(message: str, **details: object) -> ShapeError:
    """Return the error for shapes that do not fit each other."""
    return ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, **details)


def no_such_axis(message: str, **details: object) -> ShapeError:
    """Return the error for axes, or places on an axis, that a shape does not have."""
    return ShapeError(message, code=ErrorCode.OUT_OF_RANGE, **details)


def check_row_size(blob: Blob, axis: int, size: int, needed_by: str) -> None:
    """Raise ShapeError for a bottom that does not have ``size`` values from ``axis`` on."""
    got = blob.count_from(axis)
    if got != size:
        message = (
            f"bottom {blob.name!r} {blob.shape} has {got} values per row from axis {axis}, "
            f"but {needed_by} needs {size}"
        )
        raise shape_mismatch(message, blob=blob.name, got=got, expected=size)


def check_indices(blob: Blob, stop: int, counted: str, *, wait: bool = False) -> None:
    """Raise ShapeError for indices, without fractions, outside [0, ``stop``), or NaN.

    Indices that exist on a device only are checked with ``wait`` alone, since the copy would
    synchronize. ``counted`` names the items that the indices count.
    """
    at_device = blob.data_memory.head is Head.HEAD_AT_GPU and not blob.device.shares_host
    if not blob.count or (at_device and not wait):
        return
    host = blob.cpu_data()
    check_range(blob.name, host.min(), host.max(), stop, counted)


def check_predictions(
    layer: str, bottom: Sequence[Blob], widths: tuple[int, int]
) -> tuple[int, int]:
    """Return batch size N and number of priors P of a detector's bottoms; or raise ShapeError.

    Bottoms are locations (N, ...), scores (N, ...) and priors (1, 2, P 4). ``widths`` are the
    values of a location, and of a score, per prior.
    """
    location, score, prior = bottom[:3]
    count = prior.count // 8
    n = location.shape[0] if location.num_axes else 0
    if prior.count != count * 8 or prior.shape[:2] != (1, 2):
        raise wrong_shapes(layer, "priors (1, 2, P 4)", prior)
    for blob, width in zip((location, score), widths, strict=True):
        if not blob.num_axes or blob.shape[0] != n or blob.count != n * count * width:
            expected = f"{width} values for each of the {count} priors of {n} images"
            raise wrong_shapes(layer, expected, blob)
    return n, count


REAL = {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}

SETTINGS = frozenset(
    {"LayerParameter", "ParamSpec", "FillerParameter", "TransformationParameter",
     "DistortionParameter", "ExpansionParameter", "NoiseParameter", "SaltPepperParameter",
     "ResizeParameter", "EmitConstraint", "DataParameter", "ImageDataParameter",
     "WindowDataParameter", "BatchSampler", "Sampler", "SampleConstraint"}
)  # fmt: skip
"""Messages of a layer whose numbers are settings: loss weights, multipliers, fillers, transforms.

Parameters of a layer's function may be infinite: a clip has no bound then.
"""


APART = {"BlobProto", "NetParameter"}
"""Messages inside others that are left out: arrays, and nets, which are checked by layer."""


def nonfinite_fields(
    message: Message, kinds: Collection[str] | None = None, place: str = ""
) -> Iterator[tuple[str, float]]:
    """Yield name and value of each set number that is NaN or infinite.

    Nets and blobs inside the message are left out. ``kinds`` are the names of messages whose
    numbers count, None for all; ``place`` is the path of the message, with a dot at its end.
    """
    counts = kinds is None or message.DESCRIPTOR.name in kinds
    for field, value in message.ListFields():
        values: Any = [value] if isinstance(value, Message | float) else value
        kind = field.message_type
        if field.type in REAL and counts:
            for number in values:
                if not math.isfinite(number):
                    yield f"{place}{field.name}", number
        elif kind is not None and kind.name not in APART:
            for part in values:
                yield from nonfinite_fields(part, kinds, f"{place}{field.name}.")
