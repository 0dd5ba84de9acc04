"""Groups of workers that train one net together, and the communicators between processes.

A run has S shards of the data. Each shard has a copy of the net in the process that hosts the
shard. :class:`DistributedGroup` runs the passes of these nets and averages gradients, running
averages and losses over all shards. :class:`SingleProcess` is the group of a run with one shard.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import Collective
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, ErrorCode, ParallelError
from demitasse.layers.checks import at_least
from demitasse.net import Net
from demitasse.training.distributed.allreduce import deterministic_mean, fast_mean, fp16_mean
from demitasse.training.distributed.gradient_buffer import (
    GradientBuffer,
    ReductionMemory,
    broadcast_weights,
    running_averages,
)
from demitasse.training.distributed.nccl import connect_devices
from demitasse.training.distributed.overlap import GradientOverlap

Value = TypeVar("Value")

AllReduce = Literal["deterministic", "fast", "fp16"]
"""Algorithms that sum gradients: "deterministic" with the same bits for any number of processes,
"fast" in the order of the library, "fp16" sent in half precision."""

OLD_ALLREDUCE: dict[str | None, AllReduce] = {"exact": "deterministic", "half": "fp16"}
"""Present value of each old value of ``allreduce``."""

UNSHARDED_DATA = {"DummyData", "HDF5Output", "Input", "MemoryData"}
"""Types of layers without shards: all would read the same data, or write to the same file."""

FAILED = b"!"


class Communicator(Collective, Protocol):
    """A group of processes, numbered from 0, which all call the same methods in the same order.

    Arrays are on the host. Every method may raise ParallelError: another process is lost or late.

    Attributes:
        in_threads: Whether other threads than the main thread may call methods, one at a time.
        local_rank: Number of this process among those of its machine.
        timeout: Seconds that a process waits for the others in an iteration.
    """

    in_threads: bool
    local_rank: int
    timeout: float

    def allgather_bytes(self, note: bytes) -> list[bytes]:
        """Return the notes, of at most 256 bytes, of all processes, by rank; a barrier."""

    def broadcast_object(self, value: Value, timeout_factor: float = 1.0) -> Value:
        """Return process 0's plain Python value or array; a factor multiplies ``timeout``."""

    def abort(self, code: int) -> None:
        """End all processes at once, this process included, if the library can."""


class LocalCommunicator:
    """Communicator of a process that trains alone."""

    rank, size, name = 0, 1, "one process"
    local_rank, timeout, in_threads = 0, math.inf, True

    def allgather_bytes(self, note: bytes) -> list[bytes]:
        return [note]

    def broadcast_object(self, value: Value, timeout_factor: float = 1.0) -> Value:
        del timeout_factor
        return value

    def broadcast(self, array: np.ndarray) -> None:
        del array

    def alltoall(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        del sizes
        return list(parts)

    def allgather(self, part: np.ndarray, whole: np.ndarray, bounds: Sequence[int]) -> None:
        del bounds
        whole[...] = part

    def allreduce(self, array: np.ndarray) -> None:
        del array

    def abort(self, code: int) -> None:
        del code


@dataclass(frozen=True)
class Shards:
    """The shards of a run, and the shards of one process.

    The number of shards stays the same for the whole life of a run. Shard r of S reads records r,
    r + S, ..., and has a gradient of its own; process p of n hosts shards p, p + n, ... The number
    of processes may change between runs, and no bit of the result depends on it. More processes
    than shards raise a ConfigError.
    """

    count: int = 1  # of the run
    rank: int = 0  # of this process
    size: int = 1  # number of processes

    def __post_init__(self) -> None:
        at_least(1, "shards", self.count)
        if self.count < self.size:
            message = (
                f"got {self.count} shards for {self.size} processes, expected at least one for "
                f"each; start at most {self.count} processes, or give --shards {self.size} or "
                "more to a new run"
            )
            details: Any = {"field": "shards", "got": self.count, "expected": self.size}
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, **details)

    def of(self, rank: int) -> range:
        """Return the shards of a process."""
        return range(rank, self.count, self.size)

    @property
    def summed_locally(self) -> bool:
        """True if each process may sum its own shards before it sends their gradient.

        It may if ``tree_sum`` does so, too: if each level of the tree down to one array for each
        process adds shards of the same process. Otherwise each shard's gradient travels by itself.
        """
        count = self.count
        while count > self.size:
            half = (count + 1) // 2
            if half % self.size:
                return False
            count = half
        return count == self.size


@dataclass(frozen=True)
class WaitTimes:
    """Seconds by rank that processes waited for others, or took to average gradients."""

    synchronizing: tuple[float, ...] = ()
    reducing: tuple[float, ...] = ()

    def since(self, before: WaitTimes) -> WaitTimes:
        """Return the time that was added to earlier totals."""
        if not before.synchronizing:
            return self
        waited = np.subtract(self.synchronizing, before.synchronizing)
        return WaitTimes(tuple(waited), tuple(np.subtract(self.reducing, before.reducing)))

    @property
    def slowest(self) -> int:
        """Rank of the process that waits least: all others wait for this process."""
        return min(range(len(self.synchronizing)), key=self.synchronizing.__getitem__)


class SingleProcess:
    """The group of one process with one shard."""

    is_single = True  # the run is one process with one shard
    rank, size = 0, 1  # of the processes
    wait_times = WaitTimes()  # of all processes, up to the iteration before this one

    def __init__(self, net: Net) -> None:
        self.nets: Sequence[Net] = [net]  # one for each shard of this process

    def forward_backward(self, batches: int) -> float:
        """Run batches of each shard forward and backward, and return the mean loss.

        Afterwards the first net has the gradients of all shards.
        """
        [net] = self.nets
        return sum([net.forward_backward() for _ in range(batches)]) / batches

    def forward(self) -> float:
        """Run a batch of each shard forward, and return the mean loss."""
        [net] = self.nets
        return net.forward()

    def agree_on_request(self, request: str | None) -> str | None:
        """Return the request of any process, the same in all; "stop" before all others."""
        return request

    def broadcast_object(self, value: Value, timeout_factor: float = 1.0) -> Value:
        """Return the value of process 0."""
        del timeout_factor
        return value

    def allgather(self, work: Callable[[], Value]) -> list[Value]:
        """Return the result of each process's work, by rank: plain Python values and arrays."""
        return [work()]

    def broadcast_weights(self) -> None:
        """Copy weights and running averages from process 0 to all nets."""


class DistributedGroup:
    """Processes that train together, each with its shards.

    The nets of one process share weights, and have running averages of their own. ``nets`` are in
    the order of this process's shards; the first is the net of the run. See ``Solver`` for
    ``allreduce`` and ``overlap``, which raises a ConfigError where gradients cannot overlap.
    """

    is_single = False

    def __init__(
        self, nets: Sequence[Net], communicator: Communicator, shards: Shards,
        allreduce: AllReduce | None = None, *, overlap: bool = False,
    ) -> None:  # fmt: skip
        self.nets = nets
        self._communicator, self._shards = communicator, shards
        self.rank, self.size = communicator.rank, communicator.size
        self._fp16 = allreduce == "fp16"
        devices = None
        if self.size > 1 and not self._fp16:
            devices = connect_devices(communicator, nets[0].device)
        device = nets[0].device
        self._memory = ReductionMemory()
        self._arrays: Collective = LocalCommunicator()
        if devices is not None:
            self._arrays, self._memory = devices, ReductionMemory(device)
        elif self._fp16 or self.size > 1:
            self._arrays = communicator
        elif device.backend.connector is not None:
            self._memory = ReductionMemory(device)
        self._mean = self._mean_function(allreduce)
        self._tail_mean = self._mean_function("deterministic") if self._fp16 else self._mean
        averages = {id(blob.data_memory) for blob in running_averages(nets[0])}
        for other in nets[1:]:
            pairs = zip(nets[0].structure.params_list, other.structure.params_list, strict=True)
            for source, blob in pairs:
                if id(source.data_memory) not in averages:
                    blob.share_data(source)
        self._buffers = [GradientBuffer(net, self._memory) for net in nets]
        self.wait_times = WaitTimes()
        self._synchronizing = self._reducing = 0.0
        self._overlap: GradientOverlap | None = None
        if overlap and (self.size > 1 or self._memory.device is None):
            if devices is None:
                self._check_overlap()
            self._overlap = GradientOverlap(nets[-1], self._buffers, self._mean, devices)
        self.broadcast_weights()

    def _mean_function(self, allreduce: AllReduce | None) -> Callable[[Sequence[Array]], None]:
        """Return the function that replaces the first array by the mean over all shards."""
        if allreduce is None:
            allreduce = "deterministic" if self._memory.device is None else "fast"
        if allreduce == "deterministic":
            return partial(deterministic_mean, self._arrays, self._shards, xp=self._memory.xp)
        return partial(fp16_mean if allreduce == "fp16" else fast_mean, self._arrays, self._shards)

    def _check_overlap(self) -> None:
        """Check that gradients can travel by host memory during a pass."""
        device = self.nets[0].device
        if device.backend.queues:
            reason = f"{device} queues a pass as a whole, and gradients travel by host memory"
        elif not self._communicator.in_threads:
            reason = f"{self._communicator.name} does not support calls from several threads"
        else:
            return
        message = f"gradients cannot be exchanged during the backward pass: {reason}"
        raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="overlap")

    def forward_backward(self, batches: int) -> float:
        losses = []
        with self._failing_together(self._overlap):
            if self._overlap is not None:
                self._overlap.begin()
            for other in self.nets[1:]:
                other.clear_param_diffs()
            for own in self.nets:
                loss = sum([own.forward_backward() for _ in range(batches - 1)])
                overlap = self._overlap if own is self.nets[-1] else None
                with nullcontext() if overlap is None else overlap.during_backward():
                    loss += own.forward_backward()
                losses.append(loss / batches)
            ready = perf_counter()
            if self._overlap is not None:
                self._overlap.finish()
        finished = perf_counter() - ready
        notes = self._allgather_notes(f"{self._synchronizing:.6f} {self._reducing:.6f}".encode())
        pairs = [map(float, note.split()) for note in notes]
        self.wait_times = WaitTimes(*zip(*pairs, strict=True))
        together = perf_counter()
        with Uninterrupted(), self._memory.device_scope():
            for buffer, loss in zip(self._buffers, losses, strict=True):
                if self._overlap is None:
                    buffer.fill(loss)
                else:
                    buffer.fill_tail(loss)
            loss = self._average(gradients=self._overlap is None)
            self._buffers[0].mark_updated()
        self._synchronizing += together - ready - finished
        self._reducing += perf_counter() - together + finished
        return loss

    def forward(self) -> float:
        with self._failing_together():
            losses = [own.forward() for own in self.nets]
        self._allgather_notes(b"")
        with Uninterrupted(), self._memory.device_scope():
            for buffer, loss in zip(self._buffers, losses, strict=True):
                buffer.fill_tail(loss)
            return self._average(gradients=False)

    def _average(self, *, gradients: bool) -> float:
        """Replace running averages by their means, and gradients if asked; return the mean loss.

        Only gradients travel in half precision. Its eleven bits are too few for the small changes
        of a running average, which would stand still. The loss decides whether a run stops.
        """
        begin = end = len(self.nets[0].learnable_params)
        if gradients and self._fp16:
            self._mean([buffer.part(0, end) for buffer in self._buffers])
        elif gradients:
            begin = 0
        self._tail_mean([buffer.part(begin) for buffer in self._buffers])
        for buffer in self._buffers:
            buffer.load_averages(self._buffers[0])
        return self._buffers[0].loss

    def agree_on_request(self, request: str | None) -> str | None:
        notes = self._allgather_notes((request or "").encode())
        return first_request(note.decode() for note in notes)

    def broadcast_object(self, value: Value, timeout_factor: float = 1.0) -> Value:
        return self._communicator.broadcast_object(value, timeout_factor)

    def allgather(self, work: Callable[[], Value]) -> list[Value]:
        with self._failing_together():
            mine = np.frombuffer(pickle.dumps(work()), np.uint8)
        sizes = [int(note) for note in self._allgather_notes(str(mine.size).encode())]
        results = self._communicator.alltoall([mine] * self.size, sizes)
        return [pickle.loads(result.tobytes()) for result in results]

    def broadcast_weights(self) -> None:
        first = self.nets[0]
        with first.lock, Uninterrupted(), self._memory.device_scope():
            broadcast_weights(first, self._arrays, self._memory)
            for other in self.nets[1:]:
                pairs = zip(running_averages(first), running_averages(other), strict=True)
                for source, target in pairs:
                    target.copy_from(source)

    @contextmanager
    def _failing_together(self, overlap: GradientOverlap | None = None) -> Iterator[None]:
        """Send an error of the block to the other processes, which raise ParallelError then.

        The exchanges of ``overlap`` finish before.
        """
        try:
            yield
        except BaseException as error:
            with suppress(ParallelError):
                if overlap is not None:
                    overlap.finish()
                self._allgather_notes(FAILED + f"{type(error).__name__}: {error}".encode()[:200])
            raise

    def _allgather_notes(self, note: bytes) -> list[bytes]:
        """Return the notes of all processes; raise a ParallelError if another one failed."""
        notes = self._communicator.allgather_bytes(note)
        if note.startswith(FAILED):
            return notes
        for rank, other in enumerate(notes):
            if other.startswith(FAILED):
                text = other[len(FAILED) :].decode(errors="replace")
                message = f"process {rank} failed: {text}"
                raise ParallelError(message, code=ErrorCode.FAILED, rank=rank)
        return notes


def check_settings(communicator: Communicator, own: Mapping[str, str]) -> None:
    """Raise a ParallelError, in all processes, unless their settings are equal."""
    first = communicator.broadcast_object(dict(own))
    different = ", ".join(name for name in {**first, **own} if first.get(name) != own.get(name))
    for rank, note in enumerate(communicator.allgather_bytes(different.encode()[:200])):
        if note:
            names = note.decode(errors="ignore")
            message = (
                f"process {rank} differs from process 0 in {names}; give all processes the same "
                "files and arguments"
            )
            raise ParallelError(message, code=ErrorCode.INCOMPATIBLE, rank=rank)


WorkerGroup = SingleProcess | DistributedGroup  # workers that train one net


def first_request(requests: Iterable[str | None]) -> str | None:
    """Return the request to follow first: "stop" before all others; None of none."""
    return max((request for request in requests if request), key="stop".__eq__, default=None)


def make_worker_group(
    net: Net,
    communicator: Communicator,
    shards: Shards,
    allreduce: AllReduce | None,
    *,
    overlap: bool,
) -> WorkerGroup:
    """Return the workers that train a net of this process's first shard; others get clones.

    An unknown ``allreduce``, or a layer that would read the same data in every shard, raises a
    ConfigError.
    """
    allreduce = OLD_ALLREDUCE.get(allreduce, allreduce)
    if allreduce is not None and allreduce not in get_args(AllReduce):
        known = ", ".join(get_args(AllReduce))
        message = f"got allreduce {allreduce!r}, expected one of {known}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="allreduce", got=allreduce)
    if shards.count == 1:
        return SingleProcess(net)
    for layer in net.layers:
        if layer.type in UNSHARDED_DATA:
            message = (
                f"layer {layer.name!r} ({layer.type}) has no shards: all {shards.count} would read "
                "the same data; use Data, ImageData, HDF5Data, or a Python layer that reads "
                "self.rank"
            )
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED, layer=layer.name)
    others = [net.clone(rank=shard) for shard in shards.of(shards.rank)[1:]]
    return DistributedGroup([net, *others], communicator, shards, allreduce, overlap=overlap)
