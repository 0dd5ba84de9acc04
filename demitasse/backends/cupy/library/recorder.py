"""CUDA graphs: work queued on a stream is captured, and launched as one."""

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings
from demitasse.errors import DeviceError


@dataclass(frozen=True, eq=False)
class GraphRecording:
    """A CUDA graph, launched on the current stream.

    Attributes:
        input_updates: Copies of numbers of the host to the device before each launch.
        held: Other memory and handles that the graph uses.
        home: The stream that was current, on which the graph's memory is in order.
    """

    graph: Any
    input_updates: list[Callable[[], None]]
    pool: Any
    held: tuple[object, ...]
    current: Callable[[], Any]
    home: Any
    compiled: ClassVar = False

    @property
    def nbytes(self) -> int:
        return int(self.pool.total_bytes())

    def play(self) -> None:
        here = self.current()
        if here != self.home:
            here.wait_event(self.home.record())
        for update in self.input_updates:
            update()
        self.graph.launch()
        if here != self.home:
            self.home.wait_event(here.record())


class GraphRecorder:
    """Records on a stream of its own, since CUDA does not capture its default stream.

    Nothing runs on that stream, which one thread uses at a time, within ``capturing``. Work of
    other threads is on other streams, and is not recorded. Arrays that are allocated during a
    capture come from the recording's own memory pool, so that nothing else uses their memory while
    the graph exists.
    """

    computes: ClassVar = False

    def __init__(self, cupy: Any, engine: Engine, capturing: AbstractContextManager[Any]) -> None:
        self._cupy, self._engine, self._capturing = cupy, engine, capturing

    @cached_property
    def _stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def key(self) -> Hashable:
        # a graph uses scratch memory of its thread, whose own work must not come in between
        return threading.get_ident(), str(settings.get_often("tf32"))

    def record(self, work: Callable[[], object]) -> GraphRecording:
        cuda, engine, stream = self._cupy.cuda, self._engine, self._stream
        home = cuda.get_current_stream()
        pool, updates = cuda.MemoryPool(), list[Callable[[], None]]()
        try:
            with (
                self._capturing,
                engine.recording(home, updates),
                stream,
                cuda.using_allocator(pool.malloc),
            ):
                stream.begin_capture()
                try:
                    work()
                except BaseException:
                    with suppress(Exception):  # the capture's failure once more
                        stream.end_capture()
                    raise
                graph, held = stream.end_capture(), engine.held()
        except (RuntimeError, NotImplementedError, DeviceError) as error:
            message = f"CUDA does not record it ({type(error).__name__}: {error})"
            raise NotRecorded(message) from error
        return GraphRecording(graph, updates, pool, held, cuda.get_current_stream, home)
