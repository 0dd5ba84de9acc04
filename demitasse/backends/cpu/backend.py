"""Backend of ``Device("cpu")``: numpy on the host, and compiled kernels."""

import threading
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu import updates
from demitasse.backends.cpu.engine import Engine, engine, thread_count
from demitasse.backends.cpu.lowerings import LOWERINGS
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.fusion import fuse
from demitasse.backends.kernels import language as kernels
from demitasse.backends.kernels.language.call_recorder import CallRecorder
from demitasse.backends.kernels.language.structs import compile_kernels
from demitasse.backends.numpy.backend import NumpyBackend
from demitasse.backends.ops import Op
from demitasse.backends.step import AnyStep, Lowerings, Operands
from demitasse.backends.storage import STORAGES, Stored
from demitasse.backends.updates import UpdateKernels
from demitasse.core.config import settings


class CpuBackend(NumpyBackend):
    """numpy arrays and portable layers; Steps keep what they compute in private layouts."""

    name = "cpu"
    lowerings: ClassVar[Lowerings] = LOWERINGS
    # after a product OpenBLAS's workers keep spinning for a while: beside the team's they
    # cost a factor of 2 for large operations and of 100 for small ones
    blas_threads: ClassVar[int | None] = 1

    @classmethod
    def devices(cls) -> list[str]:
        return ["cpu"]

    def enter(self) -> AbstractContextManager[None]:
        self.engine.ready_threads()
        return super().enter()

    @cached_property
    def recorder(self) -> CallRecorder:
        return CallRecorder(self._recording_key)

    def before_first_run(self, steps: Iterable[AnyStep], *, backward: bool) -> None:
        ours = [step for step in steps if isinstance(step, CpuStep)]
        with suppress(MemoryError):  # the pass raises it again, and names the layer
            wanted = [one for step in ours for one in step.kernels_to_compile(backward=backward)]
            compile_kernels(wanted, thread_count())

    def _recording_key(self) -> Hashable:
        # scratch memory is the thread's, and how many share the work is the settings'
        return threading.get_ident(), settings.changes, self.engine.grown

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "threads": str(thread_count()),
            "instruction set": self.engine.tuning.instructions,
            "kernels": str(kernels.status()),
            "winograd": str(settings.get("winograd")),
        }

    def empty_host(self, size: int, dtype: str) -> np.ndarray:
        return aligned(size) if dtype == "float32" else np.zeros(size, dtype)

    def empty_private(self, size: int) -> np.ndarray:
        return aligned(size)

    def pack(self, host: np.ndarray, layout: Any, private: np.ndarray) -> None:
        self.engine.reorder(host, layouts.plain(layout.shape), private, layout)

    def pack_and_release(self, host: np.ndarray, layout: Any, private: np.ndarray) -> None:
        self.engine.move(host, private, layout)

    def unpack(self, private: np.ndarray, layout: Any, host: np.ndarray) -> None:
        self.engine.reorder(private, layout, host, layouts.plain(layout.shape))

    def repack(self, private: np.ndarray, here: Any, target: np.ndarray, there: Any) -> None:
        self.engine.reorder(private, here, target, there)

    @property
    def storages(self) -> tuple[Stored, ...]:
        # blobs stay float32; products of few rows read half, others multiply in bfloat16
        tuning = self.engine.tuning.as_set(thread_count(), "bfloat16")
        if not tuning.width:
            return ("float",)
        return STORAGES if tuning.rounds else ("float", "half")

    @cached_property
    def engine(self) -> Engine:
        return engine()

    @property
    def updates(self) -> UpdateKernels | None:
        return updates

    def fuse(
        self, chain: Sequence[Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
    ) -> AnyStep:
        return fuse(self.engine, chain, at, steps)
