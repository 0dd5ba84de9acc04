"""Results as a table, as charts and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demitasse.benchmark.measure import Result
from demitasse.benchmark.saved import Regression
from demitasse.pages import Line, Page, line_chart, rate, save_chart

__all__ = ["draw", "layers_of", "table_of", "write_page"]

ABOUT = ("net", "phase", "device", "batch")
FOUND = ("images/s", "ms", "spread", "memory", "moved", "of peak")
READING = ("read/s", "reading, images/s")

RATE = "images per second"


def table_of(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head of the table and its rows; what nobody asked for has no column."""
    reading = any(result.read for result in results)
    head = (*ABOUT, *FOUND, *(READING if reading else ()))
    return head, [_cells(result)[: len(head)] for result in results]


def _cells(result: Result) -> tuple[str, ...]:
    case = result.case
    about = (case.net.stem, case.phase, case.device, str(case.batch))
    if result.error:
        return (*about, *("-" for _ in (*FOUND, *READING)))
    return (
        *about,
        rate(result.images_per_second),
        f"{1e3 * result.median:.4g}",
        f"{result.spread:.1%}" if len(result.seconds) > 1 else "-",
        _mebibytes(result.memory),
        _mebibytes(result.moved),
        f"{result.share_of_peak:.0%}",
        rate(result.read) if result.read else "-",
        rate(result.reading) if result.reading else "-",
    )


def layers_of(result: Result, most: int) -> list[tuple[str, str, str]]:
    """Return name, milliseconds and share of the layers that take longest."""
    total = sum(result.layers.values())
    longest = sorted(result.layers.items(), key=lambda item: -item[1])[:most]
    return [(name, f"{time:.3f}", f"{time / total:.1%}") for name, time in longest]


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw images per second over batch sizes; the file's ending says in which format.

    Raises:
        DemitasseError: Matplotlib is not installed, or has no such format.
        OSError: The file cannot be written.
    """
    save_chart(path, _lines(results), _batches(results), x_label="batch", y_label=RATE, scale="log")


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
        line_chart(_lines(results), _batches(results), x_label="batch", y_label=RATE, scale="log"),
        "Images per second over batch sizes, a line for each net, phase and device",
    )
    head, rows = table_of(results)
    page.table(head, rows, numbers=range(len(ABOUT) - 1, len(head)))
    page.text(
        "Every case had its turn in every round. A time is the median of all passes, device "
        "waited for; spread is the interquartile range over it. Memory is that of blobs, gradients "
        "and parameters; moved is what a pass copies between host and device. The peak is what "
        "the device reached in a large product of matrices."
    )
    if len(head) > len(ABOUT) + len(FOUND):
        page.text(
            "Read is what the layers of data read by themselves, in images per second; reading, "
            "what the whole net does when it reads its images itself, and not from memory."
        )
    for result in (one for one in results if one.error):
        page.text(f"{result.case.name} was not measured: {result.error}")
    if slower is not None:
        page.heading("Against the saved run")
        found = [(one.name, _ms(one.before), _ms(one.now), f"{one.factor:.2f}") for one in slower]
        if found:
            columns = ("case", "before, ms", "now, ms", "times as long")
            page.table(columns, found, numbers=(1, 2, 3), bad=range(len(found)))
        else:
            page.text("Nothing became slower than is allowed.")
    for result in (one for one in results if one.layers):
        page.heading(f"Layers of {result.case.name}")
        page.table(("layer", "ms", "share"), layers_of(result, 25), numbers=(1, 2))
    page.write(path)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _batches(results: Sequence[Result]) -> list[str]:
    return [str(batch) for batch in sorted({result.case.batch for result in results})]


def _lines(results: Sequence[Result]) -> list[Line]:
    """Return a line for each net, phase and device, over the batch sizes.

    The phases of a net on a device share a colour.
    """
    colors = list(dict.fromkeys((one.case.net, one.case.device) for one in results))
    styles = list(dict.fromkeys(one.case.phase for one in results))
    rates: dict[tuple[str, int, int], dict[str, float]] = {}
    for one in results:
        case = one.case
        name = f"{case.net.stem} {case.phase} {case.device}"
        key = (name, colors.index((case.net, case.device)), styles.index(case.phase))
        line = rates.setdefault(key, {})
        if not one.error:
            line[str(case.batch)] = one.images_per_second
    batches = _batches(results)
    return [
        Line(name, [line.get(batch) for batch in batches], color, style)
        for (name, color, style), line in rates.items()
    ]
