"""Time left: progress bars on a terminal, and lines of the log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from demitasse.core.log import get_logger
from demitasse.core.text import seconds_text

if TYPE_CHECKING:
    from demitasse.training import Solver

log = get_logger(__name__)

LOG_INTERVAL = 60.0
"""Seconds from one line about the time left to the next, outside of training."""

REDRAW_INTERVAL = 0.1
"""Seconds from one drawing of a bar to the next."""

CLEAR_LINE = "\r\x1b[2K"
"""Clears a terminal's line."""


@contextmanager
def train_progress(solver: Solver) -> Iterator[None]:
    """Show iteration, loss, learning rate and time left below the log lines; batches in a test.

    Without a terminal there is no bar. The time left is also logged after each display.
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
    """Log the time left at the speed since ``began``; parsers of Caffe's logs skip the line."""
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
            update(solver.iter, note=f"{trained}  {tested}".strip(), now=bool(tested))

        def show_test(net: int, done: int, batches: int) -> None:
            show(f"test net #{net}: {done}" + (f" of {batches} batches" if batches else " batches"))

        solver.on_start.append(show)
        solver.on_test_batch.append(show_test)
        try:
            yield
        finally:
            update(solver.iter, now=True)
            solver.on_start.remove(show)
            solver.on_test_batch.remove(show_test)


@contextmanager
def _bar(total: int | None = None, completed: int = 0) -> Iterator[Callable[..., None]]:
    """Show a progress bar; yield the function that updates it."""
    import click

    terminal, drawn = sys.stderr, 0.0

    def text(note: str | None) -> str:
        return f"{note or ''}  {seconds_text(bar.eta)} left"

    bar: Any = click.progressbar(
        length=total or 1, width=24, show_pos=True, show_eta=False, show_percent=False,
        item_show_func=text, file=terminal,
    )  # fmt: skip
    bar.pos = completed

    def update(completed: int, total: int | None = None, note: str = "", *, now: bool) -> None:
        nonlocal drawn
        bar.length, bar.current_item = total or bar.length, note
        bar.make_step(completed - bar.pos)
        if now or time.monotonic() - drawn > REDRAW_INTERVAL:
            drawn = time.monotonic()
            bar.render_progress()

    above = _AboveBar(terminal)
    _log_to(terminal, above)
    try:
        with bar:
            yield update
    finally:
        _log_to(above, terminal)


class _AboveBar:
    """Terminal whose last line is a bar, which other lines replace until it is drawn again."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> None:
        self._terminal.write(CLEAR_LINE + text)

    def flush(self) -> None:
        self._terminal.flush()


def _log_to(old: Any, new: Any) -> None:
    for handler in logging.getLogger("demitasse").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


@contextmanager
def line_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows (done, total); without a terminal it logs the time left."""
    if sys.stderr.isatty():
        with _bar() as update:
            yield lambda done, total: update(done, total, now=done == total)
        return
    began = logged = time.monotonic()

    def log_sometimes(done: int, total: int) -> None:
        nonlocal logged
        if done < total and time.monotonic() - logged >= LOG_INTERVAL:
            logged = time.monotonic()
            log_time_left(began, done, total)

    yield log_sometimes
