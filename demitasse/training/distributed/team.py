"""Who trains a net: one process, or several whose gradients become one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import Literal, Protocol

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import Collective, DeviceCollective
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, ErrorCode, ParallelError
from demitasse.net import Net
from demitasse.training.distributed.alone import Single
from demitasse.training.distributed.communicator import Communicator, Value
from demitasse.training.distributed.flat import Flat, broadcast, carried_params
from demitasse.training.distributed.nccl import connected
from demitasse.training.distributed.overlap import Aside, OnGroup, Overlap
from demitasse.training.distributed.reduction import exact_mean, fast_mean, half_mean
from demitasse.training.distributed.shards import Shards
from demitasse.training.distributed.waiting import Waiting, note
from demitasse.training.distributed.where import OnDevice, OnHost, Where

__all__ = ["AllReduce", "Alone", "Crew", "Team", "first_request"]

AllReduce = Literal["deterministic", "fast", "fp16"]
"""How gradients are summed: "deterministic" with the same bits for any number of processes, "fast"
in the order of the library, "fp16" sent in half precision."""

FAILED = b"!"


class Team(Protocol):
    """What a training run asks of those who train it.

    Attributes:
        alone: Whether the run is one process with one shard.
        rank: The number of this process.
        size: How many processes there are.
        others: Nets of this process besides the run's own: those of its further shards.
        waiting: What processes have waited for each other, up to the iteration before this.
    """

    alone: bool
    rank: int
    size: int
    others: Sequence[Net]
    waiting: Waiting

    def passes(self, net: Net, batches: int) -> float:
        """Run batches forward and backward, so that the net has the gradients of all.

        Returns:
            The mean loss.
        """

    def agreed(self, request: str | None) -> str | None:
        """Return what any process is asked for, the same in all; "stop" before all else."""

    def share(self, value: Value, patience: float = 1.0) -> Value:
        """Return what the first process gives."""

    def gather(self, work: Callable[[], Value]) -> list[Value]:
        """Return what each process's work comes to, by rank: plain Python values and arrays."""

    def level(self) -> None:
        """Make all nets the same as the first process's, after weights have been loaded."""


class Alone:
    """One process with one shard."""

    alone = True
    rank, size = 0, 1
    others: Sequence[Net] = ()
    waiting = Waiting()

    def passes(self, net: Net, batches: int) -> float:
        return sum(net.forward_backward() for _ in range(batches)) / batches

    def agreed(self, request: str | None) -> str | None:
        return request

    def share(self, value: Value, patience: float = 1.0) -> Value:
        del patience
        return value

    def gather(self, work: Callable[[], Value]) -> list[Value]:
        return [work()]

    def level(self) -> None:
        """Do nothing: there is one net."""


class Crew:
    """Processes that train together, each with its shards.

    Each shard has a net of its own in the process that hosts it; those of one process hold the same
    weights. Gradients, running averages and losses are averaged over all shards of the run.

    Args:
        nets: The nets of this process's shards, in their order; the first is the run's own.
        communicator: The processes.
        shards: Who hosts what.
        allreduce: How gradients are added; None is "fast" between GPUs that NCCL connects, else
            "deterministic".
        overlap: Whether gradients are exchanged while backward computes others.

    Raises:
        ConfigError: There is no such way here.
    """

    alone = False

    def __init__(
        self, nets: Sequence[Net], communicator: Communicator, shards: Shards,
        allreduce: AllReduce | None = None, *, overlap: bool = False,
    ) -> None:  # fmt: skip
        self._nets = list(nets)
        self.others: Sequence[Net] = self._nets[1:]
        self._communicator, self._shards = communicator, shards
        self.rank, self.size = communicator.rank, communicator.size
        group = None if allreduce == "fp16" else _group(communicator, nets[0])
        self._arrays, self._where = _exchange(
            communicator, nets[0], group, narrow=allreduce == "fp16"
        )
        self._mean = self._mean_by(allreduce)
        self._narrow = allreduce == "fp16"
        self._mean_behind = self._mean_by("deterministic") if self._narrow else self._mean
        for other in self.others:
            _hold_weights_of(nets[0], other)
        self._flats = [Flat(net, self._where) for net in nets]
        self.waiting = Waiting()
        self._waited = self._added = 0.0
        self._overlap: Overlap | None = None
        if overlap and (self.size > 1 or isinstance(self._where, OnHost)):
            aside = _aside(communicator, nets[0], group, self._where)
            self._overlap = Overlap(nets[-1], self._flats, self._mean, aside=aside)
        self.level()

    def passes(self, net: Net, batches: int) -> float:
        losses = []
        with self._failing_together(self._overlap):
            if self._overlap is not None:
                self._overlap.begin()
            for one in self.others:
                one.clear_param_diffs()
            for one in self._nets:
                loss = sum(one.forward_backward() for _ in range(batches - 1))
                with self._beside(one):
                    loss += one.forward_backward()
                losses.append(loss / batches)
            ready = perf_counter()
            if self._overlap is not None:
                self._overlap.finish()
        added = perf_counter() - ready
        self.waiting = Waiting.read(self._agree(note(self._waited, self._added)))
        together = perf_counter()
        with Uninterrupted(), self._where.here():
            for flat, loss in zip(self._flats, losses, strict=True):
                if self._overlap is None:
                    flat.fill(loss)
                else:
                    flat.fill_rest(loss)
            self._add_up(gradients=self._overlap is None)
            first = self._flats[0]
            first.overwritten()
            for flat in self._flats:
                flat.take(first)
            loss = first.loss
        self._waited += together - ready - added
        self._added += perf_counter() - together + added
        return loss

    def _add_up(self, *, gradients: bool) -> None:
        """Replace running averages and losses by their means, with or without gradients.

        Only gradients travel in half precision. An average changes by less than that can say, and
        would stand still; and the loss tells whether a run is to stop.
        """
        end = len(self._nets[0].learnable_params)
        if gradients and self._narrow:
            self._mean([flat.part(0, end) for flat in self._flats])
            gradients = False
        begin = 0 if gradients else end
        self._mean_behind([flat.rest(begin) for flat in self._flats])

    def _mean_by(self, allreduce: AllReduce | None) -> Callable[[Sequence[Array]], None]:
        """Return what replaces the first array by the mean over all shards of the run."""
        if allreduce is None:
            allreduce = "deterministic" if isinstance(self._where, OnHost) else "fast"
        match allreduce:
            case "deterministic":
                return partial(exact_mean, self._arrays, self._shards, xp=self._where.xp)
            case "fp16":
                return partial(half_mean, self._arrays, self._shards)
        return partial(fast_mean, self._arrays, self._shards)

    def _beside(self, net: Net) -> AbstractContextManager[None]:
        """Exchange gradients beside a backward pass, where that is wanted and it is the last."""
        if self._overlap is None or net is not self._nets[-1]:
            return nullcontext()
        return self._overlap.beside()

    def agreed(self, request: str | None) -> str | None:
        return first_request(note.decode() for note in self._agree((request or "").encode()))

    def share(self, value: Value, patience: float = 1.0) -> Value:
        return self._communicator.share(value, patience)

    def gather(self, work: Callable[[], Value]) -> list[Value]:
        with self._failing_together():
            mine = np.frombuffer(pickle.dumps(work()), np.uint8)
        sizes = [int(told) for told in self._agree(str(mine.size).encode())]
        found = self._communicator.exchange([mine] * self.size, sizes)
        return [pickle.loads(one.tobytes()) for one in found]

    def level(self) -> None:
        first = self._nets[0]
        with first.lock, Uninterrupted(), self._where.here():
            broadcast(first, self._arrays, self._where)
            for other in self.others:
                pairs = zip(carried_params(first), carried_params(other), strict=True)
                for mine, theirs in pairs:
                    theirs.copy_from(mine)

    @contextmanager
    def _failing_together(self, overlap: Overlap | None = None) -> Iterator[None]:
        """Tell the others of an error, so that they do not wait in vain.

        Args:
            overlap: What the others exchange meanwhile; they hear of the error only behind it.
        """
        try:
            yield
        except BaseException as error:
            with suppress(ParallelError):
                if overlap is not None:
                    overlap.finish()
                self._agree(FAILED + f"{type(error).__name__}: {error}".encode()[:200])
            raise

    def _agree(self, note: bytes) -> list[bytes]:
        """Hear of everybody else; where one has failed, end here, too.

        Raises:
            ParallelError: Another process has failed.
        """
        notes = self._communicator.agree(note)
        if note.startswith(FAILED):
            return notes
        for rank, other in enumerate(notes):
            if other.startswith(FAILED):
                text = other[len(FAILED) :].decode(errors="replace")
                message = f"process {rank} failed: {text}"
                raise ParallelError(message, code=ErrorCode.FAILED, rank=rank)
        return notes


def _aside(
    communicator: Communicator, net: Net, group: DeviceCollective | None, where: Where
) -> Aside:
    """Return where gradients are exchanged beside a pass.

    Raises:
        ConfigError: That is not possible.
    """
    if group is not None:
        return OnGroup(group, where)
    why = ""
    if net.device.backend.queues:
        why = f"{net.device} queues a pass as a whole, and gradients travel by the host's memory"
    elif not communicator.in_threads:
        why = f"{communicator.name} may not be called by several threads"
    if why:
        message = f"gradients cannot be exchanged beside the backward pass: {why}"
        raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="overlap")
    return Aside()


def _group(communicator: Communicator, net: Net) -> DeviceCollective | None:
    """Return what connects the processes' devices; None where nothing does, or there is one."""
    return connected(communicator, net.device) if communicator.size > 1 else None


def _exchange(
    communicator: Communicator, net: Net, group: DeviceCollective | None, *, narrow: bool
) -> tuple[Collective, Where]:
    """Return what exchanges a net's gradients with other processes, and where it wants them."""
    if group is not None:
        return group, OnDevice(net.device)
    if narrow or communicator.size > 1:
        return communicator, OnHost()
    on_device = net.device.backend.connector is not None
    return Single(), OnDevice(net.device) if on_device else OnHost()


def first_request(asked: Iterable[str | None]) -> str | None:
    """Return what is to be done of all that processes are asked for: "stop" before all else."""
    return max((one for one in asked if one), key="stop".__eq__, default=None)


def _hold_weights_of(net: Net, other: Net) -> None:
    """Let a net hold the weights of another, but running averages of its own."""
    own = {id(blob.data_memory) for blob in carried_params(net)}
    pairs = zip(net.structure.params_list, other.structure.params_list, strict=True)
    for source, blob in pairs:
        if id(source.data_memory) not in own:
            blob.share_data(source)
