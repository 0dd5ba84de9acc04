"""Gradients that are averaged while the backward pass computes those of earlier layers.

A net's gradients lie in one array in the order of its layers, and backward completes them from the
end. Once some megabytes are complete, a thread exchanges them with other processes. A GPU has only
queued these gradients by then: their exchange is queued after them, on a side stream.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import DeviceCollective
from demitasse.net import Net
from demitasse.training.distributed.gradient_buffer import GradientBuffer, ReductionMemory

BUCKET_BYTES = 8 << 20  # bytes of gradients that are exchanged at a time, at least

Mean = Callable[[Sequence[Array]], None]
"""Replaces the first of this process's arrays by the mean over all shards."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together."""

    params: range  # indices of the net's learnable parameters
    part: slice  # place of their gradients in the array
    layer: int  # its backward completes the bucket


def buckets(net: Net, least: int | None = None) -> list[Bucket]:
    """Return a net's gradients in the order in which backward completes them.

    A bucket has ``least`` bytes or more, by default ``BUCKET_BYTES``; the last may have fewer. A
    parameter that layers share is complete with the first of the layers.
    """
    least = BUCKET_BYTES if least is None else least
    first_user: dict[int, int] = {}
    for index, layer in reversed(list(enumerate(net.layers))):
        first_user |= {blob.diff_memory.serial: index for blob in layer.blobs}
    params = net.learnable_params
    result: list[Bucket] = []
    stop, end, size = len(params), sum(blob.count for blob in params), 0
    itemsize = np.dtype(net.dtype).itemsize
    for number in reversed(range(len(params))):
        size += params[number].count
        if size * itemsize < least and number:
            continue
        indices = range(number, stop)
        layer_index = min(first_user[params[i].diff_memory.serial] for i in indices)
        result.append(Bucket(indices, slice(end - size, end), layer_index))
        stop, end, size = number, end - size, 0
    return result


class GradientOverlap:
    """Exchanges gradients during the last backward pass of an iteration, that of ``net``.

    ``mean`` averages one bucket after the other, in one thread. The devices of ``group`` exchange
    on side streams; None exchanges in host memory.
    """

    def __init__(
        self,
        net: Net,
        buffers: Sequence[GradientBuffer],
        mean: Mean,
        group: DeviceCollective | None = None,
    ) -> None:
        self._net, self._buffers, self._mean, self._group = net, buffers, mean, group
        self._memory = ReductionMemory(None if group is None else net.device)
        self._buckets = buckets(net)
        self._thread = ThreadPoolExecutor(1, "gradients")
        self._started: list[Future[None]] = []
        self._failed = self._unfinished = False

    def begin(self) -> None:
        """Begin an iteration, before any gradient is computed.

        If the iteration before was interrupted, wait until the thread has done its work: the thread
        changes gradients.
        """
        self._net.plan.completed = None
        if self._unfinished:
            self._thread.submit(lambda: None).result()
        self._started, self._failed, self._unfinished = [], False, True

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Exchange the gradients that the backward pass in the block completes."""
        plan = self._net.plan
        try:
            plan.completed = self._layer_completed
            yield
        finally:
            plan.completed = None

    def finish(self) -> None:
        """Exchange all gradients that are left, and wait for the means.

        Call this after a pass that failed, too: the other processes cannot continue before. After a
        failure nothing is exchanged until the next iteration begins.

        Raises:
            ParallelError: Another process is lost or late.
        """
        self._net.plan.completed = None  # Ctrl-C may have interrupted ``during_backward``
        if self._failed:
            return
        self._failed = True
        with self._memory.device_scope():
            for bucket in self._buckets[len(self._started) :]:
                self._start(bucket)
        for future in self._started:
            future.result()
        self._started, self._failed, self._unfinished = [], False, False

    def _layer_completed(self, layer: int) -> None:
        """Start the exchange of buckets that are complete after a layer's backward."""
        for bucket in self._buckets[len(self._started) :]:
            if bucket.layer < layer:
                break
            self._start(bucket)

    def _start(self, bucket: Bucket) -> None:
        for buffer in self._buffers:
            buffer.fill_gradients(bucket.params)
        parts = [buffer.array[bucket.part] for buffer in self._buffers]
        # The side stream begins after all work that the pass has queued by now.
        stream = None if self._group is None else self._group.side_stream()
        self._started.append(self._thread.submit(self._run, parts, stream))

    def _run(self, parts: Sequence[Array], stream: AbstractContextManager[None] | None) -> None:
        if self._group is None or stream is None:
            self._mean(parts)
            return
        with self._memory.device_scope(), stream:
            self._mean(parts)
            self._group.synchronize()
