"""Layers with one thing about them that nobody means, found by reflection over ``caffe.proto``.

Every field that a type reads is cleared, set to values out of all bounds, or given many times; the
type gets other numbers of bottoms and tops, tops in the place of bottoms, and bottoms of shapes it
was not made for. The net around it holds the values of its inputs, as those of ``random_nets`` do.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from fields import is_repeated
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from random_nets import add_input, input_values, text_of
from reader import Reader

from demitasse import Net
from demitasse.errors import DemitasseError
from demitasse.io.proto import LayerParameter, NetParameter, parse_text
from demitasse.layers.metadata import METADATA
from demitasse.testing.layer_cases import CASES, OTHER_CASES

__all__ = ["TYPES", "changes_of", "run", "wrong", "wrong_layers_reader"]

DEVICES = ("numpy", "cpu")
LARGE = 10**6
"""Elements from which on a net is made and not run."""

TYPES = tuple(name for name in {**CASES, **OTHER_CASES} if name in METADATA)

WHOLE = (0, 1, 2, 3, 7, 13, -1, -2, 100, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1)
REAL = (0.0, -1.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-45)
TEXTS = ("", "nothing of this name", "\x1b[2J\n", "x" * 100_000, "../x", "/dev/zero", "/")
TIMES = (1, 2, 3, 4, 14, 1000)
LONG = 1000
"""Characters from which on a text is given once."""

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (5,), (3, 0), (0, 3), (1, 2, 3), (1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 1),
    (2, 0, 3, 3), (2, 3, 0, 3), (1,) * 13, (2,) * 9, (1,) * 33, (2**31 - 1,), (2**31, 2**31),
)  # fmt: skip

Path = tuple[Any, ...]
Change = Callable[[NetParameter], None]
RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@cache
def _net_with(name: str) -> tuple[NetParameter, dict[str, np.ndarray]]:
    """Return a net whose last layer is a sound one of a type, and the values of its inputs."""
    case = {**CASES, **OTHER_CASES}[name][0]
    layer = parse_text(case.text, LayerParameter)
    layer.name = "layer"
    for index in range(len(layer.bottom), len(case.bottoms)):
        layer.bottom.append(f"in{index}")
    if not layer.top and name != "Silence":
        layer.top.append("out")
    net = NetParameter(force_backward=METADATA[name].gradient == "gradient")
    net.state.phase = int(case.phase == "TEST")
    arrays = [np.asarray(array, np.float32) for array in case.bottoms]
    values: dict[str, np.ndarray] = {}
    for blob, array in dict(zip(layer.bottom, arrays, strict=False)).items():
        add_input(net, blob, array, values)
    net.layer.append(layer)
    return net, values


@cache
def changes_of(name: str) -> Sequence[tuple[str, Change]]:
    """Return everything that may be wrong about a type, each as words and what makes it so."""
    return [*_fields(name), *_blobs(), *_shapes(_net_with(name)[0])]


# -- fields ----------------------------------------------------------------------------------------


def _fields(name: str) -> Iterator[tuple[str, Change]]:
    for path in dict.fromkeys(_paths(name)):
        where = ".".join(field.name for field in path)
        for what, values in _contents(path[-1]):
            yield f"{where}: {what}", partial(_set, path, values)


def _paths(name: str) -> Iterator[Path]:
    """Yield the ways to all fields that a type reads, and to those that every type has."""
    common = ("loss_weight", "param", "propagate_down", "phase", "include", "blobs")
    for spec in (*METADATA[name].fields, *common):
        first, _, second = spec.partition(".")
        field = LayerParameter.DESCRIPTOR.fields_by_name[first]
        yield (field,)
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            inner = _inside(field.message_type, (field,))
            yield from (path for path in inner if not second or path[1].name == second)


def _inside(message: Any, path: Path) -> Iterator[Path]:
    for field in message.fields:
        yield (*path, field)
        if field.cpp_type == Field.CPPTYPE_MESSAGE and len(path) < 3:
            yield from _inside(field.message_type, (*path, field))


def _contents(field: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield what a field may hold, as words and values; no values clear it."""
    yield "cleared", ()
    times = TIMES if is_repeated(field) else (1,)
    for value in (None,) if field.cpp_type == Field.CPPTYPE_MESSAGE else _values(field):
        for count in times if len(str(value)) < LONG else (1,):
            yield f"{count} x {str(value)[:30]}", (value,) * count


def _values(field: Any) -> Sequence[Any]:
    match field.cpp_type:
        case Field.CPPTYPE_STRING:
            return (b"", b"x") if field.type == Field.TYPE_BYTES else TEXTS
        case Field.CPPTYPE_BOOL:
            return (True, False)
        case Field.CPPTYPE_ENUM:
            return [value.number for value in field.enum_type.values]
        case Field.CPPTYPE_FLOAT | Field.CPPTYPE_DOUBLE:
            return REAL
    low, high = RANGES[field.cpp_type]
    return [value for value in WHOLE if low <= value <= high]


def _set(path: Path, values: Sequence[Any], net: NetParameter) -> None:
    """Have a field of the layer hold these values alone; of messages, empty ones."""
    message: Message = net.layer[-1]
    for field in path[:-1]:
        part = getattr(message, field.name)
        message = (part[0] if len(part) else part.add()) if is_repeated(field) else part
    field = path[-1]
    message.ClearField(field.name)
    for value in values:
        part = getattr(message, field.name)
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            part.add() if is_repeated(field) else part.SetInParent()
        elif is_repeated(field):
            part.append(value)
        else:
            setattr(message, field.name, value)


# -- blobs -----------------------------------------------------------------------------------------


def _blobs() -> Iterator[tuple[str, Change]]:
    for count in (*range(8), 40):
        yield f"{count} bottoms", partial(_bottoms, count)
        yield f"{count} tops", partial(_tops, [f"top{index}" for index in range(count)])
    yield "two tops of one name", partial(_tops, ["top", "top"])
    yield "tops in the place of bottoms", _in_place


def _bottoms(count: int, net: NetParameter) -> None:
    layer = net.layer[-1]
    names = (list(layer.bottom) or ["nothing"]) * 40
    layer.ClearField("bottom")
    layer.bottom.extend(names[:count])


def _tops(names: Sequence[str], net: NetParameter) -> None:
    net.layer[-1].ClearField("top")
    net.layer[-1].top.extend(names)


def _in_place(net: NetParameter) -> None:
    layer = net.layer[-1]
    _tops((list(layer.bottom) * 8)[: len(layer.top)], net)


def _shapes(net: NetParameter) -> Iterator[tuple[str, Change]]:
    for index in range(len(net.layer) - 1):
        for shape in SHAPES:
            yield f"input {index} of shape {shape}", partial(_shape, index, shape)


def _shape(index: int, shape: Sequence[int], net: NetParameter) -> None:
    dims = net.layer[index].input_param.shape[0].dim
    del dims[:]
    dims.extend(shape)


# -- running ---------------------------------------------------------------------------------------


def wrong_layers_reader() -> Reader:
    """Return what reads nets with wrong layers."""
    sound = text_of(*_net_with(TYPES[0])).encode()
    return Reader("wrong layers", [sound], run, 5_000, draw=_drawn, opens=True)


def _drawn(rng: random.Random) -> bytes:
    name = rng.choice(TYPES)
    return wrong(name, rng.choice(changes_of(name))[1])


def wrong(name: str, change: Change) -> bytes:
    """Return the text of a net with a layer that has something wrong about it."""
    sound, values = _net_with(name)
    net = NetParameter()
    net.CopyFrom(sound)
    change(net)
    return text_of(net, values).encode()


def run(content: bytes) -> None:
    """Make a net on each device, and run it both ways where it is small.

    Raises:
        DemitasseError: It is refused.
    """
    text = content.decode()
    refused = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for device in DEVICES:
            try:
                _run(parse_text(text, NetParameter), input_values(text), device)
            except DemitasseError as error:
                refused = error
    if refused is not None:
        raise refused


def _run(param: NetParameter, values: dict[str, list[float]], device: str) -> None:
    with Net(param, "TEST" if param.state.phase else "TRAIN", device=device, seed=1) as net:
        if sum(blob.count for blob in net.blobs.values()) > LARGE:
            return
        for name, numbers in values.items():
            blob = net.blobs.get(name)
            if blob is not None and blob.count == len(numbers):
                blob.mutable_cpu_data()[...] = np.reshape(numbers, blob.shape)
        net.forward()
        if param.force_backward:
            net.backward()
