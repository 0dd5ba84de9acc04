"""Strings that are no UTF-8: Caffe, in C++, writes and reads any bytes, e.g. names in GBK.

protobuf's Python gives such a string as bytes, which nothing that expects a string can use.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["mend_strings"]


def mend_strings(message: Message) -> int:
    r"""Write the bytes of a message's strings that are no UTF-8 as ``\xNN``, in place.

    Returns:
        How many strings that were.
    """
    count = 0
    field: Any
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _mended(value))
                count += 1
            elif not isinstance(value, str):
                count += _mend_each(value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = (value,) if isinstance(value, Message) else value
            count += sum(map(mend_strings, inner))
    return count


def _mend_each(values: Any) -> int:
    count = 0
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            values[index] = _mended(value)
            count += 1
    return count


def _mended(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
