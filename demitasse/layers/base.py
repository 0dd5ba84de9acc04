"""What a layer is.

A layer is written once, in array API terms, and never asks where it runs: it gets ``self.xp`` and
reads and writes blobs. ``setup`` and ``reshape`` look at shapes, ``forward`` fills the tops,
``backward`` overwrites bottom gradients and adds to parameter gradients.

Source: Caffe, ``include/caffe/layer.hpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from demitasse.backends.arrays import Array
from demitasse.backends.ops import Op
from demitasse.backends.random import stream_of
from demitasse.blob import Blob
from demitasse.device import Device, current_device
from demitasse.errors import ConfigError, NetError, ShapeError
from demitasse.layers.arity import Arity, AtLeast, Between, Exactly
from demitasse.layers.fillers import fill
from demitasse.proto import FillerParameter, LayerParameter

__all__ = [
    "AtLeast",
    "Between",
    "Blobs",
    "Clock",
    "Exactly",
    "Flags",
    "Layer",
    "LayerContext",
    "Saved",
    "positive",
]

Blobs = Sequence[Blob]
Flags = Sequence[bool]


@dataclass
class Clock:
    """Counts of passes that random numbers are keyed by; kept in snapshots.

    Attributes:
        passes: Forward passes of the net in phase TRAIN so far.
    """

    passes: int = 0


@dataclass
class LayerContext:
    """What a net tells its layers about the world.

    Attributes:
        device: Where the net runs.
        dtype: What it computes in.
        seed: Key of all its random numbers.
        base_dir: Folder of the prototxt, where named files are looked for too; or None.
        rank: Which of ``ranks`` data-parallel workers this is.
        ranks: How many of them there are.
        python_layers: Whether ``Python`` layers may import modules.
        clock: The net's pass counter.
    """

    device: Device = field(default_factory=current_device)
    dtype: str = "float32"
    seed: int = 0
    base_dir: Path | None = None
    rank: int = 0
    ranks: int = 1
    python_layers: bool = True
    clock: Clock = field(default_factory=Clock)


class Saved:
    """State that backward needs from forward, in a fixed buffer, stamped with its pass.

    Reading what another pass has left is an error rather than a wrong gradient.
    """

    def __init__(self, layer: Layer, name: str, blob: Blob) -> None:
        self.blob, self.name = blob, name
        self._layer, self._stamp = layer, -1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return self.blob.shape

    def write(self, array: Array) -> None:
        """Keep ``array``, which must have exactly the buffer's shape."""
        self.blob.write(array)
        self._stamp = self._layer.stamp

    def buffer(self) -> Array:
        """Return the device array, to be overwritten completely in this pass."""
        self._stamp = self._layer.stamp
        return self.blob.buffer()

    def read(self) -> Array:
        """Return what this pass's forward has kept.

        Raises:
            NetError: The layer's last forward did not write it.
        """
        if self._stamp != self._layer.stamp:
            message = (
                f"backward needs {self.name!r} from the layer's last forward pass, which did not "
                "compute it; run forward again before backward"
            )
            raise NetError(message)
        return self.blob.read()


class Layer:
    """One node of a net. Subclasses write ``setup``, ``reshape``, ``forward`` and ``backward``.

    Args:
        param: The message that describes it.
        phase: "TRAIN" or "TEST".
        context: Device, dtype, seed and so on.

    Attributes:
        blobs: Its parameters.
        op: What it computes in this shape, for backends that know a faster way; or None.
    """

    type: ClassVar[str] = ""
    bottoms: ClassVar[Arity] = AtLeast(0)
    tops: ClassVar[Arity] = AtLeast(0)
    same_count: ClassVar[bool] = False
    """Whether it takes as many tops as bottoms."""
    auto_tops: ClassVar[bool] = False
    """Whether missing tops are made up, as loss layers do."""
    in_place: ClassVar[bool] = True
    """Whether a top may be a bottom; a layer may still say which."""
    dynamic_shapes: ClassVar[bool] = False
    """Whether top shapes depend on values, so that ``reshape`` is not enough to know them."""

    refuses_gradients: ClassVar[bool] = True
    """Whether ``propagate_down: true`` is an error for a bottom that has no gradient, and not
    without effect."""

    differentiable: Sequence[int] | None = None
    """The bottoms that have a gradient, in order, where not all have: labels and indices do not."""
    op: Op | None = None

    def __init__(
        self, param: LayerParameter, phase: str = "TEST", context: LayerContext | None = None
    ) -> None:
        self.param, self.phase = param, phase
        self.context = context if context is not None else LayerContext()
        self.name = param.name
        self.type = param.type or type(self).type  # type: ignore[misc]
        self.blobs: list[Blob] = [self._stored(proto) for proto in param.blobs]
        self._stored_count = len(self.blobs)
        self._declared = 0
        self._propagate: list[bool] = []
        self._saved: dict[str, Saved] = {}
        self._constants: dict[str, tuple[object, Array]] = {}
        self.loss_weights: list[float] = []
        self.stamp = 0

    # -- written by subclasses -----------------------------------------------------------------

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        """Read the fields and make the parameters; called once."""

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Give the tops their shapes; called before every forward pass that needs it."""
        raise NotImplementedError(type(self).__name__)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Compute the tops."""
        raise NotImplementedError(type(self).__name__)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        """Overwrite the wanted bottom gradients; add to the wanted parameter gradients."""
        if any(propagate_down):
            message = f"layer type {self.type} has no gradient"
            raise NetError(message)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Whether ``force_backward`` may ask for the gradient of this bottom."""
        return self.has_gradient(bottom_index)

    def state(self) -> dict[str, int]:
        """Return what a training snapshot must keep besides the parameters."""
        return {}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue from what ``state`` returned."""

    def close(self) -> None:
        """Let go of threads and files."""

    # -- the life of a layer -------------------------------------------------------------------

    @final
    def initialize(self, bottom: Blobs, top: Blobs) -> None:
        """Check the numbers of blobs, set up, reshape, set loss weights.

        Raises:
            NetError: It takes other numbers of bottoms or tops, does not run in place, or is to
                compute a gradient that there is not.
            ConfigError: A field has a value it cannot have.
            ShapeError: A bottom has a shape it cannot take.
        """
        self.check_counts(len(bottom), len(top))
        self._check_in_place(bottom, top)
        self.setup(bottom, top)
        self.refuse_gradients(bottom, self.param.propagate_down)
        self.reshape(bottom, top)
        self._set_loss_weights(top)

    def check_counts(self, bottoms: int, tops: int) -> None:
        """Refuse numbers of bottoms and tops that the type does not take."""
        for arity, count, word in ((self.bottoms, bottoms, "bottom"), (self.tops, tops, "top")):
            if count not in arity:
                plural = "" if str(arity) == "exactly 1" else "s"
                message = f"{self.type} takes {arity} {word}{plural}, it is given {count}"
                raise NetError(message)
        if self.same_count and bottoms != tops:
            message = (
                f"{self.type} takes as many tops as bottoms, it is given {bottoms} bottoms "
                f"and {tops} tops"
            )
            raise NetError(message)

    def _check_in_place(self, bottom: Blobs, top: Blobs) -> None:
        if self.in_place:
            return
        for blob in bottom:
            if any(blob is one for one in top):
                message = (
                    f"{self.type} cannot run in place; give its top another name than {blob.name!r}"
                )
                raise NetError(message)

    def has_gradient(self, bottom_index: int) -> bool:
        """Whether there is a gradient for this bottom; what computes it may still be frozen."""
        return self.differentiable is None or bottom_index in self.differentiable

    def refuse_gradients(self, bottom: Blobs, wanted: Flags) -> None:
        """Refuse to compute gradients of labels, indices and the like.

        Raises:
            NetError: One is wanted, of a layer that does not take such a wish for nothing.
        """
        for index, (blob, want) in enumerate(zip(bottom, wanted, strict=False)):
            if want and self.refuses_gradients and not self.has_gradient(index):
                message = (
                    f"{self.type} has no gradient for bottom {index}, {blob.name!r}; "
                    "its propagate_down must be false"
                )
                raise NetError(message)

    def refuse_overwritten(self, bottom: Blobs, top: Blobs, propagate_down: Flags) -> None:
        """Refuse a gradient that needs bottoms which the layer's own tops have overwritten.

        Raises:
            NetError: A top is a bottom, and a gradient is wanted.
        """
        wanted = any(propagate_down) or any(map(self.param_propagate_down, range(len(self.blobs))))
        if wanted and any(one is blob for one in top for blob in bottom):
            message = f"{self.type} cannot run in place when a gradient is wanted; rename the top"
            raise NetError(message)

    @final
    def run_forward(self, bottom: Blobs, top: Blobs) -> None:
        """Run the portable code; state it saves carries this pass's stamp."""
        self.stamp += 1
        self.forward(bottom, top)

    @final
    def loss_terms(self, top: Blobs) -> list[Array]:
        """Return, for each top with a loss weight, the dot product of data and weight (0-d)."""
        return [
            self.xp.sum(blob.read() * blob.read_diff())
            for blob, weight in zip(top, self.loss_weights, strict=False)
            if weight
        ]

    def loss(self, index: int) -> float:
        """Return the loss weight of a top; 0 beyond what was set."""
        return self.loss_weights[index] if index < len(self.loss_weights) else 0.0

    def set_loss(self, index: int, weight: float) -> None:
        """Set the loss weight of a top."""
        self.loss_weights += [0.0] * (index + 1 - len(self.loss_weights))
        self.loss_weights[index] = weight

    def _set_loss_weights(self, top: Blobs) -> None:
        given = list(self.param.loss_weight)
        if not given:
            return
        if len(given) != len(top):
            message = (
                f"loss_weight is given {len(given)} times for {len(top)} tops; "
                "give it for every top or not at all"
            )
            raise NetError(message)
        for index, weight in enumerate(given):
            if weight:
                self.set_loss(index, weight)
                top[index].set_diff(weight)

    def fill_loss_weights(self, top: Blobs) -> None:
        """Put the loss weights back into the gradients of the tops, after they changed shape."""
        for blob, weight in zip(top, self.loss_weights, strict=False):
            if weight:
                blob.set_diff(weight)

    # -- parameters ----------------------------------------------------------------------------

    def add_param(self, shape: tuple[int, ...], filler: FillerParameter | None = None) -> Blob:
        """Declare the next parameter; stored values are kept, otherwise it is filled.

        Values that are stored as (num, channels, height, width), as all once were, fit a parameter
        of fewer axes with ones in front, as in Caffe's ``Blob::ShapeEquals``.

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
                message = f"stored parameter {index} has shape {stored}, it should be {shape}"
                raise ShapeError(message)
        else:
            blob = self._blob(shape, f"{self.name}[{index}]")
            values = fill(
                shape,
                filler if filler is not None else FillerParameter(),
                self.context.seed,
                stream_of(f"{self.name}/{index}"),
            )
            blob.data_memory.mutable_cpu_data(discard=True)[...] = values.reshape(-1)
            self.blobs.append(blob)
        self._propagate += [True] * (len(self.blobs) - len(self._propagate))
        return blob

    def param_propagate_down(self, index: int) -> bool:
        """Whether the gradient of a parameter is wanted; False beyond what was set."""
        return index < len(self._propagate) and self._propagate[index]

    def set_param_propagate_down(self, index: int, wanted: bool) -> None:
        """Say whether the gradient of a parameter is wanted."""
        self._propagate += [False] * (index + 1 - len(self._propagate))
        self._propagate[index] = wanted

    def to_proto(self, write_diff: bool = False) -> LayerParameter:
        """Return the message of this layer with its parameters in it."""
        proto = LayerParameter()
        proto.CopyFrom(self.param)
        del proto.blobs[:]
        for blob in self.blobs:
            proto.blobs.append(blob.to_proto(write_diff))
        return proto

    # -- arrays --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """Where the net runs."""
        return self.context.device

    @property
    def xp(self) -> Any:
        """The array namespace to compute with."""
        return self.context.device.backend.xp

    @property
    def dtype(self) -> str:
        """Name of the dtype the net computes in."""
        return self.context.dtype

    def zeros(self, shape: tuple[int, ...], dtype: str | None = None) -> Array:
        """Return an array of zeros on the net's device."""
        return self.full(shape, 0, dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: str | None = None) -> Array:
        """Return an array of one value on the net's device."""
        backend = self.device.backend
        kind = backend.dtype(dtype or self.dtype)
        return self.xp.full(shape, value, dtype=kind, device=backend.array_device)

    def arange(self, stop: int, dtype: str = "int64") -> Array:
        """Return 0 to ``stop`` - 1 on the net's device."""
        backend = self.device.backend
        kind = backend.dtype(dtype)
        return self.xp.arange(stop, dtype=kind, device=backend.array_device)

    def cast(self, array: Array, dtype: str | None = None) -> Array:
        """Return ``array`` in another dtype, by default the net's."""
        return self.xp.astype(array, self.device.backend.dtype(dtype or self.dtype), copy=False)

    def constant(self, name: str, key: object, make: Callable[[], Array]) -> Array:
        """Return an array that depends on ``key`` alone, made once for each device."""
        full_key = (key, self.device)
        known = self._constants.get(name)
        if known is None or known[0] != full_key:
            known = self._constants[name] = (full_key, make())
        return known[1]

    def saved(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> Saved:
        """Return the internal blob ``name`` that carries state from forward to backward."""
        dtype = dtype or self.dtype
        found = self._saved.get(name)
        if found is None or found.blob.dtype != dtype:
            blob = Blob(shape, dtype, self.device, f"{self.name}.{name}")
            found = self._saved[name] = Saved(self, name, blob)
        if found.blob.shape != shape:
            found.blob.reshape(shape)
        return found

    def random_bits(self, count: int, first: int = 0) -> Array:
        """Return random 32-bit words of this layer and pass, the same on every device.

        Shapes: (count,), uint32.
        """
        return self.device.backend.random_bits(
            self.context.seed, stream_of(self.name), self.context.clock.passes, count, first
        )

    def random_words(self, shape: tuple[int, ...]) -> Array:
        """Return a random 32-bit word of this layer and pass for each element of a blob.

        With several data-parallel ranks a sample has the words it would have in the joined batch,
        where rank r of n holds samples r, r + n, ...

        Shapes: ``shape``, uint32.
        """
        count, ranks = math.prod(shape), self.context.ranks
        if ranks == 1 or not shape:
            return self.xp.reshape(self.random_bits(count), shape)
        joined = self.xp.reshape(self.random_bits(count * ranks), (shape[0], ranks, *shape[1:]))
        return joined[:, self.context.rank, ...]

    def internal_blobs(self) -> list[Blob]:
        """Return the blobs that carry state from forward to backward."""
        return [saved.blob for saved in self._saved.values()]

    def to(self, device: Device) -> None:
        """Follow the net to another device."""
        for blob in (*self.blobs, *self.internal_blobs()):
            blob.to(device)
        self._constants.clear()

    def _blob(self, shape: tuple[int, ...], name: str) -> Blob:
        return Blob(shape, self.dtype, self.device, name)

    def _stored(self, proto: Any) -> Blob:
        blob = self._blob((), self.name)
        blob.from_proto(proto)
        return blob


def positive(value: int, field_name: str) -> int:
    """Return ``value`` if it is above 0.

    Raises:
        ConfigError: It is not, or was not given.
    """
    if value <= 0:
        message = f"{field_name} must be above 0, it is {value or 'missing'}"
        raise ConfigError(message)
    return value


def need_count(blob: Blob, axis: int, count: int, needed_by: str) -> None:
    """Refuse a blob that does not hold ``count`` values from ``axis`` on."""
    have = blob.count_from(axis)
    if have != count:
        message = (
            f"bottom {blob.name!r} {blob.shape} holds {have} values per row from axis {axis}, "
            f"but {needed_by} needs {count}"
        )
        raise ShapeError(message)
