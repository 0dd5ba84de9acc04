"""Copies from host to device that are in flight, and uploads of batches.

cupy returns pinned memory to its pool with the last array, even during a copy out of it. The next
owner would then overwrite the source of the copy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.backends.arrays import Array, Event
from demitasse.backends.pixels import ImageBatch

if TYPE_CHECKING:
    from demitasse.backends.cupy.library.engine import Engine


class InFlightCopies:
    """Arrays kept alive until queued copies are done, host arrays above all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Any, object]] = deque()

    def add(self, event: Any, arrays: object) -> None:
        """Keep ``arrays`` alive until ``event`` is done."""
        with self._lock:
            self._held.append((event, arrays))
        self.release_done()

    def release_done(self) -> None:
        """Release arrays whose copies are done, oldest first."""
        with self._lock:
            while self._held and self._held[0][0].done:
                self._held.popleft()

    def __len__(self) -> int:
        return len(self._held)


@dataclass
class _DeviceBuffer:
    """One-dimensional bytes and places of a batch on the GPU, and the event of the last read."""

    arrays: list[Array]
    used: Any = None


@dataclass(frozen=True)
class _Upload:
    """An uploaded batch, and the event after the copy."""

    unpack: Callable[[Array], None]
    there: Event

    def wait(self) -> None:
        self.there.synchronize()


class GpuUploader:
    """Uploads batches for one layer."""

    def __init__(self, cupy: Any, device: Any, engine: Engine) -> None:
        self._cupy, self._device, self._engine = cupy, device, engine
        self._stream = cupy.cuda.Stream(non_blocking=True)
        empty = cupy.empty
        self._buffers = [_DeviceBuffer([empty(0, "uint8"), empty(0, "int32")]) for _ in range(2)]
        self._mean: tuple[np.ndarray, Array] | None = None

    def send(self, pixels: ImageBatch) -> _Upload:
        self._buffers.reverse()
        buffer, stream = self._buffers[0], self._stream
        hosts = pixels.bytes.reshape(-1), pixels.places.reshape(-1)
        with self._device:
            cuda = self._cupy.cuda
            for index, host in enumerate(hosts):
                if buffer.arrays[index].size < host.size:
                    buffer.arrays[index] = self._cupy.empty(host.size, host.dtype)
                    # after earlier uses of the memory on the current stream
                    buffer.used = cuda.get_current_stream().record()
            stream.wait_event(buffer.used)
            for array, host in zip(buffer.arrays, hosts, strict=True):
                array[: host.size].set(host, stream=stream)
            there = cuda.Event(disable_timing=True)
            there.record(stream)
        self._engine.in_flight.add(there, (hosts, *buffer.arrays))
        return _Upload(partial(self._unpack, buffer, pixels, there), there)

    def _unpack(
        self, buffer: _DeviceBuffer, pixels: ImageBatch, there: Event, target: Array
    ) -> None:
        """Queue the conversion of an uploaded batch to floats."""
        size, mean = pixels.bytes.size, (0, 0, 0) if pixels.mean is None else pixels.mean.shape
        numbers = (*pixels.shape[1:], *mean, float(pixels.scale))
        with self._device:
            stream = self._cupy.cuda.get_current_stream()
            stream.wait_event(there)
            dtype = str(target.dtype)
            centred = self._engine.elementwise("input", "centred", dtype, size, *numbers)
            given: Array = target  # placeholder, which the kernel does not read
            if pixels.mean is not None:
                if self._mean is None or self._mean[0] is not pixels.mean:
                    self._mean = pixels.mean, self._engine.asarray(pixels.mean)
                given = self._mean[1]
            centred(*buffer.arrays, given, target)
            buffer.used = stream.record()
