"""Corrections of common mistakes."""

from demitasse.io.proto.text.faults import shown
from demitasse.io.proto.text.schema import BYTES, MESSAGE, STRING, Field, Schema
from demitasse.io.proto.text.tokens import NAME, Token
from demitasse.io.proto.text.tokens import STRING as QUOTED

__all__ = ["placed_elsewhere", "wrong_kind"]

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


def placed_elsewhere(name: str, shape: Schema) -> str:
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


def wrong_kind(field: Field, token: Token, begins_field: bool) -> str:
    """Return the reason why a token is no value of a field."""
    if begins_field or token.text in {"}", ">", ""}:
        return f"{field.name} has no value; it is {field.wants}"
    found = shown(token.kind, token.text)
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
