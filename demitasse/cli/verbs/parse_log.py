"""parse_log: the numbers in a log of a training run, as tables.

Source: Caffe, ``tools/extra/parse_log.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.options import FILE, FOLDER
from demitasse.cli.verb import Verb

if TYPE_CHECKING:
    from demitasse.cli.training_log import Row


@click.command(cls=Verb)
@click.argument("log", metavar="LOGFILE", type=FILE)
@click.argument("folder", metavar="OUTPUT_DIR", type=FOLDER)
@click.option("--delimiter", default=",", show_default=True, help="What stands between columns.")
@click.option("--verbose", is_flag=True, help="Say what is written.")
def command(log: Path, folder: Path, delimiter: str, verbose: bool) -> None:
    """Write the numbers in a training log as CSV.

    Makes LOGFILE.train and LOGFILE.test in OUTPUT_DIR. Reads Caffe's logs, too.
    """
    from demitasse.cli.training_log import read_log

    if len(delimiter) != 1:
        message = f"--delimiter is one character, not {delimiter!r}"
        raise click.UsageError(message)
    found = read_log(log)
    for name, rows in (("train", found.train), ("test", found.test)):
        out = folder / f"{log.name}.{name}"
        if rows:
            _write(out, rows, delimiter)
        if verbose:
            click.echo(f"Wrote {out}" if rows else f"Not writing {out}; no lines to write")


def _write(path: Path, rows: list[Row], delimiter: str) -> None:
    import csv
    import io

    from demitasse.core.atomic import atomic_write

    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())
