"""MkDocs hook: writes the pages that come from the code, the layer types and the command line."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from demitasse.cli.root import VERBS, cli
from demitasse.layers.catalog import CATALOG

LAYERS_HEAD = """\
# Layer types

Every type a `layer { type: ... }` may name, with the shapes it takes and gives, and what it
refuses. The fields of each are those of Caffe or of the fork that has it.
"""

COMMANDS_HEAD = """\
# Every flag

What each verb of `demitasse` says with `--help`; the guide is [Command line](../command-line.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the files of the site."""
    layers = [LAYERS_HEAD, *_layers()]
    commands = [COMMANDS_HEAD, *_commands(cli, "demitasse", VERBS)]
    for path, parts in (
        ("reference/layer_types.md", layers),
        ("reference/command_line.md", commands),
    ):
        files.append(File.generated(config, path, content="\n".join(parts)))
    return files


def _layers() -> Iterator[str]:
    """Yield a section for each type; a further name of a class points to the first one."""
    first: dict[str, str] = {}
    for name in sorted(CATALOG, key=str.lower):
        path = f"{CATALOG[name]}.{_class_of(name, CATALOG[name])}"
        yield f"## {name}\n"
        if path in first:
            yield f"Is described with [{first[path]}](#{first[path].lower()}).\n"
            continue
        first[path] = name
        yield (
            f"::: {path}\n"
            "    options: {members: false, show_root_heading: false, show_bases: false, "
            "show_root_toc_entry: false, separate_signature: false, show_root_full_path: false}\n"
        )


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
    calls = [d for d in node.decorator_list if ast.unparse(d).startswith("register(")]
    return any(ast.literal_eval(a) == name for call in calls for a in call.args)


def _commands(group: click.Group, path: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a section for each command of a group, and for those below it."""
    above = click.Context(group, info_name=path, max_content_width=100, terminal_width=100)
    for name in names:
        command = group.get_command(above, name)
        assert command is not None, name
        context = click.Context(command, parent=above, info_name=name, terminal_width=100)
        yield f"## {path} {name}\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}", tuple(command.list_commands(context)))
