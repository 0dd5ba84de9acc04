"""A chart of the same numbers is the same bytes, and its words can be searched."""

import os
import subprocess
import sys

import pytest

from demitasse.pages import Line, line_chart, save_chart

pytest.importorskip("matplotlib")

LINES = [Line("numpy", [1.0, 3.0]), Line("cpu", [2.0, None])]
KINDS = ("svg", "png", "pdf")
SAVING = """
import sys
from pathlib import Path
from demitasse.pages import Line, save_chart
for name in sys.argv[1:]:
    save_chart(Path(name), [Line("numpy", [1.0, 3.0])], ["1", "8"], y_label="images")
"""


def test_a_chart_of_a_page_is_the_same_in_every_run():
    first, second = (line_chart(LINES, ["a", "b"], y_label="images") for _ in range(2))

    assert first == second


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder where two processes have saved a chart in every kind of file."""
    folder = tmp_path_factory.mktemp("charts")
    for name, seed in (("first", "1"), ("second", "2")):
        files = [folder / f"{name}.{kind}" for kind in KINDS]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", SAVING, *files], check=True, env=environment)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_chart_is_the_same_in_every_process(saved, kind):
    first, second = ((saved / f"{name}.{kind}").read_bytes() for name in ("first", "second"))

    assert first == second


def test_words_of_a_chart_are_text(tmp_path):
    save_chart(tmp_path / "chart.svg", LINES, ["a", "b"], y_label="images per second")

    assert ">images per second</text>" in (tmp_path / "chart.svg").read_text()
