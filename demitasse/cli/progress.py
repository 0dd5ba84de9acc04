"""Progress bars on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from demitasse.training import Solver

__all__ = ["line_progress", "train_progress"]


@contextmanager
def train_progress(solver: Solver) -> Iterator[None]:
    """Show iteration, loss, learning rate and time left below the log lines; batches in a test.

    Without a terminal on standard error, nothing is shown and rich is not imported.
    """
    if not sys.stderr.isatty():
        yield
        return
    progress = _progress()
    task = progress.add_task("", total=solver.param.max_iter, completed=solver.iter, note="")

    def trained() -> str:
        return f"loss {solver.smoothed_loss:.4g}  lr {solver.lr:.3g}" if solver.iter else ""

    def show() -> None:
        progress.update(task, completed=solver.iter, note=trained())

    def show_test(net: int, done: int, batches: int) -> None:
        tested = f"test net #{net}: {done}" + (f" of {batches} batches" if batches else " batches")
        progress.update(task, completed=solver.iter, note=f"{trained()}  {tested}".lstrip())

    solver.on_start.append(show)
    solver.on_test_batch.append(show_test)
    before = sys.stderr
    with progress:
        _log_to(before, sys.stderr)  # rich's stream keeps the bar below the log lines
        try:
            yield
        finally:
            progress.update(task, completed=solver.iter)
            _log_to(sys.stderr, before)
            solver.on_start.remove(show)
            solver.on_test_batch.remove(show_test)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        transient=True,
    )


def _log_to(old: object, new: object) -> None:
    for handler in logging.getLogger("demitasse").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


@contextmanager
def line_progress() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows (done, total); None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    progress = _progress()
    task = progress.add_task("", total=None, note="")
    before = sys.stderr
    with progress:
        _log_to(before, sys.stderr)
        try:
            yield lambda done, total: progress.update(task, completed=done, total=total)
        finally:
            _log_to(sys.stderr, before)
