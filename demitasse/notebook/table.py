"""Tables for notebooks, whose records pandas takes: ``pandas.DataFrame(table.records)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demitasse.core.html_repr import html_of
from demitasse.notebook import markup
from demitasse.notebook.anatomy import anatomy

if TYPE_CHECKING:
    from demitasse.benchmark import Result
    from demitasse.net import Net
    from demitasse.testing import Comparison

__all__ = ["Record", "Table", "benchmark_table", "consistency_table", "summary"]

Record = Mapping[str, object]


@dataclass(frozen=True)
class Table:
    """Rows by name of column.

    Attributes:
        records: A mapping for each row; all have the same keys, in the order of the columns.
        title: What the table shows.
    """

    records: Sequence[Record]
    title: str = ""

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def html(self) -> str:
        """Return the table as a piece of a page."""
        head = list(self.records[0]) if self.records else []
        rows = [[_cell(record[name]) for name in head] for record in self.records]
        return markup.table(head, rows)

    def _repr_html_(self) -> str:
        return html_of(self)


def summary(net: Net) -> Table:
    """Return a net's layers: shapes, parameters, work of a forward pass, bytes moved by it."""
    found = anatomy(net)
    records = [
        {
            "layer": layer["name"],
            "type": layer["type"],
            "bottom": layer["bottoms"],
            "top": list(layer["tops"]),
            "shape": list(layer["tops"].values()),
            "parameters": layer["parameters"],
            "multiply_adds": layer["multiply_adds"],
            "bytes_moved": layer["bytes_moved"],
        }
        for layer in found["layers"]
    ]
    return Table(records, f"{found['name']}, phase {found['phase']}")


def consistency_table(comparison: Comparison) -> Table:
    """Return every array that ``demitasse.testing.compare`` has compared, on every device."""
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
    """Return what ``demitasse.benchmark.measure`` has measured; None where a case did not run."""
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


def _cell(value: object) -> object:
    """Return a value as a cell: shapes as 1x3x8x8, lists with commas."""
    if not isinstance(value, list):
        return value
    return ", ".join(
        ("x".join(map(str, one)) or "1") if isinstance(one, list) else str(one) for one in value
    )
