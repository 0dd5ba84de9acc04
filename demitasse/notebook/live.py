"""Curves of a run that redraw themselves in a notebook while it is trained."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Protocol

from demitasse.core.html_repr import html_of
from demitasse.notebook import markup
from demitasse.notebook.drawings import curves

__all__ = ["LiveCurves"]

PAUSE = 0.5
"""Seconds between two drawings, at least."""

LOSSES = ("smoothed_loss", "loss")
"""Of these the first that is told is drawn."""


class LiveCurves:
    """A logger whose loss, learning rate and tests are curves that grow while a solver runs.

    In a notebook, ``solver.loggers.append(LiveCurves())`` before ``solver.solve()``; elsewhere it
    keeps the numbers and shows nothing. They come as often as the solver displays or tests.

    Attributes:
        values: For each name the value at each iteration.
    """

    def __init__(self) -> None:
        self.values: dict[str, dict[int, float]] = {}
        self._shown: _Handle | None = None
        self._last = -math.inf

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Take numbers, and draw them."""
        for name, value in values.items():
            self.values.setdefault(name, {})[iteration] = value
        self._draw()

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Forget what comes after the iteration at which a run begins, or goes on."""
        del facts
        if kind == "begin":
            self.values = {
                name: {at: value for at, value in told.items() if at < iteration}
                for name, told in self.values.items()
            }

    def close(self) -> None:
        """Draw what has not been drawn yet."""
        if self._shown is not None:
            self._draw(at_once=True)

    def html(self) -> str:
        """Return the curves as a piece of a page."""
        loss = next((name for name in LOSSES if self.values.get(name)), "loss")
        tests = [name for name in self.values if name.startswith("test")]
        groups = {
            "loss": [loss, *(name for name in tests if "loss" in name)],
            "tests": [name for name in tests if "loss" not in name],
            "learning rate": ["learning_rate"],
            "norm of all gradients": ["gradient_norm"],
        }
        charts = [
            curves({name: list(self.values.get(name, {}).items()) for name in names}, label)
            for label, names in groups.items()
        ]
        drawn = "".join(filter(None, charts))
        if not drawn:
            return markup.note("nothing was told yet; curves need `display` in the solver")
        return f'<div class="side">{drawn}</div>'

    def _draw(self, *, at_once: bool = False) -> None:
        shell = _shell()
        if shell is None or (not at_once and monotonic() - self._last < PAUSE):
            return
        self._last = monotonic()
        if self._shown is None:
            self._shown = sys.modules["IPython"].display.display(self, display_id=True)
            shell.events.register("post_run_cell", self._cell_is_done)
        else:
            self._shown.update(self)

    def _cell_is_done(self, result: object) -> None:
        """Draw what came since the last drawing, and begin a new one in the next cell."""
        del result
        shell = _shell()
        if shell is not None:
            shell.events.unregister("post_run_cell", self._cell_is_done)
        self.close()
        self._shown, self._last = None, -math.inf

    def __repr__(self) -> str:
        return f"LiveCurves of {', '.join(self.values) or 'nothing yet'}"

    def _repr_html_(self) -> str:
        return html_of(self)


class _Handle(Protocol):
    """IPython's handle of what is shown, by which it is replaced."""

    def update(self, thing: object) -> None:
        """Show another thing in its place."""


class _Events(Protocol):
    """IPython's lists of functions that are called when something happens."""

    def register(self, event: str, function: Callable[[object], None]) -> None:
        """Call a function from now on."""

    def unregister(self, event: str, function: Callable[[object], None]) -> None:
        """Call it no more."""


class _Shell(Protocol):
    """IPython's running shell."""

    events: _Events


def _shell() -> _Shell | None:
    """Return the shell of the notebook that runs this, or None; imports nothing."""
    ipython = sys.modules.get("IPython")
    found: _Shell | None = ipython.get_ipython() if ipython is not None else None
    return found if hasattr(found, "kernel") else None  # a terminal's shell draws nothing
