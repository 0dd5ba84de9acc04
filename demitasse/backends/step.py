"""Steps: operations that a backend has prepared to run faster than the layers' portable code.

A Step is made for one operation and the blobs it works on, prepared once, and run in every pass
until a blob changes its shape or its memory. A Step that cannot beat the portable
code raises :class:`Declined` with the reason, which is kept and shown.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from demitasse.backends.arrays import Array, PrivateLayout
from demitasse.backends.ops import Op
from demitasse.backends.random import Draw
from demitasse.backends.storage import Stored
from demitasse.core.deprecated import adopt_renamed_overrides, deprecated_attribute


class Declined(Exception):  # noqa: N818 - not an error: something else computes the same
    """A backend has no Step for an operation; the message is the reason.

    A message names the obstacle and what is supported: "float64; kernels take float32".
    """


class Memory(Protocol):
    """Interface of a memory for Steps; ``demitasse.memory.SyncedMemory`` documents it.

    Arrays are one-dimensional, of all elements.
    """

    @property
    def serial(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def cleared(self) -> bool: ...
    @property
    def on_device(self) -> bool: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def layout(self) -> PrivateLayout | None: ...
    @property
    def device_array(self) -> Array | None: ...
    def cpu_data(self) -> np.ndarray: ...
    def mutable_cpu_data(self, *, discard: bool = False) -> np.ndarray: ...
    def gpu_data(self) -> Array: ...
    def mutable_gpu_data(self, *, discard: bool = False) -> Array: ...
    def private_data(self, layout: PrivateLayout, *, alone: bool = False) -> Array | None: ...
    def mutable_private_data(self, layout: PrivateLayout) -> Array: ...
    def exchange_private(self, layout: PrivateLayout, side: Array) -> Array | None: ...
    def convert(self, layout: PrivateLayout, target: Array) -> None: ...
    def set_storage(self, storage: Stored, *, discard: bool = False) -> None: ...
    def stored_data(self, storage: Stored, layout: PrivateLayout | None = None) -> Array: ...
    def mutable_stored_data(
        self, storage: Stored, layout: PrivateLayout | None = None, *, discard: bool = True
    ) -> Array: ...


class Operand(Protocol):
    """Interface of a blob for Steps; ``demitasse.blob.Blob`` documents it.

    Arrays are of the backend and have the blob's shape; its memories may be others in each pass.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def data_memory(self) -> Memory: ...
    @property
    def diff_memory(self) -> Memory: ...
    def read(self) -> Array: ...
    def write(self, array: Array) -> None: ...
    def buffer(self) -> Array: ...
    def cpu_data(self) -> np.ndarray: ...
    def read_diff(self) -> Array: ...
    def write_diff(self, array: Array) -> None: ...
    def set_diff(self, value: float) -> None: ...
    def add_diff(self, array: Array) -> None: ...
    def diff_buffer(self) -> Array: ...
    def mutable_gpu_diff(self) -> Array: ...
    def diff_total(self) -> tuple[Array, bool]: ...
    def share_data(self, other: Any) -> None: ...


class Saved(Protocol):
    """State that is kept from forward to backward (``demitasse.layers.base.SavedForBackward``)."""

    @property
    def blob(self) -> Operand: ...
    def write(self, array: Array) -> None: ...
    def buffer(self) -> Array: ...
    def read(self) -> Array: ...


class LayoutUse(NamedTuple):
    """A private layout in which a Step uses a blob's data or, with ``diff``, its gradient.

    Attributes:
        role: "written"; or "preferred" for data that is read.
        layout: The layout; None for C order that is written, or if none is preferred.
    """

    role: Literal["written", "preferred"]
    blob: Operand
    layout: PrivateLayout | None
    diff: bool = False


class Layouts(Protocol):
    """Interface of the layout assignment for Steps; ``demitasse.plan.layout`` documents it."""

    def written(
        self, memory: Memory, shape: tuple[int, ...] | None = None
    ) -> PrivateLayout | None: ...
    def preferred(self, memory: Memory) -> tuple[PrivateLayout, ...]: ...
    def agreed(self, memory: Memory) -> PrivateLayout | None: ...


@dataclass(frozen=True)
class Operands:
    """The blobs one operation works on, and which gradients are wanted.

    Attributes:
        top: Blobs written; in place where top[i] is bottom[i].
        params: Parameter blobs (weight, bias, ...).
        saved: ``saved(name, shape, dtype)`` returns the layer's internal blob of that name.
        phase: "TRAIN" or "TEST".
        backward: True if the layer takes part in the net's backward pass at all.
        random_words: ``random_words(shape)`` returns the layer's random 32-bit words of this pass
            for elements of a blob, the same words as in portable code.
        draw: ``draw()`` returns the key of these random words.
        layouts: Private layouts of the Steps prepared before.
        storage: Storage dtype of blobs and weights on the device.
    """

    bottom: tuple[Operand, ...]
    top: tuple[Operand, ...]
    params: tuple[Operand, ...]
    saved: Callable[..., Saved]
    propagate_down: tuple[bool, ...]
    param_propagate_down: tuple[bool, ...]
    phase: str
    backward: bool
    random_words: Callable[[tuple[int, ...]], Array]
    draw: Callable[[], Draw]
    layouts: Layouts
    storage: Stored = "float"

    words = deprecated_attribute("Operands", "words", "random_words")

    @property
    def in_place(self) -> bool:
        """True if some top is one of the bottoms."""
        return any(t is b for t in self.top for b in self.bottom)

    @property
    def loses_input(self) -> bool:
        """True if the top overwrites the bottom although a bottom's gradient is wanted.

        A Step whose gradient needs the input then keeps it in ``saved("input", shape)``.
        """
        return self.in_place and self.backward and any(self.propagate_down)


_OLD_NAMES = {
    "repeats": "replayable",
    "backward_repeats": "backward_replayable",
    "borrows": "uses_shared_scratch",
}
"""Old names of attributes that Steps of plugins may override."""

E = TypeVar("E")
O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation


class Step(ABC, Generic[E, O]):
    """One operation, prepared to run over fixed blobs.

    Attributes:
        declined: Why no faster code of the Step runs.
        refused: For each lowering before the Step's own, why it made no usable Step.

    Raises:
        Declined: This Step does not do that operation, or not over those blobs.
    """

    own_backward: bool = False
    """True if a fused Step computes the gradients too; otherwise each operation's own Step does."""

    portable_gradient: bool = False
    """True if the layer's own code computes the gradients, which reads blobs alone and nothing that
    its forward code kept."""

    uses_shared_scratch: bool = False
    """True if its workspace is the engine's scratch memory, shared by all Steps."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt_renamed_overrides(cls, _OLD_NAMES)

    def __init__(self, engine: E, op: O, at: Operands) -> None:
        self.engine, self.op, self.at = engine, op, at
        self.declined: tuple[str, ...] = ()
        self.refused: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """Name of the forward pass's code: "numpy", "jit:avx2", "winograd"."""
        return type(self).__name__

    @property
    def backward_code(self) -> str:
        """Name of the backward pass's code."""
        return self.code

    @property
    def replayable(self) -> bool:
        """True if ``Backend.recorder`` can record its forward pass.

        The calls depend only on its memories: their addresses, and whether their values have
        changed since the last pass.
        """
        return False

    @property
    def backward_replayable(self) -> bool:
        """True if ``Backend.recorder`` can record its backward pass."""
        return False

    @property
    def workspace(self) -> int:
        """Bytes of its own or shared scratch memory."""
        return 0

    @property
    def follows_layouts(self) -> bool:
        """True if it is fused, also alone, for the layouts that others prefer and write."""
        return False

    def layout_uses(self, *, backward: bool) -> Iterable[LayoutUse]:
        """Return the private layouts of a prepared pass; none for backends without them."""
        del backward
        return ()

    def prepare(self) -> None:
        """Prepare the forward pass; called in the order of the layers. May raise Declined."""

    @abstractmethod
    def forward(self) -> None:
        """Compute the tops."""

    def prepare_backward(self) -> None:
        """Prepare the backward pass; called in reverse order, after all ``prepare``.

        Raises:
            Declined: The next Step, or the layer's portable code, then runs in both directions.
        """

    def backward(self) -> None:
        """Overwrite the wanted bottom gradients and add to the wanted parameter gradients."""
        message = f"{type(self).__name__} has no backward pass"
        raise RuntimeError(message)


AnyStep = Step[Any, Any]

Lowering = Callable[[Any, Any, Operands], AnyStep]
"""Returns a Step for (engine, operation, operands), as a Step's class does; may raise Declined."""

Lowerings = Mapping[type[Op], Sequence[Lowering]]
"""A backend's Steps for each operation, most wanted first."""


def decline_if(condition: object, why: str) -> None:
    """Raise Declined with a reason if a condition is true."""
    if condition:
        raise Declined(why)


def decline_gradients(at: Sequence[Operands]) -> None:
    """Decline to fuse layers if any of them has a gradient."""
    gradients = any(one.backward for one in at)
    decline_if(gradients, "gradients are wanted, which need the result of each layer")


def decline_in_place(at: Operands, why: str) -> None:
    """Decline an in-place layer; ``why`` says why a Step needs the bottom."""
    decline_if(at.in_place, f"in place; {why}")


def share(at: Operands) -> None:
    """Share the bottom's data with the tops, as Split does."""
    memory = at.bottom[0].data_memory
    for top in at.top:
        if top.data_memory is not memory:
            top.share_data(at.bottom[0])
