"""Time left: progress bars on a terminal, and lines of the log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from demitasse.core.log import get_logger
from demitasse.core.text import seconds_text

if TYPE_CHECKING:
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
    began, first = time.monotonic(), solver.iter

    def log_at_display() -> None:
        every, total = solver.param.display, solver.param.max_iter
        done = solver.iter - first
        if every and done > every and (solver.iter - 1) % every == 0:
            log_time_left(began, done, total - first)

    solver.on_start.append(log_at_display)
    try:
        with _train_bar(solver) if sys.stderr.isatty() else nullcontext():
            yield
    finally:
        solver.on_start.remove(log_at_display)


def log_time_left(began: float, done: int, total: int) -> None:
    """Log the time left at the speed so far; parsers of Caffe's logs skip the line.

    ``began`` is the start by ``time.monotonic``; ``done`` of ``total`` steps are done, at least 1.
    """
    left = (time.monotonic() - began) / done * (total - done)
    log.info(
        "    Time remaining: %s (%d of %d done)", seconds_text(left), done, total,
        extra={"metrics": {"done": done, "total": total, "seconds_left": left}},
    )  # fmt: skip


@contextmanager
def _train_bar(solver: Solver) -> Iterator[None]:
    with _bar(solver.param.max_iter, solver.iter) as update:

        def show(tested: str = "") -> None:
            trained = f"loss {solver.smoothed_loss:.4g}  lr {solver.lr:.3g}" if solver.iter else ""
            update(completed=solver.iter, note=f"{trained}  {tested}".strip())

        def show_test(net: int, done: int, batches: int) -> None:
            show(f"test net #{net}: {done}" + (f" of {batches} batches" if batches else " batches"))

        solver.on_start.append(show)
        solver.on_test_batch.append(show_test)
        try:
            yield
        finally:
            update(completed=solver.iter)
            solver.on_start.remove(show)
            solver.on_test_batch.remove(show_test)


@contextmanager
def _bar(total: int | None = None, completed: int = 0) -> Iterator[Callable[..., None]]:
    """Show a progress bar; yield the function that updates its fields."""
    from rich import progress as rich
    from rich.console import Console

    bar = rich.Progress(
        rich.MofNCompleteColumn(), rich.BarColumn(bar_width=24),
        rich.TextColumn("{task.fields[note]}"), rich.TimeElapsedColumn(), rich.TextColumn("left"),
        rich.TimeRemainingColumn(), console=Console(stderr=True), refresh_per_second=4,
        transient=True,
    )  # fmt: skip
    update = partial(bar.update, bar.add_task("", total=total, completed=completed, note=""))
    before = sys.stderr
    with bar:
        _log_to(before, sys.stderr)  # rich's stream keeps the bar below the log lines
        try:
            yield update
        finally:
            _log_to(sys.stderr, before)


def _log_to(old: object, new: object) -> None:
    for handler in logging.getLogger("demitasse").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


@contextmanager
def line_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows (done, total); without a terminal it logs the time left."""
    if sys.stderr.isatty():
        with _bar() as update:
            yield lambda done, total: update(completed=done, total=total)
        return
    began = logged = time.monotonic()

    def log_sometimes(done: int, total: int) -> None:
        nonlocal logged
        if done < total and time.monotonic() - logged >= LOG_INTERVAL:
            logged = time.monotonic()
            log_time_left(began, done, total)

    yield log_sometimes
