"""Everything in the package that writes files is a writer that faults are injected into."""

import ast
from pathlib import Path

import pytest
from writers import WRITERS, WRITING

import demitasse

PACKAGE = Path(demitasse.__file__).parent
CALLS = {"atomic_write", "put_in_place", "write_text", "write_bytes", "FileHandler"}
"""What opens a file or a folder to be written, by the name of the function."""

APART = {
    "core/atomic.py": "is what the others write with",
    "backends/kernels/language/compiler.py": "dumps code for who asks to look at it",
    "cli/__init__.py": "opens the null device where a standard stream is closed",
    "cli/commands/convert.py": "calls proto/write.py, whose function has the name of pathlib's",
    "testing/conformance/plugin.py": "writes what a test run passed, where its caller asks",
    "testing/conformance/file_cases.py": "tests a device, in a folder that is thrown away",
    "inference/serving/codec.py": "writes to a pipe, and a file of /proc",
}
"""File of the package that is no writer -> why."""


def writes(node: ast.AST) -> bool:
    """Whether some code opens something to be written."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).endswith("FileHandler") for base in node.bases)
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    if name.rpartition(".")[2] in CALLS or name == "lmdb.open":
        return True
    if not name.endswith((".open", "open", "h5py.File")) or name.startswith("archive"):
        return False
    modes = [a.value for a in ast.walk(node) if isinstance(a, ast.Constant)]
    return any(
        isinstance(mode, str) and set(mode) <= set("rwaxbt+") and set(mode) & set("wax+")
        for mode in modes
    )


def writing_files() -> set[str]:
    return {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if any(writes(node) for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    }


def test_every_file_that_writes_has_its_writer():
    found = writing_files()

    assert found - APART.keys() - WRITING.keys() == set(), "add writers for these to writers.py"
    assert (APART.keys() | WRITING.keys()) - found == set(), "these write no longer"


def test_writers_that_are_named_are_there():
    names = {name for one in WRITING.values() for name in ([one] if isinstance(one, str) else one)}

    assert names <= {writer.name for writer in WRITERS}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("path.open('wb')", True),
        ("path.open(mode='x')", True),
        ("open(path, 'r+b')", True),
        ("path.open('rb')", False),
        ("h5py.File(path, 'a')", True),
        ("with atomic_write(path): pass", True),
        ("class Log(logging.FileHandler): pass", True),
    ],
)
def test_code_that_writes_is_known(code, expected):
    assert any(writes(node) for node in ast.walk(ast.parse(code))) == expected
