"""Training by several processes, as the command line has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from demitasse.cli.exits import FAILED, faults

if TYPE_CHECKING:
    from demitasse.parallel import Communicator

__all__ = ["Workers", "processes", "workers_options"]

Function = Callable[..., Any]

FIRST_WORD = 3.0
"""Seconds that a process which has failed has, to end all, before those do that hear of it."""


class Workers(NamedTuple):
    """What the command line says of processes.

    Attributes:
        shards: How many shards the run has; None for as many as there are processes.
        ranks: How many processes there must be; None for any number.
        reduce: How gradients are added.
        deadline: Seconds that one process waits for the others.
    """

    shards: int | None
    ranks: int | None
    reduce: Literal["exact", "fast"] | None
    deadline: float


def workers_options(function: Function) -> Function:
    """Add the flags of training by several processes; the verb gets them as ``workers``."""

    @click.option(
        "--shards",
        type=click.IntRange(min=1),
        metavar="S",
        help="Train on S shards of the data, each with the net's batch size, shared out among the "
        "processes that mpirun starts; by default as many as there are. The numbers of a run are "
        "the same bits for any number of processes.",
    )
    @click.option(
        "--ranks",
        type=click.IntRange(min=1),
        metavar="N",
        help="Refuse to train unless N processes have found each other.",
    )
    @click.option(
        "--reduce",
        type=click.Choice(["exact", "fast"]),
        help="How gradients of several processes are added: in one order whatever their number "
        "is, or as MPI or NCCL likes best; by default fast between GPUs that NCCL connects, else "
        "exact.",
    )
    @click.option(
        "--deadline",
        type=click.FloatRange(min=1),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="How long processes wait for each other in an iteration before the run ends.",
    )
    @wraps(function)
    def with_workers(
        *args: Any,
        shards: int | None,
        ranks: int | None,
        reduce: Literal["exact", "fast"] | None,
        deadline: float,
        **kwargs: Any,
    ) -> Any:
        workers = Workers(shards, ranks, reduce, deadline)
        return function(*args, workers=workers, **kwargs)

    return with_workers


@contextmanager
def processes(workers: Workers) -> Iterator[Communicator | None]:
    """Connect the processes that a launcher started; None where it started none.

    When one fails, all are ended. Only the first logs what is no warning.

    Raises:
        ConfigError: There are others than were asked for.
    """
    from demitasse.errors import ConfigError, ParallelError
    from demitasse.parallel.mpi import Mpi, launched

    connected = Mpi(workers.deadline) if launched() else None
    size = 1 if connected is None else connected.size
    if workers.ranks not in {None, size}:
        message = (
            f"--ranks asks for {workers.ranks} processes, and {size} found each other; start them "
            f"with mpirun -n {workers.ranks}, or with srun --mpi=pmix"
        )
        raise ConfigError(message)
    if connected is None:
        with _one_thread(workers.shards):
            yield None
        return
    if connected.rank:
        logging.getLogger("demitasse").setLevel(logging.WARNING)
    try:
        with _one_thread(workers.shards or size), faults():
            yield connected
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

    from demitasse.config import settings

    chosen = settings.get("threads") or os.environ.get("OMP_NUM_THREADS")
    with settings.override(**({} if chosen or not shards or shards == 1 else {"threads": 1})):
        yield
