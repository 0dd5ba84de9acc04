"""Text in messages: escaped names, similar names, sizes."""

import difflib
import io
import logging

import pytest
from click.testing import CliRunner
from expect_error import expect_error

from demitasse import Net
from demitasse.cli.render import table
from demitasse.cli.root import cli
from demitasse.core.log import get_logger, start_logging, stop_logging
from demitasse.core.text import bytes_text, escaped, nearest, read_size, suggestion
from demitasse.errors import DataError, DemitasseError
from demitasse.io.proto import NetParameter
from demitasse.lint.findings import Finding

EVIL = "a\x1b[31m\nI1120 12:00:00.000000  1 x.py:1] forged\r\x9b\u202e\udc80"


@pytest.mark.parametrize("style", ["glog", "text", "json"])
def test_a_name_forges_no_log_line(style, monkeypatch):
    # what pytest keeps of the log it could not send from one process to another
    monkeypatch.setattr(logging.getLogger("demitasse"), "propagate", False)
    stream = io.StringIO()
    start_logging("info", style, stream)
    try:
        get_logger("demitasse.test").info("layer %s", EVIL)
    finally:
        stop_logging()

    lines = stream.getvalue().splitlines()
    assert not any(line.startswith("I1120 12:00:00.000000  1") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_an_error_shows_where_it_was_in_one_line():
    text = str(DataError("broken\x1b[2J\nand more", EVIL).from_line(EVIL))

    assert "\x1b" not in text
    assert len(text.splitlines()) == 2
    assert str(DemitasseError(text)) == text


def test_a_layer_with_a_hostile_name_is_refused_in_plain_text():
    param = NetParameter()
    param.layer.add(name="a\x1b[31m\nb", type="No\x1bthing", bottom=["c\x1b\nd"])

    with pytest.raises(DemitasseError) as caught:
        Net(param, device="numpy")

    assert str(caught.value).isprintable()


def test_tables_and_findings_are_plain_text():
    shown = [table(("name",), [(EVIL,)]), str(Finding("error", "missing-file", EVIL, EVIL))]

    assert all(text.replace("\n", "").isprintable() for text in shown)
    assert len(shown[0].splitlines()) == 2


def test_the_summary_of_a_net_with_a_hostile_name_is_plain_text(tmp_path):
    net = NetParameter(name=EVIL.replace("\udc80", ""))
    net.layer.add(name="data", type="Input", top=["data"]).input_param.shape.add(dim=[1])
    (tmp_path / "net.prototxt").write_text(str(net), encoding="utf-8")

    result = CliRunner().invoke(cli, ["summary", str(tmp_path / "net.prototxt")], color=True)

    assert result.exit_code == 0
    assert result.stdout.replace("\n", "").isprintable()
    assert len(result.stdout.splitlines()[0]) > len("forged")
    assert not result.stdout.splitlines()[1]


def test_what_is_plain_stays_as_it_is():
    plain = "Größe\tüber\n日本 \\x1b"

    assert escaped(plain) == plain


def test_capitals_make_no_difference():
    assert nearest("relu", ["ReLU", "PReLU"]) == ["ReLU"]
    assert suggestion("Convolutoin", ["Convolution"]) == "; did you mean 'Convolution'?"


def test_a_text_that_is_no_name_is_not_compared(monkeypatch):
    def compare(*args):
        raise AssertionError("comparing takes as many steps as the texts have letters, and more")

    monkeypatch.setattr(difflib, "get_close_matches", compare)

    assert suggestion("x" * 201, ["ReLU"]) == ""


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"),
     (1 << 40, "1024.0 GiB")],
)  # fmt: skip
def test_sizes_are_readable(nbytes, text):
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [("8GiB", 8 << 30), ("8 gib", 8 << 30), ("1.5g", 3 << 29), ("500MB", 500_000_000), (7, 7),
     ("64 KiB", 64 << 10), ("10 bytes", 10), ("2T", 2 << 40), ("3b", 3)],
)  # fmt: skip
def test_sizes_are_read_as_they_are_written(written, nbytes):
    assert read_size(written) == nbytes


@pytest.mark.parametrize("written", ["", "much", "-1", "8 GiBs", "1e9", True, None])
def test_what_is_no_size_is_refused(written):
    with expect_error(ValueError, mentions=[repr(written), "8GiB"]):
        read_size(written)


@pytest.mark.parametrize("written", [10**400, "1" + 400 * "0" + "TiB", "18000000000GiB"])
def test_what_no_memory_has_is_refused(written):
    with expect_error(ValueError, mentions="64-bit"):
        read_size(written)
