"""What notebooks show: nets, blobs, layers, solvers and tables, as HTML that loads nothing.

Nothing here needs IPython; where it is loaded, ``LiveCurves`` redraws itself while a solver runs.
"""

from demitasse.notebook.live import LiveCurves
from demitasse.notebook.show import html_of
from demitasse.notebook.table import Table, benchmark_table, consistency_table, summary

__all__ = [
    "LiveCurves",
    "Table",
    "benchmark_table",
    "consistency_table",
    "html_of",
    "summary",
]
