"""Layer: base class of all layers.

A layer is written once, in array API terms, for all devices. ``setup`` and ``reshape`` read
shapes, ``forward`` fills the tops, ``backward`` overwrites bottom gradients and adds to parameter
gradients.

Source: Caffe, ``include/caffe/layer.hpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from demitasse.backends.arrays import Array
from demitasse.backends.ops import Op
from demitasse.backends.random import stream_of
from demitasse.blob import Blob
from demitasse.core.deprecated import adopt_renamed_overrides, deprecated_attribute
from demitasse.core.device import Device
from demitasse.core.host import check_size
from demitasse.core.out_of_memory import memory_errors_at
from demitasse.core.text import html_of
from demitasse.errors import ErrorCode, NetError, ShapeError
from demitasse.io.proto import FillerParameter, LayerParameter
from demitasse.layers.context import Arrays, LayerContext
from demitasse.layers.fillers import filling

if TYPE_CHECKING:
    from demitasse.io.data.sources.fingerprint import Fingerprint

__all__ = ["Arity", "AtLeast", "Between", "Blobs", "Exactly", "Flags", "Layer", "SavedForBackward"]


@dataclass(frozen=True)
class Arity:
    """Number of blobs, from ``low`` to ``high``; None has no limit."""

    low: int
    high: int | None

    def __contains__(self, count: int) -> bool:
        return count >= self.low and (self.high is None or count <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}" if self.low else "any number of"
        if self.low == self.high:
            return f"exactly {self.low}" if self.low else "no"
        return f"{self.low} to {self.high}"


def Exactly(count: int) -> Arity:  # noqa: N802 - reads as a type where it is used
    """``count`` blobs, no more and no fewer."""
    return Arity(count, count)


def AtLeast(low: int) -> Arity:  # noqa: N802
    """``low`` blobs or more."""
    return Arity(low, None)


def Between(low: int, high: int) -> Arity:  # noqa: N802
    """``low`` to ``high`` blobs."""
    return Arity(low, high)


def wrong_blobs(message: str, blobs: str, got: int, expected: object) -> NetError:
    """Return the error for numbers of "bottoms" or "tops" that a layer does not take."""
    code = ErrorCode.COUNT_MISMATCH
    return NetError(message, code=code, blobs=blobs, got=got, expected=expected)


def not_computed(name: str) -> NetError:
    """Return the error for state that backward needs and the last forward pass did not compute."""
    message = (
        f"backward needs {name!r} from the layer's last forward pass, which did not compute it; "
        "run forward again before backward"
    )
    return NetError(message, code=ErrorCode.BAD_STATE, blob=name)


class SavedForBackward:
    """State that backward needs from forward, in a fixed buffer with the number of its pass.

    To read the state of another pass is an error rather than a wrong gradient.
    """

    def __init__(self, layer: Layer, name: str, blob: Blob) -> None:
        self.blob, self.name = blob, name
        self._layer, self._pass_id = layer, -1

    def write(self, array: Array) -> None:
        """Copy ``array``, which must have exactly the buffer's shape."""
        self.blob.write(array)
        self._pass_id = self._layer.pass_id

    def buffer(self) -> Array:
        """Return the device array, to be overwritten completely in this pass."""
        self._pass_id = self._layer.pass_id
        return self.blob.buffer()

    def read(self) -> Array:
        """Return the state of the last forward pass; NetError if that did not write the state."""
        if self._pass_id != self._layer.pass_id:
            raise not_computed(self.name)
        return self.blob.read()


Blobs = Sequence[Blob]
Flags = Sequence[bool]

RENAMED = {
    "carried": "state_blobs",
    "carries": "has_state",
    "draws": "random_in_test",
    "only_shares": "is_alias",
    "refuses_gradients": "strict_propagate_down",
    "remember": "savepoint",
    "remembers": "has_counters",
    "repeats": "graph_capturable",
}
"""New names of hooks by the old names, which layers of users may still define."""


class Layer(Arrays):
    """Node of a net. Subclasses define ``setup``, ``reshape``, ``forward`` and ``backward``.

    Args:
        param: Message with the layer's fields.
        phase: "TRAIN" or "TEST".
        context: Device, dtype, seed and so on.

    Attributes:
        blobs: Parameters.
        op: Operation in the present shape, for backends with a faster Step; or None, also for a
            class that overrides a pass of a built-in type.
    """

    type: ClassVar[str] = ""
    bottoms: ClassVar[Arity] = AtLeast(0)
    tops: ClassVar[Arity] = AtLeast(0)
    same_count: ClassVar[bool] = False
    """True if the layer takes as many tops as bottoms."""
    auto_tops: ClassVar[bool] = False
    """True if the net adds missing tops, as for losses."""
    in_place: ClassVar[bool] = True
    """True if a top may be a bottom; a layer may restrict the choice."""
    dynamic_shapes: ClassVar[bool] = False
    """True if top shapes depend on values, so that ``forward`` sets them."""
    rows_axis: ClassVar[int | None] = None
    """Axis of the tops whose size depends on values, as the number of detections does."""

    is_alias: bool = False
    """True if the passes compute nothing: tops share the bottoms' memory, or there are no bottoms
    or no tops. Not inherited by a class of a user that overrides a pass of a built-in type."""

    graph_capturable: ClassVar[bool] = False
    """True if a device may capture and replay the portable code: for given shapes, the passes run
    the same operations on device arrays, read no numbers on the host, and multiply no matrices.
    The attribute is not inherited."""

    traceable: ClassVar[bool] = False
    """True if a library may trace the portable code: the catalogue's types, which
    ``register_layer`` marks; other layers have ``graph_capturable``. Not inherited."""

    strict_propagate_down: ClassVar[bool] = True
    """True if ``propagate_down: true`` is an error for a bottom without a gradient, and not
    ignored."""

    differentiable: Sequence[int] | None = None
    """Indices of the bottoms with a gradient, in order; None for all. Labels have none."""
    random_in_test: bool = False
    """True if the layer draws random numbers in phase TEST, too."""
    op: Op | None = None
    uses_op: ClassVar[bool] = True
    """False for a class of a user that overrides a pass of a built-in type; a Step would ignore
    that pass."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt_renamed_overrides(cls, RENAMED)
        types = [kind for kind in cls.__mro__ if _built_in(kind) and kind is not Layer]
        derived = any("forward" in vars(kind) for kind in types)
        cls.uses_op = not derived or (_built_in(cls.forward) and _built_in(cls.backward))
        if not cls.uses_op and "is_alias" not in vars(cls):
            cls.is_alias = False
        if {"state_dict", "load_state_dict"} <= set(vars(cls)) and "state" not in vars(cls):
            cls.state, cls.set_state = _module_state, _load_module_state  # type: ignore[method-assign]

    def __init__(
        self, param: LayerParameter, phase: str = "TEST", context: LayerContext | None = None
    ) -> None:
        super().__init__(param.name, context if context is not None else LayerContext())
        self.param, self.phase = param, phase
        self.type = param.type or type(self).type  # type: ignore[misc]
        self.blobs: list[Blob] = [self._stored(proto) for proto in param.blobs]
        self._stored_count = len(self.blobs)
        self._declared = 0
        self._propagate: list[bool] = []
        self._saved: dict[str, SavedForBackward] = {}
        self.loss_weights: list[float] = []
        self.pass_id = 0

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, blob.shape)) for blob in self.blobs)
        wires = f"{', '.join(self.param.bottom)} -> {', '.join(self.param.top)}".strip()
        return f"{self.type}({self.name!r}, {wires}{f'; {shapes}' if shapes else ''})"

    # -- defined by subclasses -----------------------------------------------------------------

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        """Read the fields and add the parameters; called once."""

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Set the shapes of the tops; called before a forward pass with new shapes."""
        message = f"{type(self).__name__} does not define reshape(self, bottom, top)"
        raise NotImplementedError(message)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Compute the tops."""
        message = f"{type(self).__name__} does not define forward(self, bottom, top)"
        raise NotImplementedError(message)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        """Overwrite the wanted bottom gradients; add to the wanted parameter gradients."""
        state = self.all_state_blobs()
        learned = [i for i, blob in enumerate(self.blobs) if blob not in state]
        if any(propagate_down) or any(map(self.param_propagate_down, learned)):
            what = "propagate_down to false" if any(propagate_down) else "parameters' lr_mult to 0"
            message = (
                f"layer type {self.type} has no gradient; set its {what}, or with force_backward "
                "leave it out of this phase, or start backward at a layer before it"
            )
            raise NetError(message, code=ErrorCode.NO_GRADIENT, type=self.type)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Return True if ``force_backward`` may request the gradient of this bottom."""
        return self.has_gradient(bottom_index)

    def state(self) -> dict[str, Any]:
        """Return the state that a training snapshot stores besides parameters and state blobs.

        Values are plain: counters, other numbers, strings, lists, dicts, arrays of NumPy.
        """
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state`` returned."""

    def savepoint(self) -> Callable[[], None]:
        """Return a function that rolls back all forward passes from now on.

        The net rolls back an interrupted pass. By default the function restores the values of
        ``state``; the net restores ``state_blobs``.
        """
        state = deepcopy(self.state())
        return lambda: self.set_state(deepcopy(state))

    def state_blobs(self) -> Sequence[Blob]:
        """Return the blobs that later passes read: averages, hidden states after the first pass."""
        return ()

    def all_state_blobs(self) -> Sequence[Blob]:
        """Return all averages and hidden states, also where passes only read them."""
        return self.state_blobs()

    @property
    def unsaved_state(self) -> str:
        """Reason why snapshots may lack state of the layer; empty if they have all state."""
        kind = type(self)
        hooks = ("state", "savepoint", "state_blobs")
        own = any(getattr(kind, hook) is not getattr(Layer, hook) for hook in hooks)
        if own or _built_in(kind):
            return ""
        return f"{kind.__name__} defines neither state nor state_blobs"

    @property
    def has_state(self) -> bool:
        """True if the layer may have ``state_blobs``."""
        return type(self).state_blobs is not Layer.state_blobs

    @property
    def has_counters(self) -> bool:
        """True if forward passes change counters that the next passes read."""
        kind = type(self)
        return kind.state is not Layer.state or kind.savepoint is not Layer.savepoint

    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the records that the layer reads; None without records.

        Raises:
            DataError, OSError: The records cannot be read.
        """
        return None

    def record_of(self, place: int) -> tuple[str, str] | None:
        """Return source and key of the record at an index of the batch, for messages; or None."""
        return None

    def close(self) -> None:
        """Stop threads and close files."""

    # -- life cycle ----------------------------------------------------------------------------

    @final
    def initialize(self, bottom: Blobs, top: Blobs) -> None:
        """Check the numbers of blobs, call ``setup`` and ``reshape``, set the loss weights.

        Raises:
            NetError: The layer takes other numbers of bottoms or tops, does not run in place, or
                has no gradient for a bottom with ``propagate_down: true``.
            ConfigError: A field is missing or out of range.
            ShapeError: The layer does not take the shape of a bottom.
        """
        self.check_counts(len(bottom), len(top))
        if not self.in_place:
            self.refuse_in_place(bottom, top)
        self.setup(bottom, top)
        self.refuse_gradients(bottom, self.param.propagate_down)
        self.run_reshape(bottom, top)
        self._set_loss_weights(top)

    def check_counts(self, bottoms: int, tops: int) -> None:
        """Raise NetError for numbers of bottoms and tops that the type does not take."""
        self._check_count("bottom", self.bottoms, bottoms)
        self._check_count("top", self.tops, tops)
        if self.same_count and bottoms != tops:
            message = (
                f"{self.type} takes as many tops as bottoms, got {bottoms} bottoms and {tops} tops"
            )
            raise wrong_blobs(message, "tops", tops, bottoms)

    def _check_count(self, word: str, arity: Arity, count: int) -> None:
        if count not in arity:
            plural = "" if str(arity) == "exactly 1" else "s"
            message = f"{self.type} takes {arity} {word}{plural}, it is given {count}"
            raise wrong_blobs(message, f"{word}s", count, str(arity))

    def refuse_in_place(self, bottom: Blobs, top: Blobs) -> None:
        """Raise NetError if a top is a bottom."""
        for blob in bottom:
            if any(blob is one for one in top):
                message = f"{self.type} cannot run in place; rename its top {blob.name!r}"
                raise NetError(message, code=ErrorCode.CONFLICT, blob=blob.name)

    def has_gradient(self, bottom_index: int) -> bool:
        """Return True if this bottom has a gradient, for an input that requires one."""
        return self.differentiable is None or bottom_index in self.differentiable

    def refuse_gradients(self, bottom: Blobs, wanted: Flags) -> None:
        """Raise NetError for wanted gradients of labels, if ``strict_propagate_down`` is true."""
        for index, (blob, want) in enumerate(zip(bottom, wanted, strict=False)):
            if want and self.strict_propagate_down and not self.has_gradient(index):
                message = (
                    f"{self.type} has no gradient for bottom {index}, {blob.name!r}; "
                    "set its propagate_down to false"
                )
                raise NetError(message, code=ErrorCode.NO_GRADIENT, blob=blob.name, bottom=index)

    def refuse_overwritten(self, bottom: Blobs, top: Blobs, propagate_down: Flags) -> None:
        """Raise NetError if a gradient needs bottoms that the layer's own tops overwrite."""
        wanted = any(propagate_down) or any(map(self.param_propagate_down, range(len(self.blobs))))
        if wanted and any(one is blob for one in top for blob in bottom):
            message = f"{self.type} cannot run in place when a gradient is wanted; rename the top"
            raise NetError(message, code=ErrorCode.CONFLICT, blob=top[0].name)

    @final
    def run_reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Set the tops' shapes; raise NetError if a top that is a bottom changes its shape."""
        before = [(blob, blob.shape) for blob in bottom if any(blob is one for one in top)]
        self.reshape(bottom, top)
        if not self.uses_op:
            self.op = None
        for blob, shape in before:
            if blob.shape != shape:
                message = (
                    f"{self.type} cannot run in place here, since {shape} becomes {blob.shape}; "
                    f"rename its top {blob.name!r}"
                )
                raise NetError(message, code=ErrorCode.CONFLICT, blob=blob.name)

    @final
    def run_forward(self, bottom: Blobs, top: Blobs) -> None:
        """Run the portable code, and count the pass."""
        self.pass_id += 1
        self.forward(bottom, top)

    @final
    def loss_terms(self, top: Blobs) -> list[Array]:
        """Return the dot product of data and weight (0-d) for each top with a loss weight."""
        return [
            self.device.backend.dot(blob.read(), blob.read_diff())
            for blob, weight in zip(top, self.loss_weights, strict=False)
            if weight
        ]

    def loss(self, index: int) -> float:
        """Return the loss weight of a top."""
        return self.loss_weights[index] if index < len(self.loss_weights) else 0.0

    def _set_loss_weights(self, top: Blobs) -> None:
        given = list(self.param.loss_weight)
        if len(given) not in {0, len(top)}:
            message = (
                f"loss_weight is given {len(given)} times for {len(top)} tops; "
                "give it for every top or not at all"
            )
            code = ErrorCode.COUNT_MISMATCH
            raise NetError(message, code=code, field="loss_weight", got=len(given))
        if any(given):
            self.loss_weights = given
            self.fill_loss_weights(top)

    def fill_loss_weights(self, top: Blobs) -> None:
        """Write the loss weights into the gradients of the tops, after a change of shape."""
        for blob, weight in zip(top, self.loss_weights, strict=False):
            if weight:
                blob.set_diff(weight)

    # -- parameters ----------------------------------------------------------------------------

    def add_param(self, shape: tuple[int, ...], filler: FillerParameter | None = None) -> Blob:
        """Add the next parameter, with stored values or else from a filler.

        Values stored in the legacy shape (num, channels, height, width) fit a parameter of fewer
        axes with ones in front, as in Caffe's ``Blob::ShapeEquals``.

        Raises:
            ShapeError: The stored parameter has another shape.
        """
        index = self._declared
        self._declared += 1
        if index < self._stored_count:
            blob = self.blobs[index]
            stored = blob.shape
            blob.reshape(shape)
            if not blob.shape_equals(self.param.blobs[index]):
                message = f"stored parameter {index} has shape {stored}, expected {shape}"
                code = ErrorCode.SHAPE_MISMATCH
                raise ShapeError(message, code=code, param=index, got=stored, expected=shape)
        else:
            blob = self._blob(shape, f"{self.name}[{index}]")
            filler = filler if filler is not None else FillerParameter()
            stream = stream_of(f"{self.name}/{index}")
            at = f"parameter {index} of shape {shape}", self.device.backend.explained
            with memory_errors_at(*at):
                check_size(blob.data_memory.nbytes)
            filled = filling(shape, filler, self.context.seed, stream)

            def write(host: Array) -> None:
                with memory_errors_at(*at):
                    host[...] = filled().reshape(-1)

            blob.data_memory.lazy_init(write)
            self.blobs.append(blob)
        self._propagate += [True] * (len(self.blobs) - len(self._propagate))
        return blob

    def param_propagate_down(self, index: int) -> bool:
        """Return True if the gradient of a parameter is computed; False by default."""
        return index < len(self._propagate) and self._propagate[index]

    def set_param_propagate_down(self, index: int, wanted: bool) -> None:
        """Set whether the gradient of a parameter is computed."""
        self._propagate += [False] * (index + 1 - len(self._propagate))
        self._propagate[index] = wanted

    def to_proto(self, write_diff: bool = False) -> LayerParameter:
        """Return the message of this layer with its parameters."""
        proto = deepcopy(self.param)
        del proto.blobs[:]
        proto.blobs.extend(blob.to_proto(write_diff) for blob in self.blobs)
        return proto

    # -- state, devices ------------------------------------------------------------------------

    def saved(
        self, name: str, shape: tuple[int, ...], dtype: str | None = None
    ) -> SavedForBackward:
        """Return the state ``name`` that forward saves for backward."""
        dtype = dtype or self.dtype
        found = self._saved.get(name)
        if found is None or found.blob.dtype != dtype:
            blob = Blob(shape, dtype, self.device, f"{self.name}.{name}")
            found = self._saved[name] = SavedForBackward(self, name, blob)
        if found.blob.shape != shape:
            found.blob.reshape(shape)
        return found

    def internal_blobs(self) -> list[Blob]:
        """Return the blobs that forward saves for backward."""
        return [saved.blob for saved in self._saved.values()]

    def to(self, device: Device) -> None:
        """Move to another device."""
        for blob in (*self.blobs, *self.internal_blobs()):
            blob.to(device)
        self.clear_constants()

    _repr_html_ = html_of

    def _blob(self, shape: tuple[int, ...], name: str) -> Blob:
        return Blob(shape, self.dtype, self.device, name)

    def _stored(self, proto: Any) -> Blob:
        blob = self._blob((), self.name)
        blob.from_proto(proto)
        return blob


def _built_in(definition: Any) -> bool:
    """Return whether a class or function is Demitasse's own."""
    return str(definition.__module__).partition(".")[0] == "demitasse"


STATE = "state_dict"
"""Key of what ``state_dict`` returns among the values of ``Layer.state``."""


def _module_state(self: Any) -> dict[str, Any]:
    """Return the state of a layer with the methods of modules of PyTorch."""
    return {STATE: self.state_dict()}


def _load_module_state(self: Any, state: dict[str, Any]) -> None:
    if STATE in state:
        self.load_state_dict(state[STATE])


for _old, _new in RENAMED.items():
    setattr(Layer, _old, deprecated_attribute("Layer", _old, _new))
