"""Logging: quiet unless asked, glog's format, JSON, levels."""

import io
import json
import logging
import re
import subprocess
import sys

import pytest
from expect_error import expect_error

from demitasse.core.config import settings
from demitasse.core.log import GlogFormatter, get_logger, number, start_logging, stop_logging
from demitasse.errors import ConfigError


@pytest.fixture
def shown():
    """Return what ``start_logging`` shows."""
    stream = io.StringIO()

    def start(**options):
        start_logging(stream=stream, **options)
        return stream

    yield start
    stop_logging()


def test_nothing_is_shown_until_somebody_asks():
    code = (
        "import demitasse, logging; log = logging.getLogger('demitasse.x'); "
        "log.info('a'); log.warning('b'); log.error('c')"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("", "")


def test_lines_are_glogs(shown):
    stream = shown(level="info")

    get_logger("demitasse.training").info("Iteration %d, lr = %s", 3, "0.1")

    line = stream.getvalue()
    pattern = r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_log\.py:\d+\] Iteration 3, lr = 0\.1\n"
    assert re.fullmatch(pattern, line)


@pytest.mark.parametrize(
    ("level", "letter"),
    [("debug", "D"), ("info", "I"), ("warning", "W"), ("error", "E"), ("critical", "F")],
)
def test_levels_have_glogs_letters(shown, level, letter):
    stream = shown(level="debug")

    getattr(get_logger("demitasse"), level)("message")

    assert stream.getvalue().startswith(letter)


def test_caffes_parser_reads_the_date():
    """As extract_seconds does: month and day, then the time with its microseconds."""
    record = logging.LogRecord("x", logging.INFO, "/a/solver.py", 239, "Solving x", None, None)
    record.created = 1763640000.25

    month_day, time, _, place, *_ = GlogFormatter().format(record).split()

    assert re.fullmatch(r"I11[12]\d", month_day)
    assert time.endswith(":00.250000")
    assert place == "solver.py:239]"


def test_an_exception_follows_on_its_own_lines(shown):
    stream = shown()

    try:
        raise ValueError("why")
    except ValueError:
        get_logger("demitasse").exception("what")

    first, second, *_, last = stream.getvalue().splitlines()
    assert first.endswith("what")
    assert second.strip().startswith("Traceback")
    assert last.strip() == "ValueError: why"


def test_json_carries_the_numbers(shown):
    stream = shown(style="json")

    get_logger("demitasse").info(
        "loss = %s", "nan", extra={"metrics": {"loss": float("nan"), "outputs": [1.5, {"a": 2}]}}
    )

    entry = json.loads(stream.getvalue())
    assert entry["message"] == "loss = nan"
    assert entry["metrics"] == {"loss": "nan", "outputs": [1.5, {"a": 2}]}
    assert entry["level"] == "info"


def test_text_is_for_people(shown):
    stream = shown(style="text")

    get_logger("solvers").warning("hot")

    assert stream.getvalue() == "WARNING: hot\n"


def test_a_second_call_takes_the_place_of_the_first(shown):
    stream = shown()
    shown()

    get_logger("demitasse").info("once")

    assert stream.getvalue().count("once") == 1


def test_the_setting_gives_the_level(shown):
    with settings.override(log_level="error"):
        stream = shown()

    get_logger("demitasse").warning("quiet")
    get_logger("demitasse").error("loud")

    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


@pytest.mark.parametrize(("glog", "seen"), [("0", "IWE"), ("1", "WE"), ("2", "E"), ("9", "")])
def test_glogs_variable_gives_the_level(shown, monkeypatch, glog, seen):
    monkeypatch.setenv("GLOG_minloglevel", glog)
    stream = shown()

    for level in ("info", "warning", "error"):
        getattr(get_logger("demitasse"), level)("message")

    assert "".join(line[0] for line in stream.getvalue().splitlines()) == seen


@pytest.mark.parametrize("options", [{"level": "loud"}, {"style": "xml"}], ids=str)
def test_an_unknown_level_or_style_is_refused(options):
    [value] = options.values()
    with expect_error(ConfigError, mentions=value):
        start_logging(**options)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1e-5, "1e-05"), (123456789.0, "1.23457e+08"), (2.0, "2"), (1 / 3, "0.333333")],
)
def test_numbers_look_as_c_plus_plus_prints_them(value, text):
    assert number(value) == text
