"""Training by several processes, as the command line has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from demitasse.cli.deprecated_flags import RenamedOption
from demitasse.cli.exits import FAILED, faults

if TYPE_CHECKING:
    from demitasse.training.distributed import Communicator
    from demitasse.training.distributed.mpi import Mpi
    from demitasse.training.surviving import Survivors

__all__ = ["Workers", "train_together", "workers_options"]

AllReduce = Literal["deterministic", "fast", "fp16"]

Function = Callable[..., Any]
Result = TypeVar("Result")

FIRST_WORD = 3.0
"""Seconds that a process which has failed has, to end all, before those do that hear of it."""


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


def workers_options(function: Function) -> Function:
    """Add the flags of training by several processes; the verb gets them as ``workers``."""

    @click.option(
        "--shards",
        type=click.IntRange(min=1),
        metavar="S",
        help="Split the data into S shards, each with the net's batch size, shared out among the "
        "processes that mpirun starts; by default one shard for each process. The same number of "
        "shards gives the same bits for any number of processes.",
    )
    @click.option(
        "--expect-processes",
        cls=RenamedOption,
        old="--ranks",
        type=click.IntRange(min=1),
        metavar="N",
        help="Refuse to train unless exactly N processes are connected.",
    )
    @click.option(
        "--allreduce",
        cls=RenamedOption,
        old="--reduce",
        old_values={"exact": "deterministic", "half": "fp16"},
        type=click.Choice(["deterministic", "fast", "fp16"]),
        help="How gradients are summed over processes: deterministic (the same bits for any number "
        "of processes), fast (the order that MPI or NCCL chooses) or fp16 (sent in half "
        "precision). By default fast between GPUs that NCCL connects, else deterministic.",
    )
    @click.option(
        "--overlap",
        is_flag=True,
        help="Exchange gradients while backward computes those of earlier layers. Faster between "
        "machines with a free core, and perhaps between GPUs that NCCL connects. The bits of "
        "--allreduce deterministic stay the same.",
    )
    @click.option(
        "--timeout",
        cls=RenamedOption,
        old="--deadline",
        type=click.FloatRange(min=1),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a process waits for the others before the run ends: at the start, in an "
        "iteration and at the end.",
    )
    @click.option(
        "--fault-tolerant",
        cls=RenamedOption,
        old="--survive",
        is_flag=True,
        help="Continue when a process dies: the others take over its shards, with the same bits. "
        "Needs mpirun --with-ft ulfm (Open MPI 5), and gradients that do not travel by NCCL.",
    )
    @wraps(function)
    def with_workers(
        *args: Any,
        shards: int | None,
        expect_processes: int | None,
        allreduce: AllReduce | None,
        overlap: bool,
        timeout: float,
        fault_tolerant: bool,
        **kwargs: Any,
    ) -> Any:
        workers = Workers(shards, expect_processes, allreduce, overlap, timeout, fault_tolerant)
        return function(*args, workers=workers, **kwargs)

    return with_workers


def train_together(
    workers: Workers,
    gpus: int,
    train: Callable[[Communicator | None, Survivors | None], Result],
) -> Result:
    """Train in the processes that a launcher started, or in one thread for each GPU, or alone.

    Args:
        workers: What the command line says of them.
        gpus: How many GPUs this process may use, where no launcher started it.
        train: What each does, with its communicator, None where there is nobody else; and with
            the survivors of the run, None where it ends with the first process that dies.

    Raises:
        ConfigError: There are others than were asked for.
    """
    from demitasse.errors import ConfigError, ErrorCode
    from demitasse.training.distributed.mpi import Mpi, launched, started
    from demitasse.training.distributed.threads import together

    if launched():
        connected = Mpi(workers.timeout, fault_tolerant=workers.fault_tolerant)
        level = logging.getLogger("demitasse").level
        _check_ranks(workers.expected, connected.size)
        with _one_thread(workers.shards or connected.size), _one_of_all(connected):
            if workers.fault_tolerant:
                return _surviving(connected, train, level)
            result = train(connected, None)
            connected.agree(b"")  # who does not come to the end is named
            return result
    if workers.fault_tolerant:
        message = "--fault-tolerant is for processes: start them with mpirun --with-ft ulfm"
        raise ConfigError(message, code=ErrorCode.INVALID, flag="--fault-tolerant")
    if workers.expected is None and started() > 1:
        message = (
            f"srun started {started()} processes that cannot find each other, so each would train "
            "by itself and write the same files; use mpirun, or srun --mpi=pmix. Where they are to "
            "be runs of their own, give --expect-processes 1"
        )
        raise ConfigError(
            message, code=ErrorCode.CONFLICT, flag="--expect-processes", got=started()
        )
    _check_ranks(workers.expected, gpus)
    with _one_thread(workers.shards or gpus):
        if gpus == 1:
            return train(None, None)
        with _first_thread_logs():
            return together(gpus, lambda one: train(one, None), workers.timeout)[0]


def _surviving(
    connected: Mpi,
    train: Callable[[Communicator | None, Survivors | None], Result],
    level: int,
) -> Result:
    """Train by the processes that are left, until the run is done.

    Args:
        connected: The processes.
        train: What each does.
        level: Of the log of the first; another may become it.
    """
    from demitasse.training.surviving import Survivors

    survivors = Survivors(connected)

    def again() -> Result:
        logging.getLogger("demitasse").setLevel(level if connected.rank == 0 else logging.WARNING)
        return train(connected, survivors)

    return survivors.run(again)


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
    """Log nothing but warnings of threads that train along with the first."""

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
def _one_of_all(connected: Communicator) -> Iterator[None]:
    """When one process fails, end all. Only the first logs what is no warning."""
    from demitasse.errors import ParallelError

    if connected.rank:
        logging.getLogger("demitasse").setLevel(logging.WARNING)
    try:
        with faults():
            yield
    except (click.exceptions.Exit, click.exceptions.Abort):
        raise
    except click.ClickException as error:
        error.show()
        if isinstance(error.__cause__, ParallelError):
            time.sleep(FIRST_WORD)  # who has failed ends all, with the exit code that says why
        connected.abort(error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from error
    except BaseException:
        logging.getLogger("demitasse").exception("process %d failed", connected.rank)
        connected.abort(FAILED)
        raise


@contextmanager
def _one_thread(shards: int | None) -> Iterator[None]:
    """Compute with one thread, unless the settings say how many: bits depend on their number."""
    import os

    from demitasse.core.config import settings

    chosen = settings.get("threads") or os.environ.get("OMP_NUM_THREADS")
    with settings.override(**({} if chosen or not shards or shards == 1 else {"threads": 1})):
        yield
