"""Throughput of nets over devices, batch sizes and phases, and the largest batch that fits."""

from demitasse.benchmark.case import Case, deploy_nets
from demitasse.benchmark.largest import LargestBatch, largest_batch
from demitasse.benchmark.measure import Result, measure
from demitasse.benchmark.results import Regression, read_results, regressions, write_results

__all__ = [
    "Case", "LargestBatch", "Regression", "Result", "deploy_nets", "largest_batch", "measure",
    "read_results", "regressions", "write_results",
]  # fmt: skip
