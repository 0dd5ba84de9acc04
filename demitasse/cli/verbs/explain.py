"""explain: what the code of a finding of lint means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from demitasse.cli.completion import complete_codes
from demitasse.cli.output import show, table
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.lint.codes import Code


@click.command(cls=Verb)
@click.argument("code", required=False, shell_complete=complete_codes)
def command(code: str | None) -> None:
    """Explain a code of lint, with what has it and what has not; without CODE list all codes."""
    from demitasse.core.text import suggestion
    from demitasse.lint.codes import CODES

    if code is None:
        show(table(("code", "meaning"), [(name, meaning.text) for name, meaning in CODES.items()]))
        return
    name = next((known for known in CODES if known == code.strip("[]")), None)
    if name is None:
        message = (
            f"there is no code {code!r}{suggestion(code, CODES)}; `demitasse explain` lists them"
        )
        raise click.UsageError(message)
    show(_text(name))


def _text(code: Code) -> str:
    from demitasse.lint.codes import CODES
    from demitasse.lint.examples import EXAMPLES

    parts = [f"{code}: {CODES[code].text}", f"What to do: {CODES[code].remedy}"]
    for example in EXAMPLES[code]:
        parts.append(f"Found ({example.severity}):\n\n{_indented(example.wrong)}")
        if example.right:
            parts.append(f"Not found:\n\n{_indented(example.right)}")
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.strip("\n").split("\n"))
