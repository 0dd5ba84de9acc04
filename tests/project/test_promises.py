"""The page of promises names tests and sessions that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/promises.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there():
    named = re.findall(r"`(tests/[\w./]+)`", PAGE)

    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_session_that_is_named_is_there():
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)

    assert set(re.findall(r"`nox -s (\w+)`", PAGE)) <= set(sessions)


def test_every_promise_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]

    promises = [row for row in rows if not row.startswith("| promise")]

    assert len(promises) > 15
    assert all("`tests/" in row or "`nox -s" in row for row in promises)
