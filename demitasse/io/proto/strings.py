"""Strings that are not UTF-8: Caffe in C++ writes and reads any bytes, e.g. names in GBK.

protobuf for Python returns such a string as bytes, which code for strings cannot use.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["escape_invalid_utf8"]


def escape_invalid_utf8(message: Message) -> int:
    r"""Replace bytes of a message's strings that are not UTF-8 by ``\xNN``, in place.

    Returns:
        Number of changed strings.
    """
    count = 0
    field: Any
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _escaped(value))
                count += 1
            elif not isinstance(value, str):
                count += _escape_each(value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = (value,) if isinstance(value, Message) else value
            count += sum(map(escape_invalid_utf8, inner))
    return count


def _escape_each(values: Any) -> int:
    count = 0
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            values[index] = _escaped(value)
            count += 1
    return count


def _escaped(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
