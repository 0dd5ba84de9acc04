"""Functions on device arrays, under cupy's names and with cupy's signatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.arrays import _known_later, apply, array_of, ascontiguousarray, from_interface, ndarray
from gpu.streams import get_current_stream

# -- making arrays -------------------------------------------------------------------------------


def array(
    obj: Any, dtype: Any = None, copy: Any = True, order: str = "K", subok: bool = False,
    ndmin: int = 0, *, blocking: bool = False,
) -> ndarray:  # fmt: skip
    return array_of(obj, dtype, copy=copy, blocking=blocking)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None,
            blocking: bool = False) -> ndarray:  # fmt: skip
    return array_of(a, dtype, copy=bool(copy), blocking=blocking)


def asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> np.ndarray:
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)
    return np.asarray(a, order=order)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype, order=order)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    new = ndarray(shape, dtype, order=order)
    if new.size:
        new.data.memset_async(0, new.nbytes)
    return new


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype, order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:  # fmt: skip
    dtype = np.asarray(fill_value).dtype if dtype is None else dtype
    new = ndarray(shape, dtype, order=order)
    new[...] = fill_value
    return new


def empty_like(prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None,
               shape: Any = None) -> ndarray:  # fmt: skip
    return ndarray(
        prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype
    )


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None,
               shape: Any = None) -> ndarray:  # fmt: skip
    return zeros(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None,
              shape: Any = None) -> ndarray:  # fmt: skip
    return ones(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None,
              shape: Any = None) -> ndarray:  # fmt: skip
    shape = a.shape if shape is None else shape
    return full(shape, fill_value, a.dtype if dtype is None else dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:  # fmt: skip
    return apply(np.arange, start, stop, step, dtype=None if dtype is None else np.dtype(dtype))


def from_dlpack(array: Any, copy: Any = None) -> ndarray:
    there = array.__dlpack__(stream=get_current_stream().ptr or 1, max_version=(1, 0))
    return from_interface(there)


# -- computing -----------------------------------------------------------------------------------


def reshape(a: ndarray, newshape: Any, order: str = "C", *, copy: Any = None) -> ndarray:
    return a.reshape(newshape)


def sum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
        keepdims: bool = False) -> ndarray:  # fmt: skip
    return a.sum(axis=axis, dtype=dtype, out=out, keepdims=keepdims)


def prod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
         keepdims: bool = False) -> ndarray:  # fmt: skip
    return a.prod(axis=axis, dtype=dtype, out=out, keepdims=keepdims)


def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
         keepdims: bool = False) -> ndarray:  # fmt: skip
    return a.mean(axis=axis, dtype=dtype, out=out, keepdims=keepdims)


def max(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return a.max(axis=axis, out=out, keepdims=keepdims)


def min(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return a.min(axis=axis, out=out, keepdims=keepdims)


amax, amin = max, min


def any(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return a.any(axis=axis, out=out, keepdims=keepdims)


def all(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    return a.all(axis=axis, out=out, keepdims=keepdims)


def argmax(a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
           keepdims: bool = False) -> ndarray:  # fmt: skip
    return a.argmax(axis=axis, out=out, keepdims=keepdims)


def argmin(a: Any, axis: Any = None, dtype: Any = None, out: Any = None,
           keepdims: bool = False) -> ndarray:  # fmt: skip
    return a.argmin(axis=axis, out=out, keepdims=keepdims)


def where(condition: Any, x: Any = None, y: Any = None) -> ndarray:
    return apply(np.where, condition, x, y)


def clip(a: Any, a_min: Any, a_max: Any, out: Any = None) -> ndarray:
    return apply(np.clip, a, a_min, a_max, out=out)


def take(a: ndarray, indices: Any, axis: Any = None, out: Any = None) -> ndarray:
    return apply(np.take, a, indices, out=out, axis=axis, mode="wrap")


def take_along_axis(a: ndarray, indices: ndarray, axis: Any = -1) -> ndarray:
    return apply(_take_along_axis, a, indices, axis=axis)


def _take_along_axis(a: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    return np.take_along_axis(a, indices % a.shape[axis] if a.shape[axis] else indices, axis)


def stack(tup: Any, axis: int = 0, out: Any = None, *, dtype: Any = None,
          casting: str = "same_kind") -> ndarray:  # fmt: skip
    return apply(np.stack, tuple(tup), out=out, axis=axis)


def concatenate(tup: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None,
                casting: str = "same_kind") -> ndarray:  # fmt: skip
    return apply(np.concatenate, tuple(tup), out=out, axis=axis)


def expand_dims(a: ndarray, axis: Any) -> ndarray:
    return ndarray._over(np.expand_dims(a._raw, axis), a)


def squeeze(a: ndarray, axis: Any = None) -> ndarray:
    return a.squeeze(axis)


def transpose(a: ndarray, axes: Any = None) -> ndarray:
    return a.transpose(axes)


def swapaxes(a: ndarray, axis1: int, axis2: int) -> ndarray:
    return a.swapaxes(axis1, axis2)


def moveaxis(a: ndarray, source: Any, destination: Any) -> ndarray:
    return ndarray._over(np.moveaxis(a._raw, source, destination), a)


def broadcast_to(array: ndarray, shape: Any) -> ndarray:
    return ndarray._over(np.broadcast_to(array._raw, shape), array)


def flip(a: ndarray, axis: Any = None) -> ndarray:
    return ndarray._over(np.flip(a._raw, axis), a)


def roll(a: ndarray, shift: Any, axis: Any = None) -> ndarray:
    return apply(np.roll, a, shift=shift, axis=axis)


def repeat(a: ndarray, repeats: Any, axis: Any = None) -> ndarray:
    return apply(np.repeat, a, repeats=repeats, axis=axis)


def sort(a: ndarray, axis: Any = -1, kind: Any = None) -> ndarray:
    return apply(np.sort, a, axis=axis, kind="stable")


def argsort(a: ndarray, axis: Any = -1, kind: Any = None) -> ndarray:
    return apply(np.argsort, a, axis=axis, kind="stable")


def searchsorted(a: ndarray, v: ndarray, side: str = "left", sorter: Any = None) -> ndarray:
    return apply(np.searchsorted, a, v, side=side)


def cumsum(a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:
    return apply(np.cumsum, a, out=out, axis=axis)


def cumprod(a: ndarray, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:
    return apply(np.cumprod, a, out=out, axis=axis)


def count_nonzero(a: ndarray, axis: Any = None) -> ndarray:
    return apply(np.count_nonzero, a, axis=axis)


def nonzero(a: ndarray) -> tuple[ndarray, ...]:
    found = _known_later(np.argwhere, a)
    return tuple(found[:, i] for i in range(a.ndim))


def tensordot(a: ndarray, b: ndarray, axes: Any = 2) -> ndarray:
    axes = tuple(map(_tuple, axes)) if not isinstance(axes, int) else axes
    return apply(np.tensordot, a, b, axes=axes)


def _tuple(axes: Any) -> Any:
    return axes if isinstance(axes, int) else tuple(axes)


def dot(a: ndarray, b: ndarray, out: Any = None) -> ndarray:
    return apply(np.dot, a, b, out=out)


def isdtype(dtype: Any, kind: Any) -> bool:
    return np.isdtype(np.dtype(dtype), kind)


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    if where is not None:
        raise NotImplementedError("the stand-in copies whole arrays")
    dst[...] = src


def get_array_module(*args: Any) -> Any:
    import sys

    return sys.modules["cupy"] if __builtins__["any"](isinstance(a, ndarray) for a in args) else np


# -- what every element goes through -------------------------------------------------------------


class ufunc:
    """As ``cupy.ufunc``: a function of numpy's for elements of device arrays."""

    def __init__(self, of: np.ufunc) -> None:
        self._of, self.__name__ = of, of.__name__
        self.nin, self.nout = of.nin, of.nout

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None, **kwargs: Any) -> ndarray:
        if len(args) > self.nin:
            *args, out = args  # type: ignore[assignment]
        if dtype is not None:
            kwargs["dtype"] = np.dtype(dtype)
        return apply(self._of, *args, out=out, **kwargs)


UFUNCS = (
    "absolute", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "bitwise_and", "bitwise_or", "bitwise_xor", "cbrt", "ceil", "conjugate", "copysign", "cos",
    "cosh", "divide", "equal", "exp", "exp2", "expm1", "float_power", "floor", "floor_divide",
    "fmax", "fmin", "fmod", "greater", "greater_equal", "hypot", "invert", "isfinite", "isinf",
    "isnan", "left_shift", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "maximum", "minimum",
    "multiply", "negative", "nextafter", "not_equal", "positive", "power", "reciprocal",
    "remainder", "right_shift", "rint", "sign", "signbit", "sin", "sinh", "sqrt", "square",
    "subtract", "tan", "tanh", "true_divide", "trunc",
)  # fmt: skip

MADE = {name: ufunc(getattr(np, name)) for name in UFUNCS}
MADE |= {"abs": MADE["absolute"], "mod": MADE["remainder"], "bitwise_not": MADE["invert"],
         "pow": MADE["power"]}  # fmt: skip


def round(a: ndarray, decimals: int = 0, out: Any = None) -> ndarray:
    return apply(np.round, a, decimals, out=out)


around = round

SIMPLE = (
    "array", "asarray", "asnumpy", "empty", "zeros", "ones", "full", "empty_like", "zeros_like",
    "ones_like", "full_like", "arange", "from_dlpack", "reshape", "sum", "prod", "mean", "max",
    "min", "amax", "amin", "any", "all", "argmax", "argmin", "where", "clip", "take",
    "take_along_axis", "stack", "concatenate", "expand_dims", "squeeze", "transpose", "swapaxes",
    "moveaxis", "broadcast_to", "flip", "roll", "repeat", "sort", "argsort", "searchsorted",
    "cumsum", "cumprod", "count_nonzero", "nonzero", "tensordot", "dot", "isdtype", "copyto",
    "get_array_module", "round", "around",
)  # fmt: skip

DTYPES = (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "intp",
)  # fmt: skip

OTHERS = ("dtype", "finfo", "iinfo", "issubdtype", "integer", "floating", "newaxis", "pi", "inf",
          "nan", "e", "can_cast", "result_type", "promote_types", "inexact", "number", "generic",
          "complexfloating", "signedinteger", "unsignedinteger")  # fmt: skip


def names() -> dict[str, Any]:
    """Return what the module ``cupy`` has of here."""
    own = globals()
    found = {name: own[name] for name in SIMPLE} | MADE
    found |= {name: getattr(np, name) for name in (*DTYPES, *OTHERS)}
    return found | {"ndarray": ndarray, "ufunc": ufunc, "ascontiguousarray": ascontiguousarray}
