"""report, parse_log, extract_seconds and plot_training_log: logs of training runs.

Source: Caffe, ``tools/extra``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse.cli.command import Command
from demitasse.cli.errors import echo, fail
from demitasse.cli.options import FILE, FOLDER, option, switch

if TYPE_CHECKING:
    from demitasse.cli.training_log import Row


@click.command(cls=Command)
@click.argument("runs", metavar="RUN...", type=FILE, nargs=-1, required=True)
@option("-o --out", "The page to write, e.g. report.html.", FILE, required=True)
def report_command(runs: tuple[Path, ...], out: Path) -> None:
    """Write a page that compares training runs by curves.

    A RUN is a file of train --logger jsonl:FILE, or a training log, Caffe's or ours. The page is
    one file without external resources.
    """
    from demitasse.cli.run_report import read_run, write_run_page

    write_run_page(out, [read_run(path) for path in dict.fromkeys(runs)])
    echo(f"Wrote {out}")


@click.command(cls=Command)
@click.argument("log", metavar="LOGFILE", type=FILE)
@click.argument("folder", metavar="OUTPUT_DIR", type=FOLDER)
@option("--delimiter", "Character between columns.", default=",")
@switch("--verbose", "Print the names of the written files.")
def parse_log_command(log: Path, folder: Path, delimiter: str, verbose: bool) -> None:
    """Write the numbers of a training log as CSV.

    Writes LOGFILE.train and LOGFILE.test to OUTPUT_DIR. Reads Caffe's logs, too.
    """
    from demitasse.cli.training_log import read_log

    if len(delimiter) != 1:
        fail(f"--delimiter takes one character, got {delimiter!r}")
    found = read_log(log)
    for name, rows in (("train", found.train), ("test", found.test)):
        out = folder / f"{log.name}.{name}"
        if rows:
            _write_csv(out, rows, delimiter)
        if verbose:
            echo(f"Wrote {out}" if rows else f"Not writing {out}; no lines to write")


def _write_csv(path: Path, rows: list[Row], delimiter: str) -> None:
    import csv
    import io

    from demitasse.core.atomic import write_bytes

    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


@click.command(cls=Command)
@click.argument("log", metavar="LOGFILE", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
def extract_seconds_command(log: Path, out: Path) -> None:
    """Write the times of a training log's iterations.

    OUT has a line for each line of the log that names an iteration: seconds since the run started.
    """
    from demitasse.cli.training_log import seconds_of_iterations
    from demitasse.core.atomic import write_bytes

    lines = [f"{seconds:f}\n" for seconds in seconds_of_iterations(log)]
    write_bytes(out, "".join(lines).encode())


@click.command(cls=Command)
@click.argument("kind", metavar="CHART_TYPE", type=click.IntRange(0, 7))
@click.argument("out", metavar="OUT.png", type=FILE)
@click.argument("logs", metavar="LOGFILE...", type=FILE, nargs=-1, required=True)
def plot_training_log_command(kind: int, out: Path, logs: tuple[Path, ...]) -> None:
    """Draw a chart of training logs.

    CHART_TYPE is 0 or 1 for test accuracy, 2 or 3 for test loss, 4 or 5 for the learning rate, 6
    or 7 for the training loss; the even types have iterations on the x axis, the odd ones seconds.
    """
    from demitasse.cli.training_log import draw_chart

    draw_chart(kind, logs, out)
