"""Backend interface: an array namespace, transfers, and faster code for some operations.

A backend that only says how to move arrays runs every layer through the layer's portable code.
What it lowers runs faster; nothing else changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from demitasse.backends import random
from demitasse.backends.arrays import Array, ArrayRef, Event, PrivateLayout
from demitasse.backends.collective import Connector
from demitasse.backends.ops import Op
from demitasse.backends.pixels import Uploader
from demitasse.backends.recording import Recorder
from demitasse.backends.step import AnyStep, Declined, Lowerings, Operands
from demitasse.backends.storage import Stored
from demitasse.backends.updates import UpdateKernels
from demitasse.core.deprecated import adopt_renamed_overrides
from demitasse.errors import DeviceError, ErrorCode

__all__ = ["Backend"]

_NOTHING = nullcontext()

_OLD_NAMES = {
    "conditions": "environment",
    "feed": "uploader",
    "follow": "order_after",
    "here": "device_scope",
    "pack_away": "pack_and_release",
    "prepared": "after_first_run",
}
"""Old names of methods that backends of plugins may override."""


class Backend(ABC):
    """One kind of device and how to work on it.

    Device arrays that memories hold are one-dimensional; ``view`` gives them a shape.
    """

    name: ClassVar[str]
    shares_host: ClassVar[bool] = False
    """True if device arrays are host arrays, so that nothing needs to be moved."""

    mutable: ClassVar[bool] = True
    """False if arrays cannot be written: memories then replace their arrays. Such a backend defines
    ``set_at``, and neither ``upload`` nor ``fill`` is called."""

    queues: bool = False
    """True if work is queued, so that to read a result is to wait for all that came before it."""

    records_arrays: ClassVar[bool] = False
    """True if its recorder records what functions of the namespace do, besides Steps."""

    default_index: ClassVar[str] = ""
    """The index of a device that is named without one."""

    has_float64: bool = True
    """True if it computes in float64; without, ``dtype`` refuses it with a DeviceError."""

    without_float64: ClassVar[str] = "compute in float32, or elsewhere"
    """Advice of that error."""

    xp: Any
    """The array namespace layers compute with."""

    def __init__(self, index: str = "") -> None:
        self.index = index

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt_renamed_overrides(cls, _OLD_NAMES)

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
        """Return whether a device of this index can be used, be it listed or not."""
        return index in cls.indices()

    @classmethod
    def missing(cls) -> str:
        """Return the reason why ``devices`` is empty, and what to do."""
        return f"no {cls.name} device was found"

    def enter(self) -> AbstractContextManager[None]:
        """Make this the current device of its library for the duration of a pass."""
        return _NOTHING

    def device_scope(self) -> AbstractContextManager[None]:
        """Make this the current device, if the library has one, for work on single arrays."""
        return _NOTHING

    def order_after(self, before: object) -> object:
        """Order work that is queued from now on after work that was queued before.

        ``before`` is the result of the call at the last use of the arrays; None at first.
        """
        return before

    def before_first_run(  # noqa: B027 - most compile nothing
        self, steps: Iterable[AnyStep], *, backward: bool
    ) -> None:
        """Compile what the first pass of newly prepared Steps needs, forward or backward."""

    def after_first_run(self) -> None:  # noqa: B027 - most leave nothing behind
        """Release memory that only the preparation needed, after a net's first pass."""

    def environment(self) -> dict[str, str]:
        """Return the versions, threads, ... that the last bits of results depend on."""
        return {}

    # -- arrays --------------------------------------------------------------------------------

    array_device: Any = None
    """Return the ``device=`` argument of the namespace's creation functions."""

    def dtype(self, name: str) -> Any:
        """Return the namespace's dtype called ``name``.

        Raises:
            DeviceError: The dtype is float64, and the device has none.
        """
        if name == "float64" and not self.has_float64:
            device = f"{self.name}:{self.index}"
            message = f"{device} has no float64; {self.without_float64}"
            raise DeviceError(message, code=ErrorCode.UNSUPPORTED, device=device, dtype=name)
        return getattr(self.xp, name)

    def empty_host(self, size: int, dtype: str) -> np.ndarray:
        """Return ``size`` zeros on the host, in the memory that transfers are fastest from."""
        return np.zeros(size, dtype)

    @abstractmethod
    def zeros(self, size: int, dtype: str) -> Array:
        """Return a one-dimensional device array of ``size`` zeros."""

    def upload(self, host: np.ndarray, device: Array) -> Event | None:
        """Start copying ``host`` into ``device``; both one-dimensional and of one size.

        Backends with mutable arrays define it.

        Returns:
            What to wait for before ``host`` may be overwritten, or None when it already may.
        """
        raise NotImplementedError(self.name)

    @abstractmethod
    def download(self, device: Array, host: np.ndarray) -> None:
        """Copy ``device`` into ``host`` and wait until it is there."""

    def empty_private(self, size: int) -> Array:
        """Return memory for a private side; what it holds does not matter. Shape: (size,)."""
        raise NotImplementedError(size)

    @property
    def packs(self) -> bool:
        """True if the backend has private sides."""
        return type(self).empty_private is not Backend.empty_private

    def pack(self, host: np.ndarray, layout: PrivateLayout, private: Array) -> None:
        """Write the elements of the layout's shape, in C order in ``host``, into ``private``.

        Padding becomes 0.
        """
        raise NotImplementedError(layout)

    def pack_and_release(self, host: np.ndarray, layout: PrivateLayout, private: Array) -> None:
        """Write ``private`` as ``pack`` does, and release the memory of ``host`` if possible.

        Either the copy is complete, or ``host`` is unchanged.
        """
        self.pack(host, layout, private)

    def unpack(self, private: Array, layout: PrivateLayout, host: np.ndarray) -> None:
        """Write the elements in ``private`` in C order to the beginning of ``host``."""
        raise NotImplementedError(layout)

    def repack(
        self, private: Array, here: PrivateLayout, target: Array, there: PrivateLayout
    ) -> None:
        """Write the elements in ``private`` to ``target``, from one layout to another."""
        raise NotImplementedError(there)

    def reordered(
        self, array: Array, here: PrivateLayout | None, there: PrivateLayout | None
    ) -> Array:
        """Return elements in another layout, in a new array; None is C order. Shape: (size,).

        Backends whose devices have arrays of their own, and Steps with private layouts, define it.
        """
        raise NotImplementedError(there)

    @property
    def storages(self) -> tuple[Stored, ...]:
        """Storages of nets that the device supports: "float", and those of 16 bits."""
        return ("float",)

    trains_narrow: ClassVar[bool] = False
    """True if nets of phase TRAIN may be stored in 16 bits, too."""

    def supported_storage(self, storage: Stored, phase: str) -> Stored:
        """Return the storage of a net of a phase that was made for another device, perhaps."""
        known = storage in self.storages and (phase == "TEST" or self.trains_narrow)
        return storage if known else "float"

    def narrow(self, array: Array, storage: str, out: Array | None = None) -> Array:
        """Return float32 values in 16 bits, rounded to the nearest; or write them to ``out``.

        Shapes: any -> the same; ``out`` has as many elements, or more.
        """
        raise NotImplementedError(storage)

    def widen(self, array: Array, storage: str) -> Array:
        """Return values of 16 bits as float32. Shapes: any -> the same."""
        raise NotImplementedError(storage)

    @abstractmethod
    def asarray(self, host: np.ndarray) -> Array:
        """Return a copy of a host array of any shape on the device."""

    @abstractmethod
    def to_host(self, array: Array) -> np.ndarray:
        """Return a copy of a device array of any shape on the host."""

    def view(self, flat: Array, shape: tuple[int, ...], count: int) -> Array:
        """Return the first ``count`` elements of a one-dimensional array in ``shape``, uncopied."""
        if isinstance(flat, ArrayRef):
            return flat.view(shape, count)
        part = flat if flat.shape[0] == count else flat[:count]
        return self.xp.reshape(part, shape)

    def holds(self, array: Any) -> bool:
        """Return whether an array is one of this device's own."""
        if self.shares_host:
            return isinstance(array, np.ndarray)
        mine = isinstance(array, type(self.zeros(0, "float32")))
        return mine and bool(array.device == self.array_device)

    def guard(self, array: Array) -> Array:
        """Return ``array`` as ``Blob.read`` hands it out."""
        return array

    def stored(self, array: Array) -> Array:
        """Return an array that replaces that of a memory; all threads may then read it."""
        return array

    def set_at(self, array: Array, index: Any, values: Any) -> Array:
        """Return ``array`` with ``values`` at an index of slices and integers.

        The result is ``array`` itself where arrays are mutable.
        """
        array[index] = values
        return array

    def add_at(self, array: Array, index: Any, values: Array) -> Array:
        """Return ``array`` with ``values`` added at an index, as ``set_at`` does."""
        array[index] += values
        return array

    def broadcast(self, values: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a number or an array in ``shape`` and ``dtype``."""
        xp = self.xp
        if not hasattr(values, "shape"):
            return xp.full(shape, values, dtype=dtype, device=self.array_device)
        values = xp.astype(values, dtype, copy=False)
        return values if tuple(values.shape) == shape else xp.broadcast_to(values, shape)

    def scatter(self, values: Array, indices: Array, size: int) -> Array:
        """Return zeros with every value written to its index; of several for one index the last.

        On a GPU it may be any of those.

        Shapes: values (count,), indices (count,), integers in [0, ``size``) -> (size,).
        """
        result = self.xp.zeros(size, dtype=values.dtype, device=self.array_device)
        return self.set_at(result, indices, values)

    def scatter_add(self, rows: Array, indices: Array, size: int) -> Array:
        """Return, for each index, the sum of the rows that have it; 0 where there are none.

        A sum depends on the rows of its own index only, whatever the others hold, and is added up
        in the same order in every run.

        Shapes: rows (count, K), indices (count,), integers in [0, ``size``) -> (size, K).
        """
        xp, count = self.xp, rows.shape[0]
        nothing = xp.zeros((size, rows.shape[1]), dtype=rows.dtype, device=self.array_device)
        if not count:
            return nothing
        order = xp.argsort(indices, stable=True)
        indices, total = xp.take(indices, order, axis=0), xp.take(rows, order, axis=0)
        # rows of one index are neighbours now; each comes to hold the sum of those up to it, of
        # one, two, four, ... rows
        step = 1
        while step < count:
            same = xp.expand_dims(indices[step:] == indices[:-step], axis=1)
            later, earlier = total[step:, :], total[:-step, :]
            later = xp.where(same, later + earlier, later)
            total = xp.concat([total[:step, :], later], axis=0)
            step *= 2
        numbers = xp.arange(size, dtype=indices.dtype, device=self.array_device)
        last = xp.maximum(xp.searchsorted(indices, numbers, side="right") - 1, 0)
        some = xp.expand_dims(xp.take(indices, last, axis=0) == numbers, axis=1)
        return xp.where(some, xp.take(total, last, axis=0), nothing)

    def dot(self, a: Array, b: Array) -> Array:
        """Return the sum of the products of two arrays' elements. Shapes: any, the same -> ()."""
        return self.xp.sum(a * b)

    def add(self, a: Array, b: Array) -> Array:
        """Return the sum of two losses. Shapes: () -> ()."""
        return a + b

    def copier(self, pairs: Sequence[tuple[Array, Array]]) -> Callable[[], None]:
        """Return a function that copies the first array of each pair into the second.

        It is called repeatedly; the arrays stay at their addresses. Shapes: (n,), both of a pair.
        """

        def copy_all() -> None:
            for source, target in pairs:
                target[...] = source

        return copy_all

    def fill(self, array: Array, value: float) -> None:
        """Set all elements to one number."""
        array[...] = value

    # -- work ----------------------------------------------------------------------------------

    def synchronize(self) -> None:  # noqa: B027 - the host has nothing to wait for
        """Wait until the device has done everything it was given."""

    def memory_info(self) -> tuple[int, int] | None:
        """Return free and total device memory in bytes, or None where it is the host's."""
        return None

    @property
    def joules(self) -> float | None:
        """Return the energy that the device has used since some time, or None if unknown."""
        return None

    @property
    def pooled(self) -> int:
        """Return the idle bytes of the library's pool; ``memory_info`` counts them as free."""
        return 0

    @property
    def working(self) -> int:
        """Bytes of working memory that all Steps of this thread take turns with."""
        return 0 if self.engine is None else int(self.engine.nbytes)

    def explained(self, error: Exception) -> Exception:
        """Return an exception of the library as a DemitasseError; others as they are."""
        try:
            with self._failures():
                raise error
        except Exception as said:
            return said
        finally:
            del error  # whose traceback has this frame

    def _failures(self) -> AbstractContextManager[None]:
        """Convert errors of the library in a block."""
        return _NOTHING

    def random_bits(self, seed: int, stream: int, passes: int, count: int, first: int = 0) -> Array:
        """Return ``count`` random 32-bit words, the same ones on every backend.

        Words are those of a pass of a sequence, e.g. the hash of a layer's name, from index
        ``first`` on.

        Shapes: (count,), uint32, or a wider integer type where a library cannot compute with these.
        """
        return self.asarray(random.bits(seed, stream, passes, count, first))

    def uploader(self) -> Uploader | None:
        """Return the uploader of a layer's batches of bytes; None if the host converts them."""
        return None

    def custom_gradient(
        self,
        forward: Callable[..., tuple[Sequence[Array], Sequence[Array], Sequence[Array]]],
        backward: Callable[..., Sequence[Array | None]],
    ) -> Callable[..., Sequence[Array]]:
        """Return a function of arrays with a derivative for the library's own differentiation.

        Args:
            forward: Returns results, further results without a gradient, and saved arrays.
            backward: Gets the arguments of ``forward``, its saved arrays and the gradients of the
                results; returns the gradients of the arguments, None for 0.

        Returns:
            A function that returns both kinds of results in one sequence. It has no derivative if
            the library differentiates nothing.
        """
        del backward

        def run(*arrays: Array) -> Sequence[Array]:
            results, others, _ = forward(*arrays)
            return (*results, *others)

        return run

    def opaque(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of arrays whose Python code the library's compiler does not read."""
        return function

    # -- faster ways -----------------------------------------------------------------------------

    lowerings: ClassVar[Lowerings] = {}
    """Steps by operation, most wanted first; what none of them takes runs portable code."""

    @property
    def engine(self) -> Any:
        """Return the engine of the backend's Steps: their first argument."""
        return None

    @property
    def updates(self) -> UpdateKernels | None:
        """Fast parameter updates, or None where the solvers' portable ones are to run."""
        return None

    @property
    def recorder(self) -> Recorder | None:
        """Return the recorder of calls or graphs for replay, or None without one."""
        return None

    @property
    def connector(self) -> Connector | None:
        """Return the device's collective library, or None where arrays travel by host memory."""
        return None

    def lower(self, op: Op, at: Operands, refused: Sequence[str] = ()) -> AnyStep:
        """Return a Step for ``op``, ready to run forward.

        ``refused`` has, for each of the first lowerings, why its Step cannot be used.

        Raises:
            Declined: There is none; the layer's portable code runs then.
        """
        reasons = [*refused]
        for lowering in self.lowerings.get(type(op), ())[len(refused) :]:
            try:
                step = lowering(self.engine, op, at)
                step.prepare()
            except Declined as declined:
                reasons.append(str(declined))
                continue
            step.refused = tuple(reasons)
            return step
        message = "; ".join(reasons) or f"{self.name} has no Step for {type(op).__name__}"
        raise Declined(message)

    def fuse(
        self, chain: Sequence[Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
    ) -> AnyStep:
        """Return one Step for several operations, ready to run forward.

        Args:
            chain: The first operation and those that follow it at once. Each reads the single top
                of the one before. It overwrites that top, or is its only reader and writes another
                blob; the top then need not be written.
            at: Their blobs.
            steps: What each would run by itself; None for portable code.

        Raises:
            Declined: There is none; each operation runs by itself then.
        """
        del chain, at, steps
        raise Declined
