"""Charts of curves over numbers."""

import math

import pytest

from demitasse.pages import Curve, curve_chart
from demitasse.pages.charts import thinned

pytest.importorskip("matplotlib")


def test_a_chart_takes_the_colour_of_the_page():
    svg = curve_chart([Curve("a", [(0, 1.0), (5, 2.0)])], x_label="iteration", y_label="loss")

    assert svg.startswith("<svg")
    assert "currentColor" in svg


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_values_that_cannot_be_drawn_leave_gaps(scale):
    points = [(0, math.nan), (1, math.inf), (2, -1.0), (3, 0.0)]

    svg = curve_chart([Curve("a", points)], x_label="x", y_label="y", scale=scale)

    assert "<svg" in svg


def test_long_curves_keep_their_peaks():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    points[77_777] = (77_777.0, math.nan)

    few = thinned(points)

    assert len(few) <= 1001
    assert (54_321.0, 9.0) in few
    assert few == sorted(few)
