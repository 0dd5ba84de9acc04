"""train: learn the weights of a net, or go on learning them.

Source: Caffe, ``tools/caffe.cpp`` (``train``).
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from demitasse.cli.completion import complete_files, complete_loggers
from demitasse.cli.deprecated_flags import RenamedOption
from demitasse.cli.exits import INTERRUPTED, running
from demitasse.cli.gpus import own_gpu
from demitasse.cli.options import (
    FILE,
    mismatch_option,
    split_names,
    state_options,
    training_device_options,
)
from demitasse.cli.signals import Effect, Signals
from demitasse.cli.verb import Verb
from demitasse.cli.workers import Workers, train_together, workers_options

if TYPE_CHECKING:
    from demitasse.core.device import Device
    from demitasse.io.proto import SolverParameter
    from demitasse.training import Solver
    from demitasse.training.distributed import Communicator
    from demitasse.training.surviving import Survivors

EFFECTS = click.Choice(["stop", "snapshot", "none"])


@click.command(cls=Verb)
@click.option("--solver", "file", type=FILE, required=True, help="The solver's prototxt.")
@click.option("--snapshot", type=FILE, help="A solver state to go on from.")
@click.option(
    "--resume",
    type=click.Choice(["auto"]),
    help="Go on from the newest whole snapshot of the solver's snapshot_prefix; begin anew where "
    "there is none.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Go on from a --snapshot whose weights, layers or type of solver are another run's.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Refuse a --snapshot after which numbers would not be those of the run that wrote it.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="FILE[,FILE]",
    shell_complete=complete_files,
    help="Weights to begin with, loaded by layer name, one file after the other.",
)
@click.option(
    "--sigint_effect",
    type=EFFECTS,
    default="stop",
    show_default=True,
    help="What Ctrl-C does. To stop is to finish the iteration and to write a snapshot.",
)
@click.option(
    "--sighup_effect",
    type=EFFECTS,
    default="snapshot",
    show_default=True,
    help="What a hang-up (SIGHUP) does.",
)
@click.option(
    "--sigterm_effect",
    type=EFFECTS,
    default="stop",
    show_default=True,
    help="What SIGTERM does, which job schedulers send before they kill.",
)
@click.option(
    "--on_nonfinite",
    type=click.Choice(["warn", "stop"]),
    default="warn",
    show_default=True,
    help="What to do when the loss is no finite number.",
)
@mismatch_option
@click.option(
    "--keep_last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep the last N snapshots and delete older ones of this run; by default all are kept.",
)
@click.option(
    "--keep_best",
    metavar="OUTPUT",
    help="Write the weights to ..._best.caffemodel whenever a test finds this output better than "
    "ever, e.g. accuracy; name:max or name:min where it is neither an accuracy nor a loss.",
)
@click.option(
    "--early_stopping",
    metavar="OUTPUT",
    help="End the run when this output of the tests gets no better.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of tests without a better output that end the run.",
)
@click.option(
    "--min_delta", type=float, default=0.0, help="How much better is better, for --early_stopping."
)
@click.option(
    "--logger",
    "loggers",
    cls=RenamedOption,
    old="--log_to",
    multiple=True,
    metavar="KIND:PLACE",
    shell_complete=complete_loggers,
    help="Also send the numbers of the run to jsonl:PATH, tensorboard:DIR, wandb:PROJECT or "
    "mlflow:EXPERIMENT; may be given several times. `demitasse report` draws the first kind.",
)
@click.option(
    "--histograms",
    type=click.IntRange(min=1),
    metavar="N",
    help="Every N iterations also log how weights and gradients are distributed, to --logger.",
)
@state_options
@training_device_options
@workers_options
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    snapshot: Path | None,
    resume: str | None,
    force: bool,
    exact: bool,
    weights: tuple[str, ...],
    sigint_effect: Effect,
    sighup_effect: Effect,
    sigterm_effect: Effect,
    on_nonfinite: Literal["warn", "stop"],
    on_mismatch: Literal["error", "skip"],
    keep_last: int | None,
    keep_best: str | None,
    early_stopping: str | None,
    patience: int,
    min_delta: float,
    loggers: tuple[str, ...],
    histograms: int | None,
    level: int | None,
    stages: list[str],
    devices: list[str],
    workers: Workers,
) -> None:
    """Train a net, or go on training it.

    Several GPUs train one net: --gpu 0,1. Started by mpirun, all processes do, each on a GPU of its
    machine where it is to be a GPU: mpirun -n 4 demitasse train --solver S.

    Exits with 130 when it was interrupted; the snapshot is kept then. The device is that of
    --device or --gpu, else what the settings name, else the solver's solver_mode and device_id.
    """
    files = split_names(weights)
    if snapshot is not None and files:
        message = "a run goes on from a --snapshot or begins with --weights, not both"
        raise click.UsageError(message)
    if snapshot is not None and resume is not None:
        message = "--snapshot and --resume both say where to go on from; give one of them"
        raise click.UsageError(message)
    if (force or exact) and snapshot is None and resume is None:
        message = "--force and --exact say how to go on from a --snapshot, which is not given"
        raise click.UsageError(message)
    if histograms is not None and not loggers:
        message = "--histograms are written to --logger, which is not given"
        raise click.UsageError(message)
    from demitasse.cli.solver_file import fields_of
    from demitasse.core.log import get_logger
    from demitasse.io.proto import read_solver_params
    from demitasse.training import EarlyStopping, Solver
    from demitasse.training.newest import newest_state

    log = get_logger(__name__)
    early = EarlyStopping(early_stopping, patience, min_delta) if early_stopping else None

    def train(
        connected: Communicator | None, survivors: Survivors | None
    ) -> tuple[bool, list[Path]]:
        param = read_solver_params(file)
        chosen = _device(devices, param, file, connected)
        if level is not None:
            param.train_state.level = level
        param.train_state.stage.extend(stages)
        if snapshot is not None or files:
            param.weights[:] = files
        begin = snapshot
        written: list[Path] = []
        with (
            fields_of(file),
            Solver(
                param,
                device=chosen,
                base_dir=file.parent,
                on_nonfinite=on_nonfinite,
                on_mismatch=on_mismatch,
                keep_last=keep_last,
                keep_best=keep_best,
                early_stopping=early,
                keep="outputs",
                num_shards=workers.shards or (survivors.began if survivors else None),
                communicator=connected,
                allreduce=workers.allreduce,
                overlap=workers.overlap,
            ) as solver,
        ):
            solver.on_snapshot.append(lambda weights, state: written.append(state))
            goes_on = survivors is not None and survivors.carried is not None
            if resume is not None and not goes_on:
                begin = newest_state(param.snapshot_prefix)
                begin = begin if connected is None else connected.share(begin)
            if begin is not None and not goes_on:
                log.info("Resuming from %s", begin)
                solver.restore(begin, force=force, exact=exact)
            first = connected is None or connected.rank == 0
            signals = Signals(solver.request, sigint_effect, sighup_effect, sigterm_effect)
            with survivors.going_on(solver) if survivors else nullcontext():
                if first:
                    _log_to(solver, loggers, histograms)
                log.info("Starting Optimization")
                _solve(solver, signals, show=first)
            return solver.stopped, written

    stopped, written = train_together(workers, max(1, len(devices)), train)
    if stopped:
        if written:
            log.info("To go on: demitasse train --solver %s --snapshot %s", file, written[-1])
        ctx.exit(INTERRUPTED)


def _log_to(solver: Solver, targets: tuple[str, ...], histograms: int | None) -> None:
    """Give a solver its loggers, and tell them where the run is made."""
    if not targets:
        return
    from demitasse.cli.diagnosis import environment
    from demitasse.training.distributions import tell_distributions
    from demitasse.training.tracking import open_logger

    found = environment()
    for target in targets:
        solver.loggers.append(open_logger(target))
    solver.tell_loggers("environment", found)
    if histograms is not None:
        tell_distributions(solver, histograms)


def _solve(solver: Solver, signals: Signals, *, show: bool) -> None:
    from demitasse.cli.progress import train_progress

    with signals, running(), train_progress(solver) if show else nullcontext():
        solver.solve()


def _device(
    named: list[str], param: SolverParameter, file: Path, connected: Communicator | None
) -> Device:
    """Return the device that this process trains on; the first logs where all do."""
    from demitasse.core.device import SOLVER_FILE, Device, named_device
    from demitasse.core.log import get_logger
    from demitasse.errors import DeviceError

    several = connected is not None and connected.size > 1
    wanted = None
    if param.HasField("solver_mode"):
        gpu = param.solver_mode == type(param).GPU
        wanted = ("cuda" if several else f"cuda:{param.device_id}") if gpu else "cpu"
    found, where = named_device(own_gpu(named, connected), wanted)
    try:
        device = Device(own_gpu([str(found)], connected) or found)
    except DeviceError as error:
        if where == SOLVER_FILE:
            error.message += "; to train elsewhere than the solver says, add e.g. --device cpu"
            error.at(f"solver_mode of {file}")
        raise
    log = get_logger(__name__)
    if connected is None or not several:
        log.info("Use %s (%s).", device, where)
        return device
    for rank, name in enumerate(connected.agree(device.name.encode())):
        log.info("Process %d uses %s (%s).", rank, name.decode(), where)
    return device
