"""What a backend is: an array namespace, transfers, and faster ways to run some operations.

A backend that only says how to move arrays runs every layer through the layer's portable code.
What it lowers runs faster; nothing else changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from demitasse.backends import random
from demitasse.backends.ops import Op

__all__ = [
    "Array",
    "Backend",
    "BlobLike",
    "Event",
    "Operands",
    "PrivateLayout",
    "SavedLike",
    "Step",
]

Array = Any  # an array of some namespace; shapes live in docstrings


class Event(Protocol):
    """A point in a device's queue of work."""

    def synchronize(self) -> None:
        """Wait until the device has passed this point."""


class PrivateLayout(Protocol):
    """An order of a shape's elements that only a backend's Steps understand.

    Equal layouts are the same object.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...


class BlobLike(Protocol):
    """What a Step needs of a blob (``demitasse.blob.Blob``)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def read(self) -> Array: ...
    def write(self, array: Array) -> None: ...
    def buffer(self) -> Array: ...
    def read_diff(self) -> Array: ...
    def write_diff(self, array: Array) -> None: ...
    def add_diff(self, array: Array) -> None: ...
    def diff_buffer(self) -> Array: ...


class SavedLike(Protocol):
    """State a Step keeps from forward to backward (``demitasse.layers.base.Saved``)."""

    def write(self, array: Array) -> None: ...
    def buffer(self) -> Array: ...
    def read(self) -> Array: ...


@dataclass(frozen=True)
class Operands:
    """The blobs one operation works on, and which gradients are wanted.

    Attributes:
        bottom: Blobs read.
        top: Blobs written; in place where top[i] is bottom[i].
        params: Parameter blobs (weight, bias, ...).
        saved: ``saved(name, shape, dtype)`` returns the layer's internal blob of that name.
        propagate_down: For each bottom, whether its gradient is wanted.
        param_propagate_down: For each parameter, whether its gradient is wanted.
        phase: "TRAIN" or "TEST".
        backward: Whether the layer takes part in the net's backward pass at all.
    """

    bottom: tuple[BlobLike, ...]
    top: tuple[BlobLike, ...]
    params: tuple[BlobLike, ...]
    saved: Callable[..., SavedLike]
    propagate_down: tuple[bool, ...]
    param_propagate_down: tuple[bool, ...]
    phase: str
    backward: bool

    @property
    def in_place(self) -> bool:
        """Whether some top is one of the bottoms."""
        return any(t is b for t in self.top for b in self.bottom)


class Step(ABC):
    """One operation, prepared to run over fixed blobs."""

    workspace: int = 0
    """Scratch memory it holds, in bytes."""

    own_backward: bool = False
    """Whether a Step for several operations computes their gradients too; otherwise each
    operation's own Step does."""

    @abstractmethod
    def forward(self) -> None:
        """Compute the tops."""

    def lower_backward(self, operands: Operands) -> bool:
        """Prepare the gradient; asked in reverse order, when every forward is placed.

        Returns:
            False when it cannot: the Step is then dropped and the layer runs its portable code
            in both directions.
        """
        return not operands.backward

    def backward(self) -> None:
        """Overwrite the wanted bottom gradients and add to the wanted parameter gradients."""
        message = f"{type(self).__name__} was not prepared for a backward pass"
        raise RuntimeError(message)


Lowering = Callable[["Backend", Any, Operands], Step | None]


class Backend(ABC):
    """One kind of device and how to work on it.

    Device arrays that memories hold are one-dimensional; ``view`` gives them a shape.
    """

    name: ClassVar[str]
    shares_host: ClassVar[bool] = False
    """Whether device arrays are host arrays, so that nothing needs to be moved."""

    default_index: ClassVar[str] = ""
    """The index of a device that is named without one."""

    has_float64: bool = True
    """Whether it computes in float64; without, ``dtype`` refuses it with a DeviceError."""

    xp: Any
    """The array namespace layers compute with."""

    lowerings: ClassVar[dict[type[Op], Lowering]]

    def __init__(self, index: str = "") -> None:
        self.index = index

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "lowerings" not in cls.__dict__:
            cls.lowerings = {}

    # -- where ---------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def devices(cls) -> list[str]:
        """Names of the devices that are there, e.g. ``["cuda:0"]``; never raises."""

    @classmethod
    def indices(cls) -> list[str]:
        """Return what follows the backend's name in the names of its devices; "" if nothing."""
        return [device.partition(":")[2] for device in cls.devices()]

    @classmethod
    def has(cls, index: str) -> bool:
        """Whether a device of this index can be used, be it listed or not."""
        return index in cls.indices()

    @classmethod
    def missing(cls) -> str:
        """Say why ``devices`` is empty and what to do about it."""
        return f"no {cls.name} device was found"

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Make this the current device of its library for the duration of a pass."""
        yield

    # -- arrays --------------------------------------------------------------------------------

    array_device: Any = None
    """What the namespace's creation functions take as ``device=``."""

    def dtype(self, name: str) -> Any:
        """Return the namespace's dtype called ``name``."""
        return getattr(self.xp, name)

    def empty_host(self, size: int, dtype: str) -> np.ndarray:
        """Return ``size`` zeros on the host, in memory that transfers like best."""
        return np.zeros(size, dtype)

    @abstractmethod
    def zeros(self, size: int, dtype: str) -> Array:
        """Return a one-dimensional device array of ``size`` zeros."""

    @abstractmethod
    def upload(self, host: np.ndarray, device: Array) -> Event | None:
        """Start copying ``host`` into ``device``; both one-dimensional and of one size.

        Returns:
            What to wait for before ``host`` may be overwritten, or None when it already may.
        """

    @abstractmethod
    def download(self, device: Array, host: np.ndarray) -> None:
        """Copy ``device`` into ``host`` and wait until it is there."""

    def empty_private(self, size: int) -> Array:
        """Return memory for a private side; what it holds does not matter. Shape: (size,)."""
        raise NotImplementedError(size)

    def pack(self, host: np.ndarray, layout: PrivateLayout, private: Array) -> None:
        """Write the elements of the layout's shape, in C order in ``host``, into ``private``.

        Padding becomes 0.
        """
        raise NotImplementedError(layout)

    def unpack(self, private: Array, layout: PrivateLayout, host: np.ndarray) -> None:
        """Write the elements in ``private`` in C order to the beginning of ``host``."""
        raise NotImplementedError(layout)

    def repack(
        self, private: Array, here: PrivateLayout, target: Array, there: PrivateLayout
    ) -> None:
        """Write the elements in ``private`` to ``target``, from one layout to another."""
        raise NotImplementedError(there)

    @abstractmethod
    def asarray(self, host: np.ndarray) -> Array:
        """Return a copy of a host array of any shape on the device."""

    @abstractmethod
    def to_host(self, array: Array) -> np.ndarray:
        """Return a copy of a device array of any shape on the host."""

    def view(self, flat: Array, shape: tuple[int, ...], count: int) -> Array:
        """Return the first ``count`` elements of a one-dimensional array in ``shape``, uncopied."""
        part = flat if flat.shape[0] == count else flat[:count]
        return self.xp.reshape(part, shape)

    def guard(self, array: Array) -> Array:
        """Return ``array`` as ``Blob.read`` hands it out."""
        return array

    def scatter(self, values: Array, places: Array, size: int) -> Array:
        """Return zeros with every value put at its place; of values for one place the last stands.

        On a GPU, any one of these stands.

        Shapes: values (count,), places (count,) of integers below ``size`` -> (size,).
        """
        result = self.xp.zeros(size, dtype=values.dtype, device=self.array_device)
        result[places] = values
        return result

    # -- work ----------------------------------------------------------------------------------

    def synchronize(self) -> None:  # noqa: B027 - the host has nothing to wait for
        """Wait until the device has done everything it was given."""

    def memory_info(self) -> tuple[int, int] | None:
        """Return free and total device memory in bytes, or None where it is the host's."""
        return None

    def random_bits(self, seed: int, stream: int, passes: int, count: int, first: int = 0) -> Array:
        """Return ``count`` random 32-bit words, the same ones on every backend.

        Args:
            seed: Key of the generator.
            stream: Which sequence, e.g. the hash of a layer's name.
            passes: Which pass of that sequence.
            count: How many words.
            first: Index of the first word within the pass.

        Shapes: (count,), uint32, or a wider integer type where a library cannot compute with these.
        """
        return self.asarray(random.bits(seed, stream, passes, count, first))

    def lower(self, op: Op, operands: Operands) -> Step | None:
        """Return a prepared way to run ``op``, or None: the layer's portable code runs then."""
        for kind in type(self).__mro__:
            lowering = kind.__dict__.get("lowerings", {}).get(type(op))
            step: Step | None = None if lowering is None else lowering(self, op, operands)
            if step is not None:
                return step
        return None

    def fuse(
        self, ops: Sequence[Op], operands: Sequence[Operands], steps: Sequence[Step | None]
    ) -> Step | None:
        """Return one Step for several operations, or None: each runs by itself then.

        Args:
            ops: The first operation and those that follow it at once. Each reads the single top of
                the one before and overwrites it, or writes another blob in its stead: then nobody
                else reads that top, and it need not be written at all.
            operands: Their blobs.
            steps: What each would run by itself; None for portable code.
        """
        del ops, operands, steps
        return None

    @classmethod
    def lowers(cls, op: type[Op]) -> Callable[[Lowering], Lowering]:
        """Register a function as this backend's way to run one kind of operation."""

        def note(lowering: Lowering) -> Lowering:
            if op in cls.lowerings:
                message = f"{cls.name} already lowers {op.__name__}"
                raise ValueError(message)
            cls.lowerings[op] = lowering
            return lowering

        return note
