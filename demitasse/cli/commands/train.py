"""train and example: train a net, by one or several processes.

Source: Caffe, ``tools/caffe.cpp`` (``train``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from demitasse.cli.command import Command, given_flags
from demitasse.cli.errors import FAILED, INTERRUPTED, as_run_failures, handle_errors
from demitasse.cli.gflags import RenamedOption
from demitasse.cli.options import (
    FILE,
    FLOAT,
    FOLDER,
    FloatRange,
    complete_loggers,
    device_options,
    local_gpu,
    mismatch_option,
    option_group,
    split_names,
    state_options,
    training_device_options,
    weights_option,
)
from demitasse.cli.signals import Effect, Signals

if TYPE_CHECKING:
    from demitasse.core.device import Device
    from demitasse.io.proto import SolverParameter
    from demitasse.training import Solver
    from demitasse.training.distributed import Communicator
    from demitasse.training.distributed.fault_tolerance import FaultTolerantRun
    from demitasse.training.distributed.mpi import Mpi

AllReduce = Literal["deterministic", "fast", "fp16"]

Function = Callable[..., Any]
Result = TypeVar("Result")

FIRST_WORD = 3.0
"""Seconds in which a failed process can abort all others, before the others abort."""


class Workers(NamedTuple):
    """Flags of training by several processes.

    Attributes:
        shards: Number of shards of the run; None for the number of processes.
        expected: Number of processes that there must be; None for any number.
        allreduce: How gradients are summed over processes; None for the default.
        overlap: Whether gradients are exchanged while backward computes earlier ones.
        timeout: Seconds that a process waits for the other processes.
        fault_tolerant: Whether training continues when a process dies.
    """

    shards: int | None
    expected: int | None
    allreduce: AllReduce | None
    overlap: bool
    timeout: float
    fault_tolerant: bool


workers_options = option_group(
    "workers",
    Workers,
    click.option(
        "--shards",
        type=click.IntRange(min=1),
        metavar="S",
        help="Split the data into S shards, each with the net's batch size, shared out among the "
        "processes that mpirun starts; by default one shard for each process. The same number of "
        "shards gives the same bits for any number of processes.",
    ),
    click.option(
        "--expect-processes",
        "expected",
        cls=RenamedOption,
        old="--ranks",
        type=click.IntRange(min=1),
        metavar="N",
        help="Refuse to train unless exactly N processes are connected.",
    ),
    click.option(
        "--allreduce",
        cls=RenamedOption,
        old="--reduce",
        old_values={"exact": "deterministic", "half": "fp16"},
        type=click.Choice(["deterministic", "fast", "fp16"]),
        help="How gradients are summed over processes: deterministic (the same bits for any number "
        "of processes), fast (the order that MPI or NCCL chooses) or fp16 (sent in half "
        "precision). By default fast between GPUs that NCCL connects, else deterministic.",
    ),
    click.option(
        "--overlap",
        is_flag=True,
        help="Exchange gradients while backward computes those of earlier layers. Faster between "
        "machines with a free core, and perhaps between GPUs that NCCL connects. The bits of "
        "--allreduce deterministic stay the same.",
    ),
    click.option(
        "--timeout",
        cls=RenamedOption,
        old="--deadline",
        type=FloatRange(min=1),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a process waits for the others before the run ends: at the start, in an "
        "iteration and at the end.",
    ),
    click.option(
        "--fault-tolerant",
        cls=RenamedOption,
        old="--survive",
        is_flag=True,
        help="Continue when a process dies: the others take over its shards, with the same bits. "
        "Needs mpirun --with-ft ulfm (Open MPI 5), and gradients that do not travel by NCCL.",
    ),
)
"""Adds the flags of training by several processes; the command gets ``workers``."""


def train_together(
    workers: Workers,
    gpus: int,
    train: Callable[[Communicator | None, FaultTolerantRun | None], Result],
) -> Result:
    """Train in the processes of mpirun, in one thread for each GPU, or in one process.

    Args:
        workers: Flags of training by several processes.
        gpus: Number of GPUs of this process, if mpirun did not start it.
        train: Function of the communicator, None for a single process; and of the fault tolerant
            run, None for other runs.

    Raises:
        ConfigError: The number of processes is not the expected one.
    """
    from demitasse.errors import ConfigError, ErrorCode
    from demitasse.training.distributed.mpi import Mpi, launched_by_mpi, launched_processes
    from demitasse.training.distributed.threads import run_in_threads

    if launched_by_mpi():
        connected = Mpi(workers.timeout, fault_tolerant=workers.fault_tolerant)
        level = logging.getLogger("demitasse").level
        _check_ranks(workers.expected, connected.size)
        with _one_thread(workers.shards or connected.size), _abort_together(connected):
            if workers.fault_tolerant:
                return _train_with_survivors(connected, train, level)
            result = train(connected, None)
            connected.allgather_bytes(b"")  # an error names a process that does not reach the end
            return result
    if workers.fault_tolerant:
        message = "--fault-tolerant is for processes: start them with mpirun --with-ft ulfm"
        raise ConfigError(message, code=ErrorCode.INVALID, flag="--fault-tolerant")
    if workers.expected is None and launched_processes() > 1:
        message = (
            f"srun started {launched_processes()} processes that cannot find each other, so each "
            "would train by itself and write the same files; use mpirun, or srun --mpi=pmix. For "
            "separate runs, give --expect-processes 1"
        )
        raise ConfigError(
            message, code=ErrorCode.CONFLICT, flag="--expect-processes", got=launched_processes()
        )
    _check_ranks(workers.expected, gpus)
    with _one_thread(workers.shards or gpus):
        if gpus == 1:
            return train(None, None)
        with _first_thread_logs():
            return run_in_threads(gpus, lambda member: train(member, None), workers.timeout)[0]


def _train_with_survivors(
    connected: Mpi,
    train: Callable[[Communicator | None, FaultTolerantRun | None], Result],
    level: int,
) -> Result:
    """Train by the surviving processes until the run is done.

    Args:
        connected: The group of processes.
        train: The function of each process.
        level: Log level of the first process; another process can become the first.
    """
    from demitasse.training.distributed.fault_tolerance import FaultTolerantRun

    tolerant_run = FaultTolerantRun(connected)

    def continue_training() -> Result:
        logging.getLogger("demitasse").setLevel(level if connected.rank == 0 else logging.WARNING)
        return train(connected, tolerant_run)

    return tolerant_run.run(continue_training)


def _check_ranks(wanted: int | None, size: int) -> None:
    from demitasse.errors import ConfigError, ErrorCode

    if wanted not in {None, size}:
        message = (
            f"got {size} connected processes, expected --expect-processes {wanted}; start them "
            f"with mpirun -n {wanted}, or with srun --mpi=pmix"
        )
        raise ConfigError(
            message,
            code=ErrorCode.COUNT_MISMATCH,
            flag="--expect-processes",
            got=size,
            expected=wanted,
        )


@contextmanager
def _first_thread_logs() -> Iterator[None]:
    """Log only warnings from all training threads but the first."""

    def wanted(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or not (record.threadName or "").startswith("rank")

    handlers = list(logging.getLogger("demitasse").handlers)
    for handler in handlers:
        handler.addFilter(wanted)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)


@contextmanager
def _abort_together(connected: Communicator) -> Iterator[None]:
    """Abort all processes when one fails. Only the first process logs below level warning."""
    from demitasse.errors import ParallelError

    if connected.rank:
        logging.getLogger("demitasse").setLevel(logging.WARNING)
    try:
        with handle_errors():
            yield
    except (click.exceptions.Exit, click.exceptions.Abort):
        raise
    except click.ClickException as error:
        error.show()
        if isinstance(error.__cause__, ParallelError):
            time.sleep(FIRST_WORD)  # the failed process aborts all, with its own exit code
        connected.abort(error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from error
    except BaseException:
        logging.getLogger("demitasse").exception("process %d failed", connected.rank)
        connected.abort(FAILED)
        raise


@contextmanager
def _one_thread(shards: int | None) -> Iterator[None]:
    """Compute with one thread unless set otherwise: bits depend on the number of threads."""
    import os

    from demitasse.core.config import settings

    chosen = settings.get("threads") or os.environ.get("OMP_NUM_THREADS")
    with settings.override(**({} if chosen or not shards or shards == 1 else {"threads": 1})):
        yield


EFFECTS = click.Choice(["stop", "snapshot", "none"])


@click.command(cls=Command)
@click.option("--solver", "file", type=FILE, required=True, help="The solver's prototxt.")
@click.option("--snapshot", type=FILE, help="Resume from this solver state.")
@click.option(
    "--resume",
    type=click.Choice(["auto"]),
    is_flag=False,
    flag_value="auto",
    help="Resume from the newest complete snapshot of the solver's snapshot_prefix; without one, "
    "start a new run.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Resume from a --snapshot of another run, with other weights, layers or solver type.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Refuse a --snapshot if the numbers would differ from those of its own run.",
)
@weights_option("Initial weights, loaded by layer name, one file after the other.")
@click.option(
    "--sigint_effect",
    type=EFFECTS,
    default="stop",
    show_default=True,
    help="Effect of Ctrl-C; stop finishes the iteration and writes a snapshot.",
)
@click.option(
    "--sighup_effect",
    type=EFFECTS,
    default="snapshot",
    show_default=True,
    help="Effect of a hang-up (SIGHUP).",
)
@click.option(
    "--sigterm_effect",
    type=EFFECTS,
    default="stop",
    show_default=True,
    help="Effect of SIGTERM, which job schedulers send before they kill.",
)
@click.option(
    "--on_nonfinite",
    cls=RenamedOption,
    old_values={"stop": "raise"},
    type=click.Choice(["warn", "raise"]),
    default="warn",
    show_default=True,
    help="Warn or stop when the loss is NaN or infinite.",
)
@mismatch_option
@click.option(
    "--keep_last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep the last N snapshots of this run and delete older ones. [default: keep all]",
)
@click.option(
    "--keep_best",
    metavar="OUTPUT",
    help="Write the weights to ..._best.caffemodel when a test improves this output, e.g. "
    "accuracy; give name:max or name:min for outputs other than accuracies and losses.",
)
@click.option(
    "--early_stopping",
    metavar="OUTPUT",
    help="End the run when this output of the tests stops improving.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of tests without improvement that end the run.",
)
@click.option(
    "--min_delta",
    type=FLOAT,
    default=0.0,
    help="Least improvement that counts, for --early_stopping. [default: 0]",
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
    help="Log histograms of weights and gradients to --logger, every N iterations.",
)
@state_options
@training_device_options
@workers_options
@click.pass_context
def train_command(
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
    on_nonfinite: Literal["warn", "raise"],
    on_mismatch: Literal["raise", "skip"],
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
    """Train a net, or resume its training.

    Several GPUs train one net: --gpu 0,1. Under mpirun, all processes train one net; on GPU
    devices, each process uses one local GPU: mpirun -n 4 demitasse train --solver S.

    Exits with 130 after an interrupt; the snapshot is kept. The device is --device or --gpu, else
    that of the settings, else the solver's solver_mode and device_id.
    """
    files = split_names(weights)
    if snapshot is not None and files:
        message = "got --snapshot and --weights, expected one of them"
        raise click.UsageError(message)
    if snapshot is not None and resume is not None:
        message = "got --snapshot and --resume, expected one of them"
        raise click.UsageError(message)
    if (force or exact) and snapshot is None and resume is None:
        message = "--force and --exact need --snapshot or --resume"
        raise click.UsageError(message)
    if histograms is not None and not loggers:
        message = "--histograms needs --logger"
        raise click.UsageError(message)
    from demitasse.core.log import get_logger
    from demitasse.io.proto import read_solver_params
    from demitasse.training import EarlyStopping, Solver
    from demitasse.training.checkpoint.retention import latest_snapshot
    from demitasse.training.solver_param import locate_fields

    log = get_logger(__name__)
    early = EarlyStopping(early_stopping, patience, min_delta) if early_stopping else None

    def train(
        connected: Communicator | None, tolerant_run: FaultTolerantRun | None
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
            locate_fields(file),
            Solver(
                param,
                device=chosen,
                base_dir=file.parent,
                on_nonfinite=on_nonfinite,
                on_mismatch=on_mismatch,
                keep_last=keep_last,
                keep_best=keep_best,
                early_stopping=early,
                keep_blobs="outputs",
                num_shards=workers.shards or (tolerant_run.initial_size if tolerant_run else None),
                communicator=connected,
                allreduce=workers.allreduce,
                overlap=workers.overlap,
            ) as solver,
        ):
            solver.on_snapshot.append(lambda weights, state: written.append(state))
            goes_on = tolerant_run is not None and tolerant_run.state is not None
            if resume is not None and not goes_on:
                begin = latest_snapshot(param.snapshot_prefix)
                begin = begin if connected is None else connected.broadcast_object(begin)
            if begin is not None and not goes_on:
                log.info("Resuming from %s", begin)
                solver.restore(begin, force=force, exact=exact)
            first = connected is None or connected.rank == 0
            signals = Signals(solver.request, sigint_effect, sighup_effect, sigterm_effect)
            with tolerant_run.attach(solver) if tolerant_run else nullcontext():
                if first:
                    _log_to(solver, loggers, histograms)
                log.info("Starting Optimization")
                _solve(solver, signals, show=first)
            return solver.stopped, written

    stopped, written = train_together(workers, max(1, len(devices)), train)
    if stopped:
        if written:
            log.info("To resume: %s", _resume_command(ctx, file, written[-1]))
        ctx.exit(INTERRUPTED)


STARTING_FLAGS = ("file", "snapshot", "resume", "force", "weights")
"""Parameters of the start of a run, which a command that resumes the run gives anew."""


def _resume_command(ctx: click.Context, file: Path, state: Path) -> str:
    """Return the command that resumes a run with its flags, as a line for a shell."""
    from demitasse.core.text import command_line
    from demitasse.training.distributed.mpi import launched_by_mpi, launched_processes

    flags = given_flags(ctx, STARTING_FLAGS)
    line = command_line("train", "--solver", file, "--snapshot", state, *flags)
    return f"mpirun -n {launched_processes()} {line}" if launched_by_mpi() else line


def _log_to(solver: Solver, targets: tuple[str, ...], histograms: int | None) -> None:
    """Add the loggers to a solver, and log the environment of the run."""
    if not targets:
        return
    from demitasse.cli.commands.doctor import environment
    from demitasse.training.report import log_histograms
    from demitasse.training.tracking import open_logger

    found = environment()
    for target in targets:
        solver.loggers.append(open_logger(target))
    solver.log_event("environment", found)
    if histograms is not None:
        log_histograms(solver, histograms)


def _solve(solver: Solver, signals: Signals, *, show: bool) -> None:
    from demitasse.cli.progress import train_progress

    with signals, as_run_failures(), train_progress(solver) if show else nullcontext():
        solver.solve()


def _device(
    named: list[str], param: SolverParameter, file: Path, connected: Communicator | None
) -> Device:
    """Return the device of this process; the first process logs the devices of all."""
    from demitasse.core.device import SOLVER_FILE, Device, named_device
    from demitasse.core.log import get_logger
    from demitasse.errors import DeviceError

    several = connected is not None and connected.size > 1
    wanted = None
    if param.HasField("solver_mode"):
        gpu = param.solver_mode == type(param).GPU
        wanted = ("cuda" if several else f"cuda:{param.device_id}") if gpu else "cpu"
    found, where = named_device(local_gpu(named, connected), wanted)
    try:
        device = Device(local_gpu([str(found)], connected) or found)
    except DeviceError as error:
        if where == SOLVER_FILE:
            error.message += "; to train on another device, add e.g. --device cpu"
            error.at(f"solver_mode of {file}")
        raise
    log = get_logger(__name__)
    if connected is None or not several:
        log.info("Use %s (%s).", device, where)
        return device
    for rank, name in enumerate(connected.allgather_bytes(device.name.encode())):
        log.info("Process %d uses %s (%s).", rank, name.decode(), where)
    return device


@click.group()
def example_command() -> None:
    """Run an example without a download."""


@example_command.command(cls=Command)
@click.option(
    "--out",
    type=FOLDER,
    default="digits",
    show_default=True,
    help="Folder for data, prototxts and weights.",
)
@device_options
def digits(out: Path, device: str | None) -> None:
    """Train a small LeNet on 1,797 handwritten digits (needs scikit-learn)."""
    from demitasse.examples.digits import run

    run(out, device)
