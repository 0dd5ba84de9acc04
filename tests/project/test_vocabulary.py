"""The package has one vocabulary: docstrings begin with verbs or nouns, and old names are gone.

``vocabulary.toml`` contains the limits, which only fall, and the old names with the present ones.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "vocabulary.toml").read_text(encoding="utf-8"))

OPENER = re.compile(
    r"(What|Who|Whom|Whose|Which|Where|Whether|Of|How|When|Why|That)\b", re.IGNORECASE
)
"""Words that no docstring begins with."""

SENTENCE = re.compile(r"[a-z]{2,}[, ]+(?:[a-z]+[, ]+)+[a-z]{2,}")
"""Three words of prose or more, in lower case."""


def trees(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield each file in a folder, without generated code, and its syntax tree.

    The trees have millions of nodes. None is kept, because every later search for garbage would
    look through them.
    """
    for file in sorted((ROOT / folder).rglob("*.py")):
        if not file.name.endswith("_pb2.py"):
            yield file.relative_to(ROOT / folder), ast.parse(file.read_text(encoding="utf-8"))


def room(path: Path) -> str:
    """Return the package of a file, by its first folder."""
    return path.parts[0] if len(path.parts) > 1 else "root"


def docstrings(tree: ast.Module):
    """Yield line and text of each docstring, those of attributes included."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()


def over_limits(found: dict[str, list[str]], limits: dict[str, int]) -> list[str]:
    """Return what exceeds its limit, and limits that can be lowered, as text."""
    text = []
    for name in sorted(found.keys() | limits.keys()):
        count, limit = len(found.get(name, ())), limits.get(name, 0)
        if count > limit:
            text += [f"{name}: {count}, limit {limit}", *found[name]]
    return text


def test_the_package_does_not_grow():
    files = list((ROOT / "demitasse").rglob("*.py"))
    size = {
        "files": len(files),
        "lines": sum(file.read_text(encoding="utf-8").count("\n") for file in files),
    }

    assert {name: max(count, TABLE["size"][name]) for name, count in size.items()} == TABLE["size"]


def test_no_docstring_begins_with_a_question_word():
    found: dict[str, list[str]] = {}
    for path, tree in trees("demitasse"):
        for line, text in docstrings(tree):
            if OPENER.match(text):
                entry = f"  {path}:{line}: {text.splitlines()[0]}"
                found.setdefault(room(path), []).append(entry)

    assert not (over := over_limits(found, TABLE["openers"])), "\n".join(over)


@pytest.fixture(scope="module")
def definitions() -> dict[Path, set[str]]:
    """Names of each file's module, packages, classes and functions, private ones included."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {
        path: {path.stem, *path.parent.parts}
        | {node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, kinds)}
        for path, tree in trees("demitasse")
    }


@pytest.mark.parametrize("folder", TABLE["old"])
def test_no_module_class_or_function_has_an_old_name(folder, definitions):
    inside = folder.replace(".", "/")
    names = set().union(*(own for path, own in definitions.items() if path.is_relative_to(inside)))
    pairs = TABLE["old"][folder]

    old = [f"  {name} is now {new}" for name, new in pairs.items() if name in names]

    limits = {folder: TABLE["old_limits"].get(folder, 0)}
    assert not (over := over_limits({folder: old}, limits)), "\n".join(over)


def sentences_of_match(tree: ast.Module):
    """Yield the lines on which a ``match=`` contains a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            parts = [
                part.value
                for part in ast.walk(node.value)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            if any(SENTENCE.search(part) for part in parts):
                yield node.value.lineno


def test_no_test_matches_a_sentence():
    found: dict[str, list[str]] = {}
    for path, tree in trees("tests"):
        for line in sentences_of_match(tree):
            found.setdefault(room(path), []).append(f"  tests/{path}:{line}")

    assert not (over := over_limits(found, TABLE["matches"])), "\n".join(over)
