"""GPUs that exchange arrays by NCCL, without a copy to the host.

Each member of a group has a GPU of its own and is a thread or a process of its own. Work goes to
the stream that is current in the calling thread, and is waited for.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from demitasse.backends.arrays import Array
from demitasse.errors import ErrorCode, ParallelError

if TYPE_CHECKING:
    from demitasse.backends.cupy.backend import CupyBackend

INSTALL = 'pip install "demitasse[nccl13]" (or nccl12)'


def missing() -> str:
    """Return the reason why NCCL cannot be used, or ""; does not initialize CUDA."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cupy's own, that the library is missing
            nccl = import_module("cupy.cuda.nccl")
    except Exception as error:  # a broken installation can raise anything
        return f"NCCL is reached through cupy, which cannot be imported ({error})"
    return "" if nccl.available else f"NCCL is not installed; {INSTALL} brings it"


def new_uid() -> bytes:
    """Return an identifier for a new group; does not initialize CUDA, so a process may fork."""
    why = missing()
    if why:
        raise ParallelError(why, code=ErrorCode.UNAVAILABLE, library="NCCL")
    nccl = import_module("cupy.cuda.nccl")
    with _failures(nccl):
        return bytes(nccl.get_unique_id())


SUCCESS, NOT_READY = 0, 600  # results of ``cudaEventQuery``


class NcclConnector:
    """Connects a GPU to those of other threads, processes and machines."""

    missing, new_uid = staticmethod(missing), staticmethod(new_uid)

    def __init__(self, cupy: Any, gpu: CupyBackend) -> None:
        self._cupy, self._gpu = cupy, gpu

    def place(self) -> str:
        with self._gpu.enter():
            return str(self._gpu.array_device.pci_bus_id)

    def join(self, uid: bytes, rank: int, size: int, timeout: float) -> Nccl:
        nccl = import_module("cupy.cuda.nccl")
        with self._gpu.enter(), _failures(nccl):
            return Nccl(self._cupy, nccl, nccl.NcclCommunicator(size, uid, rank), timeout)


class Nccl:
    """A group of GPUs, used where the GPU is current; members wait for ``timeout`` seconds."""

    def __init__(self, cupy: Any, nccl: Any, communicator: Any, timeout: float) -> None:
        self._cupy, self._nccl, self._communicator = cupy, nccl, communicator
        self._timeout = timeout
        self.rank: int = communicator.rank_id()
        self.size: int = communicator.size()
        version = nccl.get_version()  # 22307 -> 2.23.7
        self.name = f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100}"
        kinds = ("float16", "float32", "float64")
        self._types = {kind: getattr(nccl, f"NCCL_{kind.upper()}") for kind in kinds}

    def broadcast(self, array: Array) -> None:
        with self._at_work() as stream:
            self._communicator.bcast(*self._place(array), 0, stream)

    def alltoall(self, parts: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
        received = [self._cupy.empty(size, parts[0].dtype) for size in sizes]
        self._trade(parts, received)
        return received

    def allgather(self, part: Array, whole: Array, bounds: Sequence[int]) -> None:
        self._trade([part] * self.size, [whole[a:b] for a, b in pairwise(bounds)])

    def allreduce(self, array: Array) -> None:
        self.start_allreduce(array)
        self.synchronize()

    def start_allreduce(self, array: Array) -> None:
        address, *what = self._place(array)
        with _failures(self._nccl):
            self._communicator.allReduce(
                address, address, *what, self._nccl.NCCL_SUM, self._stream().ptr
            )

    def side_stream(self) -> AbstractContextManager[None]:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(self._stream())
        return self._behind(event)

    @contextmanager
    def _behind(self, event: Any) -> Iterator[None]:
        self._side_stream.wait_event(event)
        with self._side_stream:
            yield

    @cached_property
    def _side_stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def _trade(self, given: Sequence[Array], taken: Sequence[Array]) -> None:
        """Send one array to each member, and receive one from each."""
        if taken[self.rank].size:
            taken[self.rank][...] = given[self.rank]
        with self._at_work() as stream:
            self._nccl.groupStart()
            for rank in range(self.size):
                if rank == self.rank:
                    continue
                if given[rank].size:
                    self._communicator.send(*self._place(given[rank]), rank, stream)
                if taken[rank].size:
                    self._communicator.recv(*self._place(taken[rank]), rank, stream)
            self._nccl.groupEnd()

    def _place(self, array: Array) -> tuple[int, int, int]:
        """Return an array as NCCL takes it: address, elements, type."""
        return array.data.ptr, array.size, self._types[str(array.dtype)]

    def _stream(self) -> Any:
        return self._cupy.cuda.get_current_stream()

    @contextmanager
    def _at_work(self) -> Iterator[int]:
        """Queue work on a stream within the block, and wait for it."""
        with _failures(self._nccl):
            yield self._stream().ptr
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the current stream is done; the thread leaves its core to others meanwhile.

        Raises:
            ParallelError: The wait is longer than the timeout: another member is lost.
        """
        event, runtime = self._cupy.cuda.Event(disable_timing=True), self._cupy.cuda.runtime
        event.record(self._stream())
        end, pause = time.monotonic() + self._timeout, 0.0
        # ``event.done`` stays False on a GPU that has failed
        while (status := runtime.eventQuery(event.ptr)) != SUCCESS:
            if status != NOT_READY:
                error = runtime.CUDARuntimeError(status)
                message = f"the GPU failed while others were waited for: {error}"
                raise ParallelError(message, code=ErrorCode.FAILED, library="CUDA") from error
            if time.monotonic() > end:
                self._communicator.abort()
                message = f"another GPU was lost or hangs: nothing came for {self._timeout:g} s"
                raise ParallelError(message, code=ErrorCode.TIMEOUT, seconds=self._timeout)
            time.sleep(pause)
            pause = min(0.001, pause + 2e-6)
        with _failures(self._nccl):
            self._communicator.check_async_error()


@contextmanager
def _failures(nccl: Any) -> Iterator[None]:
    try:
        yield
    except nccl.NcclError as error:
        message = f"NCCL failed: {error}; NCCL_DEBUG=INFO in the environment has it say more"
        raise ParallelError(message, code=ErrorCode.FAILED, library="NCCL") from error
