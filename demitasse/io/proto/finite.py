"""Fields of messages that are NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

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

    Args:
        message: The message; nets and blobs inside the message are left out.
        kinds: Names of the messages whose numbers count; None for all.
        place: Name of the message in an outer message, with a dot at its end.
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
