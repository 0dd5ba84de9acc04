"""HTML of nets, blobs, layers, solvers and tables, and tables for pandas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from demitasse.blob import Blob
from demitasse.blob.distribution import distribution
from demitasse.core.text import bytes_text
from demitasse.errors import DemitasseError
from demitasse.graph.splits import without_splits
from demitasse.layers.base import Layer
from demitasse.net import Net
from demitasse.net.structure import ReadOnlyMapping
from demitasse.net.summary import Table, summary
from demitasse.notebook import html
from demitasse.notebook.live import LiveCurves
from demitasse.training import Solver

if TYPE_CHECKING:
    from demitasse.benchmark import Result
    from demitasse.testing import Comparison

MOST_OPEN = 40
"""Limit of layers of a net whose drawing is unfolded."""

MOST_DRAWN = 1000
"""Limit of layers of a net that is drawn, for the size of the notebook's file."""


def html_of(thing: object) -> str:
    """Return the HTML of an object.

    Raises:
        TypeError: The type of the object is unknown.
    """
    match thing:
        case Net():
            return html.framed(*_net(thing))
        case ReadOnlyMapping():
            return html.framed(_blob_table(thing))
        case Blob():
            return html.framed(*_blob(thing))
        case Layer():
            return html.framed(*_layer(thing))
        case Solver():
            return html.framed(*_solver(thing))
        case LiveCurves():
            return html.framed(thing.html())
        case Table():
            return html.framed(html.heading(thing.title), html.table(thing.columns, thing.rows))
    message = f"got a {type(thing).__name__}, expected a net, blob, layer, solver or table"
    raise TypeError(message)


def _net(net: Net) -> list[str]:
    parameters = sum(blob.count for blob in net.learnable_params)
    size = sum(blob.data_memory.nbytes for blob in net.learnable_params)
    table = summary(net)
    layers = html.table(table.columns, table.rows)
    facts = (
        f"phase {net.phase}, {len(net.layers):,} layers, {parameters:,} parameters "
        f"({bytes_text(size)}), on {net.device}"
    )
    return [
        html.heading(net.name or "net"),
        html.note(facts),
        _drawing(net),
        html.folded("layers", layers, is_open=len(net.layers) <= MOST_OPEN),
    ]


def _drawing(net: Net) -> str:
    from demitasse.compat.pycaffe.draw import draw_net

    message = without_splits(net.structure.message)
    if len(message.layer) > MOST_DRAWN:
        return html.note(f"nets of more than {MOST_DRAWN:,} layers are not drawn")
    try:
        svg = draw_net(message, "TB", "svg").decode()
    except (DemitasseError, ValueError) as error:
        return html.note(f"cannot draw the net: {error}")
    content = f'<div class="drawing">{svg[svg.index("<svg") :]}</div>'
    return html.folded("drawing", content, is_open=len(message.layer) <= MOST_OPEN)


def _blob_table(blobs: ReadOnlyMapping[Blob | Sequence[Blob]]) -> str:
    """Return a table of the blobs of a net, or the parameters of its layers, without values."""
    rows = [
        (name, "" if isinstance(found, Blob) else index, _shape(blob), blob.dtype, blob.count)
        for name, found in blobs.items()
        for index, blob in enumerate([found] if isinstance(found, Blob) else found)
    ]
    return html.table(("name", "number", "shape", "dtype", "values"), rows)


def _shape(blob: Blob) -> str:
    return "x".join(map(str, blob.shape)) or "1"


def _blob(blob: Blob) -> list[str]:
    title = f"{blob.name} " if blob.name else ""
    parts = [html.heading(f"{title}{_shape(blob)} {blob.dtype} on {blob.device}")]
    try:
        shown = [_values(blob, "data"), _values(blob, "gradient")]
        image, about = html.picture(blob)
    except DemitasseError as error:  # for instance, another blob has reused the buffer
        return [*parts, html.note(str(error))]
    if image:
        shown.append(f"<div>{image}{html.note(about)}</div>")
    return [*parts, f'<div class="side">{"".join(shown)}</div>']


def _values(blob: Blob, what: str) -> str:
    """Return the distribution of data or gradient; an empty text without a gradient."""
    found = distribution(blob, diff=what == "gradient")
    if found is None:
        return "" if what == "gradient" else html.note("no values yet")
    rows: dict[str, object] = {
        "smallest": found.low, "mean": found.mean, "largest": found.high, "norm": found.norm
    }  # fmt: skip
    if found.nonfinite:
        rows["NaN or infinite"] = found.nonfinite
    parts = [f"<b>{what}</b>", html.table(("", ""), list(rows.items()))]
    if found.counts and not math.isclose(found.edges[0], found.edges[-1]):
        parts.append(
            html.histogram(found.counts, found.edges[0], found.edges[-1], f"of the {what}")
        )
    if found.sampled < found.count:
        parts.append(html.note(f"from {found.sampled:,} of {found.count:,} values"))
    return f"<div>{''.join(parts)}</div>"


def _layer(layer: Layer) -> list[str]:
    parts = [html.heading(f"{layer.name} ({layer.type})")]
    if not layer.blobs:
        return [*parts, html.note("no parameters")]
    for number, blob in enumerate(layer.blobs):
        parts.append(html.note(f"parameter {number}"))
        parts += _blob(blob)
    return parts


def _solver(solver: Solver) -> list[str]:
    param = solver.param
    loss, rate = solver.smoothed_loss, solver.lr
    facts = {
        "iteration": f"{solver.iter:,}" + (f" of {param.max_iter:,}" if param.max_iter else ""),
        "loss": "" if math.isnan(loss) else f"{loss:.4g}",
        "learning rate": "" if math.isnan(rate) else f"{rate:.4g}",
        "policy": param.lr_policy,
        "test nets": str(len(solver.test_nets)),
        "net": f"{solver.net.name} on {solver.net.device}",
    }
    rows = [(name, value) for name, value in facts.items() if value]
    live = [logger.html() for logger in solver.loggers if isinstance(logger, LiveCurves)]
    return [html.heading(f"{solver.type} solver"), html.table(("", ""), rows), *live]


def consistency_table(comparison: Comparison) -> Table:
    """Return a table of the arrays that ``demitasse.testing.compare`` compared."""
    columns = ("layer", "type", "what", "device", "relative", "absolute")
    records = [{name: getattr(one, name) for name in columns} for one in comparison.all]
    return Table(records, f"{', '.join(comparison.devices)} against {comparison.reference}")


def benchmark_table(results: Sequence[Result]) -> Table:
    """Return a table of ``demitasse.benchmark.measure``; failed cases have None."""
    records = []
    for one in results:
        case, failed = one.case, bool(one.error)
        records.append({
            "net": case.net.stem, "phase": case.phase, "device": case.device, "batch": case.batch,
            "images_per_second": None if failed else one.images_per_second,
            "milliseconds": None if failed else 1e3 * one.median,
            "spread": None if failed else one.spread,
            "memory_bytes": None if failed else one.memory,
            "moved_bytes": None if failed else one.moved,
            "share_of_peak": None if failed else one.share_of_peak, "error": one.error,
        })  # fmt: skip
    return Table(records, "Throughput")
