"""lint: find what is wrong, or probably not meant, in nets and solvers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.exits import MODEL_OR_DATA
from demitasse.cli.fitting import terminal_width
from demitasse.cli.options import FILE, json_option
from demitasse.cli.output import print_json, show
from demitasse.cli.streams import tell
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.lint import Finding


@click.command(cls=Verb)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--strict", is_flag=True, help="Let warnings count as errors do.")
@json_option
@click.pass_context
def command(ctx: click.Context, files: tuple[Path, ...], strict: bool, as_json: bool) -> None:
    """Find mistakes in nets and solvers.

    FILEs are prototxt. Nothing is run; data are looked at where they are there. Exits with 3 when
    there are errors.
    """
    from demitasse.lint import lint

    findings = [finding for file in files for finding in lint(file)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            show(str(finding))
            for line in _excerpt(finding):
                click.echo(line)
        click.echo(_sum([finding.severity for finding in findings]))
        if findings:
            tell(f"more about it: demitasse explain {findings[0].code}")
    bad = {"error", "warning"} if strict else {"error"}
    if any(finding.severity in bad for finding in findings):
        ctx.exit(MODEL_OR_DATA)


def _excerpt(finding: Finding) -> list[str]:
    """Return the line that it is about, for people; programs read one line for each finding."""
    from demitasse.cli.excerpts import excerpt_of

    return excerpt_of(finding.where, finding.message) if terminal_width() else []


def _sum(severities: list[str]) -> str:
    counts = {name: severities.count(name) for name in ("error", "warning", "note")}
    parts = [
        f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count
    ]
    return ", ".join(parts) or "nothing found"
