"""Gradients that are added up while the backward pass computes those of earlier layers.

A net's gradients lie in one array in the order of its layers, and backward completes them from the
end. As soon as it has completed some megabytes, a thread exchanges them with other processes. A GPU
has only queued them then: their exchange is queued behind them, on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import DeviceCollective
from demitasse.net import Net
from demitasse.training.distributed.flat import Flat
from demitasse.training.distributed.where import OnHost, Where

__all__ = ["Aside", "Bucket", "OnGroup", "Overlap", "buckets"]

BUCKET = 8 << 20
"""Bytes of gradients that are exchanged at a time, at least."""

Mean = Callable[[Sequence[Array]], None]
"""Replaces the first of this process's arrays by the mean over all shards."""


class Aside:
    """Where gradients are exchanged beside a pass: on the host, which computes what it is told."""

    where: Where = OnHost()

    def behind(self) -> AbstractContextManager[None]:
        """Return what surrounds an exchange of all that the pass has completed by now."""
        return nullcontext()


class OnGroup(Aside):
    """Between devices that queue their work: on streams of their own.

    Args:
        group: The devices.
        where: The memory of this one.
    """

    def __init__(self, group: DeviceCollective, where: Where) -> None:
        self._group, self.where = group, where

    def behind(self) -> AbstractContextManager[None]:
        return self._waited_for(self._group.aside())

    @contextmanager
    def _waited_for(self, aside: AbstractContextManager[None]) -> Iterator[None]:
        with self.where.here(), aside:
            yield
            self._group.finish()


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together.

    Attributes:
        params: Which of the net's learnable parameters.
        part: Where they lie.
        layer: The layer that backward completes them with.
    """

    params: range
    part: slice
    layer: int


def buckets(net: Net, least: int = BUCKET) -> list[Bucket]:
    """Return a net's gradients in the order in which backward completes them.

    Args:
        net: The net. A parameter that layers share is complete with the first of them.
        least: Bytes of a bucket, at least; the last may have fewer.
    """
    first_user: dict[int, int] = {}
    for index, layer in reversed(list(enumerate(net.layers))):
        first_user |= {blob.diff_memory.serial: index for blob in layer.blobs}
    params = net.learnable_params
    found: list[Bucket] = []
    stop, end, size = len(params), sum(blob.count for blob in params), 0
    itemsize = np.dtype(net.dtype).itemsize
    for number in reversed(range(len(params))):
        size += params[number].count
        if size * itemsize < least and number:
            continue
        some = range(number, stop)
        completes = min(first_user[params[i].diff_memory.serial] for i in some)
        found.append(Bucket(some, slice(end - size, end), completes))
        stop, end, size = number, end - size, 0
    return found


class Overlap:
    """Exchanges gradients beside the last backward pass of an iteration.

    Args:
        net: The net whose pass is the last.
        flats: Where the gradients of all nets of this process lie.
        mean: Adds up; called by one thread for one bucket after the other.
        least: Bytes of a bucket.
        aside: Where that is done.
    """

    def __init__(
        self, net: Net, flats: Sequence[Flat], mean: Mean, least: int = BUCKET,
        aside: Aside | None = None,
    ) -> None:  # fmt: skip
        self._net, self._flats, self._mean = net, flats, mean
        self._aside = Aside() if aside is None else aside
        self._buckets = buckets(net, least)
        self._thread = ThreadPoolExecutor(1, "gradients")
        self._begun: list[Future[None]] = []
        self._lost = self._unfinished = False

    def begin(self) -> None:
        """Begin an iteration, as if one that was cut short had never been.

        What that has left to the thread is waited for: it changes gradients. To be called before
        there are any.
        """
        self._net.plan.completed = None
        if self._unfinished:
            self._thread.submit(_nothing).result()
        self._begun, self._lost, self._unfinished = [], False, True

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Exchange what the backward pass within completes."""
        plan = self._net.plan
        try:
            plan.completed = self._completed
            yield
        finally:
            plan.completed = None

    def finish(self) -> None:
        """Exchange what is left, and wait until all is added up.

        To be called after a pass that failed, too: the others cannot go on before. Once it has
        failed nothing is done any more, until the next iteration begins.

        Raises:
            ParallelError: Another process is lost, or late.
        """
        self._net.plan.completed = None  # which Ctrl-C may have kept ``beside`` from
        if self._lost:
            return
        self._lost = True
        with self._aside.where.here():
            for bucket in self._buckets[len(self._begun) :]:
                self._begin(bucket)
        for one in self._begun:
            one.result()
        self._begun, self._lost, self._unfinished = [], False, False

    def _completed(self, layer: int) -> None:
        """Begin with what is complete once backward has come to a layer."""
        for bucket in self._buckets[len(self._begun) :]:
            if bucket.layer < layer:
                break
            self._begin(bucket)

    def _begin(self, bucket: Bucket) -> None:
        for flat in self._flats:
            flat.gather(bucket.params)
        parts = [flat.array[bucket.part] for flat in self._flats]
        self._begun.append(self._thread.submit(self._exchange, parts, self._aside.behind()))

    def _exchange(self, parts: Sequence[Array], aside: AbstractContextManager[None]) -> None:
        with aside:
            self._mean(parts)


def _nothing() -> None:
    """Take a turn in the thread, behind all that it was given before."""
