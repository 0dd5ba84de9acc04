"""Charts, and pages of HTML in one file, without external resources, light and dark."""

from demitasse.pages.charts import Curve, Line, curve_chart, line_chart, save_chart
from demitasse.pages.page import Page, rate

__all__ = ["Curve", "Line", "Page", "curve_chart", "line_chart", "rate", "save_chart"]
