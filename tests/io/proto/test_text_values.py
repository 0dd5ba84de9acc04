"""Numbers, bools and strings of prototxt, spelled in every way that protobuf takes."""

import math

import pytest
from expect_error import expect_error

from demitasse.errors import ErrorCode, PrototxtError
from demitasse.io.proto import (
    BlobShape,
    Datum,
    NetParameter,
    PoolingParameter,
    PowerParameter,
    PythonParameter,
    SolverParameter,
    parse_text,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("0x1F", 31), ("017", 15), ("0", 0), ("-12", -12), ("- 3", -3), ("-0x10", -16)],
)
def test_integers(text, value):
    assert list(parse_text(f"dim: {text}", BlobShape).dim) == [value]


@pytest.mark.parametrize(
    "text", ["08", "1.5", "1e3", "five", "1_000", "0b11", '"3"', "9223372036854775808"]
)
def test_what_is_no_integer_is_refused(text):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions=["1:6", "dim", text]):
        parse_text(f"dim: {text}", BlobShape)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("max_iter", "2147483648"),
        ("max_iter", "-2147483649"),
        ("random_seed", "9223372036854775808"),
    ],
)
def test_an_integer_out_of_range_names_the_range(field, text):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions=[field, text]):
        parse_text(f"{field}: {text}", SolverParameter)


def test_a_negative_number_for_an_unsigned_field_is_refused():
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions=["-1", "0", "4294967295"]):
        parse_text("stride: -1", PoolingParameter)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5", -0.5),
        ("1e-2", pytest.approx(0.01)),
        ("1E+2", 100.0),
        ("2f", 2.0),
        ("2.5F", 2.5),
        ("1.5e1f", 15.0),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("- inf", -math.inf),
        ("1e400", math.inf),
        ("nan", pytest.approx(math.nan, nan_ok=True)),
    ],
)
def test_floats(text, value):
    assert parse_text(f"power: {text}", PowerParameter).power == value


@pytest.mark.parametrize("text", ["0x10", "010", "1.2.3", "true", "'1'", "1e", "--1", "1,5"])
def test_what_is_no_float_is_refused(text):
    with pytest.raises(PrototxtError):
        parse_text(f"power: {text}", PowerParameter)


@pytest.mark.parametrize("text", ["true", "True", "t", "1", "0x1"])
def test_true(text):
    assert parse_text(f"global_pooling: {text}", PoolingParameter).global_pooling is True


@pytest.mark.parametrize("text", ["false", "False", "f", "0"])
def test_false(text):
    read = parse_text(f"global_pooling: {text}", PoolingParameter)

    assert read.HasField("global_pooling")
    assert read.global_pooling is False


@pytest.mark.parametrize("text", ["TRUE", "yes", "2", "-1", "'true'"])
def test_what_is_no_bool_is_refused(text):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE):
        parse_text(f"global_pooling: {text}", PoolingParameter)


@pytest.mark.parametrize("text", ["AVE", "1", "0x1"])
def test_enums_by_name_and_number(text):
    assert parse_text(f"pool: {text}", PoolingParameter).pool == PoolingParameter.AVE


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("MEAN", ["1:7", "MEAN (MAX, AVE, STOCHASTIC, AVE_EXC_PAD)"]),
        ("Max", ["1:7", "Max", "'MAX'"]),
        ("7", ["1:7", "7"]),
        ("-AVE", ["1:8", "AVE"]),
        ('"AVE"', ["1:7", "MAX, AVE, STOCHASTIC", '"AVE"']),
    ],
)
def test_what_is_no_value_of_an_enum_is_refused(text, mentions):
    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions=["pool", *mentions]):
        parse_text(f"pool: {text}", PoolingParameter)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a"', "a"),
        ("'a'", "a"),
        ('"it\'s"', "it's"),
        (r"'it\'s'", "it's"),
        ('"a" "b"\n  # comment\n  \'c\'', "abc"),
        (r'"tab\t nl\n bs\\ q\" qm\?"', 'tab\t nl\n bs\\ q" qm?'),
        (r'"\101\x42\u0043\U00000044"', "ABCD"),
        (r'"\303\251"', "é"),
        ('"é"', "é"),
        ('"# no comment"', "# no comment"),
        ('""', ""),
    ],
)
def test_strings(text, value):
    assert parse_text(f"param_str: {text}", PythonParameter).param_str == value


def test_bytes_may_hold_anything():
    assert parse_text(r'data: "\000\377" "\xfe"', Datum).data == b"\x00\xff\xfe"


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("abc", '"abc"'),
        ('"abc', '"abc'),
        ('"a\nb"', '"a'),
        (r'"C:\data"', r"\d"),
        (r'"\777"', r"\777"),
        (r'"\uD800"', r"\uD800"),
        (r'"\377"', "UTF-8"),
        ("12", "12"),
    ],
)
def test_what_is_no_string_is_refused(text, mentions):
    with expect_error(
        PrototxtError, ErrorCode.UNREADABLE, mentions=["1:12", "param_str", mentions]
    ):
        parse_text(f"param_str: {text}", PythonParameter)


def test_comments_may_be_in_any_encoding():
    text = b"name: 'net' # caf\xe9".decode("utf-8", "surrogateescape")

    assert parse_text(text, NetParameter).name == "net"


def test_strings_must_be_utf_8():
    text = b"name: 'caf\xe9'".decode("utf-8", "surrogateescape")

    with expect_error(PrototxtError, ErrorCode.UNREADABLE, mentions="UTF-8"):
        parse_text(text, NetParameter)
