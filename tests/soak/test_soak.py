"""A little of what ``nox -s soak`` does for long: training from every source of data."""

import threading

import pytest

pytest.importorskip("h5py")
pytest.importorskip("PIL")

from soaking import SOURCES, Held, Soak, flat, make_data, open_files, slope


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


def test_a_file_that_a_thread_reads_now_and_then_is_not_held(tmp_path):
    file, done = tmp_path / "image", threading.Event()
    file.write_bytes(bytes(1 << 10))

    def read():
        while not done.wait(0.0005):
            file.read_bytes()

    before, reader = open_files(), threading.Thread(target=read)
    reader.start()
    try:
        assert open_files() <= before
    finally:
        done.set()
        reader.join()

    with file.open("rb"):
        assert open_files() == before + 1
