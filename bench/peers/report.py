"""What was found, as JSON and as tables of ratios: a peer's time divided by ours."""

import json
import statistics
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from peers.busy import busy_table
from peers.cases import AIMS, Case
from peers.digest import Apart
from peers.engines import PEAK
from peers.rounds import Row
from peers.start import Start, start_table
from peers.tables import number, table

__all__ = ["Report", "Result"]

TRAIN = 3
"""Forward, gradient of the input, gradient of the weights."""


@dataclass
class Result:
    """One case: what is known of it, and its rows, ours first.

    Attributes:
        case: The case.
        about: What is known of it.
        rows: What every engine did.
        loops: Busy loops that it was measured beside, too.
    """

    case: Case
    about: dict[str, Any]
    rows: list[Row]
    loops: int = 0

    @classmethod
    def read(cls, found: dict[str, Any]) -> "Result":
        """Return what ``as_dict`` gave."""
        names = {one.name for one in fields(Row)}
        rows = [Row(**{k: v for k, v in row.items() if k in names}) for row in found["rows"]]
        for row in rows:
            row.apart = Apart(**row.apart) if row.apart else None
        case = Case.parse(found["case"], found["scale"])
        return cls(case, found["about"], rows, found["loops"])

    @property
    def key(self) -> tuple[Case, bool]:
        """What is measured: a result with the same key is older or newer."""
        return self.case, bool(self.loops)

    def row(self, engine: str) -> Row | None:
        return next((row for row in self.rows if row.engine == engine), None)

    @property
    def ours(self) -> Row | None:
        return self.rows[0] if self.rows and self.rows[0].time else None

    def ratio(self, row: Row | None) -> float | None:
        """Return an engine's time divided by ours: the median over the rounds.

        A virtual machine's cores may be near each other in one round, and far in the next.
        """
        if row is None or not row.medians or not self.ours:
            return None
        pairs = zip(row.medians, self.ours.medians, strict=False)
        return statistics.median(time / own for time, own in pairs)

    @property
    def best_torch(self) -> Row | None:
        """The fastest way to run PyTorch that gives the right results."""
        able = [r for r in self.rows if r.engine.startswith("torch") and r.time and r.agrees]
        return min(able, key=lambda row: self.ratio(row) or row.time, default=None)

    @property
    def flop(self) -> float:
        return self.about.get("forward_flop", 0) * (TRAIN if self.case.train else 1)

    def gflops(self, row: Row | None) -> float | None:
        return self.flop / row.time / 1e9 if row and row.time else None

    @property
    def peak(self) -> tuple[float, float] | None:
        """GFLOP/s and GB/s that were measured in the same rounds."""
        row = self.row(PEAK)
        if row is None or not row.speeds:
            return None
        return tuple(statistics.median(values) for values in zip(*row.speeds, strict=True))

    @property
    def of_peak(self) -> float | None:
        gflops = self.gflops(self.ours)
        return gflops / self.peak[0] if gflops and self.peak else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "case": str(self.case),
            "scale": self.case.scale,
            "loops": self.loops,
            "about": self.about,
            "peak": self.peak,
            "of_peak": self.of_peak,
            "rows": [
                asdict(row)
                | {
                    "milliseconds": row.time and row.time * 1e3,
                    "ratio": self.ratio(row),
                    "gflops": self.gflops(row),
                    "agrees": row.agrees,
                }
                for row in self.rows
            ],
        }


@dataclass
class Report:
    """All cases, with the machine and the way it was measured."""

    facts: dict[str, Any]
    settings: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Return what ``as_dict`` gave, from a file."""
        found = json.loads(path.read_text())
        results = [Result.read(result) for result in found["results"]]
        starts = [Start(**start) for start in found["starts"]]
        return cls(found["facts"], found["settings"], results, starts)

    def add(self, result: Result) -> None:
        """Take a result, in place of an older one of the same case."""
        self.results = [one for one in self.results if one.key != result.key] + [result]

    def as_dict(self) -> dict[str, Any]:
        results = [result.as_dict() for result in self.results]
        starts = [asdict(start) for start in self.starts]
        return {"facts": self.facts, "settings": self.settings, "results": results,
                "starts": starts}  # fmt: skip

    def markdown(self) -> str:
        """Return it as text with tables."""
        parts = [self._machine()]
        quiet = [result for result in self.results if not result.loops]
        for mode, title in (("forward", "Forward"), ("step", "Training step")):
            chosen = [result for result in quiet if result.case.mode == mode]
            if chosen:
                parts += [f"## {title}, ms (times ours)", self._times(chosen)]
        if quiet:
            parts += ["## Ratios (aim)", self._aims(quiet)]
            parts += ["## Peak resident memory, MiB", self._memory(quiet)]
        busy = [result for result in self.results if result.loops]
        if busy:
            title = f"## Alone and beside {busy[0].loops} busy loops, ms"
            parts += [title, busy_table(busy)]
        if self.starts:
            title = "## From a new process to its first result: caches empty, filled; peak"
            parts += [title, start_table(self.starts)]
        notes = self._notes()
        if notes:
            parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
        return "\n\n".join(parts) + "\n"

    def _machine(self) -> str:
        facts = self.facts | {"measured with": self.settings}
        return "\n".join(f"- {name}: {_plain(value)}" for name, value in facts.items())

    def _engines(self, results: list[Result]) -> list[str]:
        names = [row.engine for result in results for row in result.rows]
        return [name for name in dict.fromkeys(names) if name != PEAK]

    def _times(self, results: list[Result]) -> str:
        engines = self._engines(results)
        lines = [
            [
                str(result.case).rpartition(":")[0].replace(":", ", batch "),
                *(_cell(result, result.row(engine)) for engine in engines),
                number(result.gflops(result.ours), "{:.0f}"),
                number(result.peak and result.peak[0], "{:.0f}"),
            ]
            for result in results
        ]
        return table(["net", *engines, "our GFLOP/s", "peak GFLOP/s"], lines)

    def _aims(self, results: list[Result]) -> str:
        lines = []
        for result in results:
            aim = AIMS.get(str(result.case))
            best = result.best_torch
            found = (
                ("eager", result.ratio(result.row("torch")), "{:.2f}"),
                ("best", result.ratio(best), "{:.2f}"),
                ("onnxruntime", result.ratio(result.row("onnxruntime")), "{:.2f}"),
                ("openvino", result.ratio(result.row("openvino")), "{:.2f}"),
                ("peak", result.of_peak, "{:.0%}"),
            )
            cells = [number(value, form) + _aimed(aim, name, form) for name, value, form in found]
            cells[1] += f" {best.engine}" if best else ""
            bandwidth = number(result.peak and result.peak[1], "{:.0f}")
            lines.append([str(result.case), *cells, bandwidth])
        head = ["torch eager", "best torch", "ONNX Runtime", "OpenVINO", "of peak", "copy GB/s"]
        return table(["case", *head], lines)

    def _memory(self, results: list[Result]) -> str:
        engines = self._engines(results)
        lines = []
        for result in results:
            rows = [result.row(engine) for engine in engines]
            peaks = [row.memory.get("peak") if row else None for row in rows]
            tops = number(result.about.get("tops_mib"), "{:.0f}")
            lines.append([str(result.case), *(number(p, "{:.0f}") for p in peaks), tops])
        return table(["case", *engines, "all blobs"], lines)

    def _notes(self) -> list[str]:
        notes = []
        for result in self.results:
            if "error" in result.about:
                notes.append(f"{result.case}: {result.about['error']}")
            for row in result.rows:
                place = f"{result.case}, {row.engine}"
                if row.error:
                    notes.append(f"{place}: {row.error}")
                if row.apart and not row.agrees:
                    notes.append(f"{place}: results differ by {row.apart}")
            disturbed = [r.engine for r in result.rows if r.disturbed]
            if disturbed:
                notes.append(f"{result.case}: others disturbed rounds of {', '.join(disturbed)}")
        return notes


def _cell(result: Result, row: Row | None) -> str:
    """Return time and ratio; `!` marks wrong results, `~` a disturbed measurement."""
    if row is None:
        return "-"
    if row.time is None:
        return "failed"
    marks = ("" if row.agrees else "!") + ("~" if row.disturbed > len(row.medians) // 2 else "")
    ratio = "" if row is result.ours else f" ({number(result.ratio(row), '{:.2f}')})"
    return f"{row.time * 1e3:.3g}{ratio}{marks}"


def _aimed(aim: Any, name: str, form: str) -> str:
    value = getattr(aim, name, None)
    return f" ({form.format(value)})" if value else ""


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "none"
    return str(value)
