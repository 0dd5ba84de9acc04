"""Base of this backend's Steps, and blobs and parameters in 16 bits."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.ops import Op
from demitasse.backends.step import Operand, Operands, Saved, Step, decline_if
from demitasse.backends.storage import Stored, array_dtype, count_overflows, narrowed
from demitasse.core.log import get_logger

log = get_logger(__name__)


def narrow_operands(
    engine: Engine, at: Operands, params: Collection[int], *, computes: bool = True
) -> Operands:
    """Return operands whose bottoms, tops and some parameters are read and written in 16 bits.

    Gradients of parameters stay in float32. ``computes`` is False if tops share the bottom's data.
    """
    seen = {id(blob): HalfBlob(blob, at.storage) for blob in (*at.bottom, *at.top)}
    for blob in at.top if computes else ():
        half_blob(blob, at.storage)
    for blob, wanted in zip(at.bottom, at.propagate_down, strict=True):
        if at.backward and wanted:
            blob.diff_memory.set_storage(at.storage)
    return replace(
        at,
        bottom=tuple(seen[id(blob)] for blob in at.bottom),
        top=tuple(seen[id(blob)] for blob in at.top),
        params=tuple(
            NarrowParameter(engine, blob, at) if index in params else blob
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
    """A blob whose data and gradient are kept in 16 bits, or converted when they are read."""

    def read(self) -> Array:
        """Return the data, for reading."""
        return self._view(self._blob.data_memory.narrow_data(self._storage))

    def buffer(self) -> Array:
        """Return the data's array, to be overwritten."""
        return self._view(self._blob.data_memory.mutable_narrow_data(self._storage))

    def read_diff(self) -> Array:
        """Return the gradient, for reading."""
        return self._view(self._blob.diff_memory.narrow_data(self._storage))

    def diff_buffer(self) -> Array:
        """Return the gradient's array, to be overwritten."""
        return self._view(self._blob.diff_memory.mutable_narrow_data(self._storage))

    def mutable_gpu_diff(self) -> Array:
        """Return the gradient's array, for writing."""
        memory = self._blob.diff_memory
        return self._view(memory.mutable_narrow_data(self._storage, discard=False))

    def _view(self, flat: Array) -> Array:
        return flat[: self._blob.count].reshape(self._blob.shape)


class NarrowParameter(_Narrow):
    """A parameter, of which there is a copy in 16 bits on the device.

    The parameter itself keeps its float32 values for updates, snapshots, sharing and reading. After
    a change of the parameter, the copy is written again at the same address. The GPU converts
    values that it has in float32 already, as in training; otherwise the host does. Values too large
    for 16 bits become infinite in the copy, with one warning of the host.
    """

    def __init__(self, engine: Engine, blob: Operand, at: Operands) -> None:
        super().__init__(blob, at.storage)
        self._engine, self._trained = engine, at.backward
        self._copy: Array | None = None
        self._known: tuple[object, int, int] | None = None
        self._warned = False

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return 0 if self._copy is None else int(self._copy.nbytes)

    def read(self) -> Array:
        """Return the copy, for reading. Shape: the parameter's."""
        if self._copy is None or self._trained:
            self._update()
        else:
            self._engine.update_input(self._update)
        return self._copy

    def _update(self) -> None:
        memory = self._blob.data_memory
        # recorded work converts a trained parameter once, whether it has changed before or not
        recorded = self._engine.input_updates if self._trained else None
        now = (recorded, memory.serial, memory.version)
        known = self._known
        if known is not None and known[0] is recorded and known[1:] == now[1:]:
            return
        if self._copy is None:
            flat = self._engine.empty(self._blob.count, array_dtype(self._storage))
            self._copy = flat.reshape(self._blob.shape)
        self._known = None  # until it is there
        if self._trained or memory.on_device:
            self._engine.narrow(self._blob.read(), self._storage, self._copy)
            self._known = now
            return
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
        self._known = now


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

    computes: ClassVar[bool] = True
    """False if its tops share the data of the bottom."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        self.dtype = op.dtype
        params = self.narrow_params
        if at.storage != "float" and params is not None and self.takes_narrow(op):
            self.dtype = at.storage
            at = narrow_operands(engine, at, params, computes=self.computes)
        super().__init__(engine, op, at)
        decline_if(op.dtype not in DTYPES, f"{op.dtype}; kernels take {' and '.join(DTYPES)}")

    def taken(self, blob: Operand) -> Operand:
        """Return another blob as this Step's kernels take it."""
        return blob if self.dtype == self.op.dtype else half_blob(blob, self.at.storage)

    def saved(self, name: str, shape: tuple[int, ...]) -> Saved:
        """Return the layer's internal blob of that name, in the dtype of this Step's blobs."""
        return self.at.saved(name, shape, array_dtype(self.dtype))

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
