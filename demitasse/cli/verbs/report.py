"""report: a page about training runs."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("runs", metavar="RUN...", type=FILE, nargs=-1, required=True)
@click.option("-o", "--out", type=FILE, required=True, help="The page to write, e.g. report.html.")
def command(runs: tuple[Path, ...], out: Path) -> None:
    """Write a page about training runs, with curves that compare them.

    A RUN is a file that train --logger jsonl:FILE wrote, or a training log, Caffe's or ours. The
    page is one file that loads nothing.
    """
    from demitasse.cli.run_history import read_run
    from demitasse.cli.run_page import write_run_page

    write_run_page(out, [read_run(path) for path in dict.fromkeys(runs)])
    click.echo(f"Wrote {out}")
