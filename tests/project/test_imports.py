"""No file of the package imports itself by way of others: neither to run, nor for its types.

What counts as an import: every ``import`` and ``from ... import``, at the top of a file, inside a
function and under ``if TYPE_CHECKING`` alike, and ``import_module`` of a name written out.

``from a.b import c`` leads to the file ``a/b/c.py`` if there is one, else to ``a/b.py`` or
``a/b/__init__.py``, from which the name ``c`` is taken. A folder's ``__init__.py`` also runs when
any file of that folder is imported, but then nothing is taken from it. That does not count, or no
``__init__.py`` could gather the names of its own folder.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "demitasse"


def test_no_file_imports_itself_by_way_of_others():
    imports = {file: set(imports_of(file)) for file in python_files()}

    circles = circles_of({file: {target for target, _ in found} for file, found in imports.items()})

    assert not [described(circle, imports) for circle in circles]


def test_a_circle_is_found_and_described():
    a, b, c = (PACKAGE / name for name in ("a.py", "b.py", "c.py"))
    imports = {a: {(b, 3)}, b: {(a, 5), (c, 6)}, c: set()}

    [circle] = circles_of({a: {b}, b: {a, c}, c: set()})

    assert described(circle, imports) == "a.py:3 imports b.py\nb.py:5 imports a.py"


def test_the_page_on_architecture_shows_the_layers_that_are_checked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract, *_ = project["tool"]["importlinter"]["contracts"]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    [shown] = re.findall(r"```text\n(demitasse\.tools\n.*?)```", page, re.DOTALL)

    lines = [line.replace(" :", ",") for line in contract["layers"]]
    assert " ".join(shown.split()) == " ".join(lines)


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of(file: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of the package that ``file`` imports, and the lines where it does."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = file.relative_to(PACKAGE.parent).parts[:-level] if level else ()
                modules = [".".join((*above, *filter(None, [module]), n.name)) for n in names]
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(module)), *_],
            ):
                modules = [module]
            case _:
                modules = []
        for module in modules:
            target = file_of(module)
            if target is not None:
                yield target, node.lineno


@cache
def file_of(name: str) -> Path | None:
    """Return the file of a module, or of the module that a name is taken from."""
    first, *rest = name.split(".")
    if first != PACKAGE.name:
        return None
    for parts in (rest, rest[:-1]):
        place = PACKAGE.joinpath(*parts)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def circles_of(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """Return the strongly connected components of more than one file (Tarjan's algorithm)."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found: list[list[Path]] = []

    def visit(file: Path) -> None:
        index[file] = low[file] = len(index)
        stack.append(file)
        for target in sorted(graph[file]):
            if target not in index:
                visit(target)
                low[file] = min(low[file], low[target])
            elif target in stack:
                low[file] = min(low[file], index[target])
        if low[file] == index[file]:
            at = stack.index(file)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1 or file in graph[file]:
                found.append(sorted(component))

    for file in graph:
        if file not in index:
            visit(file)
    return found


def described(circle: list[Path], imports: dict[Path, set[tuple[Path, int]]]) -> str:
    """Return the imports that a circle is made of, one for each line."""
    return "\n".join(
        f"{file.relative_to(PACKAGE)}:{line} imports {target.relative_to(PACKAGE)}"
        for file in circle
        for target, line in sorted(imports[file])
        if target in circle
    )
