"""Nets as Python programs: ``n.conv1 = L.Convolution(n.data, kernel_size=5)``.

``layers.Type(...)`` describes a layer and returns its tops, the bottoms of further layers.
``NetSpec`` names tops by the attributes that they are assigned to; ``to_proto`` returns the net's
message, with layers in topological order.

Source: Caffe, ``python/caffe/net_spec.py``.
"""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from demitasse.core.text import nearest, suggestion
from demitasse.io.proto import LayerParameter, NetParameter, caffe_pb2, fork_of_type, forks_of_field
from demitasse.layers import layer_types

SHARED = {
    "Deconvolution": "convolution",
    "Im2col": "convolution",
    "LSTM": "recurrent",
    "RNN": "recurrent",
}
"""Types whose fields are in the message of another type; scripts for Caffe must name it."""


class Top:
    """The top number ``n`` of the layer ``fn``."""

    def __init__(self, fn: "Function", n: int) -> None:
        self.fn = fn
        self.n = n

    def to_proto(self) -> NetParameter:
        """Return a net of the layers that this top depends on."""
        return to_proto(self)


class Function:
    """A layer: type, bottoms and parameters.

    Args:
        type_name: Type of the layer.
        inputs: Bottoms of the layer.
        params: Fields. Names that end in ``param``, and names that the message of the type does
            not have, are fields of the layer itself. ``ntop`` is the number of tops (default 1),
            ``in_place`` makes the tops equal to the bottoms.

    Raises:
        TypeError: A bottom is not a top of another layer.
    """

    def __init__(self, type_name: str, inputs: Iterable[Top], params: Mapping[str, Any]) -> None:
        self.type_name = type_name
        self.inputs = tuple(inputs)
        for index, bottom in enumerate(self.inputs):
            if not isinstance(bottom, Top):
                message = f"{type_name} input {index} is not a Top (type is {type(bottom)})"
                raise TypeError(message)
        self.params = dict(params)
        self.ntop: int = self.params.pop("ntop", 1)
        self.in_place: bool = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))


class NetSpec:
    """A net under construction: a top that is assigned to an attribute gets its name."""

    tops: OrderedDict[str, Top | Function]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Top | Function) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        if name == "tops" or name not in self.tops:  # unpickling reads `tops`
            message = f"the net has no top {name!r}"
            raise AttributeError(message)
        return self.tops[name]

    def __setitem__(self, name: str, value: Top | Function) -> None:
        self.tops[name] = value

    def __getitem__(self, name: str) -> Any:
        return self.tops[name]

    def keys(self) -> list[str]:
        """Return the names of the tops (SSD's)."""
        return list(self.tops)

    def vals(self) -> list[Top | Function]:
        """Return the tops (SSD's)."""
        return list(self.tops.values())

    def update(self, name: str, params: Mapping[str, Any]) -> None:
        """Set more fields of the layer of a top (SSD's)."""
        top = self.tops[name]
        (top.fn if isinstance(top, Top) else top).params.update(params)

    def to_proto(self) -> NetParameter:
        """Return the net's message.

        Raises:
            TypeError: An assigned value is not a top.
            AttributeError: A layer has an unknown field.
        """
        writer = _Writer({top: name for name, top in self.tops.items()})
        for name, top in self.tops.items():
            if not isinstance(top, Top | Function):
                message = (
                    f"{name!r} is a {type(top).__name__}, not a top; "
                    "a layer of several tops is assigned to as many names: n.a, n.b = ..."
                )
                raise TypeError(message)
            writer.add(top)
        return writer.net()


class Layers:
    """Creates layers by type: ``Layers().ReLU(bottom, in_place=True)``."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # Python's protocol lookups
            raise AttributeError(name)
        known = name in layer_types() or fork_of_type(name)
        near = [] if known else nearest(name, layer_types(), cutoff=0.8)
        if near:
            message = f"no layer type {name!r} is known; did you mean {near[0]!r}?"
            warnings.warn(message, stacklevel=2)

        def layer(*bottoms: Top, **params: Any) -> Top | Function | tuple[Top, ...]:
            fn = Function(name, bottoms, params)
            if fn.ntop == 1:
                return fn.tops[0]
            return fn.tops or fn

        layer.__name__ = layer.__qualname__ = name
        return layer


class Parameters:
    """Values of the enums in layers' messages: ``Parameters().Pooling.MAX``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(caffe_pb2, name + "Parameter")


layers = Layers()
params = Parameters()


def to_proto(*tops: Top | Function) -> NetParameter:
    """Return a net of the layers that the tops depend on, with generated names."""
    writer = _Writer({})
    for top in tops:
        writer.add(top)
    return writer.net()


def param_name_dict() -> dict[str, str]:
    """Return the parameter field of each layer type: ``{"InnerProduct": "inner_product"}``.

    Fields of all layers, such as ``transform_param``, are included.
    """
    layer = LayerParameter()
    names = [f.name for f in layer.DESCRIPTOR.fields if f.name.endswith("_param")]
    messages = [getattr(layer, name).DESCRIPTOR.name for name in names]
    return {
        message.removesuffix("Parameter"): name.removesuffix("_param")
        for message, name in zip(messages, names, strict=True)
    }


def assign_proto(proto: Message, name: str, val: Any) -> None:
    """Set a field of a message from plain Python values.

    A message takes a dictionary, a repeated field a list or a single value.

    Raises:
        AttributeError: The message, or a nested one, has no such field.
        TypeError: The value has the wrong type.
    """
    known = proto.DESCRIPTOR.fields_by_name
    if name not in known:
        message = f"{proto.DESCRIPTOR.name} has no field {name!r}"
        forks = forks_of_field(proto.DESCRIPTOR.name, name)
        message += f"; it comes from {forks}" if forks else suggestion(name, known)
        raise AttributeError(message)
    field = getattr(proto, name)
    if hasattr(field, "extend"):
        for item in val if isinstance(val, list | tuple) else [val]:
            if isinstance(item, Mapping):
                _assign_all(field.add(), item)
            else:
                with _errors_of_field(known[name], item):
                    field.append(item)
    elif isinstance(val, Mapping):
        _assign_all(field, val)
    else:
        with _errors_of_field(known[name], val):
            setattr(proto, name, val)


@contextmanager
def _errors_of_field(field: Any, value: Any) -> Iterator[None]:
    """Add the field and the value to protobuf's error, which does not name both."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        message = f"{field.name} cannot be {value!r}: {error}"
        if field.message_type is not None:
            known = ", ".join(one.name for one in field.message_type.fields)
            message = f"{field.name} cannot be {value!r}, expected a dict with keys of {known}"
        if isinstance(value, float) and value.is_integer():
            message += "; '/' gives fractions, '//' whole numbers"
        raise TypeError(message) from error


def _assign_all(proto: Message, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        assign_proto(proto, name, value)


class _Writer:
    """Writes the messages of layers in topological order.

    Tops, and layers without tops, have the given names; other names are a type and a number.
    """

    def __init__(self, names: Mapping[Top | Function, str]) -> None:
        self._names = dict(names)
        self._numbers: Counter[str] = Counter()
        self._layers: dict[Function, LayerParameter] = {}

    def net(self) -> NetParameter:
        """Return a net of all added layers."""
        return NetParameter(layer=self._layers.values())

    def add(self, wanted: Top | Function) -> None:
        """Add a layer after its dependencies, without recursion, since nets can be deep."""
        waiting = [wanted.fn if isinstance(wanted, Top) else wanted]
        while waiting:
            fn = waiting[-1]
            missing = [top.fn for top in fn.inputs if top.fn not in self._layers]
            if missing:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if fn not in self._layers:
                self._layers[fn] = self._message(fn)

    def _message(self, fn: Function) -> LayerParameter:
        layer = LayerParameter(type=fn.type_name)
        layer.bottom.extend(self._layers[top.fn].top[top.n] for top in fn.inputs)
        layer.top.extend(
            layer.bottom if fn.in_place else [self._name(top, fn.type_name) for top in fn.tops]
        )
        named_by = fn if fn in self._names or not fn.tops else fn.tops[0]
        layer.name = self._name(named_by, fn.type_name)
        try:
            for name, value in fn.params.items():
                assign_proto(_holder(layer, name), name, value)
        except (AttributeError, TypeError, ValueError) as error:
            error.add_note(f"in layer {layer.name!r} ({fn.type_name})")
            raise
        return layer

    def _name(self, of: Top | Function, type_name: str) -> str:
        if of not in self._names:
            self._numbers[type_name] += 1
            self._names[of] = f"{type_name}{self._numbers[type_name]}"
        return self._names[of]


def _holder(layer: LayerParameter, name: str) -> Message:
    """Return the message of a layer's field: the message of its type, or the layer itself."""
    own = _param_names.get(layer.type)
    if name.endswith("param") or own is None:
        return layer
    message: Message = getattr(layer, own + "_param")
    known = message.DESCRIPTOR.fields_by_name
    fields = {*known, *layer.DESCRIPTOR.fields_by_name}
    if name not in fields and (hint := suggestion(name, known)):
        text = f"{message.DESCRIPTOR.name} and LayerParameter have no field {name!r}{hint}"
        raise AttributeError(text)
    return message if name in known else layer


_param_names = {**param_name_dict(), **SHARED}
