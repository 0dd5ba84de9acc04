"""Every code of lint: an example that has it, one that does not, and its place on the page."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from demitasse.io.data.databases.writing import write_database
from demitasse.io.proto import BlobProto, set_floats, write_binary
from demitasse.lint import lint
from demitasse.lint.examples import DATA, EXAMPLES, FC, LOSS
from demitasse.lint.findings import CODES

DOCS = Path(__file__).resolve().parents[2] / "docs"
EVERY = [
    pytest.param(code, example, id=f"{code}-{example.severity}")
    for code, examples in EXAMPLES.items()
    for example in examples
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that holds what the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    write_database(folder / "records", [(np.zeros((3, 8, 8), np.uint8), i % 3) for i in range(5)])
    for name, side in (("mean", 8), ("small", 4)):
        mean = BlobProto(num=1, channels=3, height=side, width=side)
        set_floats(mean, np.zeros(3 * side * side, np.float32))
        write_binary(folder / f"{name}.binaryproto", mean)
    (folder / "net.prototxt").write_text(DATA + FC + LOSS)
    return folder


@pytest.fixture
def found(folder, monkeypatch):
    """Lint a text in that folder."""
    monkeypatch.chdir(folder)

    def run(text):
        Path("example.prototxt").write_text(text)
        return {(finding.severity, finding.code) for finding in lint("example.prototxt")}

    return run


def test_every_code_has_a_meaning_and_an_example():
    assert set(CODES) == set(EXAMPLES)
    assert all(EXAMPLES.values())


@pytest.mark.parametrize(("code", "example"), EVERY)
def test_an_example_has_what_it_is_for(code, example, found):
    assert (example.severity, code) in found(example.file(example.wrong))


@pytest.mark.parametrize(("code", "example"), EVERY)
def test_the_better_text_does_not_have_it(code, example, found):
    assert code not in {code for _, code in found(example.file(example.right))}


def test_every_code_is_on_the_page():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        page = import_module("lint_page").lint_page()
    sys.modules.pop("lint_page", None)

    for code, meaning in CODES.items():
        assert f"\n## {code}\n" in page
        assert meaning.text in page
        assert all(example.wrong in page for example in EXAMPLES[code])
