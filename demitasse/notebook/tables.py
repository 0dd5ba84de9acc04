"""Tables for notebooks, whose records pandas takes: ``pandas.DataFrame(table.records)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from demitasse.net.summary import Table, summary

if TYPE_CHECKING:
    from demitasse.benchmark import Result
    from demitasse.testing import Comparison

__all__ = ["Table", "benchmark_table", "consistency_table", "summary"]


def consistency_table(comparison: Comparison) -> Table:
    """Return a table of the arrays that ``demitasse.testing.compare`` compared."""
    records = [
        {
            "layer": one.layer,
            "type": one.type,
            "what": one.what,
            "device": one.device,
            "relative": one.relative,
            "absolute": one.absolute,
        }
        for one in comparison.all
    ]
    return Table(records, f"{', '.join(comparison.devices)} against {comparison.reference}")


def benchmark_table(results: Sequence[Result]) -> Table:
    """Return a table of ``demitasse.benchmark.measure``; failed cases have None."""
    records = [
        {
            "net": one.case.net.stem,
            "phase": one.case.phase,
            "device": one.case.device,
            "batch": one.case.batch,
            "images_per_second": None if one.error else one.images_per_second,
            "milliseconds": None if one.error else 1e3 * one.median,
            "spread": None if one.error else one.spread,
            "memory_bytes": None if one.error else one.memory,
            "moved_bytes": None if one.error else one.moved,
            "share_of_peak": None if one.error else one.share_of_peak,
            "error": one.error,
        }
        for one in results
    ]
    return Table(records, "Throughput")
