"""Charts, and pages of HTML in one file, without external resources, light and dark."""

from demitasse.pages.charts import Chart, Curve
from demitasse.pages.page import Page, rate

__all__ = ["Chart", "Curve", "Page", "rate"]
