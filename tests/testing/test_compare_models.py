"""Arrays of two models: which of them are the same thing."""

from demitasse.testing.compare_models import Item, align, by_name


def ours(*layers):
    return [Item((layer, blob), (2,), kind) for layer, blob, kind in layers]


CHAIN = ours(("conv", "conv", "Convolution"), ("relu", "conv", "ReLU"), ("ip", "ip", ""))


def test_what_is_written_in_place_takes_the_names_of_layers_where_all_are_there():
    theirs = [Item((name,), (2,)) for name in ("conv", "relu", "ip")]

    assert by_name(CHAIN, theirs) == {0: 0, 1: 1, 2: 2}


def test_else_the_blobs_name_is_that_of_what_was_written_last():
    assert by_name(CHAIN, [Item((name,), (2,)) for name in ("conv", "ip")]) == {1: 0, 2: 1}


def test_the_name_that_counts_more_wins():
    theirs = [Item(("a", "ip"), (2,)), Item(("ip", "a"), (2,))]

    assert by_name(CHAIN, theirs) == {2: 1}


def test_order_needs_equal_shapes_but_for_axes_of_1():
    mine = [Item((), shape) for shape in [(2, 3), (2, 4, 1, 1), (5,)]]
    yours = [Item((), shape) for shape in [(9,), (2, 3, 1), (2, 4), (6,)]]

    assert align(mine, yours) == {0: 1, 1: 2}


def test_kinds_that_are_known_and_differ_do_not_match():
    mine = [Item((), (2,), "ReLU"), Item((), (2,), "Pooling")]
    yours = [Item((), (2,), "Pooling"), Item((), (2,), "ReLU"), Item((), (2,), "Pooling")]

    assert align(mine, yours) == {0: 1, 1: 2}


def test_of_equal_ways_the_later_item_is_taken():
    assert align([Item((), (2,))], [Item((), (2,)), Item((), (2,))]) == {0: 1}


def test_what_is_matched_already_stays_so_and_bounds_the_rest():
    mine = [Item((), (2,)) for _ in range(3)]
    yours = [Item((), (2,)) for _ in range(3)]

    assert align(mine, yours, {1: 0}) == {2: 2}


def test_nothing_matches_nothing():
    assert align([], [Item((), (2,))]) == align([Item((), (2,))], []) == {}
