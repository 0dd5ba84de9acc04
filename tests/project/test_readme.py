"""The README's commands are the ones CI runs, and every link in the texts leads somewhere."""

import importlib
import os
import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted(
    chain(ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), ROOT.glob("examples/**/*.md"))
)


def command_lines(name: str) -> list[str]:
    """The lines of the README's shell blocks that set up an environment."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if " -m venv " in line]


def test_readme_has_one_line_for_the_example_and_one_for_the_tests():
    example, tests = command_lines("README.md")

    assert example.endswith("demitasse example digits")
    assert tests.endswith("-m pytest")


def test_ci_runs_the_readme_test_commands():
    _, tests = command_lines("README.md")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    lines = [line.removesuffix(" || status=1") for line in script]

    assert [line for line in lines if line in tests.split(" && ")] == tests.split(" && ")


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_to_files(text):
    prose = re.sub(r"```.*?```", "", text.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)

    files = {t.partition("#")[0] for t in targets if not re.match(r"\w+:", t)} - {""}

    missing = [f for f in sorted(files) if not (text.parent / f).exists()]
    # pages that are written when the documentation is built; `mkdocs build --strict` follows those
    written = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("docs/*.py"))
    places = [os.path.relpath(text.parent / file, ROOT / "docs") for file in missing]
    assert [place for place in places if f'"{place}"' not in written] == []


def test_the_charts_show_the_last_comparison(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    charts = importlib.import_module("readme_chart").readme_charts()

    assert len(charts) == 4
    assert {file: file.read_text(encoding="utf-8") for file in charts} == charts
