"""Numbers, bools and strings of prototxt, spelled in every way that protobuf takes."""

import math

import pytest

from demitasse.errors import PrototxtError
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
    ("text", "message"),
    [
        ("08", "begins with 0, so it is octal"),
        ("1.5", "1.5 is not an integer"),
        ("1e3", "1e3 is not an integer"),
        ("five", "expected an integer, found 'five'"),
        ("1_000", "expected an integer, found '1_000'"),
        ("0b11", "expected an integer, found '0b11'"),
        ('"3"', "an integer, without quotes"),
        ("9223372036854775808", "out of range"),
    ],
)
def test_what_is_no_integer_is_refused(text, message):
    with pytest.raises(PrototxtError, match=message):
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
    with pytest.raises(PrototxtError, match=rf"{field}: {text} is out of range: -\d+ to \d+"):
        parse_text(f"{field}: {text}", SolverParameter)


def test_a_negative_number_for_an_unsigned_field_is_refused():
    with pytest.raises(PrototxtError, match="stride: -1 is out of range: 0 to 4294967295"):
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
    with pytest.raises(PrototxtError, match="true or false"):
        parse_text(f"global_pooling: {text}", PoolingParameter)


@pytest.mark.parametrize("text", ["AVE", "1", "0x1"])
def test_enums_by_name_and_number(text):
    assert parse_text(f"pool: {text}", PoolingParameter).pool == PoolingParameter.AVE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MEAN", r"pool has no value MEAN \(MAX, AVE, STOCHASTIC\)"),
        ("Max", r"pool has no value Max; did you mean 'MAX'\?"),
        ("7", "pool has no value 7"),
        ("-AVE", "pool has no value AVE"),
        ('"AVE"', "one of MAX, AVE, STOCHASTIC, without quotes"),
    ],
)
def test_what_is_no_value_of_an_enum_is_refused(text, message):
    with pytest.raises(PrototxtError, match=message):
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
    ("text", "message"),
    [
        ("abc", 'needs quotes: "abc"'),
        ('"abc', "no closing quote on its line"),
        ('"a\nb"', "no closing quote on its line"),
        (r'"C:\data"', r"\\d is no escape sequence; a backslash is written \\\\"),
        (r'"\777"', "more than one byte"),
        (r'"\uD800"', "no character"),
        (r'"\377"', "not UTF-8"),
        ("12", "a string in quotes; found 12"),
    ],
)
def test_what_is_no_string_is_refused(text, message):
    with pytest.raises(PrototxtError, match=message):
        parse_text(f"param_str: {text}", PythonParameter)


def test_comments_may_be_in_any_encoding():
    text = b"name: 'net' # caf\xe9".decode("utf-8", "surrogateescape")

    assert parse_text(text, NetParameter).name == "net"


def test_strings_must_be_utf_8():
    text = b"name: 'caf\xe9'".decode("utf-8", "surrogateescape")

    with pytest.raises(PrototxtError, match="name is not UTF-8 text"):
        parse_text(text, NetParameter)
