"""The embedded example does what the README says of it."""

import pytest

from demitasse.io.data.databases.database import open_db, records
from demitasse.io.proto import Datum


@pytest.fixture
def prepared(tmp_path):
    pytest.importorskip("sklearn", reason="the example's digits come from scikit-learn")
    from demitasse.examples import digits

    digits.prepare(tmp_path)
    return tmp_path


def read(folder):
    database = open_db(folder)
    datums = [Datum.FromString(bytes(value)) for _, value in records(database.new_cursor())]
    database.close()
    return datums


def test_all_digits_are_written_once(prepared):
    train, test = read(prepared / "train_lmdb"), read(prepared / "test_lmdb")

    assert (len(train), len(test)) == (1500, 297)
    assert {(d.channels, d.height, d.width, len(d.data)) for d in train} == {(1, 16, 16, 256)}


def test_every_digit_has_its_share_in_the_test_set(prepared):
    labels = [datum.label for datum in read(prepared / "test_lmdb")]

    counts = [labels.count(digit) for digit in range(10)]

    assert all(28 <= count <= 31 for count in counts)


def test_what_is_there_is_kept(prepared):
    from demitasse.examples import digits

    solver = prepared / "solver.prototxt"
    solver.write_text(solver.read_text() + "# mine\n")

    digits.prepare(prepared)

    assert solver.read_text().endswith("# mine\n")


def test_a_run_recognises_unseen_digits(digits_run):
    assert digits_run.accuracy > 0.96
    assert f"{digits_run.accuracy:.2%}" in digits_run.printed


def test_a_run_leaves_weights_and_names_them(digits_run):
    assert digits_run.caffemodel.parent == digits_run.folder
    assert digits_run.caffemodel.stat().st_size > 0
    assert str(digits_run.caffemodel) in digits_run.printed
