"""Names in files reach terminals and logs as text, and as nothing else."""

import io
import logging

import pytest
from click.testing import CliRunner

from demitasse import Net
from demitasse.cli.output import table
from demitasse.cli.root import cli
from demitasse.core.log import get_logger, start_logging, stop_logging
from demitasse.core.sanitize import escaped
from demitasse.errors import DataError, DemitasseError
from demitasse.io.proto import NetParameter
from demitasse.lint.finding import Finding

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
    (tmp_path / "net.prototxt").write_text(str(net))

    result = CliRunner().invoke(cli, ["summary", str(tmp_path / "net.prototxt")], color=True)

    assert result.exit_code == 0
    assert result.stdout.replace("\n", "").isprintable()
    assert len(result.stdout.splitlines()[0]) > len("forged")
    assert not result.stdout.splitlines()[1]


def test_what_is_plain_stays_as_it_is():
    plain = "Größe\tüber\n日本 \\x1b"

    assert escaped(plain) == plain
