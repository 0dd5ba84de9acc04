"""Field types of messages, cached per message type."""

from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from demitasse.io.proto.text.values import boolean, integer, real

__all__ = ["BYTES", "ENUM", "INTEGERS", "MESSAGE", "STRING", "Field", "Schema", "schema"]

MESSAGE = FieldDescriptor.TYPE_MESSAGE
STRING, BYTES = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES
ENUM = FieldDescriptor.TYPE_ENUM

INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
WORDS = {
    MESSAGE: "a message in braces",
    STRING: "a string in quotes",
    BYTES: "a string in quotes",
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
}


class Field:
    """A field of a message.

    Attributes:
        name: Name of the field.
        type: Protobuf's number of the type.
        repeated: True if the field may occur more than once.
        required: True if the field must occur.
        values: For an enum, its numbers by name; else empty.
        known: For an enum, its numbers.
        convert: For a number or a bool, converts text and sign to a value.
    """

    def __init__(self, field: FieldDescriptor) -> None:
        self.name: str = field.name
        self.type: int = field.type
        self.repeated, self.required = _label(field)
        enum = field.enum_type
        self.values = {value.name: value.number for value in enum.values} if enum else {}
        self.known = frozenset(self.values.values())
        self.convert = _converter(self.type)

    @property
    def wants(self) -> str:
        """Return the expected value as text, for messages."""
        if self.values:
            names = list(self.values)
            return f"one of {', '.join(names)}" if len(names) <= 8 else "one of its names"
        return WORDS.get(self.type, "an integer")


class Schema:
    """A message type.

    Attributes:
        name: Name without package.
        fields: Fields by name.
        required: Names of required fields.
        inner: For each message field, the names of its fields.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.name: str = descriptor.name
        self.fields = {field.name: Field(field) for field in descriptor.fields}
        self.required = [field.name for field in self.fields.values() if field.required]
        self.inner = {
            field.name: [inner.name for inner in field.message_type.fields]
            for field in descriptor.fields
            if field.message_type is not None
        }


@cache
def schema(descriptor: Descriptor) -> Schema:
    """Return the schema of a message type."""
    return Schema(descriptor)


def _label(field: Any) -> tuple[bool, bool]:
    """Return (repeated, required); protobuf 5 and 6 name these differently."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated), bool(field.is_required)
    return field.label == field.LABEL_REPEATED, field.label == field.LABEL_REQUIRED


def _converter(kind: int) -> Callable[[str, bool], float] | None:
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return lambda text, negative: integer(text, negative, low, high)
    if kind in {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}:
        return real
    if kind == FieldDescriptor.TYPE_BOOL:
        return lambda text, negative: boolean(f"-{text}" if negative else text)
    return None
