"""Support of layer types by backends: the backends' own tables, and records of conformance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from demitasse.backends.cpu import lowerings as cpu
from demitasse.backends.cpu.steps import elementwise as cpu_activation
from demitasse.backends.cupy import lowerings as cupy
from demitasse.backends.cupy.steps import elementwise as cupy_activation
from demitasse.backends.numpy import lowerings as numpy
from demitasse.backends.numpy.steps import elementwise as numpy_activation
from demitasse.backends.ops import Activation
from demitasse.backends.step import Lowerings
from demitasse.layers.metadata import layer_metadata
from demitasse.layers.registry import CATALOG

_TABLES: Mapping[str, tuple[Lowerings, Mapping[str, object]]] = {
    "cpu": (
        cpu.LOWERINGS,
        {
            **numpy_activation.FUNCTIONS,
            **cpu_activation.FUNCTIONS,
        },
    ),
    "numpy": (numpy.LOWERINGS, numpy_activation.FUNCTIONS),
    "cuda": (cupy.LOWERINGS, cupy_activation.FUNCTIONS),
}

BACKENDS = tuple(_TABLES)
"""Backends for users. The backends for tests, ``strict`` and ``readonly``, have no Steps."""


@cache
def lowered_by(backend: str) -> frozenset[str]:
    """Return the operations for which a backend has Steps.

    Returns:
        Names of operations, and of functions of an Activation.
    """
    lowerings, functions = _TABLES[backend]
    return frozenset(op.__name__ for op in lowerings if op is not Activation) | set(functions)


def support(name: str) -> dict[str, str]:
    """Return the support of a type by each backend: "lowered", "portable" or "host".

    Args:
        name: A type of the catalogue.

    Returns:
        For each of ``BACKENDS``: "lowered" if it has a Step for at least the usual options,
        "portable" if the layer's own code runs on its arrays, "host" if the work is done on the
        host for every device.
    """
    facts = layer_metadata(name)
    if facts.host:
        return dict.fromkeys(BACKENDS, "host")
    return {
        backend: "lowered" if facts.op in lowered_by(backend) else "portable"
        for backend in BACKENDS
    }


RECORDS = Path(__file__).with_name("conformance")
"""Layer types that devices have passed, a file for each: ``conformance --record FILE``."""

CONFORMANCE_PAGE = "reference/layers_and_backends.md"
CONFORMANCE_HEAD = """\
# Layers and backends

Element types in which a layer type passes on a backend: 32 for float32, 64 for float64. The
conformance tests compare each type with numpy, forward and backward; for `cuda`, whose record is
of one run on a GPU, these are the types with cases recorded from Caffe. A dash has not been tried,
and *no* is a failure. Refused element types and types stand below the table.
"""


def records() -> dict[str, dict[str, Any]]:
    """Return what each backend has passed, by its name."""
    files = sorted(RECORDS.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def conformance_page() -> str:
    """Return the table of layer types and backends."""
    found = records()
    lines = [CONFORMANCE_HEAD, f"| type | {' | '.join(found)} |", "| --- |" + " --- |" * len(found)]
    for name in sorted(CATALOG, key=str.lower):
        cells = (_cell(record, name) for record in found.values())
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["", "| backend | device | versions | refused |", "| --- | --- | --- | --- |"]
    for backend, record in found.items():
        versions = ", ".join(f"{key} {value}" for key, value in record["environment"].items())
        lines.append(f"| {backend} | `{record['device']}` | {versions} | {_refused(record)} |")
    return "\n".join([*lines, ""])


def _cell(record: Mapping[str, Any], name: str) -> str:
    """Return the element types in which a type has passed."""
    tried = {dtype: record[dtype] for dtype in ("float32", "float64") if dtype in record}
    passed = [dtype[-2:] for dtype, part in tried.items() if name in part["passed"].split()]
    if any(part["refused"].get(name) == "failed" for part in tried.values()):
        return "no"
    return ", ".join(passed) or "-"


def _refused(record: Mapping[str, Any]) -> str:
    """Return the reasons of what a backend refuses, each with its types or "all"."""
    reasons: dict[str, list[str]] = {}
    for dtype in ("float32", "float64"):
        for name, reason in record.get(dtype, {"refused": {}})["refused"].items():
            reasons.setdefault(f"{dtype}: {reason}", []).append(name)
    texts = [
        f"{reason} ({'all' if len(names) == len(CATALOG) else ', '.join(names)})"
        for reason, names in reasons.items()
    ]
    return "; ".join(texts) or "nothing"
