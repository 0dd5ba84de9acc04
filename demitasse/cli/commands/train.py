"""train and example: train a net, by one or several processes.

Source: Caffe, ``tools/caffe.cpp`` (``train``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from demitasse.cli import options
from demitasse.cli.command import Command, given_flags
from demitasse.cli.errors import (
    FAILED,
    INTERRUPTED,
    as_run_failures,
    fail,
    handle_errors,
    wrong_usage,
)
from demitasse.cli.options import FILE, POSITIVE, local_gpu, option, option_group, switch
from demitasse.cli.signals import Effect, Signals

if TYPE_CHECKING:
    from demitasse.core.device import Device
    from demitasse.io.proto import SolverParameter
    from demitasse.training import Solver
    from demitasse.training.distributed import Communicator
    from demitasse.training.distributed.fault_tolerance import FaultTolerantRun

AllReduce = Literal["deterministic", "fast", "fp16"]

Outcome = tuple[bool, list[Path]]
"""True for a run that was stopped, and the written states."""

Train = Callable[["Communicator | None", "FaultTolerantRun | None"], Outcome]
"""Function of the communicator, None for a single process, and of the fault-tolerant run."""

FIRST_WORD = 3.0
"""Seconds in which a failed process can abort all others, before the others abort."""


class Workers(NamedTuple):
    """Flags of training by several processes."""

    shards: int | None
    expected: int | None
    allreduce: AllReduce | None
    overlap: bool
    timeout: float
    fault_tolerant: bool


workers_options = option_group(
    "workers",
    Workers,
    option(
        "--shards",
        "Split the data into S shards, each with the net's batch size, shared out among the "
        "processes that mpirun starts; by default one shard for each process. The same number of "
        "shards gives the same bits for any number of processes.",
        POSITIVE, metavar="S",
    ),
    option(
        "--expect-processes expected", "Refuse to train unless exactly N processes are connected.",
        POSITIVE, old="--ranks", metavar="N",
    ),
    option(
        "--allreduce",
        "How gradients are summed over processes: deterministic (the same bits for any number "
        "of processes), fast (the order that MPI or NCCL chooses) or fp16 (sent in half "
        "precision). By default fast between GPUs that NCCL connects, else deterministic.",
        ["deterministic", "fast", "fp16"], old="--reduce",
        old_values={"exact": "deterministic", "half": "fp16"},
    ),
    switch(
        "--overlap",
        "Exchange gradients while backward computes those of earlier layers. Faster between "
        "machines with a free core, and perhaps between GPUs that NCCL connects. The bits of "
        "--allreduce deterministic stay the same.",
    ),
    option(
        "--timeout",
        "How long a process waits for the others before the run ends: at the start, in an "
        "iteration and at the end.",
        options.FloatRange(min=1), 300.0, old="--deadline", metavar="SECONDS",
    ),
    switch(
        "--fault-tolerant",
        "Continue when a process dies: the others take over its shards, with the same bits. "
        "Needs mpirun --with-ft ulfm (Open MPI 5), and gradients that do not travel by NCCL.",
        old="--survive",
    ),
)  # fmt: skip
"""Adds the flags of training by several processes; the command gets ``workers``."""


def train_together(workers: Workers, gpus: int, train: Train) -> Outcome:
    """Train in the processes of mpirun, in one thread for each GPU, or in one process.

    ``gpus`` is the number of GPUs of this process, if mpirun did not start it.
    """
    from demitasse.errors import ConfigError, ErrorCode
    from demitasse.training.distributed.fault_tolerance import FaultTolerantRun
    from demitasse.training.distributed.mpi import Mpi, launched_by_mpi, launched_processes
    from demitasse.training.distributed.threads import run_in_threads

    if launched_by_mpi():
        connected = Mpi(workers.timeout, fault_tolerant=workers.fault_tolerant)
        logger = logging.getLogger("demitasse")
        level = logger.level
        _check_ranks(workers.expected, connected.size)
        with _one_thread(workers.shards or connected.size), _abort_together(connected):
            if workers.fault_tolerant:
                tolerant_run = FaultTolerantRun(connected)

                def continue_training() -> Outcome:
                    # after a loss, another process can be the first, which logs
                    logger.setLevel(level if connected.rank == 0 else logging.WARNING)
                    return train(connected, tolerant_run)

                return tolerant_run.run(continue_training)
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
        code, flag = ErrorCode.CONFLICT, "--expect-processes"
        raise ConfigError(message, code=code, flag=flag, got=launched_processes())
    _check_ranks(workers.expected, gpus)
    with _one_thread(workers.shards or gpus):
        if gpus == 1:
            return train(None, None)
        with _first_thread_logs():
            return run_in_threads(gpus, lambda member: train(member, None), workers.timeout)[0]


def _check_ranks(wanted: int | None, size: int) -> None:
    from demitasse.errors import ConfigError, ErrorCode

    if wanted not in {None, size}:
        message = (
            f"got {size} connected processes, expected --expect-processes {wanted}; start them "
            f"with mpirun -n {wanted}, or with srun --mpi=pmix"
        )
        code, flag = ErrorCode.COUNT_MISMATCH, "--expect-processes"
        raise ConfigError(message, code=code, flag=flag, got=size, expected=wanted)


@contextmanager
def _first_thread_logs() -> Iterator[None]:
    """Log only warnings from all training threads but the first."""

    def wanted(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or not (record.threadName or "").startswith("rank")

    with ExitStack() as stack:
        for handler in logging.getLogger("demitasse").handlers:
            handler.addFilter(wanted)
            stack.callback(handler.removeFilter, wanted)
        yield


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
@option("--solver file", "The solver's prototxt.", FILE, required=True)
@option("--snapshot", "Resume from this solver state.", FILE)
@option(
    "--resume",
    "Resume from the newest complete snapshot of the solver's snapshot_prefix; without one, "
    "start a new run.",
    ["auto"], is_flag=False, flag_value="auto",
)  # fmt: skip
@switch(
    "--force", "Resume from a --snapshot of another run, with other weights, layers or solver type."
)
@switch("--exact", "Refuse a --snapshot if the numbers would differ from those of its own run.")
@options.weights_option("Initial weights, loaded by layer name, one file after the other.")
@option(
    "--sigint_effect", "Effect of Ctrl-C; stop finishes the iteration and writes a snapshot.",
    EFFECTS, "stop",
)  # fmt: skip
@option("--sighup_effect", "Effect of a hang-up (SIGHUP).", EFFECTS, "snapshot")
@option(
    "--sigterm_effect", "Effect of SIGTERM, which job schedulers send before they kill.", EFFECTS,
    "stop",
)  # fmt: skip
@option(
    "--on_nonfinite", "Warn or stop when the loss is NaN or infinite.", ["warn", "raise"], "warn",
    old_values={"stop": "raise"},
)  # fmt: skip
@options.mismatch_option
@option(
    "--dtype",
    "Element type of the nets. On a GPU, bfloat16 and float16 store values in 16 bits, and weights "
    "in float32; neither has run on a GPU yet.",
    ["float32", "float64", "bfloat16", "float16"], "float32",
)  # fmt: skip
@option(
    "--keep_last",
    "Keep the last N snapshots of this run and delete older ones. [default: keep all]", POSITIVE,
    metavar="N",
)  # fmt: skip
@option(
    "--keep_best",
    "Write the weights to ..._best.caffemodel when a test improves this output, e.g. "
    "accuracy; give name:max or name:min for outputs other than accuracies and losses.",
    metavar="OUTPUT",
)
@option(
    "--early_stopping", "End the run when this output of the tests stops improving.",
    metavar="OUTPUT",
)  # fmt: skip
@option("--patience", "Number of tests without improvement that end the run.", POSITIVE, 5)
@option(
    "--min_delta", "Least improvement that counts, for --early_stopping. [default: 0]",
    options.FLOAT, default=0.0,
)  # fmt: skip
@option(
    "--logger loggers",
    "Also send the numbers of the run to jsonl:PATH, tensorboard:DIR, wandb:PROJECT or "
    "mlflow:EXPERIMENT; may be given several times. `demitasse report` draws the first kind.",
    old="--log_to", multiple=True, metavar="KIND:PLACE", shell_complete=options.complete_loggers,
)  # fmt: skip
@option(
    "--histograms", "Log histograms of weights and gradients to --logger, every N iterations.",
    POSITIVE, metavar="N",
)  # fmt: skip
@option_group("state", dict, *options.STATE_FLAGS)
@options.training_device_options
@workers_options
@click.pass_context
def train_command(
    ctx: click.Context, /, file: Path, snapshot: Path | None, resume: str | None, force: bool,
    exact: bool, weights: list[str], sigint_effect: Effect, sighup_effect: Effect,
    sigterm_effect: Effect, early_stopping: str | None, patience: int, min_delta: float,
    loggers: tuple[str, ...], histograms: int | None, state: dict[str, Any], devices: list[str],
    workers: Workers, **settings: Any,
) -> None:  # fmt: skip
    """Train a net, or resume its training.

    Several GPUs train one net: --gpu 0,1. Under mpirun, all processes train one net; on GPU
    devices, each process uses one local GPU: mpirun -n 4 demitasse train --solver S.

    Exits with 130 after an interrupt; the snapshot is kept. The device is --device or --gpu, else
    that of the settings, else the solver's solver_mode and device_id.
    """
    if snapshot is not None and weights:
        fail("got --snapshot and --weights, expected one of them")
    if snapshot is not None and resume is not None:
        fail("got --snapshot and --resume, expected one of them")
    if (force or exact) and snapshot is None and resume is None:
        fail("--force and --exact need --snapshot or --resume")
    if force and exact:
        fail("got --force and --exact, expected one of them")
    if histograms is not None and not loggers:
        fail("--histograms needs --logger")
    if early_stopping and min_delta < 0:
        fail(f"got --min_delta {min_delta:g}, expected at least 0")
    from demitasse.cli.progress import train_progress
    from demitasse.core.log import get_logger
    from demitasse.io.proto import read_solver_params
    from demitasse.training import EarlyStopping, Solver
    from demitasse.training.checkpoint.retention import latest_snapshot
    from demitasse.training.solver_param import locate_fields
    from demitasse.training.tracking.logger import check_target

    with wrong_usage():
        for target in loggers:
            check_target(target)
    log = get_logger(__name__)
    early = EarlyStopping(early_stopping, patience, min_delta) if early_stopping else None

    def train(connected: Communicator | None, tolerant_run: FaultTolerantRun | None) -> Outcome:
        param = read_solver_params(file)
        chosen = _device(devices, param, file, connected)
        if state["level"] is not None:
            param.train_state.level = state["level"]
        param.train_state.stage.extend(state["stages"])
        if snapshot is not None or weights:
            param.weights[:] = weights
        begin = snapshot
        shards = workers.shards or (tolerant_run.initial_size if tolerant_run else None)
        written: list[Path] = []
        with (
            locate_fields(file),
            Solver(
                param, device=chosen, base_dir=file.parent, early_stopping=early,
                keep_blobs="outputs", num_shards=shards, communicator=connected,
                allreduce=workers.allreduce, overlap=workers.overlap, **settings,
            ) as solver,
        ):  # fmt: skip
            solver.on_snapshot.append(lambda weights, state: written.append(state))
            recovered = tolerant_run is not None and tolerant_run.state is not None
            if resume is not None and not recovered:
                begin = latest_snapshot(param.snapshot_prefix)
                begin = begin if connected is None else connected.broadcast_object(begin)
            if begin is not None and not recovered:
                log.info("Resuming from %s", begin)
                solver.restore(begin, force=force, exact=exact)
            first = connected is None or connected.rank == 0
            signals = Signals(solver.request, sigint_effect, sighup_effect, sigterm_effect)
            with tolerant_run.attach(solver) if tolerant_run else nullcontext():
                if first:
                    _log_to(solver, loggers, histograms)
                log.info("Starting Optimization")
                progress = train_progress(solver) if first else nullcontext()
                with signals, as_run_failures(), progress:
                    solver.solve()
            return solver.stopped, written

    stopped, written = train_together(workers, max(1, len(devices)), train)
    if stopped:
        if written:
            log.info("To resume: %s", _resume_command(ctx, file, written[-1]))
        ctx.exit(INTERRUPTED)


STARTING_FLAGS = ("file", "snapshot", "resume", "force", "weights")
"""Parameters of the start of a run, which a resumed run takes from its own command."""


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
@option("--out", "Folder for data, prototxts and weights.", options.FOLDER, "digits")
@options.device_options
def digits(out: Path, device: str | None) -> None:
    """Train a small LeNet on 1,797 handwritten digits (needs scikit-learn)."""
    from demitasse.examples.digits import run

    run(out, device)
