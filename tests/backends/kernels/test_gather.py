"""Elements in the order of a table, and their sums over parts, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.kernels.filter_packing import Gather, OrderedFilters, part_sums
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])


@WIDTH
@THREADS
@pytest.mark.parametrize("count", [1, 4, 15, 16, 33, 7001])
def test_filters_have_the_order_of_the_table(count, threads, width):
    weights = normal(count + 3)
    weights[0], weights[1] = np.nan, -0.0
    order = np.random.default_rng(1).integers(0, weights.size, count)
    filters = OrderedFilters(order, Tuning(width, threads))

    filters.update(weights)

    assert filters.filters.tobytes() == weights[order].tobytes()
    assert filters.nbytes == 4 * count


@WIDTH
@THREADS
@pytest.mark.parametrize("parts", [1, 2, 9])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (40, 64)])
def test_parts_are_added_in_order_to_the_bits_of_numpy(shape, parts, threads, width):
    sums, (rows, columns) = normal(parts, *shape), shape
    places = np.arange(rows * columns).reshape(shape)
    # the last row is written twice, from equal sums
    sums[:, -1], order = sums[:, 0], places.copy()
    order[-1] = order[0]
    target = np.full(order.max() + 1, 7.0, np.float32)

    part_sums(sums, order, places, Tuning(width, threads))(sums, target)

    wanted = np.full_like(target, 7.0)
    wanted[order] = sums.sum(axis=0)
    written = np.unique(order)
    assert target[written].tobytes() == wanted[written].tobytes()


@WIDTH
def test_what_lies_behind_the_elements_stays(width):
    source, target = normal(20), np.full(64, 7.0, np.float32)

    Gather(np.arange(20)[::-1], Tuning(width))(source, target)

    np.testing.assert_array_equal(target[:20], source[::-1])
    assert set(target[20:].tolist()) == {7.0}
