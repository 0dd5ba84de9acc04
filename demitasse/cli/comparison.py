"""Reports of comparisons: text, JSON, JUnit's XML and a page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from demitasse.cli.render import table
from demitasse.core.atomic import atomic_write
from demitasse.core.text import escaped
from demitasse.pages import Chart, Curve, Page
from demitasse.testing import Comparison, Difference, Row
from demitasse.testing.comparison import TrainingStep
from demitasse.testing.error_stats import KINDS, error_stats, tolerance


class ComparisonReport:
    """A comparison, checked against a tolerance.

    Args:
        net: Name of the compared file.
        steps: Losses and parameters of training, if compared.
        rtol: Tolerance, relative to the largest value of an array; larger for layers that lose
            digits. None for the default of ``dtype``.
        missing: Messages on layers and parameters that one side lacks, or on wrong Steps; each is
            a difference.
        notes: Further messages, e.g. on arrays that were not compared.
    """

    def __init__(
        self, net: str, found: Comparison, steps: Sequence[TrainingStep], dtype: str,
        rtol: float | None, *, title: str = "Consistency", missing: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.net, self.found, self.steps = net, found, steps
        self.title, self.missing, self.notes = f"{title} of {net}", missing, notes
        self._dtype, self._rtol = dtype, rtol
        self.rtol = tolerance(dtype, rtol=rtol)
        self.mismatches = [one for one in found.all if self._differs(one)]
        self.agree = not self.mismatches and not self.missing
        self._kinds = [kind for kind in KINDS if any(d.kind == kind for d in found.differences)]
        self._columns = [(device, kind) for device in found.devices for kind in self._kinds]

    def _differs(self, one: Difference) -> bool:
        return one.exceeds(self._dtype, self._rtol)

    # -- text ----------------------------------------------------------------------------------

    def text(self, *, worst_first: bool = False, details: bool = False) -> str:
        """Return a table, with a row for each layer and a column for each device, and a verdict."""
        parts = []
        if self.found.all:
            parts.append(self._details() if details else self._rows(worst_first))
        if self.steps:
            parts.append(table(STEP_HEAD, [_step_cells(step) for step in self.steps]))
        if self.notes:
            parts.append("\n".join(escaped(note, one_line=True) for note in self.notes))
        return "\n\n".join([*parts, self.verdict()])

    def verdict(self) -> str:
        """Return that the devices agree, or the first difference above its tolerance."""
        worst = self.found.worst
        if self.agree:
            largest = f"; largest difference: {worst}" if worst else ""
            return f"They agree within {self.rtol:g}{largest}."
        lines = [escaped(line, one_line=True) for line in self.missing]
        if self.mismatches:
            explained = self.found.explain(self.mismatches[0])
            lines.append(f"First divergence (more than {self.rtol:g}): {explained}.")
            lines.append(f"Largest: {worst}.")
        return "\n".join(lines)

    def _rows(self, worst_first: bool) -> str:
        rows, head = self.found.rows(), self._head()
        if worst_first:
            rows = sorted(rows, key=lambda row: -row.worst)
        return table(head, [self._cells(row) for row in rows], whole=head[:2])

    def _head(self) -> list[str]:
        names = [device if kind == "data" else f"{kind}s" for device, kind in self._columns]
        return [f"against {self.found.reference}:", "", *names, ""]

    def _cells(self, row: Row) -> list[str]:
        found = [row.by_kind(kind)[device] for device, kind in self._columns]
        bad = any(one is not None and self._differs(one) for one in found)
        cells = ["-" if one is None else f"{one.relative:.1e}" for one in found]
        return [row.layer, row.type, *cells, "DIFFERS" if bad else ""]

    def _details(self) -> str:
        rows = [
            (d.layer, d.type, d.what, d.device, f"{d.relative:.2e}", f"{d.absolute:.2e}",
             "DIFFERS" if self._differs(d) else "")
            for d in self.found.all
        ]  # fmt: skip
        head = ("layer", "type", "what", f"{self.found.reference} against", "relative", "absolute")
        return table((*head, ""), rows, whole=head[:2])

    # -- files ---------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "net": self.net,
            "reference": self.found.reference,
            "devices": self.found.devices,
            "rtol": self.rtol,
            "agree": self.agree,
            "first_divergence": _plain(self.mismatches[0]) if self.mismatches else None,
            "explained": self.found.explain(self.mismatches[0]) if self.mismatches else "",
            "differences": [_plain(one) for one in self.found.differences],
            "together": [_plain(one) for one in self.found.fused],
            "missing": list(self.missing),
            "notes": list(self.notes),
            "training": [
                {"iteration": s.iteration, "device": s.device, "loss": s.loss,
                 "expected_loss": s.expected, "worst": _plain(s.worst)}
                for s in self.steps
            ],
        }  # fmt: skip

    def write_junit(self, path: Path) -> None:
        """Write a test case for each layer and device as JUnit's XML, for build servers."""
        suite = ElementTree.Element("testsuite", name=_xml(self.title))
        for device in self.found.devices:
            for row in self.found.rows():
                case = ElementTree.SubElement(
                    suite, "testcase", classname=_xml(device), name=_xml(row.layer)
                )
                found = (row.by_kind(kind)[device] for kind in KINDS)
                for one in (d for d in found if d is not None and self._differs(d)):
                    failure = ElementTree.SubElement(case, "failure", message=_xml(str(one)))
                    failure.text = _xml(self.found.explain(one))
        for line in self.missing:
            case = ElementTree.SubElement(suite, "testcase", classname="missing", name=_xml(line))
            ElementTree.SubElement(case, "failure", message=_xml(line))
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure/.."))))
        with atomic_write(path) as file:
            ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)

    def write_page(self, path: Path) -> None:
        """Write a page: a chart of all layers on a log scale, the verdict, the table."""
        rows = self.found.rows()
        names = [row.layer for row in rows]
        curves = []
        for color, device in enumerate(self.found.devices):
            for style, kind in enumerate(self._kinds):
                found = [row.by_kind(kind)[device] for row in rows]
                points = [(i, math.nan if d is None else d.relative) for i, d in enumerate(found)]
                name = device if kind == "data" else f"{device}, {kind}s"
                curves.append(Curve(name, points, color, style))
        page = Page(self.title)
        page.text(f"{', '.join(self.found.devices)} against {self.found.reference}.")
        for line in (*self.verdict().splitlines(), *self.notes):
            page.text(line)
        if rows:
            chart = Chart(curves, "largest difference, relative", scale="log", places=names,
                          limit=self.rtol)  # fmt: skip
            about = "For each layer, in the order of the net, the largest difference on each device"
            page.wide_chart(chart, about)
            head = ["layer", "type", *self._head()[2:-1], ""]
            cells = [self._cells(row) for row in rows]
            bad = [i for i, row in enumerate(cells) if row[-1]]
            page.heading("Layers")
            page.table(head, cells, numbers=range(2, len(head) - 1), bad=bad)
        if self.steps:
            page.heading("Training")
            page.table(STEP_HEAD, [_step_cells(step) for step in self.steps], numbers=(0, 2, 3, 4))
        page.write(path)


STEP_HEAD = ("step", "device", "loss", "loss on the first", "largest difference", "of parameter")


def _step_cells(step: TrainingStep) -> tuple[str, ...]:
    worst = step.worst
    return (str(step.iteration), step.device, f"{step.loss:.6g}", f"{step.expected:.6g}",
            f"{worst.relative:.1e}", f"{worst.layer}, {worst.what}")  # fmt: skip


def _plain(one: Difference) -> dict[str, Any]:
    return {
        "layer": one.layer, "type": one.type, "what": one.what, "device": one.device,
        "absolute": one.absolute, "relative": one.relative, "index": list(one.stats.index),
        "got": one.stats.got, "expected": one.stats.expected, "ulps": one.stats.ulps,
        "inputs": one.inputs,
    }  # fmt: skip


def _xml(text: str) -> str:
    """Escape the control characters that XML does not allow."""
    return escaped(text, one_line=True)


Weights = dict[str, list[np.ndarray]]
"""Layer -> its parameters, in Caffe's order."""


@dataclass(frozen=True)
class ArrayDifference:
    """Largest difference of one parameter in two files: its place, and the values there.

    Attributes:
        absolute: The difference; inf if one value is not finite and the values differ.
        relative: ``absolute`` over the largest absolute value of both arrays.
    """

    layer: str
    index: int
    absolute: float
    relative: float
    place: tuple[int, ...]
    first: float
    second: float


@dataclass
class WeightsDifference:
    """Differences of two files of weights, and layers that only one of the files has.

    Attributes:
        shapes: (layer, index, first shape, second shape) of shapes that differ in more than leading
            axes of 1; None for a missing parameter.
        arrays: All pairs of equal shape, the largest relative difference first.
    """

    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)
    shapes: list[tuple[str, int, Any, Any]] = field(default_factory=list)
    arrays: list[ArrayDifference] = field(default_factory=list)

    def within(self, rtol: float) -> bool:
        """Return True if both have the same parameters, within a relative tolerance."""
        same = not (self.only_first or self.only_second or self.shapes)
        return same and all(array.relative <= rtol for array in self.arrays)


def weights_difference(first: Weights, second: Weights) -> WeightsDifference:
    """Compare weights layer by layer, by name."""
    result = WeightsDifference(
        only_first=[name for name in first if name not in second],
        only_second=[name for name in second if name not in first],
    )
    for layer in (name for name in first if name in second):
        for index, (a, b) in enumerate(zip_longest(first[layer], second[layer])):
            if a is None or b is None or _short_shape(a) != _short_shape(b):
                shapes = [None if array is None else array.shape for array in (a, b)]
                result.shapes.append((layer, index, shapes[0], shapes[1]))
            elif a.size:
                shape = min(a.shape, b.shape, key=len)
                stats = error_stats(a.reshape(shape), b.reshape(shape))
                scale = max(_largest(a), _largest(b))
                relative = stats.absolute / scale if scale else stats.absolute
                values = (stats.absolute, relative, stats.index, stats.got, stats.expected)
                result.arrays.append(ArrayDifference(layer, index, *values))
    result.arrays.sort(key=lambda array: array.relative, reverse=True)
    return result


def _short_shape(array: np.ndarray) -> tuple[int, ...]:
    """Return a shape without leading axes of 1: old files have four axes for every parameter."""
    first = next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim)
    return array.shape[first:]


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array[np.isfinite(array)].astype(np.float64)), initial=0.0))
