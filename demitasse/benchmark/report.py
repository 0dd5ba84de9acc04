"""Results as a table, as charts and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demitasse.benchmark.measure import Result
from demitasse.benchmark.saved import Regression
from demitasse.pages import Line, Page, line_chart, save_chart

__all__ = ["HEAD", "cells", "draw", "write_page"]

HEAD = ("net", "phase", "device", "batch", "images/s", "ms", "spread", "memory", "moved", "of peak")
"""Columns of the table; spread is the interquartile range of the times over their median."""

RATE = "images per second"


def cells(result: Result) -> tuple[str, ...]:
    """Return a row of the table."""
    case = result.case
    about = (case.net.stem, case.phase, case.device, str(case.batch))
    if result.error:
        return (*about, *("-" for _ in HEAD[len(about) :]))
    return (
        *about,
        f"{result.images_per_second:.4g}",
        f"{1e3 * result.median:.4g}",
        f"{result.spread:.1%}",
        _mebibytes(result.memory),
        _mebibytes(result.moved),
        f"{result.share_of_peak:.0%}",
    )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw images per second over batch sizes; the file's ending says in which format.

    Raises:
        DemitasseError: Matplotlib is not installed, or has no such format.
        OSError: The file cannot be written.
    """
    save_chart(path, _lines(results), _batches(results), y_label=RATE, scale="log")


def write_page(results: Sequence[Result], path: Path, slower: Sequence[Regression] | None) -> None:
    """Write a page: a chart, the table, the layers that take longest, and what became slower.

    Args:
        results: What was measured.
        path: The file.
        slower: What became slower than in a saved run; None where there was none.

    Raises:
        DemitasseError: Matplotlib is not installed.
        OSError: The page cannot be written.
    """
    page = Page("Throughput")
    page.chart(
        line_chart(_lines(results), _batches(results), y_label=RATE, scale="log"),
        "Images per second over batch sizes, a line for each net, phase and device",
    )
    page.table(HEAD, [cells(result) for result in results], numbers=range(3, len(HEAD)))
    page.text(
        "Every case had its turn in every round. A time is the median of all passes, device "
        "waited for; spread is the interquartile range over it. Memory is that of blobs, gradients "
        "and parameters; moved is what a pass copies between host and device. The peak is what "
        "the device reached in a large product of matrices."
    )
    for result in (one for one in results if one.error):
        page.text(f"{result.case.name} was not measured: {result.error}")
    if slower is not None:
        page.heading("Against the saved run")
        rows = [(one.name, _ms(one.before), _ms(one.now), f"{one.factor:.2f}") for one in slower]
        if rows:
            head = ("case", "before, ms", "now, ms", "times as long")
            page.table(head, rows, numbers=(1, 2, 3), bad=range(len(rows)))
        else:
            page.text("Nothing became slower than is allowed.")
    for result in (one for one in results if one.layers):
        page.heading(f"Layers of {result.case.name}")
        total = sum(result.layers.values())
        longest = sorted(result.layers.items(), key=lambda item: -item[1])[:25]
        parts = [(name, f"{time:.3f}", f"{time / total:.1%}") for name, time in longest]
        page.table(("layer", "ms", "share"), parts, numbers=(1, 2))
    page.write(path)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _batches(results: Sequence[Result]) -> list[str]:
    return [str(batch) for batch in sorted({result.case.batch for result in results})]


def _lines(results: Sequence[Result]) -> list[Line]:
    """Return a line for each net, phase and device, over the batch sizes."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        case = result.case
        line = found.setdefault(f"{case.net.stem} {case.phase} {case.device}", {})
        if not result.error:
            line[str(case.batch)] = result.images_per_second
    batches = _batches(results)
    return [Line(name, [line.get(batch) for batch in batches]) for name, line in found.items()]
