"""Nets, blobs, layers, solvers and tables in notebooks, as HTML without external resources.

IPython is optional: if it is loaded, ``LiveCurves`` draws while a solver runs.
"""

from demitasse.notebook.live import LiveCurves
from demitasse.notebook.show import html_of
from demitasse.notebook.tables import Table, benchmark_table, consistency_table, summary

__all__ = [
    "LiveCurves",
    "Table",
    "benchmark_table",
    "consistency_table",
    "html_of",
    "summary",
]
