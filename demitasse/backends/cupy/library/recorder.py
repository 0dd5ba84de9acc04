"""CUDA graphs: what a stream is given is kept, and launched as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from demitasse.backends.cupy.library.gpu import GpuEngine
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings
from demitasse.errors import DeviceError

__all__ = ["GraphRecorder"]


@dataclass(frozen=True, eq=False)
class GraphRecording:
    """A graph, launched on whatever stream is current.

    Attributes:
        graph: ``cupy.cuda.Graph``.
        renewals: What brings numbers of the host to the device.
        pool: Memory of its own that the graph works with.
        held: Other memory and handles that it works with.
        current: Returns the stream that is current.
        home: The stream that was current when it was recorded, on which its memory is in order.
    """

    graph: Any
    renewals: list[Callable[[], None]]
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
        for renew in self.renewals:
            renew()
        self.graph.launch()
        if here != self.home:
            self.home.wait_event(here.record())


class GraphRecorder:
    """Records on a stream of its own, since CUDA does not record its default stream.

    Arrays that are made while work is recorded come from a pool of the recording's own: what is
    freed on the way is never given to others, and the graph may write to it for as long as it
    lives.

    Args:
        cupy: The library.
        engine: Whose work is recorded.
        side_streams: Filled during a capture: the stream that captures, by address, and the stream
            that it replaces.
        alone: Held while we record: other threads wait before they use the GPU.
    """

    def __init__(
        self,
        cupy: Any,
        engine: GpuEngine,
        side_streams: dict[int, Any],
        alone: AbstractContextManager[Any],
    ) -> None:
        self._cupy, self._engine = cupy, engine
        self._side_streams = side_streams
        self._alone = alone

    @cached_property
    def _stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def key(self) -> Hashable:
        tf32: bool = settings.get_often("tf32")
        return tf32

    def record(self, work: Callable[[], object]) -> GraphRecording:
        cuda, engine, stream = self._cupy.cuda, self._engine, self._stream
        home = cuda.get_current_stream()
        pool, renewals = cuda.MemoryPool(), list[Callable[[], None]]()
        try:
            with self.side_stream(), cuda.using_allocator(pool.malloc):
                stream.begin_capture()
                engine.recorded = renewals
                try:
                    work()
                except BaseException:
                    with suppress(Exception):  # it says again that the capture has failed
                        stream.end_capture()
                    raise
                finally:
                    engine.recorded = None
                graph, held = stream.end_capture(), engine.held()
        except (RuntimeError, NotImplementedError, DeviceError) as error:
            message = f"CUDA does not record it ({type(error).__name__}: {error})"
            raise NotRecorded(message) from error
        return GraphRecording(graph, renewals, pool, held, cuda.get_current_stream, home)

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Make our stream current, after what is queued and before what will be."""
        outer = self._cupy.cuda.get_current_stream()
        self._stream.wait_event(outer.record())
        if outer != self._stream:
            self._side_streams[self._stream.ptr] = outer
        try:
            with self._alone, self._stream:
                yield
        finally:  # what was queued before an error is still under way
            outer.wait_event(self._stream.record())
