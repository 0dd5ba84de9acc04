"""No file of the package imports itself by way of others, except for types within one package.

Every ``import`` and ``from ... import`` counts, at the top of a file and inside a function, and
``import_module`` of a literal name. Imports under ``if TYPE_CHECKING`` count, too, unless both
files are in one package of ``demitasse``, as ``demitasse/net``: parts of one package may name each
other's types.

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


def test_only_imports_for_types_within_one_package_may_be_circular(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    file_of.cache_clear()
    for name in ("net", "plan"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("")
    file = tmp_path / "net" / "b.py"
    file.write_text(
        f"if TYPE_CHECKING:\n"
        f"    from {tmp_path.name}.net.a import x\n"
        f"    from {tmp_path.name}.plan.a import y\n"
        f"from {tmp_path.name}.net.a import z\n"
    )

    found = sorted(imports_of(file), key=lambda one: one[1])

    file_of.cache_clear()
    assert found == [(tmp_path / "plan" / "a.py", 3), (tmp_path / "net" / "a.py", 4)]


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
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
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
            allowed = id(node) in for_types and package_of(file) == package_of(target)
            if target is not None and not allowed:
                yield target, node.lineno


def package_of(file: Path | None) -> str | None:
    """Return the package of ``demitasse`` that a file is in; None for a module outside of them."""
    parts = file.relative_to(PACKAGE).parts if file is not None else ()
    return parts[0] if len(parts) > 1 else None


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
