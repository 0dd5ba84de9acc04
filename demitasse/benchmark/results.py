"""Results as tables, charts, pages and files of pytest-benchmark."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import truediv
from pathlib import Path
from typing import Any

from demitasse.benchmark.measure import Result
from demitasse.benchmark.peers import PEERS
from demitasse.core.atomic import write_bytes
from demitasse.core.extras import needs_extra
from demitasse.core.paths import check_exists, read_bytes
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.pages import Chart, Curve, Page, rate

CASE_COLUMNS = ("net", "phase", "device", "batch")
RESULT_COLUMNS = ("images/s", "ms", "spread", "memory", "moved", "of peak")
ENERGY_COLUMNS = ("images/s/W",)
PEER_COLUMNS = ("of best peer",)
READING_COLUMNS = ("read/s", "reading, images/s")


def results_table(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of a table; unmeasured quantities have no column."""
    reading = any(result.read for result in results)
    peers = any(result.case.device in PEERS for result in results)
    energy = any(result.joules for result in results)
    head = CASE_COLUMNS + RESULT_COLUMNS + ENERGY_COLUMNS * energy
    head += PEER_COLUMNS * peers + READING_COLUMNS * reading
    names = _net_names(results)
    rows = []
    for result in results:
        cells = [names[result.case.net], *_case_cells(result)]
        per_joule = result.images_per_joule
        cells += [f"{per_joule:.3g}" if per_joule else "-"] if energy else []
        cells += [_against_peers(result, results)] if peers else []
        cells += [rate(value) if value else "-" for value in (result.read, result.reading)]
        rows.append(tuple(cells[: len(head)]))
    return head, rows


def _net_names(results: Sequence[Result]) -> dict[Path, str]:
    """Return the distinct name of each net: its stem, after parent folders where stems equal."""
    nets = {one.case.net: one.case.net.absolute().with_suffix("").parts for one in results}
    names = {}
    for net, parts in nets.items():
        ends = (
            length
            for length in range(1, len(parts))
            if sum(other[-length:] == parts[-length:] for other in nets.values()) == 1
        )
        names[net] = "/".join(parts[-next(ends, 1) :])
    return names


def named(results: Sequence[Result]) -> list[tuple[str, Result]]:
    """Return each result with the distinct name of its case."""
    names = _net_names(results)
    return [
        (one.case.name.replace(one.case.net.stem, names[one.case.net], 1), one) for one in results
    ]


def _case_cells(result: Result) -> tuple[str, ...]:
    case = result.case
    about = (case.phase, case.device, str(case.batch))
    if result.error:
        return (*about, *("-" for _ in RESULT_COLUMNS))
    spread = f"{result.spread:.1%}" if len(result.seconds) > 1 else "-"
    times = (rate(result.images_per_second), f"{1e3 * result.median:.4g}", spread)
    if not result.memory:  # of a peer, time alone
        return (*about, *times, "-", "-", "-")
    sizes = (f"{size / 2**20:.1f} MiB" for size in (result.memory, result.moved))
    return (*about, *times, *sizes, f"{result.share_of_peak:.0%}")


def _against_peers(result: Result, results: Sequence[Result]) -> str:
    """Return the speed relative to the fastest peer: the median of the rounds' ratios."""
    able = [one for one in results if one.case.device in PEERS and not one.error]
    alike = [one for one in able if replace(one.case, device=result.case.device) == result.case]
    if result.error or result.case.device in PEERS or not alike:
        return "-"
    return f"{min(statistics.median(map(truediv, one.rounds, result.rounds)) for one in alike):.2f}"


ABOVE_PEAK = (
    "Of peak is above 100 % where the machine was busy while the peak was measured, or where "
    "minimal filtering does less work than the definition of a convolution, which is counted."
)


PER_WATT = (
    "Images per second and watt are those of the GPU alone, by NVML's counter of energy, which is "
    "updated some ten times a second: give --seconds 1 or more."
)


def notes(results: Sequence[Result]) -> list[str]:
    """Return remarks on the columns of a table of results."""
    above = any(one.share_of_peak > 1 for one in results if not one.error)
    return [ABOVE_PEAK] * above + [PER_WATT] * any(one.joules for one in results)


def slowest_layers(result: Result, most: int) -> list[tuple[str, str, str]]:
    """Return name, milliseconds and share of the slowest layers."""
    total = sum(result.layers.values())
    longest = sorted(result.layers.items(), key=lambda item: -item[1])[:most]
    return [(name, f"{time:.3f}", f"{time / total:.1%}") for name, time in longest]


def write_page(
    results: Sequence[Result], path: Path, slower: Sequence[Regression] | None,
    about: Mapping[str, str],
) -> None:  # fmt: skip
    """Write a page: a chart, the table, the machine, and the slowest layers.

    ``slower`` are regressions from a saved run; None without a saved run.
    """
    page = Page("Throughput")
    caption = "Images per second over batch sizes, a line for each net, phase and device"
    page.wide_chart(rates_chart(results), caption)
    head, rows = results_table(results)
    page.table(head, rows, numbers=range(len(CASE_COLUMNS) - 1, len(head)))
    page.text(
        "The cases ran in turn in every round. Times are medians of synchronized passes; spread is "
        "the interquartile range relative to the median. Memory is that of blobs, gradients, "
        "parameters, state, history and working memory; moved is the traffic of a pass between "
        "host and device. The peak is the device's speed in a large matrix product."
    )
    for note in notes(results):
        page.text(note)
    page.table(("machine", ""), list(about.items()))
    if head[-1] == READING_COLUMNS[-1]:
        page.text(
            "Read is the speed of the data layers alone, in images per second; reading is the "
            "speed of the whole net with its data layers."
        )
    failed = [(name, one.error) for name, one in named(results) if one.error]
    if failed:
        page.table(("not measured", "reason"), failed)
    if slower is not None:
        page.heading("Comparison with the saved run")
        if slower:
            columns = ("case", "before, ms", "now, ms", "times as long")
            found = [
                (one.name, f"{1e3 * one.before:.4g}", f"{1e3 * one.now:.4g}", f"{one.factor:.2f}")
                for one in slower
            ]
            page.table(columns, found, numbers=(1, 2, 3), bad=range(len(found)))
        else:
            page.text("No case is slower than the tolerance.")
    for name, result in named(results):
        if result.layers:
            with page.folded(f"Layers of {name}"):
                page.table(("layer", "ms", "share"), slowest_layers(result, 25), numbers=(1, 2))
    page.write(path)


def rates_chart(results: Sequence[Result]) -> Chart:
    """Return a chart of images per second; phases of a net and device share a colour."""
    colors = list(dict.fromkeys((one.case.net, one.case.device) for one in results))
    styles = list(dict.fromkeys(one.case.phase for one in results))
    batches = sorted({one.case.batch for one in results})
    names = _net_names(results)
    rates: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for one in sorted(results, key=lambda one: one.case.batch):
        if one.error:
            continue
        case = one.case
        name = f"{names[case.net]} {case.phase} {case.device}"
        key = (name, colors.index((case.net, case.device)), styles.index(case.phase))
        rates.setdefault(key, []).append((batches.index(case.batch), one.images_per_second))
    curves = [Curve(name, points, color, style) for (name, color, style), points in rates.items()]
    return Chart(curves, "images per second", "batch", "log", [str(batch) for batch in batches])


@dataclass(frozen=True)
class Regression:
    """A case that is slower than in the saved run.

    Attributes:
        name: Name of the case.
        before: Median seconds of a pass in the saved run.
        now: Median seconds of a pass now.
    """

    name: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        """Ratio of ``now`` to ``before``."""
        return self.now / self.before


def write_results(
    path: str | Path, results: Sequence[Result], about: Mapping[str, str] | None = None
) -> None:
    """Write results in the format of pytest-benchmark.

    Args:
        path: The file.
        results: The measurements.
        about: The machine, by name.

    Raises:
        DemitasseError: pytest-benchmark is not installed.
        OSError: The file cannot be written.
    """
    with needs_extra(DemitasseError, "saving results", "pytest-benchmark", "bench"):
        from pytest_benchmark import __version__ as version
        from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info as machine_info
        from pytest_benchmark.utils import get_commit_info
    found = {
        "machine_info": machine_info() | {"demitasse": dict(about or {})},
        "commit_info": get_commit_info(),
        "benchmarks": [_entry(result, name) for name, result in named(results) if not result.error],
        "datetime": datetime.now(UTC).isoformat(),
        "version": version,
    }
    write_bytes(Path(path), json.dumps(found, indent=1, default=str).encode())


def _entry(result: Result, name: str) -> dict[str, Any]:
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for seconds in result.seconds:
        stats.update(seconds)
    case = result.case
    return {
        "group": f"{case.net.stem} {case.phase}",
        "name": name,
        "fullname": f"{case.net}::{case.name}",
        "params": {"device": case.device, "batch": case.batch, "phase": case.phase},
        "param": f"{case.device}-{case.batch}-{case.phase.lower()}",
        "extra_info": {
            "images_per_second": result.images_per_second, "memory": result.memory,
            "bytes_moved": result.moved, "share_of_peak": result.share_of_peak,
            "peak_gflops": result.peak, "layers_ms": result.layers,
            "images_per_joule": result.images_per_joule,
            "images_read_per_second": result.read, "images_per_second_reading": result.reading,
        },
        "options": {"disable_gc": False, "timer": "perf_counter", "warmup": True},
        "stats": {**stats.as_dict(), "data": result.seconds, "iterations": 1},
    }  # fmt: skip


def read_results(path: str | Path) -> dict[str, float]:
    """Return the median seconds of each case in a file of pytest-benchmark.

    Raises:
        DataError: The file cannot be read, or has another format.
    """
    path = Path(path)
    check_exists(path)
    try:
        found = json.loads(read_bytes(path))
        medians = {str(one["name"]): float(one["stats"]["median"]) for one in found["benchmarks"]}
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        message = f"cannot read the file as results of pytest-benchmark: {error!r}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from None
    if not all(0 < median < float("inf") for median in medians.values()):
        message = "a median is not a time above 0"
        raise DataError(message, str(path), code=ErrorCode.INVALID)
    return medians


def regressions(
    results: Sequence[Result], saved: dict[str, float], tolerance: float
) -> list[Regression]:
    """Return the cases whose relative slowdown from the saved medians is above ``tolerance``."""
    found = [
        Regression(name, saved[name], statistics.median(result.seconds))
        for name, result in named(results)
        if not result.error and name in saved
    ]
    return [one for one in found if one.factor > 1 + tolerance]
