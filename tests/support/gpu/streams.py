"""Streams, events and devices under cupy's names."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from gpu import machine
from gpu.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED,
    CAPTURED_EVENT,
    INVALID_HANDLE,
    CUDARuntimeError,
)
from gpu.graphs import Capture, Graph


class Device:
    """As ``cupy.cuda.Device``."""

    def __init__(self, device: Any = None) -> None:
        self.id = machine.current().number if device is None else int(device)
        self._before: list[int] = []

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        _local.devices.append(machine.current().number)
        machine.make_current(self.id)
        return self

    def __exit__(self, *args: object) -> None:
        machine.make_current(_local.devices.pop())

    def use(self) -> None:
        machine.make_current(self.id)

    def synchronize(self) -> None:
        with self:
            machine.current().synchronize()

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        gpu = machine.gpus[self.id]
        return gpu.total - gpu.allocated, gpu.total

    @property
    def compute_capability(self) -> str:
        return "90"

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": 132}


class Event:
    """As ``cupy.cuda.Event``."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self.ptr = id(self)
        _events[self.ptr] = self
        self._gpu = machine.current()
        self._queue: machine.Queue | None = None
        self._number = self._asked = 0
        self.capture: Capture | None = None

    @property
    def done(self) -> bool:
        """Whether the work before it is done: by the second time of asking it is."""
        self._not_captured()
        if self._queue is None or self._queue.finished >= self._number:
            return True
        self._asked += 1
        if self._asked > 1:
            self._queue.run(self._number)
        return self._queue.finished >= self._number

    def record(self, stream: _BaseStream | None = None) -> None:
        queue = (get_current_stream() if stream is None else stream).queue
        if queue.gpu is not self._gpu:
            raise CUDARuntimeError(INVALID_HANDLE)
        self._queue, self._asked = queue, 0
        self.capture = queue.capture
        # of the legacy stream, an event comes after what the stream itself waits for
        if queue.kind == "legacy":
            queue.add(lambda: None)
        self._number = queue.issued

    def synchronize(self) -> None:
        self._not_captured()
        if self._queue is not None:
            self._queue.run(self._number)
        machine.raise_faults()

    def delay(self, queue: machine.Queue) -> None:
        """Make a stream's later work wait for it."""
        if self._queue is None:
            return
        if self.capture is not None:
            self.capture.join(queue, self._queue)
        elif queue.capture is not None:
            queue.capture.spoil()
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)  # dependence on work that is not captured
        else:
            queue.add(lambda: None, [(self._queue, self._number)])

    def _not_captured(self) -> None:
        if self.capture is not None and self.capture.open:
            self.capture.spoil()
            raise CUDARuntimeError(CAPTURED_EVENT)


_events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()


def eventQuery(event: int) -> int:  # noqa: N802 - CUDA's name
    """As cupy's, which raises nothing: a code of CUDA's."""
    try:
        machine.raise_faults()
    except CUDARuntimeError as error:
        return error.status
    return 0 if _events[event].done else 600


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """As cupy's; no time passes on the stand-in."""
    return 0.001


class _BaseStream:
    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr, self.device_id = ptr, device_id

    @property
    def queue(self) -> machine.Queue:
        return machine.queue_at(self.ptr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __enter__(self) -> _BaseStream:
        number = self._check()
        _local.stacks.append((number, _local.streams.get(number)))
        _local.streams[number] = self
        return self

    def __exit__(self, *args: object) -> None:
        number, before = _local.stacks.pop()
        _local.streams[number] = before

    def use(self) -> _BaseStream:
        _local.streams[self._check()] = self
        return self

    def _check(self) -> int:
        here = machine.current().number
        if self.device_id not in (-1, here):
            message = (
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({here})"
            )
            raise RuntimeError(message)
        return here

    @property
    def done(self) -> bool:
        queue = self.queue
        if queue.capture is not None:
            queue.capture.spoil()
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
        return queue.finished >= queue.issued

    def synchronize(self) -> None:
        self.queue.synchronize()

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        self.queue.add(lambda: callback(arg))

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.delay(self.queue)

    @property
    def is_non_blocking(self) -> bool:
        return self.queue.kind == "non-blocking"

    # -- capture -------------------------------------------------------------------------------

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self.queue.capture is not None:
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
        self.queue.capture = Capture(self.queue)

    def end_capture(self) -> Graph:
        capture = self.queue.capture
        if capture is None:
            raise CUDARuntimeError(CAPTURE_UNMATCHED)
        return capture.end(self.queue)

    def is_capturing(self) -> bool:
        capture = self.queue.capture
        if capture is not None and capture.spoiled:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        return capture is not None


class Stream(_BaseStream):
    """As ``cupy.cuda.Stream``."""

    null: Stream

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if ptds:
            raise NotImplementedError("the stand-in has no per-thread default stream")
        if null:
            super().__init__(0, -1)
            return
        gpu = machine.current()
        queue = machine.new_queue(gpu, "non-blocking" if non_blocking else "blocking")
        super().__init__(queue.address, gpu.number)

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        stream = cls.__new__(cls)
        _, address = obj.__cuda_stream__()
        _BaseStream.__init__(stream, address, -1)
        return stream


class ExternalStream(_BaseStream):
    """As ``cupy.cuda.ExternalStream``."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)


class _Local(threading.local):
    def __init__(self) -> None:
        self.devices: list[int] = []
        self.streams: dict[int, _BaseStream | None] = {}
        self.stacks: list[tuple[int, _BaseStream | None]] = []


_local = _Local()


def get_current_stream(device_id: int = -1) -> _BaseStream:
    """As cupy's."""
    number = machine.current().number if device_id == -1 else device_id
    return _local.streams.get(number) or Stream.null
