"""bench: throughput of nets on devices, over batch sizes and phases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from demitasse.cli.completion import complete_devices
from demitasse.cli.exits import FAILED
from demitasse.cli.lists import DEVICES, ListVerb
from demitasse.cli.options import FILE, split_names
from demitasse.cli.output import show, table
from demitasse.cli.streams import tell

if TYPE_CHECKING:
    from demitasse.benchmark import Case

WORDS = re.compile(r"\w+(,\w+)*")


class Bench(ListVerb):
    """A verb whose lists may be written with spaces."""

    lists: ClassVar = {"--devices": DEVICES, "--batches": WORDS, "--phases": WORDS}


@click.command(cls=Bench)
@click.argument("nets", type=FILE, nargs=-1, required=True, metavar="NET...")
@click.option(
    "--devices",
    default="",
    metavar="A,B,...",
    shell_complete=complete_devices,
    help="Where to run; default: the device.",
)
@click.option("--batches", default="1,8,64", show_default=True, metavar="N,M,...")
@click.option(
    "--phases",
    default="test",
    show_default=True,
    metavar="test,train",
    help="test measures forward passes, train whole steps of SGD.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=0.2,
    show_default=True,
    help="Time of each case in a round.",
)
@click.option("--layers", is_flag=True, help="Time each layer, too.")
@click.option(
    "--input",
    "reading",
    is_flag=True,
    help="Measure layers that read data, too: alone, and the net while it reads.",
)
@click.option("--save", type=FILE, help="Write the results as pytest-benchmark does (JSON).")
@click.option("--against", type=FILE, help="Compare with a saved run; slower cases end with 1.")
@click.option(
    "--allowed",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="How much slower than --against is no regression.",
)
@click.option("--html", type=FILE, help="Write a page with charts.")
@click.option("--chart", type=FILE, help="Draw images per second over batch sizes (.svg, .png).")
@click.pass_context
def command(
    ctx: click.Context,
    nets: tuple[Path, ...],
    devices: str,
    batches: str,
    phases: str,
    rounds: int,
    seconds: float,
    layers: bool,
    reading: bool,
    save: Path | None,
    against: Path | None,
    allowed: float,
    html: Path | None,
    chart: Path | None,
) -> None:
    """Measure images per second.

    NETs are prototxts; layers that read data are replaced by inputs of their shapes. All cases take
    turns, so that what else the machine does meets them alike.
    """
    from demitasse.benchmark import measure, read_results, regressions, write_results
    from demitasse.benchmark.report import draw, layers_of, table_of, write_page
    from demitasse.core.device import Device, choose_device

    saved = None if against is None else read_results(against)
    names = [Device(name).name for name in split_names((devices,))] or [choose_device()[0].name]
    cases = _cases(nets, names, batches, phases)

    results = measure(
        cases,
        rounds=rounds,
        seconds=seconds,
        layers=layers,
        reading=reading,
        tell=lambda case: tell(f"making ready: {case.name}"),
    )
    show(table(*table_of(results)))
    for result in (one for one in results if one.layers):
        click.echo(f"\n{result.case.name}, the layers that take longest:")
        click.echo(table(("layer", "ms", "share"), layers_of(result, 10)))
    for result in (one for one in results if one.error):
        tell(f"{result.case.name}: {result.error}")
    slower = None if saved is None else regressions(results, saved, allowed / 100)
    for one in slower or ():
        show(
            f"slower than in {against}: {one.name} takes {one.factor:.2f} times as long "
            f"({1e3 * one.before:.4g} -> {1e3 * one.now:.4g} ms)"
        )
    if save is not None:
        write_results(save, results)
    if chart is not None:
        draw(results, chart)
    if html is not None:
        write_page(results, html, slower)
    if slower or any(result.error for result in results):
        ctx.exit(FAILED)


def _cases(nets: Sequence[Path], devices: Sequence[str], batches: str, phases: str) -> list[Case]:
    """Return every combination.

    Raises:
        UsageError: A batch is no whole number above 0, or a phase is none.
    """
    from demitasse.benchmark import Case

    sizes, wanted = split_names((batches,)), [name.upper() for name in split_names((phases,))]
    wrong = [size for size in sizes if not size.isdecimal() or int(size) == 0]
    wrong += [phase for phase in wanted if phase not in {"TEST", "TRAIN"}]
    if wrong or not sizes or not wanted:
        message = (
            f"--batches takes whole numbers and --phases test and train, not {', '.join(wrong)}"
        )
        raise click.UsageError(message)
    return [
        Case(net, device, int(size), phase)
        for net in nets
        for phase in wanted
        for size in sizes
        for device in devices
    ]
