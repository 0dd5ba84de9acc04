"""Charts: the same numbers are the same bytes, words are text, and everything fits inside."""

import math
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from demitasse.pages import Chart, Curve
from demitasse.pages.charts import MOST_TIPS, thinned

pytest.importorskip("matplotlib")

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

CHART = Chart(
    [Curve("numpy", [(0, 1.0), (1, 3.0)]), Curve("cpu", [(0, 2.0)])],
    "images per second",
    places=["a", "b"],
)
KINDS = ("svg", "png", "pdf")
SAVING = """
import sys
from pathlib import Path
from demitasse.pages import Chart, Curve
for name in sys.argv[1:]:
    Chart([Curve("numpy", [(0, 1.0), (1, 3.0)])], "images", places=["1", "8"]).save(Path(name))
"""
SVG = "{http://www.w3.org/2000/svg}"


def tips(svg):
    """The tooltips of a chart: each its band, and its lines."""
    bands = [one for one in ElementTree.fromstring(svg).iter(f"{SVG}rect") if one.get("class")]
    return [(band, band.find(f"{SVG}title").text.splitlines()) for band in bands]


def y_labels(svg):
    """The numbers along the y axis."""
    [axis] = re.findall(r'<g id="matplotlib.axis_2">(.*)', svg, re.DOTALL)
    texts = re.findall(r">([^<>]+)</text>", axis)
    return [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts if text[-1].isdigit()]


def test_a_chart_of_a_page_is_the_same_in_every_run():
    assert CHART.svg() == CHART.svg()


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
    CHART.save(tmp_path / "chart.svg")

    assert ">images per second</text>" in (tmp_path / "chart.svg").read_text()


def test_a_chart_takes_the_colour_of_the_page():
    svg = CHART.svg()

    assert svg.startswith("<svg")
    assert "currentColor" in svg


@pytest.mark.parametrize("wide", [True, False])
def test_a_tooltip_has_the_values_of_its_place(wide):
    (left, first), (right, second) = tips(CHART.svg(wide=wide))

    assert first == ["a", "numpy: 1", "cpu: 2"]
    assert second == ["b", "numpy: 3"]
    end = float(left.get("x")) + float(left.get("width"))
    assert end == pytest.approx(float(right.get("x")), abs=0.2)


def test_long_curves_have_few_tooltips():
    curve = Curve("loss", [(x, 1.0) for x in range(5000)])

    assert 1 < len(tips(Chart([curve], "loss").svg())) <= MOST_TIPS


def test_names_in_tooltips_are_escaped():
    svg = Chart([Curve("<b>\x1b", [(0, 1.0)])], "a").svg()

    [(_, lines)] = tips(svg)
    assert lines[1].startswith("<b>")
    assert "<b>" not in svg
    assert "\x1b" not in svg


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (0.01, 0.5, 0.9)])
def test_an_axis_of_shares_does_not_run_below_0(values):
    svg = Chart([Curve("share", list(enumerate(values)))], "share").svg()

    assert min(y_labels(svg)) >= 0


def test_an_axis_of_other_numbers_does():
    svg = Chart([Curve("a", [(0, -5.0), (1, 5.0)])], "a").svg()

    assert min(y_labels(svg)) < 0


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("letters", [3, 30, 300])
def test_a_legend_stays_inside_the_chart(wide, letters):
    names = [f"{number}{'m' * letters}" for number in range(9)]
    svg = Chart([Curve(name, [(0, 1.0)]) for name in names], "a").svg(wide=wide)

    found = ElementTree.fromstring(svg)
    width, height = map(float, found.get("viewBox").split()[2:])
    [legend] = [one for one in found.iter(f"{SVG}g") if one.get("id") == "legend_1"]
    texts = list(legend.iter(f"{SVG}text"))
    assert len(texts) == len(names)
    for text in texts:
        size, *_ = text_to_path.get_text_width_height_descent(
            text.text, FontProperties(size=8), ismath=False
        )
        assert 0 < float(text.get("x")) < width - size
        assert 0 < float(text.get("y")) < height


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_values_that_cannot_be_drawn_leave_gaps(scale):
    points = [(0, math.nan), (1, math.inf), (2, -1.0), (3, 0.0)]

    svg = Chart([Curve("a", points)], "y", "x", scale).svg()

    assert "<svg" in svg


def test_long_curves_keep_their_peaks():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    points[77_777] = (77_777.0, math.nan)

    few = thinned(points)

    assert len(few) <= 1001
    assert (54_321.0, 9.0) in few
    assert few == sorted(few)
