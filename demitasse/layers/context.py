"""Context that a net gives to its layers: device, dtype, seed, and arrays on that device."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demitasse.backends.arrays import Array
from demitasse.backends.random import Draw, stream_of
from demitasse.backends.storage import Stored
from demitasse.core.device import Device, current_device


@dataclass
class PassCounter:
    """Forward passes so far, a key of the random numbers; stored in snapshots.

    Passes count in phase TRAIN, or with layers that draw random numbers in TEST.
    """

    passes: int = 0


@dataclass
class LayerContext:
    """Context of a net's layers.

    Attributes:
        seed: Key of all random numbers.
        base_dir: Folder of the prototxt, searched for named files; or None.
        rank: Index of this data-parallel process.
        world_size: Number of data-parallel processes.
        storage: Format of activations and weights on the device: "float", or 16 bits, "half" or
            "bfloat16".
        python_layers: True if ``Python`` layers may import modules.
    """

    device: Device = field(default_factory=current_device)
    dtype: str = "float32"
    seed: int = 0
    base_dir: Path | None = None
    rank: int = 0
    world_size: int = 1
    storage: Stored = "float"
    python_layers: bool = True
    pass_counter: PassCounter = field(default_factory=PassCounter)


class Arrays:
    """Arrays on the net's device, in the net's dtype; the layer's name is a key of random words."""

    def __init__(self, name: str, context: LayerContext) -> None:
        self.name, self.context = name, context
        self._constants: dict[str, tuple[object, Array]] = {}

    @property
    def device(self) -> Device:
        """Device of the net."""
        return self.context.device

    @property
    def xp(self) -> Any:
        """Array namespace of the device."""
        return self.context.device.backend.xp

    @property
    def dtype(self) -> str:
        """Name of the net's dtype."""
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
        return self.xp.arange(stop, dtype=backend.dtype(dtype), device=backend.array_device)

    def cast(self, array: Array, dtype: str | None = None) -> Array:
        """Return ``array`` in another dtype, by default the net's."""
        return self.xp.astype(array, self.device.backend.dtype(dtype or self.dtype), copy=False)

    def constant(self, name: str, key: object, make: Callable[[], Array]) -> Array:
        """Return a cached array that depends on ``key`` and the device."""
        full_key = (key, self.device)
        known = self._constants.get(name)
        if known is None or known[0] != full_key:
            known = self._constants[name] = (full_key, make())
        return known[1]

    def clear_constants(self) -> None:
        """Drop the arrays that ``constant`` has cached."""
        self._constants.clear()

    def draw(self) -> Draw:
        """Return the key of this layer's random words in this pass."""
        context = self.context
        return Draw(
            context.seed, stream_of(self.name), context.pass_counter.passes, context.world_size
        )

    def random_bits(self, count: int, first: int = 0) -> Array:
        """Return random words of this layer and pass, the same on every device. Shape: (count,)."""
        draw = self.draw()
        return self.device.backend.random_bits(draw.seed, draw.stream, draw.passes, count, first)

    def random_words(self, shape: tuple[int, ...]) -> Array:
        """Return a random 32-bit word of this layer and pass for each element of a blob.

        Data-parallel processes draw the words of the joined batch, in which rank r of n has the
        samples r, r + n, ...

        Shapes: ``shape``, uint32.
        """
        count, size = math.prod(shape), self.context.world_size
        if size == 1 or not shape:
            return self.xp.reshape(self.random_bits(count), shape)
        joined = self.xp.reshape(self.random_bits(count * size), (shape[0], size, *shape[1:]))
        return joined[:, self.context.rank, ...]
