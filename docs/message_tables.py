"""Tables of a message's fields: types and defaults by its descriptor, meaning by its comments."""

from collections.abc import Iterator

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


def field_tables(message: Descriptor, only: set[str] | None = None) -> Iterator[str]:
    """Describe the fields of a message, or some of them, group by group."""
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
            meaning = "; ".join(part for part in (group.fields[name], _values(field)) if part)
            cells = (f"`{name}`", _type(field), _default(field), meaning)
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
        yield ""


def _full_name(described: Descriptor | EnumDescriptor) -> str:
    return described.full_name.removeprefix(f"{described.file.package}.")


def _type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        name = field.message_type.name
        kind = f"[{name}](messages.md#{name.lower()})"
    elif field.enum_type is not None:
        kind = "a name"
    else:
        kind = SCALARS[field.cpp_type]
    return f"{kind}; any number of times" if field.is_repeated else kind


def _default(field: FieldDescriptor) -> str:
    if field.is_repeated or not field.has_default_value:
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
    return "; ".join(part for part in (text.comment.rstrip("."), ", ".join(names)) if part)
