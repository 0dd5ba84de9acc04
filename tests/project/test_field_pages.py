"""The pages that list the fields of messages say of every field what it means."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODULES = ("layer_pages", "solver_fields", "message_tables", "proto_text")
ROW = re.compile(r"^\| `(?P<field>\w+)` \| [^|]+ \| [^|]+ \| (?P<meaning>.*) \|$")


@pytest.fixture(scope="module")
def pages():
    """The generated pages that have tables of fields, by path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        layers, solver = import_module("layer_pages"), import_module("solver_fields")
        yield {**layers.layer_pages(), solver.SOLVER_PAGE: solver.solver_fields()}
    for name in MODULES:
        sys.modules.pop(name, None)


def rows(page: str) -> list[re.Match[str]]:
    """The rows of fields on a page."""
    return [found for line in page.splitlines() if (found := ROW.match(line))]


def without_values(meaning: str) -> str:
    """What the comments say, without the names that an enum has."""
    return re.sub(r"(; )?one of `.*", "", meaning)


def test_every_field_says_what_it_means(pages):
    empty = [
        f"{path}: {row['field']}"
        for path, page in pages.items()
        for row in rows(page)
        if not without_values(row["meaning"])
    ]

    assert empty == []


def test_solver_and_net_are_described_completely(pages):
    page = pages["reference/solver_fields.md"]

    described = {row["field"] for row in rows(page)}

    assert {"base_lr", "plateau_metric", "layer", "stage"} <= described


def test_comment_of_a_group_stands_above_its_table_and_not_in_a_cell(pages):
    page = pages["reference/layers/convolution.md"]

    above, _, below = page.partition("| `pad` |")

    assert "One value for every spatial axis" in above
    assert below.startswith(" whole number, not negative; any number of times | - | zeros added")
