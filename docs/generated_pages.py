"""MkDocs hook: writes the page of layer types from the catalogue and the layers' own docstrings."""

import ast
from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from demitasse.layers.catalog import CATALOG

HEAD = """\
# Layer types

Every type a `layer { type: ... }` may name, with the shapes it takes and gives, and what it
refuses. The fields of each are Caffe's.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the files of the site."""
    entries = [
        f"## {name}\n\n::: {module}.{_class_of(name, module)}\n"
        "    options: {members: false, show_root_heading: false, show_bases: false, "
        "show_root_toc_entry: false, separate_signature: false, show_root_full_path: false}\n"
        for name, module in sorted(CATALOG.items(), key=lambda item: item[0].lower())
    ]
    page = File.generated(config, "reference/layer_types.md", content="\n".join([HEAD, *entries]))
    files.append(page)
    return files


def _class_of(name: str, module: str) -> str:
    """Return the class of a layer type: the one registered under its name, or called like it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        message = f"the catalogue names {module} for {name}, and there is no such module"
        raise RuntimeError(message)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (node.name == name or _registers(node, name)):
            return node.name
    message = f"{module} has no class for {name}"
    raise RuntimeError(message)


def _registers(node: ast.ClassDef, name: str) -> bool:
    return any(ast.unparse(d).startswith(f"register('{name}'") for d in node.decorator_list)
