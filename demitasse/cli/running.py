"""What runs each layer, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.cli.output import table
from demitasse.cli.timing import Timing
from demitasse.core.text import bytes_text
from demitasse.plan.report import LayerReport

__all__ = ["running_table", "timing_table"]

RUNS = ("layer", "type", "forward runs", "backward runs")


class Reasons:
    """Why nothing faster runs, each said once below a table, by numbers that stand in its rows."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, layer: LayerReport) -> str:
        """Return the numbers of a layer's reasons, as ``[1] [2]``."""
        alone = f"not with the next: {layer.why_alone}" if layer.why_alone else ""
        reasons = filter(None, (layer.why, alone))
        return " ".join(f"[{self._numbers.setdefault(r, len(self._numbers) + 1)}]" for r in reasons)

    def text(self) -> str:
        """Return all of them, to be put below the table."""
        if not self._numbers:
            return ""
        said = "\n".join(f"[{number}] {reason}" for reason, number in self._numbers.items())
        return f"\n\nWhy nothing faster runs:\n{said}"


def running_table(layers: Sequence[LayerReport]) -> str:
    """Return what code runs each layer, least bytes moved by a forward pass, and why no faster."""
    head = (*RUNS, "bytes", "scratch", "why")
    reasons = Reasons()
    rows = [
        (*_runs(layer), _size(layer.bytes), _size(layer.workspace), reasons.mark(layer))
        for layer in layers
    ]
    return table(head, rows) + reasons.text()


def timing_table(timing: Timing) -> str:
    """Return the same with times in milliseconds, and shares of the device's peak in per cent."""
    head = (*RUNS, "forward", "backward", "of peak", "bytes", "why")
    reasons = Reasons()
    rows: list[tuple[object, ...]] = []
    times = zip(timing.layers, timing.layer_forward, timing.layer_backward, strict=True)
    for layer, forward, backward in times:
        if layer.part_of and not backward:
            rows.append((*_runs(layer), None, None, "", "", ""))
            continue
        spent = (0.0 if layer.part_of else forward) + (backward or 0.0)
        work = layer.multiply_adds + (0 if backward is None else layer.backward_multiply_adds)
        moved = layer.bytes + (0 if backward is None else layer.backward_bytes)
        share = _share(work, spent, timing.peak)
        first = None if layer.part_of else forward
        rows.append((*_runs(layer), first, backward, share, _size(moved), reasons.mark(layer)))
    launching = f"\n\n{timing.launching}" if timing.launching else ""
    return (
        f"{table(head, rows)}{reasons.text()}{launching}\n\n"
        "Times in ms. A large product of matrices reaches "
        f"{timing.peak:.0f} GFLOP/s here: work by the definition is a share of that, which code "
        "that needs fewer operations can exceed."
    )


def _runs(layer: LayerReport) -> tuple[str, str, str, str]:
    forward = f"in {layer.part_of}" if layer.part_of else layer.code
    return layer.name, layer.type, forward, layer.backward_code


def _size(count: int) -> str:
    return bytes_text(count) if count else ""


def _share(multiply_adds: int, milliseconds: float, peak: float) -> str:
    if not multiply_adds or not milliseconds or not peak:
        return ""
    return f"{2 * multiply_adds / (milliseconds * 1e6) / peak:.0%}"
