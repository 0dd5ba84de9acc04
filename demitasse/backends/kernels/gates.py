"""Images whose channels are multiplied with numbers of their own, gates; and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    EACH_CALL,
    Address,
    Arguments,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, Vector, Word, fma
from demitasse.backends.kernels.norm.walk import WalkFields, each_plane, summed, walk_values
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["GateGradient", "Gates"]


class GateFields(Struct):
    """Images and gates, and their product; all images lie alike."""

    walk: WalkFields
    """Their planes."""
    x: Address
    """Address of the first image."""
    gates: Address
    """Address of the first image's gates."""
    added: OptionalAddress
    """Address of the first image of those that are added to the product, if some are."""
    y: Output
    """Address of the first result; it may be one of the images."""


class GradientFields(Struct):
    """Images and gates, and their gradients; all images lie alike."""

    walk: WalkFields
    """Their planes."""
    x: Address
    """Address of the first image."""
    gates: Address
    """Address of the first image's gates."""
    dy: Address
    """Address of the first gradient of the product."""
    dx: Output
    """Address of the first gradient of the images; it may be the same."""
    added: OptionalAddress
    """Address of the first gradient of what was added to the product, if something was."""
    gate_gradients: Output
    """Address of those of the first image's gates."""


ARRAYS = "x", "gates", "added", "y"
GRADIENT_ARRAYS = "x", "gates", "dy", "dx", "added", "gate_gradients"
"""Fields that change from call to call."""


@cache
def _kernel(width: int, *, gradient: bool, adds: bool, rest: bool) -> int:
    """Return the address of the kernel.

    Args:
        width: Floats of a vector.
        gradient: Whether it computes the gradients.
        adds: Whether something is added to the product.
        rest: Whether the last vector of channels is a part of one.
    """
    options = f"{'_adds' if adds else ''}{'_rest' if rest else ''}"
    name = f"gate{'_gradient' if gradient else 's'}{width}{options}"
    write = _write_gradient if gradient else _write
    write = partial(write, name=name, width=width, adds=adds, rest=rest)
    return compiled(name, write, name)[name]


def _write(module: Any, name: str, width: int, *, adds: bool, rest: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = GateFields.read(k)
    stride, row_bytes = f.walk.pixel_stride * FLOAT, f.walk.channels * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        gate = plane.load(k, f.gates + plane.image * row_bytes + plane.channels)
        with k.loop(f.walk.pixels) as pixel:
            here = plane.first + pixel.i * stride
            value = plane.load(k, f.x + here) * gate
            if adds:
                value = value + plane.load(k, f.added + here)
            plane.store(k, value, f.y + here)
    k.done()


def _write_gradient(module: Any, name: str, width: int, *, adds: bool, rest: bool) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = GradientFields.read(k)
    stride, row_bytes = f.walk.pixel_stride * FLOAT, f.walk.channels * FLOAT
    with each_plane(k, f.walk, rest=rest) as plane:
        channels = plane.image * row_bytes + plane.channels
        gate = plane.load(k, f.gates + channels)

        def step(at: Word, sums: Sequence[Vector]) -> list[Vector]:
            for array in (f.x, f.dy):
                k.prefetch(array + plane.following + at, 2)
            here = plane.first + at
            x, dy = plane.load(k, f.x + here), plane.load(k, f.dy + here)
            plane.store(k, dy * gate, f.dx + here)
            if adds:
                plane.store(k, dy, f.added + here)
            return [fma(x, dy, sums[0])]

        [total] = summed(k, f.walk.pixels, stride, [k.constant(0.0)], step)
        plane.store(k, total, f.gate_gradients + channels)
    k.done()


class _Planes:
    """A kernel that walks over the planes of images and of their gates.

    Args:
        images: Where the elements of all images lie.
        tuning: The kernel's vectors and threads.
        gradient: Whether it computes the gradients.
        adds: Whether something is added to the product.

    Raises:
        ValueError: Channels have no vectors, or pixels do not follow each other.
    """

    def __init__(self, images: Images, tuning: Tuning, *, gradient: bool, adds: bool) -> None:
        self.tuning, width = tuning, tuning.width
        rest = images.block % width > 0
        self._kernel = _kernel(width, gradient=gradient, adds=adds, rest=rest)
        names = GRADIENT_ARRAYS if gradient else ARRAYS
        walk = walk_values(images, width, eps=0.0)
        fields = GradientFields if gradient else GateFields
        self._arguments = Arguments(fields.values(walk=walk, **dict.fromkeys(names, EACH_CALL)))

    def _run(self, **arrays: np.ndarray | None) -> None:
        """Run it over these arrays; None for one that there is not."""
        self._arguments.run(self._kernel, self.tuning.threads, {**arrays, "walk.sums": None})

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"gates llvm:{self.tuning.instructions}"


class Gates(_Planes):
    """y = x * gate + other, or without the other; products and sums are rounded by themselves.

    Args:
        images: Where the elements of ``x``, ``y`` and the other lie.
        tuning: The kernel's vectors and threads.
        adds: Whether there is another.

    Raises:
        ValueError: Channels have no vectors, or pixels do not follow each other.
    """

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        super().__init__(images, tuning, gradient=False, adds=adds)

    def __call__(
        self, x: np.ndarray, gates: np.ndarray, added: np.ndarray | None, y: np.ndarray
    ) -> None:
        """Write ``y``; images are memories that ``images`` describes. Shape of gates: (N, C)."""
        self._run(x=x, gates=gates, added=added, y=y)


class GateGradient(_Planes):
    """Gradients of y = x * gate + other: dx = dy * gate, dgate = sum(x * dy), dother = dy.

    Args:
        images: Where the elements of ``x``, ``y`` and their gradients lie.
        tuning: The kernel's vectors and threads.
        adds: Whether there is another.

    Raises:
        ValueError: Channels have no vectors, or pixels do not follow each other.
    """

    def __init__(self, images: Images, tuning: Tuning, *, adds: bool) -> None:
        super().__init__(images, tuning, gradient=True, adds=adds)

    def __call__(
        self,
        x: np.ndarray,
        gates: np.ndarray,
        dy: np.ndarray,
        gradients: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    ) -> None:
        """Write the gradients of ``x``, of the gates, and of what was added, if something was.

        Images are memories that ``images`` describes. Shape of gates and their gradients: (N, C).
        """
        dx, gate_gradients, added = gradients
        self._run(x=x, gates=gates, dy=dy, dx=dx, added=added, gate_gradients=gate_gradients)
