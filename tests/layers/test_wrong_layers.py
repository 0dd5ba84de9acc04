"""Layers with one thing wrong about them are refused with an error of ours, or run.

A sample, the same in every run; ``python tests/fuzz/run.py --only "wrong layers"`` draws others.
"""

import random

import pytest
from wrong_layers import TYPES, changes_of, run, wrong

from demitasse.errors import DemitasseError, PrototxtError

SOME, MORE = slice(5), slice(5, 10)
"""Of the changes drawn for each type, those tried in every run, and the others."""


@pytest.mark.parametrize("part", [SOME, pytest.param(MORE, marks=pytest.mark.exhaustive)], ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_something_wrong_ends_well_or_in_an_error_that_says_where(name, part):
    changes = changes_of(name)

    for what, change in random.Random(name).sample(changes, MORE.stop)[part]:
        try:
            run(wrong(name, change))
        except DemitasseError as error:
            # of a text that is no net, the line is told
            assert isinstance(error, PrototxtError) or "layer '" in str(error), what  # noqa: PT017
        except Exception as error:
            error.add_note(f"{name}: {what}")
            raise
