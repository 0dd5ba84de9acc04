"""Curves that grow in a notebook, and are silent elsewhere."""

import math
import sys
from types import SimpleNamespace

import pytest

from demitasse.notebook import LiveCurves, live
from demitasse.notebook.html import curves, histogram


class Notebook:
    """Stands for IPython: keeps what is shown, and calls what waits for the end of a cell."""

    kernel = "that of a notebook"

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.waiting: list = []
        self.events = SimpleNamespace(
            register=lambda _, function: self.waiting.append(function),
            unregister=lambda _, function: self.waiting.remove(function),
        )
        self.display = SimpleNamespace(display=self.show)

    def get_ipython(self):
        return self

    def show(self, thing, display_id):
        assert display_id
        self.shown.append(thing._repr_html_())
        return self

    def update(self, thing):
        self.shown[-1] = thing._repr_html_()

    def end_cell(self):
        for function in list(self.waiting):
            function(None)


@pytest.fixture
def notebook(monkeypatch):
    made = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", made)
    return made


def test_it_is_drawn_as_numbers_come(notebook, monkeypatch):
    monkeypatch.setattr(live, "PAUSE", 0)
    curves_of_run = LiveCurves()

    curves_of_run.scalars(0, {"loss": 2.0, "learning_rate": 0.1})
    curves_of_run.scalars(1, {"loss": 1.5})

    [shown] = notebook.shown
    assert "loss: 1.5" in shown
    assert "learning_rate: 0.1" in shown


def test_drawings_pause_and_the_last_is_made_at_the_end_of_the_cell(notebook, monkeypatch):
    curves_of_run = LiveCurves()
    monkeypatch.setattr(live, "PAUSE", 1000)
    curves_of_run.scalars(1, {"loss": 8.0})
    curves_of_run.scalars(2, {"loss": 7.0})
    assert "loss: 8" in notebook.shown[0]

    notebook.end_cell()

    assert "loss: 7" in notebook.shown[0]
    assert not notebook.waiting


def test_the_next_cell_has_a_drawing_of_its_own(notebook):
    curves_of_run = LiveCurves()
    curves_of_run.scalars(1, {"loss": 8.0})
    notebook.end_cell()

    curves_of_run.scalars(2, {"loss": 7.0})

    assert len(notebook.shown) == 2


def test_in_a_terminal_nothing_is_drawn(notebook, monkeypatch):
    monkeypatch.delattr(Notebook, "kernel")

    LiveCurves().scalars(1, {"loss": 8.0})

    assert not notebook.shown


def test_without_a_notebook_numbers_are_kept(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    kept = LiveCurves()

    kept.scalars(3, {"loss": 1.0})
    kept.close()

    assert kept.values == {"loss": {3: 1.0}}
    assert "loss: 1" in kept._repr_html_()


def test_a_run_that_goes_on_forgets_what_came_later():
    kept = LiveCurves()
    for iteration in range(4):
        kept.scalars(iteration, {"loss": float(iteration)})

    kept.event(2, "begin", {})

    assert list(kept.values["loss"]) == [0, 1]


def test_without_numbers_it_says_what_is_needed():
    assert "`display`" in LiveCurves()._repr_html_()


def test_values_far_apart_are_on_a_log_scale():
    assert "log scale" in curves({"loss": [(0, 100.0), (1, 0.1)]}, "loss")
    assert "log scale" not in curves({"loss": [(0, 2.0), (1, 1.0)]}, "loss")


def test_what_is_not_finite_is_left_out():
    assert curves({"loss": [(0, math.nan)]}, "loss") == ""
    assert "nan" not in curves({"loss": [(0, math.nan), (1, 2.0)]}, "loss")


def test_a_long_curve_is_thinned():
    drawn = curves({"loss": [(i, 1.0 + i % 2) for i in range(100_000)]}, "loss")

    assert len(drawn) < 20_000
    assert "iteration 99999" in drawn


def test_bars_are_as_high_as_their_counts():
    assert 'height="90.00"' in histogram([1, 3], 0, 1, "data")
    assert 'height="30.00"' in histogram([1, 3], 0, 1, "data")
