"""Tables of a message's fields: types and defaults by its descriptor, meaning by its comments."""

from collections.abc import Callable, Iterator

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from proto_text import proto_text

SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_FLOAT: "number",
    FieldDescriptor.CPPTYPE_DOUBLE: "number",
    FieldDescriptor.CPPTYPE_INT32: "whole number",
    FieldDescriptor.CPPTYPE_INT64: "whole number",
    FieldDescriptor.CPPTYPE_UINT32: "whole number, not negative",
    FieldDescriptor.CPPTYPE_UINT64: "whole number, not negative",
}


def beside(message: str) -> str:
    """Return the address of a message's table from a page of a layer type."""
    return f"messages.md#{message.lower()}"


def field_tables(
    message: Descriptor, only: set[str] | None = None, address: Callable[[str], str] = beside
) -> Iterator[str]:
    """Describe the fields of a message, group by group.

    Args:
        message: The message.
        only: The names of those to describe; None for all.
        address: Says where the page links to for a message; empty where it does not.
    """
    text = proto_text()[_full_name(message)]
    if text.comment and only is None:
        yield f"{text.comment}\n"
    for group in text.groups:
        named = [name for name in group.fields if only is None or name in only]
        if not named:
            continue
        if group.comment:
            yield f"{group.comment}\n"
        yield "| field | type | default | meaning |\n| --- | --- | --- | --- |"
        for name in named:
            field = message.fields_by_name[name]
            meaning = "; ".join(part for part in (meaning_of(field), _values(field)) if part)
            cells = (f"`{name}`", _type(field, address), _default(field), meaning)
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
        yield ""


def meaning_of(field: FieldDescriptor) -> str:
    """Return what the comments say of a field; empty where they say nothing."""
    groups = proto_text()[_full_name(field.containing_type)].groups
    return next(group.fields[field.name] for group in groups if field.name in group.fields)


def _full_name(described: Descriptor | EnumDescriptor) -> str:
    return described.full_name.removeprefix(f"{described.file.package}.")


def _type(field: FieldDescriptor, address: Callable[[str], str]) -> str:
    if field.message_type is not None:
        name = field.message_type.name
        kind = f"[{name}]({address(name)})" if address(name) else name
    elif field.enum_type is not None:
        kind = "a name"
    elif field.type == FieldDescriptor.TYPE_BYTES:
        kind = "bytes"
    else:
        kind = SCALARS[field.cpp_type]
    return f"{kind}; any number of times" if _is_repeated(field) else kind


def _is_repeated(field: FieldDescriptor) -> bool:
    """Whether it may be given several times; before protobuf 6 its label alone says it."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _default(field: FieldDescriptor) -> str:
    if _is_repeated(field) or not field.has_default_value:
        return "-"
    if field.enum_type is not None:
        return f"`{field.enum_type.values_by_number[field.default_value].name}`"
    value = field.default_value
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:.7g}`" if isinstance(value, float) else f"`{value}`"


def _values(field: FieldDescriptor) -> str:
    if field.enum_type is None:
        return ""
    text = proto_text()[_full_name(field.enum_type)]
    comments = {name: note for group in text.groups for name, note in group.fields.items()}
    names = [
        f"`{value.name}`" + (f" ({comments[value.name]})" if comments[value.name] else "")
        for value in field.enum_type.values
    ]
    return f"one of {', '.join(names)}"
