"""Parser of prototxt, which continues after faults, so that all are found.

The parser accepts what protobuf's own parser accepts, with the same result, and refuses the rest,
except for fields of forks in the dialect table.
"""

from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from demitasse.core.text import suggestion
from demitasse.io.proto.text import dialects
from demitasse.io.proto.text.schema import (
    BYTES,
    MESSAGE,
    STRING,
    Field,
    Schema,
    integer,
    schema,
    unescape,
)
from demitasse.io.proto.text.tokens import (
    END,
    NAME,
    NUMBER,
    Cursor,
    Fault,
    FaultKind,
    Skip,
    Token,
    short,
)
from demitasse.io.proto.text.tokens import STRING as QUOTED
from demitasse.io.proto.wire_format import memory_limit

# Fields of old formats, and their present place.
MOVED = {
    "blobs_lr": "param { lr_mult: ... }",
    "weight_decay": "param { decay_mult: ... }",
    "kernelsize": "convolution_param { kernel_size: ... }",
    "biasterm": "convolution_param { bias_term: ... }",
    "batchsize": "data_param { batch_size: ... }",
    "meanfile": "transform_param { mean_file: ... }",
    "cropsize": "transform_param { crop_size: ... }",
}

# Fields that only one kind of file begins with, by message.
WRONG_FILE = {
    "NetParameter": {"layer", "layers", "name", "input", "input_dim", "input_shape"},
    "SolverParameter": {"net", "train_net", "test_net", "base_lr", "lr_policy", "max_iter"},
    "LabelMap": {"item"},
}
FILES = {"NetParameter": "a net", "SolverParameter": "a solver", "LabelMap": "a label map"}


def _placed_elsewhere(name: str, shape: Schema) -> str:
    """Return a hint where a misplaced field belongs."""
    for other, fields in WRONG_FILE.items():
        if shape.name != other and name in fields and shape.name in WRONG_FILE:
            what, kind = FILES[other], FILES[shape.name]
            return f"; {what} has it, and this file is read as {kind}: are two files swapped?"
    if shape.name == "LayerParameter" and name in {"layer", "layers"}:
        return "; a '}' is missing before it, which ends the layer above"
    if name in MOVED:
        return f"; it is now {MOVED[name]}"
    owners = [owner for owner, names in shape.inner.items() if name in names]
    if not owners:
        return ""
    named = " or ".join(owners) if len(owners) <= 3 else f"{owners[0]} and others"
    return f"; it belongs inside {named}"


def _wrong_kind(field: Field, token: Token, begins_field: bool) -> str:
    """Return the reason why a token is no value of a field."""
    if begins_field or token.text in {"}", ">", ""}:
        return f"{field.name} has no value; it is {field.wants}"
    found = str(token)
    if token.kind == "other" and token.text[0] in "\"'":
        return f"{field.name}: the string {found} has no closing quote on its line"
    if field.type in {STRING, BYTES} and token.kind == NAME:
        hint = ""
        if field.name == "type" and token.text.isupper():
            hint = " (names in capitals belong to the V1 format, with 'layers' instead of 'layer')"
        return f'{field.name} is a string and needs quotes: "{found}"{hint}'
    if field.name == "type" and token.kind == QUOTED and field.values:
        return (
            f"type is {found}, but an entry of 'layers' (V1 format) takes a name in capitals "
            "without quotes, such as CONVOLUTION; write 'layer' for the current format"
        )
    if field.type != MESSAGE and token.kind == QUOTED:
        return f"{field.name} is {field.wants}, without quotes; found {found}"
    if token.text == "$":
        return (
            f"{field.name} is {field.wants}; found $, as in ${{NAME}} of templates: "
            "read the file with the values filled in"
        )
    return f"{field.name} is {field.wants}; found {found}"


CLOSERS = {"{": "}", "<": ">"}

MOST_FAULTS = 10_000  # faults after which parsing stops; also the largest number of warnings


class _Enough(Exception):  # noqa: N818 - it never leaves the parser
    """Parsing stops after too many faults."""


class Parser:
    """Parser of one text.

    Attributes:
        warnings: Fields that were skipped or reinterpreted.
        layer_lines: Line of each ``layer`` and each ``layers`` entry of the outermost message.
        input_line: Line of the first ``input`` of the outermost message, or None.
    """

    def __init__(self, text: str, ignore_unknown_fields: bool = False) -> None:
        self.cursor = Cursor(text)
        self.ignore_unknown_fields = ignore_unknown_fields
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self.layer_lines: dict[str, list[int]] = {"layer": [], "layers": []}
        self.input_line: int | None = None
        self._depth = 0
        self._memory, self._most_memory = 0, memory_limit(len(text))

    def parse(self, message: Message) -> None:
        """Parse the whole text into a message; sets ``faults``."""
        with suppress(_Enough):
            self._fields(message, None)

    # -- messages ------------------------------------------------------------------------------

    def _fields(self, message: Message, opened: Token | None) -> None:
        """Parse fields up to the closing bracket of ``opened``."""
        cursor, shape = self.cursor, schema(message.DESCRIPTOR)
        closer = CLOSERS[opened.text] if opened else None
        first: dict[str, Token] = {}
        while not (closer and cursor.take(closer)):
            token = cursor.next
            if token.kind == END:
                if opened:
                    where = f"{opened.text!r} on line {cursor.line(opened)}"
                    self._fault(token, f"the text ends before {closer!r} closes the {where}")
                break
            try:
                self._field(message, shape, first)
            except Skip as skip:
                self._fault(skip.token, skip.message, skip.kind)
                if cursor.recover() and opened:
                    break
        missing = [name for name in shape.required if not message.HasField(name)]
        if missing:
            self._fault(opened or cursor.next, f"{shape.name} needs {' and '.join(missing)}")

    def _field(self, message: Message, shape: Schema, first: dict[str, Token]) -> None:
        cursor = self.cursor
        token = cursor.next
        if token.kind != NAME:
            raise Skip(token, f"expected a field name, found {token}")
        cursor.advance()
        field = shape.fields.get(token.text) or self._other_name(shape, token)
        if field is None:
            self._unknown(message, shape, token)
        else:
            earlier = first.setdefault(field.name, token)
            listed = "" if field.repeated else dialects.list_of(shape.name, token.text)
            if listed and (earlier is not token or cursor.begins_list()):
                field = self._list(message, shape, token, listed)
            elif earlier is not token and not field.repeated:
                line = cursor.line(earlier)
                twice = f"{token.text} takes one value, got two; the first is on line {line}"
                self._fault(token, twice)
                message = type(message)()  # continue, for faults inside the value
            if self._depth == 0 and token.text == "input" and self.input_line is None:
                self.input_line = cursor.line(token)
            self._known(message, field, token)
        if not cursor.take(","):
            cursor.take(";")

    def _other_name(self, shape: Schema, name: Token) -> Field | None:
        """Return the message field that a fork has under another name, or None."""
        entry = dialects.lookup(shape.name, name.text)
        field = shape.fields.get(entry.target) if entry else None
        if entry is None or field is None or field.type != MESSAGE:
            return None
        done = f"{name.text} is not known to Caffe, but to {entry.forks}: read as {entry.target}"
        self._warn(name, done, "foreign-field")
        return field

    def _list(self, message: Any, shape: Schema, name: Token, listed: str) -> Field:
        """Return the repeated field for a field with several values; move the first value there."""
        values = getattr(message, listed)
        if message.HasField(name.text):
            values.append(getattr(message, name.text))
            message.ClearField(name.text)
        if len(values) <= 1:
            done = f"{name.text} with several values is read as one for each spatial axis"
            self._warn(name, done, "foreign-field")
        return shape.fields[listed]

    def _known(self, message: Message, field: Field, name: Token) -> None:
        cursor = self.cursor
        colon = cursor.take(":")
        if not colon and field.type != MESSAGE:
            wanted = f"expected ':' after {field.name!r}, which is {field.wants}"
            raise Skip(cursor.next, f"{wanted}; found {cursor.next}")
        if cursor.next.text != "[":
            self._one(message, field, name)
            return
        bracket = cursor.advance()
        if not field.repeated:
            cursor.skip_rest_of(bracket)
            self._fault(bracket, f"{field.name} takes one value, got a list")
            return
        if cursor.take("]"):
            return
        while True:
            self._one(message, field, name)
            if cursor.take("]"):
                return
            if not cursor.take(","):
                raise Skip(cursor.next, f"expected ',' or ']' in a list, found {cursor.next}")

    def _one(self, message: Any, field: Field, name: Token) -> None:
        """Parse one value of a field into a message."""
        if field.type != MESSAGE:
            value = self._scalar(field)
            if field.repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
            return
        opened = self.cursor.next
        if opened.text not in CLOSERS:
            raise Skip(opened, f"expected '{{' after {field.name!r}, found {opened}")
        self.cursor.advance()
        if self._depth == 0 and field.name in self.layer_lines:
            self.layer_lines[field.name].append(self.cursor.line(name))
        part = getattr(message, field.name)
        self._memory += field.cost
        if self._memory > self._most_memory:  # far more memory than the text
            enough = (
                f"got (almost) empty messages that take more than {self._most_memory >> 20} MiB "
                "of memory, expected a net or solver; parsing stops here"
            )
            self.faults.append(self.cursor.fault(opened, enough))
            raise _Enough
        if field.repeated:
            part = part.add()
        else:
            part.SetInParent()
        self._depth += 1
        self._fields(part, opened)
        self._depth -= 1

    # -- values --------------------------------------------------------------------------------

    def _scalar(self, field: Field) -> int | float | bool | str | bytes:
        cursor = self.cursor
        token = cursor.next
        try:
            if field.type in {STRING, BYTES}:
                return self._string(field)
            negative = bool(cursor.take("-"))
            value = cursor.next
            if value.kind not in {NAME, NUMBER} or cursor.begins_field():
                raise Skip(token, _wrong_kind(field, value, cursor.begins_field()))
            cursor.advance()
            if field.convert:
                return field.convert(value.text, negative)
            return self._enum(field, value, negative)
        except ValueError as error:
            raise Skip(token, f"{field.name}: {error}") from None

    def _string(self, field: Field) -> str | bytes:
        cursor = self.cursor
        token = cursor.next
        if token.kind != QUOTED:
            raise Skip(token, _wrong_kind(field, token, cursor.begins_field()))
        parts = []
        while cursor.next.kind == QUOTED:
            parts.append(unescape(cursor.advance().text))
        if field.type == BYTES:
            return b"".join(parts)
        try:
            return b"".join(parts).decode()
        except UnicodeDecodeError:
            raise Skip(token, f"{field.name} is not UTF-8 text; save the file as UTF-8") from None

    def _enum(self, field: Field, token: Token, negative: bool) -> int:
        if token.kind == NUMBER:
            number = integer(token.text, negative, -(2**31), 2**31 - 1)
            if number in field.known:
                return number
        elif token.text in field.values and not negative:
            return field.values[token.text]
        renamed = dialects.value_of(field.name, token.text)
        if renamed in field.values:
            done = f"{token.text} is not known to Caffe: read as {field.name}: {renamed}"
            self._warn(token, done, "foreign-field")
            return field.values[renamed]
        message = f"{field.name} has no value {short(token.text)}"
        message += suggestion(token.text, field.values)
        if field.name == "type" and (fork := dialects.fork_of_type(token.text, "v1_types")):
            message = f"type {token.text} is not known to Caffe, but to {fork}"
            raise Skip(token, message, "foreign-field")
        if len(field.values) <= 8:
            message += f" ({', '.join(field.values)})"
        raise Skip(token, message)

    # -- unknown fields ------------------------------------------------------------------------

    def _unknown(self, message: Message, shape: Schema, name: Token) -> None:
        value = self.cursor.skip_value(name)
        entry = dialects.lookup(shape.name, name.text)
        if entry and (done := entry.apply(message, value)):
            done = f"{name.text} is not known to Caffe, but to {entry.forks}: {done}"
            self._warn(name, done, "foreign-field")
            return
        text = f"{shape.name} has no field {short(name.text)!r}"
        kind: FaultKind = "foreign-field" if entry else "unknown-field"
        if entry:
            text = f"{name.text} is not known to Caffe, but to {entry.forks}"
        else:
            text += _placed_elsewhere(name.text, shape) or suggestion(name.text, shape.fields)
        if self.ignore_unknown_fields:
            self._warn(name, f"{text}; skipped", kind)
        else:
            self._fault(name, text, kind)

    def _fault(self, token: Token, message: str, kind: FaultKind = "syntax") -> None:
        self.faults.append(self.cursor.fault(token, message, kind))
        if len(self.faults) == MOST_FAULTS:
            enough = f"there are {MOST_FAULTS} faults before; parsing stops here"
            self.faults.append(self.cursor.fault(self.cursor.next, enough, kind))
            raise _Enough

    def _warn(self, token: Token, message: str, kind: FaultKind) -> None:
        if len(self.warnings) < MOST_FAULTS:
            self.warnings.append(self.cursor.fault(token, message, kind))
