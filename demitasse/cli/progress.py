"""Time left: progress bars on a terminal, and lines of the log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from demitasse.core.log import get_logger
from demitasse.core.text import seconds_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from demitasse.training import Solver

log = get_logger(__name__)

LOG_INTERVAL = 60.0
"""Seconds from one line about the time left to the next, outside of training."""


@contextmanager
def train_progress(solver: Solver) -> Iterator[None]:
    """Show iteration, loss, learning rate and time left below the log lines; batches in a test.

    Without a terminal on standard error, no bar is shown and rich is not imported. The time left is
    also logged after each display.
    """
    time_left = _time_left_logger(solver)
    solver.on_start.append(time_left)
    try:
        with _train_bar(solver) if sys.stderr.isatty() else nullcontext():
            yield
    finally:
        solver.on_start.remove(time_left)


def _time_left_logger(solver: Solver) -> Callable[[], None]:
    """Return a callback that logs the time left, in the iteration after a display."""
    began, first = time.monotonic(), solver.iter

    def show() -> None:
        every, total = solver.param.display, solver.param.max_iter
        done = solver.iter - first
        if every and done > every and (solver.iter - 1) % every == 0:
            log_time_left(began, done, total - first)

    return show


def log_time_left(began: float, done: int, total: int) -> None:
    """Log the time left at the speed so far; parsers of Caffe's logs skip the line.

    Args:
        began: Start of the work, by ``time.monotonic``.
        done: Number of steps done, at least 1.
        total: Number of all steps.
    """
    left = (time.monotonic() - began) / done * (total - done)
    log.info(
        "    Time remaining: %s (%d of %d done)", seconds_text(left), done, total,
        extra={"metrics": {"done": done, "total": total, "seconds_left": left}},
    )  # fmt: skip


@contextmanager
def _train_bar(solver: Solver) -> Iterator[None]:
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
def line_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows (done, total); without a terminal it logs the time left."""
    if not sys.stderr.isatty():
        yield _line_logger()
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


def _line_logger() -> Callable[[int, int], None]:
    """Return a function of (done, total) that logs the time left, at most once in an interval."""
    began = logged = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal logged
        if done < total and time.monotonic() - logged >= LOG_INTERVAL:
            logged = time.monotonic()
            log_time_left(began, done, total)

    return show
