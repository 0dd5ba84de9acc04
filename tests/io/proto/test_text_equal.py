"""Our reader makes the message that protobuf's own makes."""

import json
import random
from collections import Counter

import pytest
from expect_error import expect_error
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto import NetParameter, SolverParameter, SolverState, caffe_pb2, parse_text
from demitasse.io.proto.text import parse
from demitasse.io.proto.text.schema import INTEGERS, schema
from demitasse.io.proto.text.tokens import tokens

MESSAGES = sorted(
    name for name in caffe_pb2.__all__ if hasattr(getattr(caffe_pb2, name), "DESCRIPTOR")
)
MESSAGES = [name for name in MESSAGES if isinstance(getattr(caffe_pb2, name), type)]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def values(field, depth):
    """A strategy for one value of a field."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type, depth - 1)
    if field.type in INTEGERS:
        return st.integers(*INTEGERS[field.type])
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return {
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
        FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
        FieldDescriptor.TYPE_STRING: TEXT,
        FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    }[field.type]


@st.composite
def messages(draw, descriptor, depth=3):
    """A message of a type as keyword arguments, a few of its fields set."""
    known = schema(descriptor).fields
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True))
    names += [name for name, field in known.items() if field.required and name not in names]
    chosen = {}
    for name in names:
        field = descriptor.fields_by_name[name]
        if field.message_type is not None and depth == 0:
            continue
        one = values(field, depth)
        chosen[name] = draw(st.lists(one, max_size=3) if known[name].repeated else one)
    return chosen


@given(st.data(), st.booleans(), st.booleans(), st.booleans())
def test_every_message_written_by_protobuf_is_read_back(data, one_line, short, pointy):
    cls = getattr(caffe_pb2, data.draw(st.sampled_from(MESSAGES)))
    message = cls(**data.draw(messages(cls.DESCRIPTOR)))

    text = text_format.MessageToString(
        message,
        as_one_line=one_line,
        use_short_repeated_primitives=short,
        pointy_brackets=pointy,
        as_utf8=short,
    )

    assert parse_text(text, cls) == message


def recorded(folder):
    """Every text of the reference data as (path, class, whether Caffe reads it)."""
    listed = json.loads((folder / "prototxt_index.json").read_text())
    for entry in listed:
        cls = SolverParameter if entry["kind"] == "solver" else NetParameter
        yield folder / entry["file"], cls, entry["bvlc_parse"]
    for path in sorted((folder / "prototxt_gold").rglob("*.upgraded")):
        yield path, SolverParameter if "solver" in path.name else NetParameter, True


def text_of_file(path):
    return path.read_bytes().decode("utf-8", "surrogateescape")


def test_recorded_files_that_caffe_reads_are_read_alike(reference_data):
    read = Counter()
    for path, cls, accepted in recorded(reference_data):
        if accepted:
            text = text_of_file(path)

            parsed = parse(text, cls, str(path))

            assert parsed.message == text_format.Parse(text, cls()), path
            assert parsed.warnings == [], path
            read[cls.__name__, "upgraded" in path.suffix] += 1
    assert read == {
        ("NetParameter", False): 78, ("SolverParameter", False): 40,
        ("NetParameter", True): 75, ("SolverParameter", True): 40,
    }  # fmt: skip


def test_recorded_files_that_caffe_refuses_are_refused_or_warned_about(reference_data):
    """The others have only fields of forks whose layers are ours, too."""
    refused, warned, taken = Counter(), Counter(), Counter()
    for path, cls, accepted in recorded(reference_data):
        if not accepted:
            text = text_of_file(path)
            parsed = outcome(lambda text, cls=cls: parse(text, cls), text)
            count = refused if parsed is None else warned if parsed.warnings else taken
            count[cls.__name__] += 1
    assert refused == {"NetParameter": 14, "SolverParameter": 3}
    assert warned == {"NetParameter": 4}
    assert taken == {"NetParameter": 15}


def outcome(read, text):
    try:
        return read(text)
    except (PrototxtError, text_format.ParseError):
        return None


NET = """\
name: "net" # a comment
input: 'data' input_shape: { dim: [1, 3] dim: 0x10 }
state { phase: TRAIN; level: -1, stage: "a" "b" }
layer < name: "conv" type: "Convolution" propagate_down: [true, False, t]
  convolution_param { num_output: 20 bias_term: false weight_filler { std: 1e-2 value: .5f } }
  param [{ lr_mult: 1. }, { decay_mult: inf }] >
"""


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_damaged_text_is_refused_or_read_as_protobuf_reads_it(chance: random.Random, times):
    pieces = [token.text for token in tokens(NET)]
    for _ in range(times):
        at = chance.randrange(len(pieces))
        match chance.randrange(4):
            case 0:
                del pieces[at]
            case 1:
                pieces.insert(at, chance.choice(pieces))
            case 2:
                pieces[at] = chance.choice(pieces)
            case 3:
                other = chance.randrange(len(pieces))
                pieces[at], pieces[other] = pieces[other], pieces[at]
    text = " ".join(pieces)

    ours = outcome(lambda text: parse_text(text, NetParameter), text)
    theirs = outcome(lambda text: text_format.Parse(text, NetParameter()), text)

    if theirs is not None or "- " not in text:  # protobuf's C++ reader takes "- 1", Python's not
        assert ours == theirs


def test_the_order_and_presence_of_fields_make_no_difference():
    text = "iter: 0 current_step: 0 learned_net: ''"

    state = parse_text(text, SolverState)

    assert [name for name in ("iter", "learned_net", "current_step") if state.HasField(name)] == [
        "iter",
        "learned_net",
        "current_step",
    ]


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_type_can_be_empty_unless_something_is_required(name):
    cls = getattr(caffe_pb2, name)

    if schema(cls.DESCRIPTOR).required:
        with expect_error(PrototxtError, ErrorCode.UNREADABLE):
            parse_text("", cls)
    else:
        assert parse_text("", cls) == cls()
