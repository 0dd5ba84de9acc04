"""MkDocs hook: pages from the code (layers, fields, lint, flags) and figures; ranks of pages."""

from collections.abc import Iterator

import click
from backend_support import CONFORMANCE_PAGE, conformance_page
from layer_pages import INDEX, layer_nav, layer_pages
from lint_page import PAGE, lint_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from peers_page import PEERS_PAGE, peers_page
from scaling_page import SCALING_PAGE, scaling_page
from solver_fields import SOLVER_PAGE, solver_fields

from demitasse.cli.root import COMMANDS, cli

COMMANDS_HEAD = """\
# Every flag

Text of `--help` of every command; the guide is [Command line](../command-line.md).
"""

GUIDE = 3.0
"""How many times as much words on a guide's page count in a search as those of the reference."""

FOR_FEW = {
    "architecture.md", "benchmarks.md", "changelog.md", "development.md", "promises.md",
    "reference/lint_codes.md", "versions.md",
}  # fmt: skip
"""Pages that have every word, and answer few questions of somebody who uses the package."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the layer types into the navigation."""
    for section in config.nav or []:
        for pages in section.values() if isinstance(section, dict) else ():
            if isinstance(pages, list):
                pages[:] = [_filled(page) for page in pages]
    return config


def _filled(page: str | dict[str, object]) -> str | dict[str, object]:
    """Return an entry of the navigation: a page without a title as it is, the index filled."""
    if isinstance(page, str):
        return page
    return {title: layer_nav() if path == INDEX else path for title, path in page.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the files of the site."""
    commands = "\n".join([COMMANDS_HEAD, *_commands(cli, "demitasse", COMMANDS)])
    pages = {
        **layer_pages(),
        CONFORMANCE_PAGE: conformance_page(),
        PAGE: lint_page(),
        PEERS_PAGE: peers_page(),
        SCALING_PAGE: scaling_page(),
        SOLVER_PAGE: solver_fields(),
        "reference/command_line.md": commands,
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let searches show guides first, and pages for few readers last."""
    path = page.file.src_uri
    for_few = path in FOR_FEW or path.startswith("development/")
    if for_few or "/" not in path or path.startswith("devices/"):
        page.meta["search"] = {"boost": 1 / GUIDE if for_few else GUIDE}
    return markdown


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
