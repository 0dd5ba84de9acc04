"""Summary of a net: a table of its layers with their costs, and its facts for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demitasse.blob import Blob
from demitasse.core.text import html_of
from demitasse.layers.base import Layer
from demitasse.layers.metadata import layer_metadata

if TYPE_CHECKING:
    from demitasse.net.net import Net

Record = Mapping[str, object]


@dataclass(frozen=True, repr=False)
class Table:
    """A table of records.

    Attributes:
        records: A mapping for each row, all with the same keys in the order of the columns.
        title: Title of the table.
    """

    records: Sequence[Record]
    title: str = ""

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.records[0]) if self.records else []

    @property
    def rows(self) -> list[list[object]]:
        """Cells of each row: shapes as 1x3x8x8, lists with commas."""
        return [[_cell(record[name]) for name in self.columns] for record in self.records]

    def html(self) -> str:
        """Return the table as HTML."""
        return html_of(self)

    def __repr__(self) -> str:
        head = self.columns
        rows = [[_text(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        right = [not any(isinstance(r[name], (str, list)) for r in self.records) for name in head]
        lines = [
            "  ".join(
                cell.rjust(width) if numbers else cell.ljust(width)
                for cell, width, numbers in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in [head, *rows]
        ]
        return "\n".join([*([self.title] if self.title else []), *lines])

    _repr_html_ = html_of


def summary(net: Net) -> Table:
    """Return a table of layers: shapes, parameters, work and bytes of a forward pass."""
    found = net_summary(net)
    records = [
        {
            "layer": layer["name"], "type": layer["type"], "bottom": layer["bottoms"],
            "top": list(layer["tops"]), "shape": list(layer["tops"].values()),
            **{name: layer[name] for name in ("parameters", "multiply_adds", "bytes_moved")},
        }
        for layer in without_split_layers(found["layers"])
    ]  # fmt: skip
    return Table(records, f"{found['name']}, phase {found['phase']}")


def _cell(value: object) -> object:
    """Return a cell: shapes as 1x3x8x8, lists with commas."""
    if not isinstance(value, list):
        return value
    return ", ".join(
        ("x".join(map(str, one)) or "1") if isinstance(one, list) else str(one) for one in value
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    if type(value) is int:
        return f"{value:,}"
    return f"{value:.4g}" if type(value) is float else str(value)


def net_summary(net: Net) -> dict[str, Any]:
    """Return layers, shapes, parameters, work and memory of a net, for JSON.

    Shared parameters count once. Work is that of a forward pass, computed from the shapes:
    multiply-adds, and bytes that layers read and write.
    """
    width = 8 if net.dtype == "float64" else 4
    layers = []
    for at in net.structure.bindings():
        layer = at.layer
        layers.append(
            {
                "name": layer.name,
                "type": layer.type,
                "bottoms": [blob.name for blob in at.bottom],
                "tops": {blob.name: list(blob.shape) for blob in at.top},
                "parameter_shapes": [list(blob.shape) for blob in layer.blobs],
                "parameters": sum(blob.count for blob in layer.blobs),
                "multiply_adds": multiply_adds(layer, at.top) or None,
                "bytes_moved": width * values_moved(layer, at.bottom, at.top),
            }
        )
    parameters = sum(blob.count for blob in net.learnable_params)
    return {
        "name": net.name, "phase": net.phase, "layers": layers,
        "total": {
            "layers": len(layers),
            "parameters": parameters,
            "parameter_bytes": width * parameters,
            "multiply_adds": sum(layer["multiply_adds"] or 0 for layer in layers),
            "bytes_moved": sum(layer["bytes_moved"] for layer in layers),
            "top_bytes": width * sum(blob.count for blob in net.structure.blob_list),
            "memory_used": net.structure.memory_used,
        },
    }  # fmt: skip


def without_split_layers(layers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers of ``net_summary`` without Split layers.

    The readers of a copy read the copied blob.
    """
    copied: dict[str, str] = {}
    kept = []
    for layer in layers:
        bottoms = [copied.get(blob, blob) for blob in layer["bottoms"]]
        if layer["type"] == "Split" and bottoms:
            copied |= dict.fromkeys(layer["tops"], bottoms[0])
        else:
            kept.append({**layer, "bottoms": bottoms})
    return kept


def shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    """Return shapes as text: ``1x64x56x56``, with ``each`` if several are equal."""
    texts = ["x".join(map(str, shape)) or "1" for shape in shapes]
    return f"{texts[0]} each" if len(texts) > 1 and len(set(texts)) == 1 else ", ".join(texts)


def multiply_adds(layer: Layer, top: Sequence[Blob]) -> int:
    """Return the multiply-adds of one forward pass.

    The layer's operation counts them from its geometry. For types without an operation, the
    metadata has the multiply-adds per output value.
    """
    if layer.op is not None and layer.op.multiply_adds:
        return layer.op.multiply_adds
    macs_per_output = layer_metadata(layer.type).macs_per_output
    if macs_per_output is None or not top:
        return 0
    return macs_per_output(layer.param, layer.phase) * top[0].count


def values_moved(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
    """Return the number of values that one forward pass reads and writes, each counted once.

    Fused layers may read and write fewer values.
    """
    facts = layer_metadata(layer.type)
    written = sum(blob.count for blob in top)
    if facts.shares.is_met(layer.param, layer.phase):
        return 0
    match facts.moves:
        case "nothing":
            return 0
        case "tops":
            return written
        case "part":
            return 2 * written
    return written + sum(blob.count for blob in (*bottom, *layer.blobs))
