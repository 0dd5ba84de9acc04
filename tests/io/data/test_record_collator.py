"""RecordCollator: records of one kind are cut apart, all others parsed; the result is the same."""

import io

import numpy as np
import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st

from demitasse.errors import ErrorCode
from demitasse.io.data.bad_records import RecordError
from demitasse.io.data.databases.datum import array_to_datum, datum_to_array
from demitasse.io.data.sources.collate import RecordCollator
from demitasse.io.proto import Datum


def plain(label, shape=(2, 3, 4), seed=0):
    pixels = np.random.default_rng(seed + label).integers(0, 256, shape, np.uint8)
    return array_to_datum(pixels, label)


def raw(data):
    return [memoryview(datum.SerializeToString()) for datum in data]


def expect(data, stacked):
    images, labels = stacked
    assert labels == [datum.label for datum in data]
    assert len(images) == len(data)
    for image, datum in zip(images, data, strict=True):
        np.testing.assert_array_equal(image, datum_to_array(datum))


def test_records_of_one_size_become_one_array_once_their_size_is_known():
    stacker = RecordCollator()
    data = [plain(label) for label in range(4)]

    expect(data, stacker.stack(raw(data)))
    images, labels = stacker.stack(raw(data))

    assert isinstance(images, np.ndarray)
    assert images.dtype == np.uint8
    expect(data, (images, labels))


@pytest.mark.parametrize("tail", ["encoded", "unknown field"])
def test_what_follows_the_pixels_may_say_more_than_the_label(tail):
    stacker = RecordCollator()
    data = [plain(label) for label in (1, 2)]
    stacker.stack(raw(data))
    if tail == "encoded":
        data[1].encoded = False
        records = raw(data)
    else:
        records = [bytes(record) + b"\xa2\x06\x03own" for record in raw(data)]  # field 100

    stacked = stacker.stack(records)

    assert isinstance(stacked[0], np.ndarray)
    expect(data, stacked)


OTHERS = {
    "other size": plain(9, (1, 3, 4)),
    "floats": array_to_datum(np.full((2, 3, 4), 0.5), 9),
    "no label": array_to_datum(np.ones((2, 3, 4), np.uint8)),
    "negative label": plain(0, seed=5),
}
OTHERS["negative label"].label = -3


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("place", [0, 2])
def test_a_record_of_another_kind_may_be_among_them(kind, place):
    stacker = RecordCollator()
    data = [plain(label) for label in range(4)]
    stacker.stack(raw(data))

    data[place] = OTHERS[kind]

    expect(data, stacker.stack(raw(data)))


def test_a_message_whose_end_contradicts_its_beginning_is_parsed():
    stacker = RecordCollator()
    data = [plain(label) for label in range(2)]
    stacker.stack(raw(data))
    other = plain(1, seed=77)

    twice = data[1].SerializeToString() + other.SerializeToString()  # the last value counts

    expect([data[0], other], stacker.stack([*raw(data[:1]), twice]))


def test_encoded_images_are_decoded():
    image = pytest.importorskip("PIL.Image", reason="needs the 'image' extra")
    file = io.BytesIO()
    image.fromarray(np.full((5, 6, 3), 9, np.uint8)).save(file, "PNG")
    datum = Datum(data=file.getvalue(), encoded=True, label=2)

    stacker = RecordCollator("gray")

    for _ in range(2):
        images, labels = stacker.stack(raw([datum] * 20))

        assert [i.shape for i in images] == [(1, 5, 6)] * 20
        assert labels == [2] * 20
    with expect_error(RecordError, ErrorCode.UNREADABLE) as caught:
        stacker.stack(raw([datum, datum, Datum(data=b"?", encoded=True), datum]))
    assert caught.value.index == 2
    expect([plain(1)], stacker.stack(raw([plain(1)])))  # and other records again
    stacker.close()


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\xff\xff", "unreadable"),
        (plain(1).SerializeToString()[:20], "unreadable"),
        (Datum(channels=9, height=9, width=9, data=b"few").SerializeToString(), "count-mismatch"),
        (Datum(data=b"?", encoded=True).SerializeToString(), "unreadable"),
    ],
    ids=["no message", "cut short", "too small", "no image"],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_record_is_refused_and_its_place_told(bad, code, place):
    stacker = RecordCollator()
    records = raw([plain(0), plain(1)])
    stacker.stack(records)
    records[place] = bad

    with expect_error(RecordError, code) as caught:
        stacker.stack(records)

    assert caught.value.index == place


def test_many_different_labels_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr("demitasse.io.data.sources.collate.MOST_TAILS", 3)
    stacker = RecordCollator()
    data = [plain(label) for label in range(10)]
    stacker.stack(raw(data))

    expect(data, stacker.stack(raw(data)))

    assert stacker._label_in.cache_info().currsize <= 3


@given(
    shapes=st.lists(st.tuples(*[st.integers(1, 3)] * 3), min_size=1, max_size=3),
    labels=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
)
def test_cutting_and_parsing_agree(shapes, labels):
    stacker = RecordCollator()
    for shape in (*shapes, shapes[0]):
        data = []
        for i, label in enumerate(labels):
            datum = plain(i, shape)
            datum.label = label
            data.append(datum)

        expect(data, stacker.stack(raw(data)))


@pytest.mark.parametrize("labels", [[0.5, 1.5], [(1, 2), (3, 4)], [1, (2, 3)]])
def test_several_labels_and_real_ones_are_cut_out_too(labels):
    pixels = np.zeros((1, 2, 2), np.uint8)
    data = [array_to_datum(pixels, label) for label in labels]
    stacker = RecordCollator()

    first, second = stacker.stack(raw(data)), stacker.stack(raw(data))

    assert first[1] == second[1] == labels
    assert isinstance(second[0], np.ndarray)


@pytest.mark.parametrize("last", ["alike", "other size", "no message"])
def test_large_images_are_used_where_they_are(last):
    stacker = RecordCollator()
    data = [plain(label, (3, 110, 110)) for label in range(4)]
    stacker.stack(raw(data))
    records = raw(data)
    if last == "other size":
        data[-1] = plain(3, (3, 110, 109))
        records = raw(data)
    elif last == "no message":
        records[-1] = memoryview(b"\xff" + bytes(records[-1])[1:])

    if last == "no message":
        with expect_error(RecordError, ErrorCode.UNREADABLE):
            stacker.stack(records)
        return
    images, labels = stacker.stack(records)

    expect(data, (images, labels))
    shared = [
        np.shares_memory(i, np.frombuffer(r, np.uint8))
        for i, r in zip(images, records, strict=True)
    ]
    assert shared == [last == "alike"] * 4
