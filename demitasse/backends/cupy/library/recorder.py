"""CUDA graphs: work queued on a stream is captured, and launched as one."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from demitasse.backends.cupy.library.gpu import GpuEngine
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings
from demitasse.errors import DeviceError


@dataclass(frozen=True, eq=False)
class GraphRecording:
    """A CUDA graph, launched on the current stream.

    Attributes:
        input_updates: Copies of numbers of the host to the device before each launch.
        held: Other memory and handles that the graph uses.
        home: The current stream of the recording, on which the graph's memory is in order.
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

    Arrays that are allocated during a capture come from the recording's own memory pool, so that
    nothing else uses their memory while the graph exists. ``side_streams`` has, during a capture,
    the replaced stream by the address of the stream that captures. Other threads wait for ``alone``
    before they use the GPU.
    """

    computes: ClassVar = False

    def __init__(
        self, cupy: Any, engine: GpuEngine, side_streams: dict[int, Any],
        alone: AbstractContextManager[Any],
    ) -> None:  # fmt: skip
        self._cupy, self._engine = cupy, engine
        self._side_streams = side_streams
        self._alone = alone

    @cached_property
    def _stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def key(self) -> Hashable:
        return str(settings.get_often("tf32"))

    def record(self, work: Callable[[], object]) -> GraphRecording:
        cuda, engine, stream = self._cupy.cuda, self._engine, self._stream
        home = cuda.get_current_stream()
        pool, updates = cuda.MemoryPool(), list[Callable[[], None]]()
        try:
            with self.side_stream(), cuda.using_allocator(pool.malloc):
                stream.begin_capture()
                engine.input_updates = updates
                try:
                    work()
                except BaseException:
                    with suppress(Exception):  # the capture's failure once more
                        stream.end_capture()
                    raise
                finally:
                    engine.input_updates = None
                graph, held = stream.end_capture(), engine.held()
        except (RuntimeError, NotImplementedError, DeviceError) as error:
            message = f"CUDA does not record it ({type(error).__name__}: {error})"
            raise NotRecorded(message) from error
        return GraphRecording(graph, updates, pool, held, cuda.get_current_stream, home)

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Make the stream of captures current, after earlier work and before later work."""
        outer = self._cupy.cuda.get_current_stream()
        self._stream.wait_event(outer.record())
        if outer != self._stream:
            self._side_streams[self._stream.ptr] = outer
        try:
            with self._alone, self._stream:
                yield
        finally:  # work queued before an error still runs
            outer.wait_event(self._stream.record())
