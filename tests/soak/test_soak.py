"""A little of what ``nox -s soak`` does for long: training from every source of data."""

import pytest

pytest.importorskip("h5py")
pytest.importorskip("PIL")

from soaking import SOURCES, Held, Soak, flat, make_data, slope


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soak")
    make_data(folder)
    return folder


@pytest.mark.parametrize("source", SOURCES)
def test_training_holds_no_more_files_and_threads_than_at_its_beginning(folder, source):
    with Soak(folder, source, "cpu", steps=2) as soak:
        for _ in range(4):
            soak.round()
        figures = soak.figures()

    assert figures["iterations"] >= 8
    assert figures["flat"], soak.seen


def test_growth_is_told():
    seen = [Held(100 * i, 50 + i / 1000, files=4 + i // 6, threads=3) for i in range(10)]

    assert slope(seen) == pytest.approx(1)
    assert not flat(seen)
    assert flat(seen[:6])
