"""Device arrays: what numpy cannot see, and what computes when somebody waits for it."""

from __future__ import annotations

import operator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu import machine, memory
from gpu.errors import Misuse
from gpu.memory import MemoryPointer
from gpu.pinned import is_memory_pinned
from gpu.streams import Device, get_current_stream

SCALARS = (bool, int, float, complex, np.generic)


class ndarray:
    """As ``cupy.ndarray``.

    Attributes:
        data: The memory that holds it.
    """

    __array_ufunc__ = None  # numpy leaves arithmetic with numpy's own arrays and scalars to us
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Any = None,
        order: str = "C",
    ) -> None:
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(map(int, shape))
        dtype = np.dtype(dtype)
        if memptr is None:
            size = dtype.itemsize
            for axis in shape:
                size *= axis
            memptr = memory.alloc(size)
        self._place(memptr, np.ndarray(shape, dtype, _Bytes(memptr), 0, strides, order))

    def _place(self, data: MemoryPointer, raw: np.ndarray) -> None:
        self.data, self._raw = data, raw

    @classmethod
    def _over(cls, raw: np.ndarray, owner: ndarray) -> ndarray:
        """Return an array over a numpy view of the memory of another."""
        new = cls.__new__(cls)
        offset = int(raw.ctypes.data) - owner.data.ptr
        new._place(owner.data + offset if raw.size else owner.data, raw)
        return new

    # -- what it is ----------------------------------------------------------------------------

    shape = property(lambda self: self._raw.shape)
    dtype = property(lambda self: self._raw.dtype)
    ndim = property(lambda self: self._raw.ndim)
    size = property(lambda self: self._raw.size)
    itemsize = property(lambda self: self._raw.itemsize)
    nbytes = property(lambda self: self._raw.nbytes)
    strides = property(lambda self: self._raw.strides)
    T = property(lambda self: ndarray._over(self._raw.T, self))
    mT = property(lambda self: ndarray._over(self._raw.mT, self))  # noqa: N815 - the standard's

    @property
    def flags(self) -> Any:
        flags = self._raw.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=True
        )

    @property
    def device(self) -> Device:
        return Device(self.data.device_id)

    def __len__(self) -> int:
        return len(self._raw)

    def __repr__(self) -> str:
        return repr(self.get()).replace("array", "device array", 1)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        message = (
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )
        raise TypeError(message)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False),
            "version": 3, "strides": None if self.flags.c_contiguous else self.strides,
            "stream": get_current_stream().ptr or 1,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.data.device_id

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self  # libraries other than the stand-in see nothing in it

    # -- to and from the host ------------------------------------------------------------------

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        stream = get_current_stream() if stream is None else stream
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError("Only numpy.ndarray can be obtained fromcupy.ndarray")
            if self.dtype != out.dtype:
                message = f"{out.dtype} array cannot be obtained from {self.dtype} array"
                raise TypeError(message)
            if self.shape != out.shape:
                message = f"Shape mismatch. Expected shape: {self.shape}, actual: {out.shape}"
                raise ValueError(message)
        host = np.empty(self.shape, self.dtype, order) if out is None else out
        if not self.size:
            return host
        if not (host.flags.c_contiguous and self._raw.flags.c_contiguous):
            with Device(self.data.device_id):
                self, host = ascontiguousarray(self), np.empty(self.shape, self.dtype)  # noqa: PLW0642
        self.data.copy_to_host_async(host.ctypes.data, self.nbytes, stream)
        if blocking:
            stream.synchronize()
        if out is not None and host is not out:
            out[...] = host
        return host

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != arr.dtype:
            message = f"{arr.dtype} array cannot be set to {self.dtype} array"
            raise TypeError(message)
        if self.shape != arr.shape:
            message = f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}"
            raise ValueError(message)
        if not self._raw.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        arr = np.ascontiguousarray(arr)
        stream = get_current_stream() if stream is None else stream
        if not self.size:
            return
        if is_memory_pinned(arr.ctypes.data):
            self.data.copy_from_host_async(arr.ctypes.data, self.nbytes, stream)
        else:
            memory.copy_pageable_async(self.data, arr, stream)

    def item(self) -> Any:
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __index__(self) -> int:
        return operator.index(self.get())

    # -- views ---------------------------------------------------------------------------------

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        raw = self._raw.reshape(shape)
        if self._raw.flags.c_contiguous:  # so it begins where we do
            new = ndarray.__new__(ndarray)
            new._place(self.data, raw)
            return new
        if raw.size and not np.may_share_memory(raw, self._raw):
            return ascontiguousarray(self).reshape(shape)
        return ndarray._over(raw, self)

    def view(self, dtype: Any = None) -> ndarray:
        return ndarray._over(self._raw.view(self.dtype if dtype is None else dtype), self)

    def ravel(self, order: str = "C") -> ndarray:
        return self.reshape(-1)

    def flatten(self, order: str = "C") -> ndarray:
        return self.reshape(-1).copy()

    def transpose(self, *axes: Any) -> ndarray:
        return ndarray._over(self._raw.transpose(*axes), self)

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        return ndarray._over(self._raw.swapaxes(axis1, axis2), self)

    def squeeze(self, axis: Any = None) -> ndarray:
        return ndarray._over(self._raw.squeeze(axis), self)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> ndarray:
        keys = key if isinstance(key, tuple) else (key,)
        if all(_is_basic(k) for k in keys):
            keys = tuple(int(k) if isinstance(k, ndarray) else k for k in keys)
            whole = keys if Ellipsis in keys else (*keys, Ellipsis)
            return ndarray._over(self._raw[whole], self)
        if any(isinstance(k, ndarray) and k.dtype == bool for k in keys):
            return _known_later(operator.getitem, self, key)
        return apply(_take, self, *keys)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.shape:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        keys = key if isinstance(key, tuple) else (key,)
        arrays = [a for a in (self, value, *keys) if isinstance(a, ndarray)]
        need_here(arrays)
        target, source = self._raw, value._raw if isinstance(value, ndarray) else value
        plain = tuple(k._raw if isinstance(k, ndarray) else k for k in keys)
        if all(_is_basic(k) for k in keys):  # faults of shape show at once
            part = target[plain if Ellipsis in plain else (*plain, Ellipsis)]
            np.broadcast_to(np.empty(()) if np.isscalar(source) else source, part.shape)
            queue().add(lambda: np.copyto(part, source, casting="unsafe"))
        else:
            queue().add(lambda: target.__setitem__(_wrapped(target, plain), source))

    # -- copies --------------------------------------------------------------------------------

    def astype(self, dtype: Any, order: str = "K", casting: str | None = None,
               subok: bool | None = None, copy: bool = True) -> ndarray:  # fmt: skip
        if not copy and self.dtype == np.dtype(dtype):
            return self
        new = ndarray(self.shape, dtype)
        new[...] = self
        return new

    def copy(self, order: str = "C") -> ndarray:
        return self.astype(self.dtype)

    def fill(self, value: Any) -> None:
        self[...] = value

    def __copy__(self) -> ndarray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()


class _Bytes:
    """The bytes behind a pointer, as numpy takes a buffer; they keep the memory."""

    def __new__(cls, pointer: MemoryPointer) -> Any:
        mem = pointer.mem
        whole = mem.block.array if hasattr(mem, "block") else memory.bytes_at(mem.ptr, mem.size)
        return whole[pointer.ptr - mem.ptr :].data


def queue() -> machine.Queue:
    return get_current_stream().queue


def need_here(arrays: list[ndarray]) -> None:
    """Raise what cupy raises for an array of another GPU than the current one."""
    here = machine.current().number
    for array in arrays:
        if array.data.device_id != here:
            message = (
                f"The device where the array resides ({array.data.device_id}) is different from "
                f"the current device ({here}). Peer access is unavailable between these devices."
            )
            raise ValueError(message)


def _is_basic(key: Any) -> bool:
    return key is None or key is Ellipsis or isinstance(key, int | np.integer | slice)


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    """As cupy's."""
    if a._raw.flags.c_contiguous and dtype in (None, a.dtype):
        return a
    return a.astype(a.dtype if dtype is None else dtype)


# -- computing -----------------------------------------------------------------------------------


def apply(function: Any, *args: Any, out: ndarray | None = None, **kwargs: Any) -> ndarray:
    """Queue a function of numpy's on arrays of the current GPU, and return where its result goes.

    Arguments may be arrays, or tuples of them. The shape and the dtype of the result are known at
    once: numpy computes them from zeros.
    """
    arrays = [a for arg in args for a in (arg if isinstance(arg, tuple) else (arg,))]
    need_here([a for a in arrays if isinstance(a, ndarray)])
    for arg in arrays:
        if isinstance(arg, np.ndarray):
            message = f"Unsupported type {np.ndarray}"
            raise TypeError(message)
    if out is None:
        shape, dtype = _result(
            function, tuple(map(_kind, args)), tuple(sorted(kwargs.items(), key=lambda i: i[0]))
        )
        out = ndarray(shape, dtype)
    else:
        need_here([out])
        shape, _ = _result(function, tuple(map(_kind, args)), tuple(sorted(kwargs.items())))
        if shape != out.shape:
            message = f"non-broadcastable output operand with shape {out.shape} for {shape}"
            raise ValueError(message)
    target, raw = out._raw, [_raw_of(arg) for arg in args]
    if isinstance(function, np.ufunc):
        queue().add(lambda: function(*raw, out=target, casting="unsafe", **kwargs))
    else:
        queue().add(lambda: np.copyto(target, function(*raw, **kwargs), casting="unsafe"))
    return out


def _raw_of(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return tuple(map(_raw_of, arg))
    return arg._raw if isinstance(arg, ndarray) else arg


def _kind(arg: Any) -> Any:
    """Return what the result's shape and dtype depend on, hashable."""
    if isinstance(arg, ndarray):
        return _Like(arg.shape, arg.dtype)
    if isinstance(arg, tuple):
        return tuple(map(_kind, arg))
    if isinstance(arg, slice):
        return _Slice(arg.start, arg.stop, arg.step)
    return _Given(type(arg), arg)


class _Like(tuple):
    def __new__(cls, *parts: Any) -> Any:
        return super().__new__(cls, parts)

    def value(self) -> Any:
        return np.broadcast_to(np.zeros((), self[1]), self[0])


class _Given(_Like):
    def value(self) -> Any:
        return self[1]


class _Slice(_Like):
    def value(self) -> Any:
        return slice(*self)


def _value(kind: Any) -> Any:
    return kind.value() if isinstance(kind, _Like) else tuple(map(_value, kind))


@lru_cache(maxsize=100_000)
def _result(function: Any, kinds: Any, kwargs: Any) -> tuple[tuple[int, ...], np.dtype]:
    with np.errstate(all="ignore"):
        result = np.asarray(function(*map(_value, kinds), **dict(kwargs)))
    return result.shape, result.dtype


def _take(array: np.ndarray, *keys: Any) -> np.ndarray:
    result: np.ndarray = array[_wrapped(array, keys)]
    return result


def _wrapped(array: np.ndarray, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return indices within the array: cupy takes those in arrays modulo the size of the axis."""
    used, axis, found = sum(k is not None and k is not Ellipsis for k in keys), 0, []
    for key in keys:
        size = array.shape[axis] if axis < array.ndim else 0
        whole = isinstance(key, np.ndarray) and key.dtype.kind in "iu" and size
        found.append(key % size if whole else key)
        axis += array.ndim - used if key is Ellipsis else key is not None
    return tuple(found)


def _known_later(function: Any, array: ndarray, *args: Any) -> ndarray:
    """Wait for everything and compute: the shape of the result depends on values."""
    if queue().capture is not None:
        queue().synchronize()  # raises
    need_here([array])
    queue().synchronize()
    found = function(array._raw, *map(_raw_of, args))
    new = ndarray(found.shape, found.dtype)
    queue().add(lambda: np.copyto(new._raw, found))
    return new


def array_of(obj: Any, dtype: Any = None, *, copy: Any = True, blocking: bool = False) -> ndarray:
    """Return a new device array, as ``cupy.array``; pinned memory is read when the copy runs.

    Other memory is copied at once, to pinned memory of cupy's own.
    """
    if isinstance(obj, ndarray):
        need = copy or (dtype is not None and obj.dtype != np.dtype(dtype))
        return obj.astype(obj.dtype if dtype is None else dtype) if need else obj
    if hasattr(obj, "__cuda_array_interface__"):
        return from_interface(obj)
    if isinstance(obj, list | tuple) and any(isinstance(o, ndarray) for o in obj):
        parts = tuple(array_of(o) for o in obj)
        return apply(np.stack, parts)
    host = np.array(obj, dtype=dtype, copy=None)
    new = ndarray(host.shape, host.dtype)
    if not host.ndim:
        new.fill(host.item() if host.dtype.kind in "bif" else host[()])
        return new
    pinned = is_memory_pinned(host.ctypes.data)
    source = np.ascontiguousarray(host) if pinned else host.copy()
    new.set(source)
    _hold(source)
    if blocking:
        queue().synchronize()
    return new


def _hold(host: np.ndarray) -> None:
    """Keep host memory until the copies queued so far are done, as cupy's watch list does."""
    queue().add(lambda: _nothing(host))


def _nothing(host: np.ndarray) -> None:
    pass


def from_interface(obj: Any) -> ndarray:
    """Return an array over memory that another object describes."""
    said = obj.__cuda_array_interface__
    address = said["data"][0]
    dtype = np.dtype(said["typestr"])
    new = ndarray.__new__(ndarray)
    size = dtype.itemsize
    for axis in said["shape"]:
        size *= axis
    gpu = machine.owner_of(address, size) if size else machine.current()
    if gpu is None:
        message = f"{size} bytes at {address:#x} are no memory of a GPU"
        raise Misuse(message)
    mem = SimpleNamespace(ptr=address, size=size, device_id=gpu.number, owner=obj)
    new._place(
        MemoryPointer(mem, 0),
        np.ndarray(said["shape"], dtype, memory.bytes_at(address, size).data, 0, said["strides"]),
    )
    return new


# -- operators -----------------------------------------------------------------------------------


def _operand(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]
    return value


def _install(name: str, ufunc: Any) -> None:
    def forward(self: ndarray, other: Any) -> Any:
        if not isinstance(other, (ndarray, np.ndarray, *SCALARS)):
            return NotImplemented
        return apply(ufunc, self, _operand(other))

    def backward(self: ndarray, other: Any) -> Any:
        if not isinstance(other, (np.ndarray, *SCALARS)):
            return NotImplemented
        return apply(ufunc, _operand(other), self)

    def in_place(self: ndarray, other: Any) -> ndarray:
        result = _result(ufunc, (_kind(self), _kind(_operand(other))), ())
        if not np.can_cast(result[1], self.dtype, "same_kind"):
            message = f"output (typecode '{result[1].char}') could not be coerced to {self.dtype}"
            raise TypeError(message)
        return apply(ufunc, self, _operand(other), out=self)

    setattr(ndarray, f"__{name}__", forward)
    setattr(ndarray, f"__r{name}__", backward)
    setattr(ndarray, f"__i{name}__", in_place)


for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "lshift": np.left_shift,
    "rshift": np.right_shift, "matmul": np.matmul,
}.items():  # fmt: skip
    _install(_name, _ufunc)

for _name, _ufunc in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(
        ndarray, f"__{_name}__", lambda self, other, _u=_ufunc: apply(_u, self, _operand(other))
    )

for _name, _ufunc in {
    "neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert,
}.items():  # fmt: skip
    setattr(ndarray, f"__{_name}__", lambda self, _u=_ufunc: apply(_u, self))


def _reduced(function: Any) -> Any:
    """Return a reduction that may be asked for a dtype."""

    def reduce(
        self: ndarray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ndarray:
        more = {} if dtype is None else {"dtype": np.dtype(dtype)}
        return apply(function, self, out=out, axis=axis, keepdims=keepdims, **more)

    return reduce


def _chosen(function: Any) -> Any:
    """Return a reduction that keeps the dtype, or has one of its own."""

    def reduce(self: ndarray, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return apply(function, self, out=out, axis=axis, keepdims=keepdims)

    return reduce


def _indexed(function: Any) -> Any:
    """Return a reduction to indices."""

    def reduce(
        self: ndarray, axis: Any = None, out: Any = None, dtype: Any = None, keepdims: bool = False
    ) -> ndarray:
        return apply(function, self, out=out, axis=axis, keepdims=keepdims)

    return reduce


for _name in ("sum", "prod", "mean"):
    setattr(ndarray, _name, _reduced(getattr(np, _name)))
for _name in ("max", "min", "any", "all"):
    setattr(ndarray, _name, _chosen(getattr(np, _name)))
for _name in ("argmax", "argmin"):
    setattr(ndarray, _name, _indexed(getattr(np, _name)))
