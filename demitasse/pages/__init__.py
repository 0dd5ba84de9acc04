"""Charts, and pages of HTML that stand alone: one file, nothing loaded, light and dark."""

from demitasse.pages.chart import Line, line_chart, save_chart
from demitasse.pages.curves import Curve, curve_chart
from demitasse.pages.page import Page
from demitasse.pages.rates import rate

__all__ = ["Curve", "Line", "Page", "curve_chart", "line_chart", "rate", "save_chart"]
