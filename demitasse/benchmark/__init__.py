"""Throughput of nets over devices, batch sizes and phases, and how it compares with a saved run."""

from demitasse.benchmark.case import Case
from demitasse.benchmark.measure import Result, measure
from demitasse.benchmark.saved import Regression, read_results, regressions, write_results

__all__ = [
    "Case",
    "Regression",
    "Result",
    "measure",
    "read_results",
    "regressions",
    "write_results",
]
