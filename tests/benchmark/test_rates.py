"""Rates are written for people."""

import pytest

from demitasse.pages import rate


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.012345, "0.01235"),
        (4.0, "4"),
        (999.94, "999.9"),
        (20_380.4, "20,380"),
        (1e6, "1,000,000"),
    ],
)
def test_a_rate_has_no_power_of_ten(value, written):
    assert rate(value) == written
