"""Convolutions by cuDNN, on one GPU."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.cudnn_graphs import BIAS, IMAGE, MAPS, WEIGHT
from demitasse.backends.cupy.library.cudnn_library import cudnn
from demitasse.backends.cupy.library.cudnn_plans import Plans, Rules
from demitasse.backends.step import Declined
from demitasse.backends.storage import ARRAYS, array_dtype
from demitasse.core.config import settings
from demitasse.errors import DeviceError

__all__ = ["Cudnn", "Device"]


class Device(Protocol):
    """Queries of a GPU."""

    column_budget: int

    def stream(self) -> int:
        """Return the address of the stream that is current."""

    def address(self, array: Array) -> int: ...
    def empty(self, count: int, dtype: str) -> Array: ...
    def scratch(self, dtype: str, *counts: int) -> list[Array]: ...
    def elapsed(self, work: Callable[[], None]) -> float:
        """Return the milliseconds that the GPU takes for what ``work`` queues."""


class Handle:
    """A handle of cuDNN's, for one thread."""

    def __init__(self, frontend: ModuleType) -> None:
        self._frontend = frontend
        self._handle = frontend.create_handle()

    def on(self, stream: int) -> Any:
        """Return the frontend's handle, which works on a stream from now on."""
        self._frontend.set_stream(handle=self._handle, stream=stream)
        return self._handle

    def __del__(self) -> None:
        # at the end of the process CUDA may be gone already
        if hasattr(self, "_handle") and not sys.is_finalizing():
            self._frontend.destroy_handle(self._handle)


class _Local(threading.local):
    """The handle of each thread."""

    handle: Handle | None = None


class Cudnn:
    """cuDNN on one GPU, which must be the current one in every call.

    Every thread has a handle of its own, and every Step a graph: a graph's own memory is written
    while it is executed.

    Args:
        device: The GPU.
        number: Which of the GPUs that CUDA shows to this process.

    Raises:
        Declined: cuDNN or its frontend cannot be loaded, or does not know the GPU.
    """

    def __init__(self, device: Device, number: int) -> None:
        self._frontend, self._device, self._local = cudnn(), device, _Local()
        try:
            properties = self._frontend.create_device_properties(number)
        except RuntimeError as error:
            message = f"cuDNN does not take this GPU ({error})"
            raise Declined(message) from error
        self._plans = Plans(self._frontend, properties, self._time)

    def prepare(self, convolution: Convolution) -> Executable:
        """Return a convolution ready to run.

        Raises:
            Declined: cuDNN has no plan for it that keeps the settings.
        """
        rules = Rules(
            tf32=bool(settings.get("tf32")),
            deterministic=bool(settings.get("deterministic")),
            most_workspace=self._device.column_budget,
            timed=bool(settings.get("cudnn_autotune")),
            narrow=convolution.dtype in ARRAYS,
        )
        graph, choice = self._plans.graph(convolution, rules)
        self.handle()  # so that none is made while a CUDA graph is recorded
        return Executable(self, graph, choice.engine, int(graph.get_workspace_size()))

    def handle(self) -> Any:
        """Return the calling thread's handle, on the stream that is current."""
        mine = self._local.handle
        if mine is None:
            mine = self._local.handle = Handle(self._frontend)
        return mine.on(self._device.stream())

    def address(self, array: Array) -> int:
        """Return where an array begins in the GPU's memory."""
        return self._device.address(array)

    def _time(self, graph: Any, convolution: Convolution) -> float:
        """Return the milliseconds that a built graph takes, on memory of its own."""
        device, dtype = self._device, array_dtype(convolution.dtype)
        wide = "float32" if convolution.dtype in ARRAYS else dtype
        shapes = (convolution.image, convolution.weight, convolution.maps)
        image, weight, maps = (device.empty(math.prod(shape), dtype) for shape in shapes)
        bias = device.empty(convolution.geometry.maps, wide) if convolution.bias else None
        one = Executable(self, graph, 0, int(graph.get_workspace_size()))
        [workspace] = device.scratch("uint8", one.workspace)
        return device.elapsed(lambda: one.run(image, weight, maps, bias, workspace))


@dataclass(frozen=True)
class Executable:
    """A graph with a plan."""

    library: Cudnn
    graph: Any
    engine: int
    workspace: int

    @property
    def code(self) -> str:
        """Name and engine."""
        return f"cuDNN:{self.engine}"

    def run(
        self, image: Array, weight: Array, maps: Array, bias: Array | None, workspace: Array
    ) -> None:
        """Queue it on the stream that is current."""
        address = self.library.address
        tensors = {IMAGE: address(image), WEIGHT: address(weight), MAPS: address(maps)}
        if bias is not None:
            tensors[BIAS] = address(bias)
        try:
            self.graph.execute(tensors, address(workspace), handle=self.library.handle())
        except RuntimeError as error:
            message = f"cuDNN failed: {error}"
            raise DeviceError(message) from error
