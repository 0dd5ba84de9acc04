"""Backends and Steps of plugins that override methods by their old names."""

from expect_error import expect_warning

from demitasse.backends import ops
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.step import Step


def test_an_override_by_an_old_name_is_called():
    with expect_warning(DeprecationWarning, mentions=["conditions", "environment"]):

        class Renamed(NumpyBackend):
            def conditions(self):
                return {"library": "1.0"}

    assert Renamed().environment() == {"library": "1.0"}


def test_an_attribute_of_a_step_by_an_old_name_is_read():
    with expect_warning(DeprecationWarning, mentions=["borrows", "uses_shared_scratch"]):

        class Renamed(Step):
            borrows = True

    assert Renamed.uses_shared_scratch


def test_an_operation_has_its_old_name():
    with expect_warning(DeprecationWarning, mentions=["RegionPool", "ROIPool"]):
        assert ops.RegionPool is ops.ROIPool
