"""The embedded example does what the README says of it."""

import pytest

from demitasse.data.db import open_db, records
from demitasse.examples import digits
from demitasse.proto import Datum

pytest.importorskip("sklearn", reason="the example's digits come from scikit-learn")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example") / "digits"
    digits.prepare(folder)
    return folder


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
    solver = prepared / "solver.prototxt"
    before = solver.read_text()
    solver.write_text(before + "# mine\n")

    digits.prepare(prepared)

    assert solver.read_text().endswith("# mine\n")


def test_a_run_reaches_the_promised_accuracy_and_leaves_weights(tmp_path, capsys):
    result = digits.run(tmp_path / "digits", device="cpu")

    assert result.accuracy > 0.97
    assert result.caffemodel.stat().st_size > 0
    assert f"{result.accuracy:.2%}" in capsys.readouterr().out
