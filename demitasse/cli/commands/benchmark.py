"""test, time, bench and largest_batch: measure accuracy, times and memory of nets.

Source: Caffe, ``tools/caffe.cpp`` (``test`` and ``time``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click

from demitasse.cli import options
from demitasse.cli.command import DEVICES, Command, MultiValueCommand
from demitasse.cli.errors import FAILED, echo, fail, print_stderr
from demitasse.cli.options import FILE, POSITIVE, device_options, option, split_names, switch
from demitasse.cli.render import print_json, show, table
from demitasse.core.text import bytes_text, read_size

if TYPE_CHECKING:
    from demitasse.benchmark import Case


def _iterations(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Return a number of batches; None for ``epoch``."""
    if value == "epoch":
        return None
    if not value.isdecimal() or not int(value):
        message = f"got {value!r}, expected a number above 0, or epoch"
        raise click.BadParameter(message, ctx, param)
    return int(value)


@click.command(cls=Command)
@option("--model", "The net's prototxt.", FILE, required=True)
@options.weights_option("Weights to test.", required=True)
@option(
    "--iterations", "Number of batches; 'epoch' reads every record exactly once.", default="50",
    metavar="N|epoch", callback=_iterations,
)  # fmt: skip
@options.mismatch_option
@options.state_options
@device_options
@options.json_option
def test_command(
    model: Path, weights: list[str], iterations: int | None, on_mismatch: Literal["raise", "skip"],
    state: dict[str, Any], device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Test a trained net on batches of its data.

    Logs every output of every batch, and the means at the end.
    """
    if not weights:  # initial weights have no meaningful score
        message = "got no file"
        raise click.BadParameter(message, param_hint="--weights")
    from demitasse.cli.evaluation import Scores, load_weights_into
    from demitasse.cli.progress import line_progress
    from demitasse.core.log import get_logger
    from demitasse.net import Net

    log = get_logger(__name__)
    scores = Scores()
    with Net(model, "TEST", device=device, **state, keep_blobs="outputs") as net:
        log.info("Use %s.", net.device)
        load_weights_into(net, weights, on_mismatch)
        if iterations is None:
            log.info("Running for one epoch.")
        else:
            log.info("Running for %d iterations.", iterations)
        with line_progress() as progress:
            scores.run(net, iterations, progress)
    scores.log_means()
    if as_json:
        print_json(scores.as_dict())


@click.command(cls=Command)
@option("--model", "The net's prototxt.", FILE, required=True)
@option("--iterations", "Number of measured passes.", POSITIVE, 50)
@switch("--forward_only", "Measure forward passes only.")
@options.phase_option("TRAIN")
@options.state_options
@device_options
@options.json_option
def time_command(
    model: Path, iterations: int, forward_only: bool, phase: str, state: dict[str, Any],
    device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure forward and backward passes, whole and by layer.

    Every measurement synchronizes the device. Whole passes are measured first, without
    synchronization between layers; then each layer, in the same process. Fused layers are timed as
    one. The log has Caffe's lines; the table has the code of each layer, and why no faster code
    runs.
    """
    from demitasse.cli.timing import measure_net, timing_table
    from demitasse.core.log import get_logger
    from demitasse.net import Net

    log = get_logger(__name__)
    with Net(model, phase, device=device, **state) as net:
        log.info("Use %s.", net.device)
        log.info("*** Benchmark begins ***")
        log.info("Testing for %d iterations.", iterations)
        timing = measure_net(net, iterations, backward=not forward_only)
        timing.log()
        log.info("*** Benchmark ends ***")
        if as_json:
            about = {"model": str(model), "device": str(net.device), "phase": net.phase}
            print_json({**about, **timing.as_dict()})
        else:
            show(timing_table(timing))


WORDS = re.compile(r"\w+(,\w+)*")


class Bench(MultiValueCommand):
    """The command ``bench``, whose lists may have spaces or commas."""

    multi_value: ClassVar = {"--devices": DEVICES, "--batches": WORDS, "--phases": WORDS}


@click.command(cls=Bench)
@click.argument("nets", type=FILE, nargs=-1, required=True, metavar="NET...")
@option(
    "--devices", "Devices to run on. [default: the device of the settings]", default="",
    metavar="A,B,...", shell_complete=options.complete_devices,
)  # fmt: skip
@option("--batches", "Batch sizes.", default="1,8,64", metavar="N,M,...")
@option(
    "--phases", "Measure forward passes (test), or whole steps of SGD (train).", default="test",
    metavar="test,train",
)  # fmt: skip
@option("--rounds", "Number of rounds; each round measures every case.", POSITIVE, 10)
@option("--seconds", "Time of each case in a round.", options.FloatRange(min=0), 0.2)
@switch("--layers", "Time each layer, too.")
@switch("--peers", "Also measure ONNX Runtime and OpenVINO, where installed, on an export of NET.")
@switch("--input reading", "Also measure data layers: alone, and the net while it reads.")
@option("--save", "Write the results as pytest-benchmark does (JSON).", FILE)
@option("--baseline", "Compare with a saved run; slower cases exit with 1.", FILE, old="--against")
@option(
    "--tolerance", "Slowdown from --baseline that is no regression.",
    options.FloatRange(min=0), 10.0, old="--allowed", metavar="PERCENT",
)  # fmt: skip
@option("--html", "Write a page with charts.", FILE)
@option("--chart", "Draw images per second over batch sizes (.svg, .png).", FILE)
@click.pass_context
def bench_command(
    ctx: click.Context, /, nets: tuple[Path, ...], devices: str, batches: str, phases: str,
    peers: bool, save: Path | None, baseline: Path | None, tolerance: float, html: Path | None,
    chart: Path | None, **how: Any,
) -> None:  # fmt: skip
    """Measure images per second.

    NETs are prototxts, ONNX files, which are imported, or folders of trained models, whose deploy
    nets are measured. A weights file beside a prototxt is loaded if it is the only one and fits the
    net; other nets have random weights. Inputs of the same shapes replace data layers. The cases
    run in turn in each round, so that other load of the machine affects them equally; nets of a
    folder are measured one after the other. With --peers, the column "of best peer" is the speed
    relative to the fastest peer, as the median of all rounds. The peers' results are compared
    first.
    """
    from demitasse.benchmark import deploy_nets, measure, read_results, regressions, write_results
    from demitasse.benchmark.measure import machine
    from demitasse.benchmark.peers import installed_peers, peer_versions
    from demitasse.benchmark.results import (
        named,
        notes,
        rates_chart,
        results_table,
        slowest_layers,
        write_page,
    )
    from demitasse.cli.evaluation import imported_net
    from demitasse.core.device import Device, choose_device
    from demitasse.core.paths import check_exists, is_folder
    from demitasse.inference.cards.card_file import ONNX
    from demitasse.pages.charts import has_format

    together: list[list[Path]] = [[]]
    for net in nets:
        check_exists(net)
        if is_folder(net):
            together += [[path] for path in deploy_nets(net)]
        elif net.suffix == ONNX:
            folder = Path(ctx.with_resource(TemporaryDirectory(prefix="demitasse_bench_")))
            files = folder / f"{net.stem}.prototxt", folder / f"{net.stem}.caffemodel"
            imported_net(net, *files, device="cpu")
            together[0].append(files[0])
        else:
            together[0].append(net)
    if chart is not None and not has_format(chart):
        fail(f"got --chart {chart}, expected a name with .svg or .png")
    saved = None if baseline is None else read_results(baseline)
    names = [Device(name).name for name in split_names(devices)] or [choose_device()[0].name]
    others, results = installed_peers() if peers else [], []
    for paths in filter(None, together):
        cases = _cases(paths, names, batches, phases) + _cases(paths, others, batches, "test")
        results += measure(cases, on_case=lambda one: print_stderr(f"preparing: {one.name}"), **how)
    show(table(*results_table(results)))
    about = machine(names) | peer_versions(others)
    show("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))
    for note in notes(results):
        show(note)
    for name, result in named(results):
        if result.layers:
            echo(f"\n{name}, slowest layers:")
            echo(table(("layer", "ms", "share"), slowest_layers(result, 10)))
        if result.error:
            print_stderr(f"{name}: {result.error}")
        elif saved is not None and name not in saved:
            print_stderr(f"{name}: not in {baseline}, so not compared")
    slower = None if saved is None else regressions(results, saved, tolerance / 100)
    for one in slower or ():
        show(
            f"slower than in {baseline}: {one.name} takes {one.factor:.2f} times as long "
            f"({1e3 * one.before:.4g} -> {1e3 * one.now:.4g} ms)"
        )
    if save is not None:
        write_results(save, results, about)
    if chart is not None:
        rates_chart(results).save(chart)
    if html is not None:
        write_page(results, html, slower, about)
    if slower or any(result.error for result in results):
        ctx.exit(FAILED)


def _cases(nets: Sequence[Path], devices: Sequence[str], batches: str, phases: str) -> list[Case]:
    """Return every combination of nets, phases, batch sizes and devices."""
    from demitasse.benchmark import Case

    sizes, wanted = split_names(batches), [name.upper() for name in split_names(phases)]
    wrong = [size for size in sizes if not size.isdecimal() or int(size) == 0]
    wrong += [phase for phase in wanted if phase not in {"TEST", "TRAIN"}]
    if wrong or not sizes or not wanted:
        got = ", ".join(wrong) or "none"
        fail(f"--batches takes integers above 0, and --phases test and train; got {got}")
    return [
        Case(net, device, int(size), phase)
        for net in nets
        for phase in wanted
        for size in sizes
        for device in devices
    ]


def _bytes(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else read_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=Command)
@click.argument("net", type=FILE)
@options.phase_option("TRAIN")
@option(
    "--limit", "Memory limit, e.g. 8GiB. [default: nine tenths of the free memory]", metavar="SIZE",
    callback=_bytes,
)  # fmt: skip
@option(
    "--keep keep_blobs", "Blobs to keep, in addition to inputs and outputs.", default="outputs",
    metavar="BLOB[,BLOB]|outputs|all",
)  # fmt: skip
@option(
    "--solver",
    "Also update the parameters, by a solver type, such as SGD, or a solver's prototxt.",
    metavar="TYPE|FILE",
)
@option(
    "--confirm/--no_confirm",
    "Confirm the batch size by running the net, or only compute it. [default: confirm]",
    default=True,
)
@option("--max_batch", "Largest batch size to try.", POSITIVE, 65536, old="--at_most")
@device_options
@options.json_option
def largest_batch_command(net: Path, keep_blobs: str, as_json: bool, **how: Any) -> None:
    """Find the largest batch size that fits into memory.

    The batch size is computed from the memory of two small batches, and confirmed by runs in
    processes with limited memory. Inputs of the same shapes replace data layers.
    """
    from demitasse.benchmark import largest_batch

    found = largest_batch(
        net,
        keep_blobs={"all": None, "outputs": "outputs"}.get(keep_blobs, split_names(keep_blobs)),
        on_trial=lambda batch: print_stderr(f"trying a batch of {batch}"),
        **how,
    )
    if as_json:
        about = {"net": str(net), **asdict(found)}
        about["use"]["total"] = found.use.total
        print_json(about)
        return
    what = f"phase {found.phase}" + (f", updated by {found.solver}" if found.solver else "")
    rows = [(name.replace("_", " "), bytes_text(size)) for name, size in asdict(found.use).items()]
    rows.append(("total", bytes_text(found.use.total)))
    if found.refused is not None:
        tried = f"{found.refused} did not fit: {found.why}"
    elif found.confirmed:
        tried = "no larger batch was tried"
    else:
        tried = "it was not run"
    show(
        f"a batch of {found.batch:,} fits in {bytes_text(found.limit)} on {found.device}, {what}\n"
        f"computed: {found.computed:,}; {tried}\n\n"
        f"{table(('at that batch', 'takes'), rows)}\n\n"
        f"each further item: {bytes_text(found.per_item)}"
    )
