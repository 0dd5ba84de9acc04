"""Base of this backend's Steps, and parameters in 16 bits."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.ops import Op
from demitasse.backends.step import Operand, Operands, Step, decline_if
from demitasse.backends.storage import Stored, array_dtype, count_overflows, narrowed
from demitasse.core.log import get_logger

log = get_logger(__name__)


def narrow_operands(engine: Engine, at: Operands, params: Collection[int]) -> Operands:
    """Return operands whose bottoms, tops and some parameters are read and written in 16 bits."""
    seen = {id(blob): HalfBlob(blob, at.storage) for blob in (*at.bottom, *at.top)}
    for blob in at.top:
        half_blob(blob, at.storage)
    return replace(
        at,
        bottom=tuple(seen[id(blob)] for blob in at.bottom),
        top=tuple(seen[id(blob)] for blob in at.top),
        params=tuple(
            NarrowParameter(engine, blob, at.storage) if index in params else blob
            for index, blob in enumerate(at.params)
        ),
    )


def half_blob(blob: Operand, storage: Stored) -> "HalfBlob":
    """Return a blob that is written in 16 bits, and kept so from now on."""
    blob.data_memory.set_storage(storage)
    return HalfBlob(blob, storage)


class _Narrow:
    """Delegate all other attributes to the blob."""

    def __init__(self, blob: Operand, storage: Stored) -> None:
        self._blob, self._storage = blob, storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)


class HalfBlob(_Narrow):
    """A blob whose data is kept on the device in 16 bits, or converted when it is read."""

    def read(self) -> Array:
        """Return the data, for reading."""
        return self._blob.read_narrow(self._storage)

    def buffer(self) -> Array:
        """Return the data's array, to be overwritten."""
        return self._blob.narrow_buffer(self._storage)


class NarrowParameter(_Narrow):
    """A parameter, of which there is a copy in 16 bits on the device.

    The parameter itself keeps its float32 values for snapshots, sharing and reading. After a change
    of the parameter, the copy is written again at the same address. Values too large for 16 bits
    become infinite in the copy, with one warning.
    """

    def __init__(self, engine: Engine, blob: Operand, storage: Stored) -> None:
        super().__init__(blob, storage)
        self._engine = engine
        self._copy: Array | None = None
        self._known: tuple[int, int] | None = None
        self._warned = False

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self._copy is None else int(self._copy.nbytes)

    def read(self) -> Array:
        """Return the copy, for reading. Shape: the parameter's."""
        if self._copy is None:
            self._update()
        else:
            self._engine.update_input(self._update)
        return self._copy

    def _update(self) -> None:
        memory = self._blob.data_memory
        now = (memory.serial, memory.version)
        if now == self._known:
            return
        if self._copy is None:
            flat = self._engine.empty(self._blob.count, array_dtype(self._storage))
            self._copy = flat.reshape(self._blob.shape)
        self._known = None  # until it is there
        given = self._blob.cpu_data()
        host = narrowed(given, self._storage)
        if not self._warned and (beyond := count_overflows(given, host, self._storage)):
            self._warned = True
            log.warning(
                "%d of %d values of parameter %r are too large for storage %r, and infinite in "
                "what is computed with them",
                beyond, given.size, self._blob.name, self._storage,
            )  # fmt: skip
        self._engine.put(host, self._copy)
        self._known = (memory.serial, memory.version)


DTYPES = ("float32", "float64")  # compute dtype of the kernels

O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation

NEEDS_BOTTOM = "the kernels still read the bottom while they write the top"
"""Reason for declining in-place layers."""


class GpuStep(Step[Engine, O]):
    """A Step made of kernels and matrix products on a GPU.

    ``dtype`` is that of the computation, or the storage in 16 bits. Arrays are converted for
    kernels that do not take 16 bits.
    """

    narrow_params: ClassVar[Collection[int] | None] = None
    """Parameters that its kernels read in 16 bits, besides bottoms and tops; None where they read
    nothing in 16 bits."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        self.dtype = op.dtype
        params = self.narrow_params
        if at.storage != "float" and params is not None and self.takes_narrow(op):
            self.dtype, at = at.storage, narrow_operands(engine, at, params)
        super().__init__(engine, op, at)
        decline_if(op.dtype not in DTYPES, f"{op.dtype}; kernels take {' and '.join(DTYPES)}")

    def taken(self, blob: Operand) -> Operand:
        """Return another blob as this Step's kernels take it."""
        return blob if self.dtype == self.op.dtype else half_blob(blob, self.at.storage)

    def takes_narrow(self, op: O) -> bool:
        """Return whether its kernels take 16 bits for this operation."""
        return True

    replayable = True

    @property
    def workspace(self) -> int:
        """Bytes of parameters in 16 bits."""
        return sum(one.nbytes for one in self.at.params if isinstance(one, NarrowParameter))

    @property
    def code(self) -> str:
        return "kernel" if self.dtype == self.op.dtype else f"kernel ({self.dtype})"
