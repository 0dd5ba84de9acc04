"""All gradients of a net in one array, on the host or on the device that computes them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.collective import Collective, DeviceCollective
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.memory import SyncedMemory
from demitasse.net import Net


class ReductionMemory:
    """The side of a net's memories, host (None) or device, on which gradients are averaged."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device
        self.xp: Any = np if device is None else device.backend.xp

    def device_scope(self) -> AbstractContextManager[None]:
        """Make the device current for work on its arrays."""
        return nullcontext() if self.device is None else self.device.backend.enter()

    def zeros(self, size: int, dtype: str) -> Array:
        """Return a new array. Shape: (size,)."""
        if self.device is None:
            return np.zeros(size, dtype)
        return self.device.backend.zeros(size, dtype)

    def bind(self, memory: SyncedMemory, array: Array) -> None:
        """Make an array this side of a memory, and the newest."""
        if self.device is None:
            memory.set_cpu_data(array)
        else:
            memory.set_gpu_data(array)

    def is_bound(self, memory: SyncedMemory, array: Array) -> bool:
        """Return whether an array still is this side of a memory."""
        if self.device is None:
            return bool(memory.cpu_data().ctypes.data == array.ctypes.data)
        return memory.gpu_data() is array

    def read(self, memory: SyncedMemory) -> Array:
        """Return this side of a memory, up to date. Shape: (memory.size,)."""
        return memory.cpu_data() if self.device is None else memory.gpu_data()

    def modify(self, memory: SyncedMemory, *, discard: bool = False) -> Array:
        """Return this side of a memory for writing, up to date unless ``discard``, as newest."""
        if self.device is None:
            return memory.mutable_cpu_data(discard=discard)
        return memory.mutable_gpu_data(discard=discard)

    def to_float(self, array: Array) -> float:
        """Return the only element of an array."""
        return float(array[0] if self.device is None else self.device.backend.to_host(array)[0])


def running_averages(net: Net) -> list[Blob]:
    """Return the parameters that forward passes change."""
    own = {id(blob) for blob in net.structure.params_list}
    return [blob for layer in net.layers for blob in layer.state_blobs() if id(blob) in own]


def broadcast_weights(net: Net, collective: Collective, memory: ReductionMemory) -> None:
    """Copy all parameters of the first member of a group to the others."""
    for blob_memory in dict.fromkeys(blob.data_memory for blob in net.structure.params_list):
        collective.broadcast(memory.modify(blob_memory))


class GradientBuffer:
    """One array of a net's gradients, followed by its running averages and its loss.

    The gradients of the net's parameters are views of the array, without copies.
    """

    def __init__(self, net: Net, memory: ReductionMemory) -> None:
        self._memory = memory
        self._params, self._averaged = net.learnable_params, running_averages(net)
        sizes = [blob.count for blob in (*self._params, *self._averaged)]
        self._bounds = list(accumulate(sizes, initial=0))
        with self._memory.device_scope():
            self.array = self._memory.zeros(sum(sizes) + 1, net.dtype)
            views = [self.array[a:b] for a, b in pairwise(self._bounds)]
            self._gradients, self._averages = views[: len(self._params)], views[len(self._params) :]
            for blob, view in zip(self._params, self._gradients, strict=True):
                self._memory.bind(blob.diff_memory, view)

    def fill(self, loss: float = 0.0) -> None:
        """Update the whole array after a net's passes."""
        self.fill_gradients(range(len(self._params)))
        self.fill_tail(loss)

    def fill_tail(self, loss: float) -> None:
        """Update running averages and loss."""
        for blob, view in zip(self._averaged, self._averages, strict=True):
            view[...] = self._memory.read(blob.data_memory)[: blob.count]
        self.array[-1] = loss

    def fill_gradients(self, params: Iterable[int]) -> None:
        """Update the gradients of some parameters."""
        for index in params:
            blob, view = self._params[index], self._gradients[index]
            gradient = self._memory.read(blob.diff_memory)
            if not self._memory.is_bound(blob.diff_memory, view):  # the caller set another array
                view[...] = gradient[: blob.count]
                self._memory.bind(blob.diff_memory, view)

    def part(self, first: int, end: int | None = None) -> Array:
        """Return the gradients of parameters ``first`` to ``end - 1``, or all to the end.

        Shape: (n,).
        """
        return self.array[self._bounds[first] : None if end is None else self._bounds[end]]

    def load_averages(self, source: GradientBuffer) -> None:
        """Copy the running averages of ``source`` to the net."""
        for blob, view in zip(self._averaged, source._averages, strict=True):
            self._memory.modify(blob.data_memory, discard=True)[: blob.count] = view

    @property
    def loss(self) -> float:
        """The loss, once the device has computed it."""
        return self._memory.to_float(self.array[-1:])

    def mark_updated(self, params: Iterable[int] | None = None) -> None:
        """Mark the gradients of some parameters, or all, as written in the array."""
        for index in range(len(self._params)) if params is None else params:
            self._memory.modify(self._params[index].diff_memory)


class GradientAverager:
    """Averages gradients over a group of GPUs, each with a net whose passes the caller runs.

    Running averages become the mean, too. All members call the same methods in the same order.
    """

    def __init__(self, net: Net, group: DeviceCollective) -> None:
        self._net, self._group = net, group
        self._memory = ReductionMemory(net.device)
        self._buffer = GradientBuffer(net, self._memory)
        self._count = len(net.learnable_params)
        positions = {id(blob): index for index, blob in enumerate(net.learnable_params)}
        self._of_layer = [  # learnable parameters that each layer owns, which are adjacent
            [positions[id(blob)] for blob in layer.blobs if id(blob) in positions]
            for layer in net.layers
        ]
        self._done: set[int] = set()

    def broadcast_weights(self) -> None:
        """Copy all parameters of the first member to the others."""
        with self._memory.device_scope():
            broadcast_weights(self._net, self._group, self._memory)

    def start_layer(self, layer: int) -> None:
        """Start to average the gradients of a layer's own parameters, during backward.

        Parameters that the layer shares with earlier layers follow with those layers.
        """
        params = self._of_layer[layer]
        if params:
            with self._memory.device_scope(), self._group.side_stream():
                self._buffer.fill_gradients(params)
                self._average(params[0], params[-1] + 1)
                self._buffer.mark_updated(params)
            self._done.update(params)

    def finish(self) -> None:
        """Average all gradients that are left, after backward."""
        with self._memory.device_scope():
            self._buffer.fill()
            first = self._count if self._done else 0
            for index in range(first):
                if index not in self._done:
                    self._average(index, index + 1)
            tail = self._buffer.part(first)
            self._group.allreduce(tail)
            tail /= self._group.size
            self._buffer.mark_updated()
            self._buffer.load_averages(self._buffer)
        self._done.clear()

    def _average(self, first: int, end: int) -> None:
        """Queue the mean of the gradients of some parameters."""
        part = self._buffer.part(first, end)
        self._group.start_allreduce(part)
        part /= self._group.size
