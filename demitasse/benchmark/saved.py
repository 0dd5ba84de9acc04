"""Results as files of pytest-benchmark, which its own command compares and draws, too."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from demitasse.benchmark.measure import Result
from demitasse.core.atomic import atomic_write
from demitasse.core.paths import read_bytes
from demitasse.errors import DataError, DemitasseError, ErrorCode

__all__ = ["Regression", "read_results", "regressions", "write_results"]


@dataclass(frozen=True)
class Regression:
    """A case that has become slower.

    Attributes:
        name: The case.
        before: Median seconds of a pass in the saved run.
        now: The same now.
    """

    name: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        """How many times as long a pass takes."""
        return self.now / self.before


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write results as pytest-benchmark does.

    Raises:
        DemitasseError: pytest-benchmark is not installed.
        OSError: The file cannot be written.
    """
    try:
        from pytest_benchmark import __version__ as version
        from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info as machine_info
        from pytest_benchmark.utils import get_commit_info
    except ImportError:
        message = "saving results needs pytest-benchmark; run: pip install 'demitasse[bench]'"
        raise DemitasseError(message, code=ErrorCode.UNAVAILABLE, extra="bench") from None
    found = {
        "machine_info": machine_info(),
        "commit_info": get_commit_info(),
        "benchmarks": [_entry(result) for result in results if not result.error],
        "datetime": datetime.now(UTC).isoformat(),
        "version": version,
    }
    with atomic_write(path) as file:
        file.write(json.dumps(found, indent=1, default=str).encode())


def _entry(result: Result) -> dict[str, Any]:
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for seconds in result.seconds:
        stats.update(seconds)
    case = result.case
    return {
        "group": f"{case.net.stem} {case.phase}",
        "name": case.name,
        "fullname": f"{case.net}::{case.name}",
        "params": {"device": case.device, "batch": case.batch, "phase": case.phase},
        "param": f"{case.device}-{case.batch}-{case.phase.lower()}",
        "extra_info": {
            "images_per_second": result.images_per_second,
            "memory": result.memory,
            "bytes_moved": result.moved,
            "share_of_peak": result.share_of_peak,
            "peak_gflops": result.peak,
            "layers_ms": result.layers,
            "images_read_per_second": result.read,
            "images_per_second_reading": result.reading,
        },
        "options": {"disable_gc": False, "timer": "perf_counter", "warmup": True},
        "stats": {**stats.as_dict(), "data": result.seconds, "iterations": 1},
    }


def read_results(path: Path) -> dict[str, float]:
    """Return the median seconds of each case in a file of pytest-benchmark.

    Raises:
        DataError: It cannot be read, or is none.
    """
    try:
        found = json.loads(read_bytes(path))
        medians = {str(one["name"]): float(one["stats"]["median"]) for one in found["benchmarks"]}
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        message = f"this is no file of results as pytest-benchmark writes them: {error!r}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from None
    if not all(0 < median < float("inf") for median in medians.values()):
        message = "a median is no time"
        raise DataError(message, str(path), code=ErrorCode.INVALID)
    return medians


def regressions(
    results: Sequence[Result], saved: dict[str, float], allowed: float
) -> list[Regression]:
    """Return the cases whose median is more than ``allowed`` (a part of it) above the saved one."""
    found = [
        Regression(result.case.name, saved[result.case.name], statistics.median(result.seconds))
        for result in results
        if not result.error and result.case.name in saved
    ]
    return [one for one in found if one.factor > 1 + allowed]
