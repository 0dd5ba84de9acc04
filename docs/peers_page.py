"""Makes the page of the comparison with other engines from what was measured last."""

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ratio_chart import ratio_chart

__all__ = ["PEERS_PAGE", "fastest_peer_ratio", "peers_page"]

PEERS_PAGE = "reference/peers.md"
RESULTS = Path(__file__).parents[1] / "bench/results"
FOUND = RESULTS / "peers.json"
AVX2 = RESULTS / "peers_avx2.json"

HEAD = """\
# Beside other engines

What `bench/compare_peers.py --part forward`, `others`, `step`, `busy` and `start` found; how it
measures is told in [Benchmarks](../benchmarks.md#beside-other-engines). A bar is the time of the
fastest of the other engines that gave the right results, divided by ours, as the median over the
rounds: beyond the line we are faster, before it they are.
"""
LIMITED = """\
## With AVX2 alone

The same on a processor without AVX-512.
"""
Cell = Callable[[dict[str, Any]], str]

TITLES = {"forward": "Forward passes", "step": "Training steps"}


def peers_page(path: Path = FOUND, avx2: Path = AVX2) -> str:
    """Return the page as markdown; it says so where nothing was measured yet."""
    if not path.exists():
        return f"{HEAD}\nNothing has been measured yet.\n"
    found = json.loads(path.read_text())
    parts = [HEAD, *_machine(found["facts"]), *_parts(found)]
    if avx2.exists():
        found = json.loads(avx2.read_text())
        parts += [LIMITED, *_machine(found["facts"]), *_parts(found, "##")]
    return "\n\n".join(parts) + "\n"


def _machine(facts: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield f"{facts['processor']}, {facts['cores']} cores; {facts['date']}. {versions}."


def _parts(found: dict[str, Any], heading: str = "#") -> Iterator[str]:
    """Yield the parts, under headings one level below a heading."""
    quiet = [result for result in found["results"] if not result["loops"]]
    for mode, title in TITLES.items():
        chosen = [result for result in quiet if result["case"].endswith(mode)]
        ratios = sorted(filter(None, map(fastest_peer_ratio, chosen)), key=lambda ratio: -ratio[1])
        if ratios:
            yield f"{heading}# {title}"
            chart = ratio_chart("Speed relative to the fastest other engine", ratios)
            yield f'<div class="chart">{chart}</div>'
            yield "Milliseconds:"
            yield _table(chosen, _milliseconds)
    busy = [result for result in found["results"] if result["loops"]]
    if busy:
        yield f"{heading}# On a busy machine"
        yield f"Milliseconds alone, and beside {busy[0]['loops']} programs that only compute."
        yield _table(busy, _beside)
    if found["starts"]:
        yield f"{heading}# Start"
        yield (
            "Seconds from a new process to its first result, with empty caches and with filled "
            "ones, and the peak of its memory."
        )
        cases = dict.fromkeys(one["case"] for one in found["starts"])
        rows = [
            {"case": case, "rows": [one for one in found["starts"] if one["case"] == case]}
            for case in cases
        ]
        yield _table(rows, _start)


def fastest_peer_ratio(result: dict[str, Any]) -> tuple[str, float, str] | None:
    """Return the case, how many times faster we are, and than which engine."""
    able = [row for row in result["rows"] if row["agrees"] and row["milliseconds"]]
    ours = [row for row in able if row["engine"] == "demitasse:cpu"]
    others = [row for row in able if not row["engine"].startswith("demitasse")]
    if not ours or not others:
        return None
    best = min(others, key=lambda row: row["ratio"])
    return _name(result["case"]), best["ratio"], best["engine"]


def _name(case: str) -> str:
    net, batch, _ = case.split(":")
    return f"{net}, {batch}"


def _table(results: list[dict[str, Any]], cell: Cell) -> str:
    engines = list(dict.fromkeys(row["engine"] for one in results for row in one["rows"]))
    lines = [["net, batch", *engines], ["---", *["--:"] * len(engines)]]
    for one in results:
        rows = {row["engine"]: row for row in one["rows"]}
        lines.append([_name(one["case"]), *(_cell(rows.get(e), cell) for e in engines)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: dict[str, Any] | None, cell: Cell) -> str:
    if row is None:
        return "-"
    return "failed" if row["error"] else cell(row)


def _milliseconds(row: dict[str, Any]) -> str:
    wrong = "" if row["agrees"] else " (wrong)"
    return f"{_figures(row['milliseconds'])}{wrong}"


def _beside(row: dict[str, Any]) -> str:
    return f"{_figures(row['milliseconds'])}, {_figures(statistics.median(row['beside']) * 1e3)}"


def _figures(number: float) -> str:
    """Return a number with three figures, or more where it has more before the point."""
    return f"{number:.3g}" if number < 99.95 else f"{number:.0f}"


def _start(row: dict[str, Any]) -> str:
    empty, filled = (statistics.median(row[name]) for name in ("empty", "filled"))
    return f"{empty:.2f}, {filled:.2f}, {row['peak']:.0f} MiB"
