"""Base of this backend's Steps, and blobs and parameters in 16 bits or with channels last."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.layout import ChannelsLast, channels_last, reads_channels_last
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.ops import Op
from demitasse.backends.step import LayoutUse, Operand, Operands, Saved, Step, decline_if
from demitasse.backends.storage import ParameterRounding, Stored, array_dtype


def stored_operands(
    engine: Engine, at: Operands, form: "Form", params: Collection[int], *, computes: bool = True
) -> Operands:
    """Return operands whose bottoms, tops and some parameters are read and written in a form.

    Gradients of parameters stay in float32 and C order. ``computes`` is False if tops share the
    bottom's data.
    """
    seen = {id(blob): form.blob(blob) for blob in (*at.bottom, *at.top)}
    for blob in at.top if computes else ():
        blob.data_memory.set_storage(form.storage)
    for blob, wanted in zip(at.bottom, at.propagate_down, strict=True):
        if at.backward and wanted:
            blob.diff_memory.set_storage(form.storage)
    return replace(
        at,
        bottom=tuple(seen[id(blob)] for blob in at.bottom),
        top=tuple(seen[id(blob)] for blob in at.top),
        params=tuple(
            form.parameter(engine, blob, at) if index in params else blob
            for index, blob in enumerate(at.params)
        ),
    )


@dataclass(frozen=True)
class Form:
    """Form of the arrays that kernels take: a storage, and channels last or C order."""

    storage: Stored
    last: bool

    @property
    def plain(self) -> bool:
        """True if arrays are those of the blobs."""
        return self.storage == "float" and not self.last

    def layout(self, blob: Operand) -> ChannelsLast | None:
        """Return the layout of a blob; None for C order."""
        return channels_last(blob.shape) if self.last else None

    def blob(self, blob: Operand) -> Operand:
        """Return a blob that is read and written in this form."""
        return blob if self.plain else StoredBlob(blob, self)

    def parameter(self, engine: Engine, blob: Operand, at: Operands) -> Operand:
        """Return a parameter that is read in this form."""
        plain = self.storage == "float" and self.layout(blob) is None
        return blob if plain else StoredParameter(engine, blob, at, self)


class _Stored:
    """Delegate all other attributes to the blob."""

    def __init__(self, blob: Operand, form: Form) -> None:
        self._blob, self._storage, self._layout = blob, form.storage, form.layout(blob)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)


class StoredBlob(_Stored):
    """A blob whose data and gradient are kept in a form, or converted when they are read.

    Arrays with channels last have the blob's shape, too, although their elements are reordered.
    """

    def read(self) -> Array:
        """Return the data, for reading."""
        return self._view(self._blob.data_memory.stored_data(self._storage, self._layout))

    def buffer(self) -> Array:
        """Return the data's array, to be overwritten."""
        return self._view(self._blob.data_memory.mutable_stored_data(self._storage, self._layout))

    def read_diff(self) -> Array:
        """Return the gradient, for reading."""
        return self._view(self._blob.diff_memory.stored_data(self._storage, self._layout))

    def diff_buffer(self) -> Array:
        """Return the gradient's array, to be overwritten."""
        return self._view(self._blob.diff_memory.mutable_stored_data(self._storage, self._layout))

    def mutable_gpu_diff(self) -> Array:
        """Return the gradient's array, for writing."""
        memory = self._blob.diff_memory
        return self._view(memory.mutable_stored_data(self._storage, self._layout, discard=False))

    def _view(self, flat: Array) -> Array:
        return flat[: self._blob.count].reshape(self._blob.shape)


class StoredParameter(_Stored):
    """A parameter, of which there is a copy in 16 bits or with channels last on the device.

    The parameter itself keeps its values in float32 and C order for updates, snapshots, sharing and
    reading. After a change of the parameter, the copy is written again at the same address. The GPU
    converts values that it has already, as in training; otherwise the host rounds them. Values too
    large for 16 bits become infinite in the copy, with one warning of the host.
    """

    def __init__(self, engine: Engine, blob: Operand, at: Operands, form: Form) -> None:
        super().__init__(blob, form)
        self._engine, self._trained = engine, at.backward
        # convolutions of float64 stay in C order
        self._dtype = "float32" if form.storage == "float" else form.storage
        self._copy: Array | None = None
        self._known: tuple[object, int, int] | None = None
        self._rounded = ParameterRounding(form.storage, blob.name, blob.count)

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
            flat = self._engine.empty(self._blob.count, array_dtype(self._dtype))
            self._copy = flat.reshape(self._blob.shape)
        self._known = None  # in case the conversion fails
        if self._trained or memory.on_device:
            self._convert(self._blob.read())
        else:
            host = self._blob.cpu_data()
            if self._storage != "float":
                host = self._rounded(host)
            if self._layout is not None:
                host = np.ascontiguousarray(np.moveaxis(host, 1, -1)).reshape(host.shape)
            self._engine.put(host, self._copy)
        self._known = now

    def _convert(self, array: Array) -> None:
        if self._layout is None:
            self._engine.narrow(array, self._storage, self._copy)
            return
        if self._storage != "float":
            array = self._engine.narrow(array, self._storage)
        sizes = (self._layout.samples, self._layout.channels, self._layout.plane)
        self._engine.transposed("transposed", self._dtype, sizes)(array, self._copy)


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
        narrow = at.storage != "float" and self.narrow_params is not None and self.takes_narrow(op)
        self.dtype = at.storage if narrow else op.dtype
        self.last = self.takes_last(engine, op, at)
        self.form = Form(at.storage if narrow else "float", self.last)
        if not self.form.plain:
            params = self.narrow_params or ()
            at = stored_operands(engine, at, self.form, params, computes=self.computes)
        super().__init__(engine, op, at)
        decline_if(op.dtype not in DTYPES, f"{op.dtype}; kernels take {' and '.join(DTYPES)}")

    def saved(self, name: str, shape: tuple[int, ...]) -> Saved:
        """Return the layer's internal blob of that name, in the dtype of this Step's blobs."""
        return self.at.saved(name, shape, array_dtype(self.dtype))

    def takes_narrow(self, op: O) -> bool:
        """Return whether its kernels take 16 bits for this operation."""
        return True

    follows_layout: ClassVar[bool] = False
    """True if its kernels use channels last when a bottom has this layout."""

    def takes_last(self, engine: Engine, op: O, at: Operands) -> bool:
        """Return whether its bottoms and tops, data and gradients, have channels last."""
        del engine, op
        return self.follows_layout and reads_channels_last(at)

    def layout_uses(self, *, backward: bool) -> Iterable[LayoutUse]:
        if backward:
            return ()
        return [LayoutUse("written", blob, self.form.layout(blob)) for blob in self.at.top]

    replayable = True

    @property
    def workspace(self) -> int:
        """Bytes of copies of parameters."""
        return sum(one.nbytes for one in self.at.params if isinstance(one, StoredParameter))

    @property
    def code(self) -> str:
        return f"kernel{self.remark}"

    @property
    def remark(self) -> str:
        """Storage and layout in the names of code; "" for those of the blobs."""
        return (f" ({self.dtype})" if self.dtype != self.op.dtype else "") + self.order

    @property
    def order(self) -> str:
        """Layout in the names of code; "" for C order."""
        return ", channels last" if self.last else ""
