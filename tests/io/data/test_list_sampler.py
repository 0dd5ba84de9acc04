"""ListSampler: what comes in each place depends on the place alone."""

import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st

from demitasse.errors import DataError
from demitasse.io.data.bad_records import BadRecordPolicy
from demitasse.io.data.sources.sampler import ListSampler
from demitasse.io.data.sources.source import UNSHARDED, Batch, ReaderConfig, Shard


def walk(good, batch_size, *, start=0, shard=UNSHARDED, skip=True, whole_epochs=False):
    """A walk over a list of which some are good; an item is (which, in whose place)."""

    def read(at, number):
        if not good[at % len(good)]:
            message = f"item {at % len(good)} is broken"
            raise DataError(message)
        return at % len(good), number

    reading = ReaderConfig(start, shard, whole_epochs, BadRecordPolicy("walker", skip=skip))
    return ListSampler("some list", len(good), read, batch_size, reading)


def stands_in(good, number):
    return next(at % len(good) for at in range(number, number + len(good)) if good[at % len(good)])


LISTS = st.lists(st.booleans(), min_size=1, max_size=8).filter(any)


@given(LISTS, st.integers(1, 5), st.integers(0, 20), st.integers(1, 3))
def test_the_next_good_one_stands_in_whatever_the_batches_and_ranks(good, size, start, ranks):
    for rank in range(ranks):
        one = walk(good, size, start=start, shard=Shard(rank, ranks))
        number, broken = start + rank, 0

        assert one.first() == (stands_in(good, number), number)
        for _ in range(6):
            batch = Batch(lambda *_: None, "float32")
            for item in one.take(batch):
                assert item == (stands_in(good, number), number)
                broken += not good[number % len(good)]
                number += ranks
            assert batch.position == number - rank
            assert batch.skipped == broken


@given(LISTS, st.integers(1, 5), st.integers(0, 20))
def test_whole_epochs_bring_each_good_one_once(good, size, start):
    good = [*good, True]  # or there could be nothing in the last batch
    one = walk(good, size, start=start, whole_epochs=True)
    batch = Batch(lambda *_: None, "float32")

    for epoch in range(1, 3):
        seen, batch.last = [], False
        while not batch.last:
            seen += [at for at, _ in one.take(batch)]

        assert seen == [k for k, is_good in enumerate(good) if is_good]
        assert batch.skipped == epoch * good.count(False)


def test_where_nothing_is_skipped_the_first_broken_one_is_an_error():
    one = walk([True, False, True], 3, skip=False)

    with expect_error(DataError, mentions="item 1"):
        one.take(Batch(lambda *_: None, "float32"))


@pytest.mark.parametrize("ask", ["first", "take"])
def test_where_all_are_broken_there_is_an_error(ask):
    one = walk([False, False], 1)

    with expect_error(DataError, mentions="item 0"):
        one.first() if ask == "first" else one.take(Batch(lambda *_: None, "float32"))
