"""Nets, blobs, layers, solvers and tables in notebooks, as HTML without external resources.

IPython is optional: if it is loaded, ``LiveCurves`` draws while a solver runs.
"""

from demitasse.net.summary import Table, summary
from demitasse.notebook.live import LiveCurves
from demitasse.notebook.show import benchmark_table, consistency_table, html_of

__all__ = [
    "LiveCurves",
    "Table",
    "benchmark_table",
    "consistency_table",
    "html_of",
    "summary",
]
