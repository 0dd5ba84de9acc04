"""State that layers keep between iterations, as messages of a snapshot.

Three kinds are stored: counters (``Layer.state``), other plain values of ``Layer.state``, such as
the ``state_dict`` of a Python layer, and the blobs of ``Layer.state_blobs`` that are not among the
weights, such as hidden states. Values are data alone: reading them runs no code.
"""

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse.blob import Blob
from demitasse.core.log import get_logger
from demitasse.errors import ErrorCode, SnapshotError
from demitasse.io.proto import ResumeState
from demitasse.layers import Layer
from demitasse.net import Net

log = get_logger(__name__)

Value = ResumeState.Value
Progress = ResumeState.LayerProgress

LARGEST_COUNT = 1 << 53  # largest number of passes or records of a valid state
DEEPEST = 32  # largest nesting of lists and dicts; a protobuf parser refuses 100

ARRAY = re.compile(r"[<>|]?[biufcSU][0-9]{1,9}")
"""Dtypes of stored arrays: numbers and texts of a fixed size."""


def encode(value: object, depth: int = 0) -> Value:
    """Return a plain value as a message; other types, and too deep nesting, raise a TypeError.

    Plain are None, bool, int, float, str, bytes, arrays and scalars of NumPy with numbers or texts,
    and lists, tuples and dicts of plain values.
    """
    if depth > DEEPEST:
        message = f"lists and dicts are nested in more than {DEEPEST} levels"
        raise TypeError(message)
    match value:
        case None:
            return Value(type="none")
        case np.ndarray():
            return _encoded_array(value, "array")
        case np.generic():
            return _encoded_array(np.asarray(value), "scalar")
        case bool():
            return Value(type="bool", data=bytes([value]))
        case int():
            size = value.bit_length() // 8 + 1
            return Value(type="int", data=value.to_bytes(size, "little", signed=True))
        case float():
            return Value(type="float", data=struct.pack("<d", value))
        case str():
            return Value(type="str", data=value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray():
            return Value(type="bytes", data=bytes(value))
        case list() | tuple():
            kind = "tuple" if isinstance(value, tuple) else "list"
            return Value(type=kind, item=[encode(one, depth + 1) for one in value])
        case dict():
            pairs = [part for pair in value.items() for part in pair]
            return Value(type="dict", item=[encode(one, depth + 1) for one in pairs])
    message = (
        f"got a {type(value).__module__}.{type(value).__qualname__}, expected numbers, strings, "
        "lists, dicts and arrays of NumPy"
    )
    raise TypeError(message)


def _encoded_array(array: np.ndarray, kind: str) -> Value:
    if not ARRAY.fullmatch(array.dtype.str):
        message = f"got an array of {array.dtype}, expected numbers or texts"
        raise TypeError(message)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Value(type=kind, data=little.tobytes(), dtype=little.dtype.str, dim=array.shape)


def decode(message: Value) -> Any:
    """Return the plain value of a message, with new arrays; raise a ValueError for no value."""
    data, items = message.data, message.item
    match message.type:
        case "none":
            return None
        case "bool":
            return data != b"\0"
        case "int":
            return int.from_bytes(data, "little", signed=True)
        case "float":
            return struct.unpack("<d", data)[0]
        case "str":
            return data.decode("utf-8", "surrogatepass")
        case "bytes":
            return data
        case "list":
            return [decode(item) for item in items]
        case "tuple":
            return tuple(decode(item) for item in items)
        case "dict" if len(items) % 2 == 0:
            values = [decode(item) for item in items]
            return dict(zip(values[::2], values[1::2], strict=True))
        case "array" | "scalar" if ARRAY.fullmatch(message.dtype):
            shape = tuple(message.dim)
            if min(shape, default=0) < 0:
                text = f"an array of shape {shape}"
                raise ValueError(text)
            array = np.frombuffer(data, np.dtype(message.dtype)).reshape(shape).copy()
            return array if message.type == "array" else array[()]
    text = f"a value of type {message.type!r}"
    raise ValueError(text)


def unstored_state(layer: Layer, weights: Sequence[object]) -> list[Blob]:
    """Return the state blobs of a layer whose memories are not among the weights of the run."""
    if not layer.has_state:
        return []
    known = set(map(id, weights))
    return [blob for blob in layer.all_state_blobs() if id(blob.data_memory) not in known]


def has_own_state(layer: Layer, weights: Sequence[object]) -> bool:
    """Return True if each shard has a state of its own: all but counters, which count for all."""
    counters = all(type(value) is int for value in layer.state().values())
    return not counters or bool(unstored_state(layer, weights))


def layer_progress(layer: Layer, weights: Sequence[object]) -> tuple[Progress, Progress]:
    """Return the state of a layer: its counters, and its blobs and other values.

    A value that cannot be stored is left out with a warning; a run that resumes names the layer.
    """
    counters, local = Progress(layer=layer.name), Progress(layer=layer.name)
    others = {}
    for key, value in layer.state().items():
        if isinstance(key, str) and type(value) is int and 0 <= value <= LARGEST_COUNT:
            counters.counter.add(key=key, value=value)
        else:
            others[key] = value
    try:
        if others:
            local.value.CopyFrom(encode(others))
    except TypeError as error:
        log.warning(
            "The state of layer %r is not stored: %s. A resumed run will start it anew.",
            layer.name, error,
        )  # fmt: skip
    for blob in unstored_state(layer, weights):
        memory = blob.data_memory
        values = np.zeros(0, memory.dtype) if memory.cleared else memory.cpu_data()
        stored = _encoded_array(values, "array")
        stored.dim[:] = blob.shape
        local.blob.append(stored)
    return counters, local


class LayerState:
    """State of one layer, read from messages and checked."""

    def __init__(self, counters: Progress | None, local: Progress | None) -> None:
        self.values: dict[str, Any] = {}
        # Shape and values of each state blob; no values for zeros.
        self.blobs: list[tuple[tuple[int, ...], np.ndarray]] = []
        for counter in counters.counter if counters is not None else ():
            self.values[counter.key] = counter.value
        if local is None:
            return
        if local.HasField("value"):
            others = decode(local.value)
            if not isinstance(others, dict):
                message = "values that are no dict"
                raise ValueError(message)
            self.values.update(others)
        for stored in local.blob:
            if stored.dtype not in {"<f4", "<f8"}:
                message = f"a blob of {stored.dtype!r}"
                raise ValueError(message)
            values, shape = np.frombuffer(stored.data, stored.dtype), tuple(stored.dim)
            if min(shape, default=0) < 0 or 0 < values.size < math.prod(shape):
                message = f"{values.size} values of a blob of {shape}"
                raise ValueError(message)
            self.blobs.append((shape, values))

    def fits(self, blobs: Sequence[Blob]) -> bool:
        """Return True if the stored blobs are those of a layer; batches may have another size."""
        return len(self.blobs) == len(blobs) and all(
            len(shape) == blob.num_axes and shape[1:] == blob.shape[1:]
            for (shape, _), blob in zip(self.blobs, blobs, strict=True)
        )

    def load(self, layer: Layer, weights: Sequence[object]) -> None:
        """Restore the state of a layer; blobs that are not stored become zeros."""
        if self.values:
            layer.set_state(self.values)
        blobs = unstored_state(layer, weights)
        if not self.fits(blobs):
            for blob in blobs:
                blob.data_memory.clear()
            return
        for (shape, values), blob in zip(self.blobs, blobs, strict=True):
            if values.size > blob.data_memory.size:
                blob.reshape((values.size,))
            blob.reshape(shape)
            memory = blob.data_memory
            if not values.size:
                memory.clear()
                continue
            host = memory.mutable_cpu_data(discard=True)
            host[: values.size], host[values.size :] = values, 0


def shard_name(name: str, shard: int) -> str:
    """Return the name of a shard's part of a state: that of the net for shard 0."""
    return f"{name} shard {shard}" if shard else name


class StoredLayers:
    """The layers of a state by net and name; a damaged state raises a SnapshotError."""

    def __init__(self, resume: ResumeState) -> None:
        self._parts: Mapping[str, Mapping[str, Progress]] = {
            part.net: {progress.layer: progress for progress in part.layer} for part in resume.net
        }
        for net, layers in self._parts.items():
            for name, progress in layers.items():
                try:
                    LayerState(progress, progress)
                except (UnicodeDecodeError, ValueError, TypeError, struct.error) as error:
                    message = f"the state of layer {name!r} of the {net} net is damaged: {error}"
                    details = {"net": net, "layer": name}
                    raise SnapshotError(message, code=ErrorCode.CORRUPT, **details) from error

    def names(self, net: str) -> Iterable[str]:
        """Return the names of the layers of a net that have a state."""
        return self._parts.get(net, {})

    def state_of(self, net: str, layer: str, shard: int = 0) -> LayerState:
        """Return the state of a layer, empty if there is none."""
        counters = self._parts.get(net, {}).get(layer)
        return LayerState(counters, self._parts.get(shard_name(net, shard), {}).get(layer))

    def missing(
        self, name: str, net: Net, weights: Sequence[object], shards: Iterable[int]
    ) -> Iterator[tuple[str, str]]:
        """Yield the layers of a net whose state was not saved, with the reasons.

        ``weights`` are the memories of the weights that are restored for the net, ``shards`` those
        whose state is needed.
        """
        for layer in net.layers:
            place = f"the state of layer {layer.name!r} ({layer.type}) of the {name} net"
            if layer.unsaved_state:
                yield layer.name, f"{place} is in no snapshot: {layer.unsaved_state}"
                continue
            blobs, keys = unstored_state(layer, weights), set(layer.state())
            stored = {shard: self.state_of(name, layer.name, shard) for shard in shards}
            fits = {n: s.fits(blobs) and keys <= set(s.values) for n, s in stored.items()}
            lost = [shard for shard, known in fits.items() if not known]
            if lost:
                part = f", of shard {', '.join(map(str, lost))}," if len(stored) > 1 else ""
                yield layer.name, f"{place}{part} is not in the file"
