"""Engines beside programs that leave no core alone."""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from peers.tables import number, table

if TYPE_CHECKING:
    from peers.report import Result

__all__ = ["busy_table", "loops"]

FOREVER = "while True: pass"


@contextmanager
def loops(count: int) -> Iterator[None]:
    """Keep so many processes computing meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", FOREVER]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def busy_table(results: "list[Result]") -> str:
    """Return a table of milliseconds alone and beside the loops."""
    engines = list(dict.fromkeys(row.engine for result in results for row in result.rows))
    lines = []
    for result in results:
        rows = [result.row(engine) for engine in engines]
        cells = [
            f"{number(row.time * 1e3, '{:.3g}')} -> {statistics.median(row.beside) * 1e3:.3g}"
            if row and row.beside
            else "-"
            for row in rows
        ]
        lines.append([str(result.case), *cells])
    return table(["case", *engines], lines)
