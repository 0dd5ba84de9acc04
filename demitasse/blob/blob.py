"""Blob: an n-dimensional array with a gradient, the data that flows through a net.

Source: Caffe, ``src/caffe/blob.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse.blob.views import Views
from demitasse.core.axes import LEGACY, shape_string
from demitasse.core.html_repr import html_of
from demitasse.errors import ErrorCode, ShapeError
from demitasse.io.proto import BlobProto, floats, set_floats, stored_shape
from demitasse.memory import Head, SyncedMemory

__all__ = ["Blob"]

PART = 1 << 20
"""Elements that are taken at a time of values whose memory is given back on the way."""


class Blob(Views):
    """Data and its gradient (``diff``), both of one shape.

    Args:
        shape: Sizes of the axes, each at least 0; at most 32 of them.
        dtype: "float32", "float64", or an integer type for internal use.
        device: Where it lives; the current device by default.
        name: What it is called in messages.

    Raises:
        ShapeError: An axis is negative, or there are too many.
    """

    # -- arithmetic ----------------------------------------------------------------------------

    def update(self) -> None:
        """Subtract the gradient from the data, where the data's newest side is.

        Raises:
            ShapeError: The data was never written, or this is an integer blob.
        """
        self._need_float("update")
        match self._data.head:
            case Head.UNINITIALIZED:
                message = f"update of {self._called()} whose data was never written"
                raise ShapeError(message, code=ErrorCode.BAD_STATE, blob=self.name)
            case Head.HEAD_AT_CPU:
                host = self.mutable_cpu_data()
                host -= self.cpu_diff()
            case _:
                with self.device.backend.here():
                    diff = self.gpu_diff()
                    view = self.mutable_gpu_data()
                    view -= diff

    def asum_data(self) -> float:
        """Return the sum of absolute values of the data."""
        return self._norm(self._data, power=1)

    def asum_diff(self) -> float:
        """Return the sum of absolute values of the gradient."""
        return self._norm(self._diff, power=1)

    def sumsq_data(self) -> float:
        """Return the sum of squares of the data."""
        return self._norm(self._data, power=2)

    def sumsq_diff(self) -> float:
        """Return the sum of squares of the gradient."""
        return self._norm(self._diff, power=2)

    def scale_data(self, factor: float) -> None:
        """Multiply the data by a number."""
        self._scale(self._data, factor)

    def scale_diff(self, factor: float) -> None:
        """Multiply the gradient by a number."""
        self._scale(self._diff, factor)

    def _norm(self, memory: SyncedMemory, power: int) -> float:
        self._need_float("norm")
        if memory.cleared:
            return 0.0
        if memory.head is Head.HEAD_AT_CPU:
            host = memory.cpu_data()[: self._count]
            return float(np.sum(np.abs(host)) if power == 1 else np.dot(host, host))
        xp = self.device.backend.xp
        with self.device.backend.here():
            flat = self._view(memory.gpu_data())
            return float(xp.sum(xp.abs(flat)) if power == 1 else xp.sum(flat * flat))

    def _scale(self, memory: SyncedMemory, factor: float) -> None:
        self._need_float("scale")
        if memory.cleared:
            return
        if memory.head is Head.HEAD_AT_CPU:
            host = memory.mutable_cpu_data()[: self._count]
            host *= host.dtype.type(factor)
            return
        with self.device.backend.here():
            view = self._view(memory.mutable_gpu_data())
            view *= factor

    def copy_from(self, source: Blob, copy_diff: bool = False, reshape: bool = False) -> None:
        """Copy the data, or else the gradient, of another blob on the current device's side.

        Raises:
            ShapeError: The shapes differ and ``reshape`` is false.
        """
        if source.shape != self._shape:
            if not reshape:
                message = (
                    f"cannot copy {source.shape_string} into {self._called()} {self.shape_string}; "
                    "pass reshape=True to take its shape"
                )
                raise ShapeError(
                    message,
                    code=ErrorCode.SHAPE_MISMATCH,
                    blob=self.name,
                    got=source.shape,
                    expected=self._shape,
                )
            self.reshape_like(source)
        mine, theirs = (self._diff, source._diff) if copy_diff else (self._data, source._data)
        if mine is theirs:
            return
        if source.device is self.device and not self.device.shares_host:
            with self.device.backend.here():
                value = source._view(theirs.gpu_data())
                self._view(mine.mutable_gpu_data(discard=True))[...] = value
        else:
            value = theirs.cpu_data()[: self._count]
            mine.mutable_cpu_data(discard=True)[: self._count] = value

    # -- messages ------------------------------------------------------------------------------

    def shape_equals(self, proto: BlobProto) -> bool:
        """Whether a message has our shape; legacy dimensions are compared from the end."""
        if any(proto.HasField(name) for name in LEGACY):
            legacy = tuple(getattr(proto, name) for name in LEGACY)
            return self.num_axes <= 4 and legacy == tuple(
                self.legacy_shape(i) for i in range(-4, 0)
            )
        return tuple(proto.shape.dim) == self._shape

    def from_proto(self, proto: BlobProto, reshape: bool = True) -> None:
        """Take the shape, the data and, where there is one, the gradient of a message.

        Raises:
            ShapeError: With ``reshape`` false, the shapes differ; or its shape and the number of
                its values do.
        """
        if reshape:
            self.reshape(stored_shape(proto))
        elif not self.shape_equals(proto):
            message = (
                f"{self._called()} is {self.shape_string}, "
                f"the message is {shape_string(stored_shape(proto))}"
            )
            raise ShapeError(
                message,
                code=ErrorCode.SHAPE_MISMATCH,
                blob=self.name,
                got=stored_shape(proto),
                expected=self._shape,
            )
        self.set_floats(floats(proto), floats(proto, diff=True))

    def set_floats(
        self, data: np.ndarray, diff: np.ndarray, taken: Callable[[], None] | None = None
    ) -> None:
        """Take the data and, where it is not empty, the gradient. Shapes: (count,).

        Args:
            data: The data.
            diff: The gradient.
            taken: Called after each part that has been copied.

        Raises:
            ShapeError: There are more or fewer values than the blob has.
        """
        self._fill(self._data, data, "values", taken)
        if diff.size:
            self._fill(self._diff, diff, "gradient values", taken)

    def to_proto(self, write_diff: bool = False) -> BlobProto:
        """Return a message with the shape, the data and, if asked, the gradient."""
        proto = BlobProto()
        if self._shape:  # Caffe writes no shape for a blob without axes
            proto.shape.dim.extend(self._shape)
        set_floats(proto, self.cpu_data().reshape(-1))
        if write_diff:
            set_floats(proto, self.cpu_diff().reshape(-1), diff=True)
        return proto

    def _fill(
        self,
        memory: SyncedMemory,
        values: np.ndarray,
        what: str,
        taken: Callable[[], None] | None = None,
    ) -> None:
        if values.size != self._count:
            message = (
                f"{self._called()} {self.shape_string} cannot be filled with {values.size} {what}"
            )
            raise ShapeError(
                message,
                code=ErrorCode.COUNT_MISMATCH,
                blob=self.name,
                got=values.size,
                expected=self._count,
            )
        host = memory.mutable_cpu_data(discard=True)[: self._count]
        for first in range(0, self._count, PART):
            host[first : first + PART] = values[first : first + PART]
            if taken is not None:
                taken()

    # -- details -------------------------------------------------------------------------------

    def _need_float(self, what: str) -> None:
        if not self.dtype.startswith("float"):
            message = f"{what} of {self._called()} of {self.dtype}: only float blobs have it"
            raise ShapeError(message, code=ErrorCode.DTYPE_MISMATCH, blob=self.name, got=self.dtype)

    def __repr__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        return f"Blob({name}{self.shape_string} {self.dtype} on {self.device})"

    def _repr_html_(self) -> str:
        return html_of(self)
