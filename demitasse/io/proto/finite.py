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
    field: Any
    for field, value in message.ListFields():
        if field.type in REAL:
            several = value if hasattr(value, "append") else [value]
            bad = (one for one in several if not math.isfinite(one)) if counts else iter(())
            yield from ((f"{place}{field.name}", one) for one in bad)
        elif field.message_type is not None and field.message_type.name not in {
            "BlobProto", "NetParameter",
        }:  # fmt: skip
            inner = [value] if isinstance(value, Message) else value
            for one in inner:
                yield from nonfinite_fields(one, kinds, f"{place}{field.name}.")
