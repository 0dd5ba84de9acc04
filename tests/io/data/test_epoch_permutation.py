"""The order of visits, round after round."""

import pytest

from demitasse.io.data.sources.sampler import EpochPermutation


def visits(order, first, count):
    return [order[number] for number in range(first, first + count)]


def test_items_come_in_order_again_and_again():
    assert visits(EpochPermutation(3, 1, "o", shuffle=False), 0, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_shuffled_every_round_has_all_items_in_an_order_of_its_own():
    order = EpochPermutation(20, 1, "o", shuffle=True)

    rounds = [visits(order, 20 * k, 20) for k in range(4)]

    assert all(sorted(items) == list(range(20)) for items in rounds)
    assert len({tuple(items) for items in rounds}) == 4


def test_the_order_of_a_round_does_not_depend_on_what_was_asked_before():
    first, second = (
        EpochPermutation(20, 1, "o", shuffle=True),
        EpochPermutation(20, 1, "o", shuffle=True),
    )
    visits(first, 0, 200)

    assert visits(first, 45, 30) == visits(second, 45, 30)
    assert visits(first, 5, 30) == visits(second, 5, 30)


@pytest.mark.parametrize(
    "other",
    [EpochPermutation(20, 2, "o", shuffle=True), EpochPermutation(20, 1, "p", shuffle=True)],
)
def test_seed_and_name_give_other_orders(other):
    assert visits(other, 0, 20) != visits(EpochPermutation(20, 1, "o", shuffle=True), 0, 20)
