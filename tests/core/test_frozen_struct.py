"""Frozen structs: immutable fields."""

import copy
import pickle
from typing import ClassVar

import pytest
from expect_error import expect_error

from demitasse.core.frozen_struct import FrozenStruct


class Point(FrozenStruct):
    kind: ClassVar[str] = "point"
    x: int
    y: int = 2


class Named(Point):
    name: str = ""


class Other(FrozenStruct):
    x: int
    y: int = 2


def test_fields_are_given_by_place_or_by_name_and_may_have_values():
    assert Point(1) == Point(x=1, y=2) == Point(1, 2)
    assert (Point(1, 3).x, Point(1, 3).y) == (1, 3)
    assert Named(1, name="a").name == "a"


def test_records_are_equal_where_class_and_values_are():
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 2)
    assert len({Point(1), Point(1, 2), Point(2)}) == 2


def test_a_record_shows_its_fields():
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, name='a')"


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_fields_that_are_missing_unknown_or_given_twice_are_refused(values, named):
    with expect_error(TypeError, mentions=["Point", "x, y"]):
        Point(*values, **named)


def test_a_record_never_changes():
    point = Point(1)

    with expect_error(AttributeError, mentions="Point.x"):
        point.x = 2
    with expect_error(AttributeError, mentions="Point.x"):
        del point.x

    assert point == Point(1)


def test_a_record_can_be_copied_and_pickled():
    point = Named(1, name="a")

    assert copy.copy(point) == copy.deepcopy(point) == point
    assert pickle.loads(pickle.dumps(point)) == point
