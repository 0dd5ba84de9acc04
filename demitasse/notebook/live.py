"""Live curves of a training run in a notebook."""

import math
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

from demitasse.core.text import html_of
from demitasse.notebook import html

PAUSE = 0.5
"""Least seconds between two drawings."""

LOSSES = ("smoothed_loss", "loss")
"""Names of losses, the preferred first."""


class LiveCurves:
    """A logger that draws loss, learning rate and tests in a notebook while a solver runs.

    Use ``solver.loggers.append(LiveCurves())`` before ``solver.solve()``. Outside of notebooks, the
    logger only stores the numbers. The solver logs numbers when it displays or tests.

    Attributes:
        values: Name -> iteration -> value.
    """

    def __init__(self) -> None:
        self.values: dict[str, dict[int, float]] = {}
        self._shown: Any = None  # IPython's handle of the drawing
        self._last = -math.inf

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        """Store numbers, and draw the curves."""
        for name, value in values.items():
            self.values.setdefault(name, {})[iteration] = value
        self._draw()

    def event(self, iteration: int, kind: str, facts: Mapping[str, object]) -> None:
        """Delete the values from the iteration on at which a run starts or resumes."""
        del facts
        if kind == "begin":
            self.values = {
                name: {at: value for at, value in old.items() if at < iteration}
                for name, old in self.values.items()
            }

    def close(self) -> None:
        """Draw the last values."""
        if self._shown is not None:
            self._draw(at_once=True)

    def html(self) -> str:
        """Return the curves as HTML."""
        loss = next((name for name in LOSSES if self.values.get(name)), "loss")
        tests = [name for name in self.values if name.startswith("test")]
        groups = {
            "loss": [loss, *(name for name in tests if "loss" in name)],
            "tests": [name for name in tests if "loss" not in name],
            "learning rate": ["learning_rate"],
            "norm of all gradients": ["gradient_norm"],
        }
        drawn = "".join(
            html.curves({name: list(self.values.get(name, {}).items()) for name in names}, label)
            for label, names in groups.items()
        )
        if not drawn:
            return html.note("no values yet; curves need `display` in the solver")
        return f'<div class="side">{drawn}</div>'

    def _draw(self, *, at_once: bool = False) -> None:
        shell = _shell()
        if shell is None or (not at_once and monotonic() - self._last < PAUSE):
            return
        self._last = monotonic()
        if self._shown is None:
            self._shown = sys.modules["IPython"].display.display(self, display_id=True)
            shell.events.register("post_run_cell", self._on_cell_end)
        else:
            self._shown.update(self)

    def _on_cell_end(self, result: object) -> None:
        """Draw the last values; the next cell gets a new drawing."""
        del result
        shell = _shell()
        if shell is not None:
            shell.events.unregister("post_run_cell", self._on_cell_end)
        self.close()
        self._shown, self._last = None, -math.inf

    def __repr__(self) -> str:
        return f"LiveCurves of {', '.join(self.values) or 'nothing yet'}"

    _repr_html_ = html_of


def _shell() -> Any:
    """Return IPython's shell of the running notebook, or None; import nothing."""
    ipython = sys.modules.get("IPython")
    found = ipython.get_ipython() if ipython is not None else None
    return found if hasattr(found, "kernel") else None  # a terminal's shell has no kernel
