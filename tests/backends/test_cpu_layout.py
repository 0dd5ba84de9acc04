"""Layouts of the device cpu: where elements lie, and which layouts are the same object."""

import weakref

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.backends.cpu.images import first_suitable, images_of, suitable_images
from demitasse.backends.cpu.layout import (
    MOST_KEPT,
    blocked,
    c_order,
    candidates,
    channels_last,
    innermost,
    plain,
    slabs,
    strided,
    viewed,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.step import Declined

SHAPE = (2, 20, 3, 4)


def places(layout):
    """Where the elements of a layout lie, in C order."""
    found = []
    for index in np.ndindex(*layout.shape):
        at = layout.first
        for axis, i in enumerate(index):
            block = layout.block_of(axis)
            at += i // block * layout.strides[axis] + i % block
        found.append(at)
    return found


ALL = {
    "plain": plain(SHAPE),
    "channels last": innermost(SHAPE, 1),
    "rows last": innermost(SHAPE, 2),
    "blocks of 4": blocked(SHAPE, 1, 4),
    "padded blocks": blocked(SHAPE, 1, 16),
    "padded channels": channels_last(SHAPE, 16),
    "blocks of images": blocked(SHAPE, 0, 2),
    "of gaps": strided(SHAPE, (1000, 30, 8, 2)),
}


@pytest.mark.parametrize(
    "shape",
    [(2, 4, 5, 3, 4), (2, 5, 2, 2, 12), (1, 2, 20, 12), (2, 20, 3, 2, 2), (1, 1, 480), (2, 20, 12)],
)
@pytest.mark.parametrize("name", [name for name, each in ALL.items() if each.block == 1])
def test_elements_stay_where_they_are_in_another_shape(name, shape):
    view = viewed(ALL[name], shape)

    assert (view is not None) == can_be_viewed(ALL[name], shape)
    assert view is None or places(view) == places(ALL[name])


def can_be_viewed(layout, shape):
    """Whether numpy gives a view of an array with the layout's strides."""
    strides = [4 * stride for stride in layout.strides]
    array = np.lib.stride_tricks.as_strided(np.empty(layout.size, "f"), layout.shape, strides)
    return np.shares_memory(array, array.reshape(shape))


def test_blocks_are_not_viewed_in_another_shape():
    blocks = ALL["padded blocks"]

    assert viewed(blocks, SHAPE) is blocks
    assert viewed(blocks, (2, 4, 5, 3, 4)) is None


def test_one_element_has_any_number_of_axes():
    assert viewed(plain((1, 1)), (1, 1, 1)) is plain((1, 1, 1))


@pytest.mark.parametrize("layout", ALL.values(), ids=ALL)
def test_every_element_has_a_place_of_its_own_in_the_buffer(layout):
    found = places(layout)

    assert len(set(found)) == len(found)
    assert min(found) >= 0
    assert max(found) < layout.size
    assert layout.plain == (found == list(range(480)))


def test_layouts_that_put_elements_in_the_same_places_are_one():
    one = (2, 16, 3, 4)

    assert blocked(one, 1, 16) is innermost(one, 1)
    assert channels_last(one, 8) is innermost(one, 1)
    assert strided(SHAPE, c_order(SHAPE)) is plain(SHAPE)
    assert innermost((2, 1, 3, 4), 1) is plain((2, 1, 3, 4))
    assert innermost(SHAPE, 3) is plain(SHAPE)
    assert blocked((6, 5), 1, 1) is plain((6, 5))
    assert strided((2, 3), (1, 2)) is innermost((2, 3), 0)
    assert blocked((2, 20, 1, 1), 1, 8) is channels_last((2, 20, 1, 1), 24)
    assert blocked((2, 20, 1, 1), 1, 4) is plain((2, 20, 1, 1))
    assert channels_last(SHAPE, 16) is not innermost(SHAPE, 1)  # is padded
    assert blocked(SHAPE, 1, 4) is not blocked(SHAPE, 1, 2)


def test_layouts_of_many_shapes_are_released_where_nothing_uses_them():
    used, unused = plain((2, 7)), weakref.ref(plain((3, 7)))
    for size in range(MOST_KEPT):
        plain((size, 9))

    assert unused() is None
    assert plain((2, 7)) is used


def test_blocks_fill_up_the_last():
    layout = blocked((5, 7), 0, 4)

    assert layout.padded == (8, 7)
    assert layout.size == 56
    assert not layout.plain


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, *(1,) * 11, 3)], ids=len)
def test_any_number_of_axes_will_do(shape):
    layout = plain(shape)

    assert layout.plain
    assert layout.size == int(np.prod(shape))


def test_a_part_of_blocks_begins_and_ends_with_one():
    side = blocked((10, 6), 0, 4)

    assert side.part((4, 6), (4, 0)).first == 24
    assert side.part((2, 6), (8, 0)).padded == (4, 6)  # the last block has padding
    for shape, first in (((4, 6), (2, 0)), ((3, 6), (4, 0))):
        with expect_error(Declined):
            side.part(shape, first)


def test_the_first_layout_that_is_not_declined_is_taken():
    tried = []

    def prepare(layout):
        tried.append(layout)
        if layout is not innermost((2, 32, 3, 4), 1):
            message = "another"
            raise Declined(message)

    first_suitable(candidates(plain((2, 32, 3, 4))), prepare)

    assert tried[0] is plain((2, 32, 3, 4))
    assert tried[-1] is innermost((2, 32, 3, 4), 1)
    with expect_error(Declined):
        first_suitable(candidates(plain(SHAPE)), prepare)


@pytest.mark.parametrize("size", [1, 40, 100, 1000])
@pytest.mark.parametrize("rows", [12, 10])
def test_slabs_follow_each_other(rows, size):
    layout = blocked((rows, 5), 0, 4)

    parts = slabs(layout, size)

    assert sum(one.size for one in parts) == layout.size
    assert sum(one.shape[0] for one in parts) in (rows, 12) or parts == [layout]
    if size >= layout.size:
        assert parts == [layout]


def test_ranges_that_lie_apart_are_no_slabs():
    layout = innermost((6, 5), 0)

    assert slabs(layout, 1) == [layout]


def test_images_are_of_layouts_with_channels_last_or_in_c_order():
    shape = (2, 5, 3, 4, 6)  # rows of all planes follow each other

    assert images_of(innermost(shape, 1)) == Images.channels_last((2, 5, 12, 6))
    assert images_of(channels_last(shape, 8)) == Images.channels_last((2, 8, 12, 6))
    assert images_of(plain(shape)) == Images.in_order((2, 5, 12, 6))
    assert images_of(plain((3, 5))) == Images.in_order((3, 5, 1, 1))
    for other in (innermost(shape, 2), blocked((2, 16, 3, 4), 1, 8)):
        assert images_of(other) is None
    with expect_error(Declined):
        suitable_images(channels_last(shape, 8), 8)
    assert suitable_images(channels_last(shape, 8), 8, padded=True).shape[1] == 8
