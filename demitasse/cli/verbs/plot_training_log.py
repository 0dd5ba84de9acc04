"""plot_training_log: charts of training logs.

Source: Caffe, ``tools/extra/plot_training_log.py.example``.
"""

from __future__ import annotations

from pathlib import Path

import click

from demitasse.cli.options import FILE
from demitasse.cli.verb import Verb


@click.command(cls=Verb)
@click.argument("kind", metavar="CHART_TYPE", type=click.IntRange(0, 7))
@click.argument("out", metavar="OUT.png", type=FILE)
@click.argument("logs", metavar="LOGFILE...", type=FILE, nargs=-1, required=True)
def command(kind: int, out: Path, logs: tuple[Path, ...]) -> None:
    """Draw a chart of training logs.

    CHART_TYPE is 0 or 1 for test accuracy, 2 or 3 for test loss, 4 or 5 for the learning rate, 6
    or 7 for the training loss; the even ones are drawn over iterations, the odd ones over seconds.
    """
    from demitasse.cli.charts import draw_chart

    draw_chart(kind, logs, out)
