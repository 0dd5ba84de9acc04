"""How many threads a pass asks OpenMP for."""

import pytest

from demitasse.backends.cpu.engine import thread_count
from demitasse.core.config import settings
from demitasse.core.host import cores


@pytest.mark.parametrize(
    ("written", "threads"), [("3", 3), (" 3 ", 3), ("3,2", 3), ("3, 2, 1", 3), ("4096", 4096)]
)
def test_openmp_says_how_many_at_the_outermost_level(monkeypatch, written, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", written)

    assert thread_count() == threads


@pytest.mark.parametrize("written", ["", "0", "-3", "many", ",2", "4097", "9" * 5000, "\u00b2"])
def test_what_cannot_be_is_as_if_it_were_not_there(monkeypatch, written):
    monkeypatch.setenv("OMP_NUM_THREADS", written)

    assert thread_count() == cores()


def test_the_setting_says_more_than_openmp(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    with settings.override(threads=2):
        assert thread_count() == 2
