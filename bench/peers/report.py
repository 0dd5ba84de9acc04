"""What was found, as JSON and as tables of ratios: a peer's time divided by ours."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from peers.cases import AIMS, Case
from peers.engines import PEAK
from peers.rounds import Row

__all__ = ["Report", "Result"]

TRAIN = 3
"""Forward, gradient of the input, gradient of the weights."""


@dataclass
class Result:
    """One case: what is known of it, and its rows, ours first."""

    case: Case
    about: dict[str, Any]
    rows: list[Row]

    def row(self, engine: str) -> Row | None:
        return next((row for row in self.rows if row.engine == engine), None)

    def time(self, engine: str) -> float | None:
        row = self.row(engine)
        return row.time if row else None

    @property
    def ours(self) -> Row | None:
        return self.rows[0] if self.rows and self.rows[0].time else None

    def ratio(self, time: float | None) -> float | None:
        return time / self.ours.time if time and self.ours else None

    @property
    def best_torch(self) -> Row | None:
        """The fastest way to run PyTorch that gives the right results."""
        able = [r for r in self.rows if r.engine.startswith("torch") and r.time and r.agrees]
        return min(able, key=lambda row: row.time, default=None)

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
            "about": self.about,
            "peak": self.peak,
            "of_peak": self.of_peak,
            "rows": [
                asdict(row)
                | {
                    "milliseconds": row.time and row.time * 1e3,
                    "ratio": self.ratio(row.time),
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

    def as_dict(self) -> dict[str, Any]:
        results = [result.as_dict() for result in self.results]
        return {"facts": self.facts, "settings": self.settings, "results": results}

    def markdown(self) -> str:
        """Return it as text with tables."""
        parts = [self._machine()]
        for mode, title in (("forward", "Forward"), ("step", "Training step")):
            chosen = [result for result in self.results if result.case.mode == mode]
            if chosen:
                parts += [f"## {title}, ms (times ours)", self._times(chosen)]
        parts += ["## Ratios (aim)", self._aims(), "## Peak resident memory, MiB", self._memory()]
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
                _number(result.gflops(result.ours), "{:.0f}"),
                _number(result.peak and result.peak[0], "{:.0f}"),
            ]
            for result in results
        ]
        return _table(["net", *engines, "our GFLOP/s", "peak GFLOP/s"], lines)

    def _aims(self) -> str:
        lines = []
        for result in self.results:
            aim = AIMS.get(str(result.case))
            best = result.best_torch
            found = (
                ("eager", result.ratio(result.time("torch")), "{:.2f}"),
                ("best", result.ratio(best.time) if best else None, "{:.2f}"),
                ("onnxruntime", result.ratio(result.time("onnxruntime")), "{:.2f}"),
                ("peak", result.of_peak, "{:.0%}"),
            )
            cells = [_number(value, form) + _aimed(aim, name, form) for name, value, form in found]
            cells[1] += f" {best.engine}" if best else ""
            bandwidth = _number(result.peak and result.peak[1], "{:.0f}")
            lines.append([str(result.case), *cells, bandwidth])
        head = ["case", "torch eager", "best torch", "ONNX Runtime", "of peak", "copy GB/s"]
        return _table(head, lines)

    def _memory(self) -> str:
        engines = self._engines(self.results)
        lines = []
        for result in self.results:
            rows = [result.row(engine) for engine in engines]
            peaks = [row.memory.get("peak") if row else None for row in rows]
            tops = _number(result.about.get("tops_mib"), "{:.0f}")
            lines.append([str(result.case), *(_number(p, "{:.0f}") for p in peaks), tops])
        return _table(["case", *engines, "all blobs"], lines)

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
    ratio = "" if row is result.ours else f" ({_number(result.ratio(row.time), '{:.2f}')})"
    return f"{row.time * 1e3:.3g}{ratio}{marks}"


def _aimed(aim: Any, name: str, form: str) -> str:
    value = getattr(aim, name, None)
    return f" ({form.format(value)})" if value else ""


def _number(value: float | None, form: str) -> str:
    return "-" if not value else form.format(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "none"
    return str(value)


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
