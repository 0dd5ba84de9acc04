"""What is printed fits into the terminal, and loses no number by it."""

import re

import pytest

from demitasse.cli.render import fitted_lines, shortened, table

HEAD = ("layer", "type", "tops", "shape", "parameters", "multiply-adds")
ROWS = [
    ("inception_3a/5x5_reduce", "Convolution", "inception_3a/5x5_reduce", "10x16x28x28", 3088,
     24_084_480),
    ("pool2/3x3_s2_0_split", "Split", "a_long_name_of_a_split_0, a_long_name_of_a_split_1",
     "10x192x28x28 each", 0, None),
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_table_is_as_wide_as_the_terminal(width):
    text = table(HEAD, ROWS, width=width)

    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 60, 80])
def test_numbers_are_whole_however_narrow_it_is(width):
    text = table(HEAD, ROWS, width=width)

    assert {"10x16x28x28", "3,088", "24,084,480", "10x192x28x28"} <= set(text.split())


def test_names_lose_their_middle_first():
    text = table(("layer", "count"), [("a_long_name_of_a_layer", 123)], width=20)

    assert re.search(r"a_long\w*…\w*layer +123", text)


def test_sentences_go_on_in_the_next_line():
    text = table(("", "why"), [("cuda", "none: cupy is not installed here")], width=24)

    assert text.splitlines()[1:] == ["cuda  none: cupy is not", "      installed here"]


def test_without_a_terminal_a_table_is_as_wide_as_it_is():
    text = table(HEAD, ROWS)

    assert "a_long_name_of_a_split_0, a_long_name_of_a_split_1" in text
    assert len(text.splitlines()) == 3


def test_a_name_keeps_its_beginning_and_its_end():
    assert shortened("conv1", 5) == "conv1"
    assert shortened("inception_3a/5x5_reduce", 11) == "incep…educe"


def test_lines_are_broken_between_words():
    assert fitted_lines("one two three\nfour", 8, indent="  ") == ["one two", "  three", "four"]
    assert fitted_lines("/a/path/that/is/long", 8) == ["/a/path/that/is/long"]


def test_whole_columns_keep_their_words():
    for width in (40, 60, 80, 100, 120):
        text = table(HEAD, ROWS, width=width, whole=("layer", "type"))

        assert {"inception_3a/5x5_reduce", "pool2/3x3_s2_0_split", "Convolution"} <= set(
            text.split()
        )
