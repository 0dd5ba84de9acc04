"""Calls of kernels with their arguments, and the layouts that kernels take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from demitasse.backends.cpu.arguments import (
    Argument,
    GradArg,
    OutputArg,
    scratch_argument,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    KernelCall,
    folded_images,
    images_of,
    kernel_tuning,
)
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.elementwise import MOST, Chain, Elementwise
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.planes import takes as takes_planes
from demitasse.backends.step import Declined, Operand, decline_if

K = TypeVar("K")


def _nothing() -> None:
    """Return the array of an absent argument."""


class BoundCall(KernelCall):
    """A kernel with an argument for each array that it takes.

    Args:
        kernel: The kernel; its scratch memory, if any, is its last array.
        arguments: None for an absent array.
        code: Name of the code, of a kernel without one.
        held: Bytes of the kernel.
    """

    def __init__(
        self,
        engine: Engine,
        kernel: Any,
        *arguments: Argument | None,
        code: str = "",
        held: int = 0,
    ) -> None:
        self.kernel = kernel
        self._arrays = [_nothing if argument is None else argument.array for argument in arguments]
        present = [argument for argument in arguments if argument is not None]
        self._gradients = [one for one in present if isinstance(one, GradArg)]
        scratch = getattr(kernel, "scratch_size", 0)
        super().__init__(engine, present, code or kernel.code, scratch=scratch, held=held)

    def __call__(self) -> None:
        self.kernel(*[array() for array in self._arrays], *self.scratch())
        for gradient in self._gradients:
            gradient.done()


def elementwise_call(
    engine: Engine, chain: Chain, sources: Sequence[Argument], *targets: OutputArg
) -> KernelCall:
    """Return a call of functions of every element."""
    decline_if(len(sources) > MOST, f"{len(sources)} arrays; our kernels read up to {MOST}")
    kernel = Elementwise(chain, len(sources), targets[0].layout.size, kernel_tuning(engine))
    return BoundCall(engine, kernel, *sources, *targets)


def gradient_argument(
    engine: Engine, role: str, blob: Operand, layout: Layout, *, wanted: bool
) -> Argument:
    """Return an argument for a blob's gradient, in shared memory if the gradient is not wanted."""
    if wanted:
        return OutputArg(role, blob, layout, diff=True)
    return scratch_argument(engine, role, layout)


def suitable_images(
    layout: Layout,
    takes: Callable[..., bool],
    *numbers: float,
    find: Callable[[Layout], Images | None] = images_of,
) -> Images:
    """Return the images of a layout; the last of the numbers is the floats of a vector.

    Raises:
        Declined: The kernel does not take the images.
    """
    images = find(layout)
    if images is None or not takes(images, *numbers):
        message = f"channels of {layout.shape} that fill no vectors of {numbers[-1]} here"
        raise Declined(message)
    return images


def plane_images(layout: Layout, width: int) -> Images:
    """Return a layout of (N, C, *spatial) as images for kernels that go through planes.

    Raises:
        Declined: Channels lie neither side by side nor in blocks nor in C order.
    """
    n, c, *spatial = layout.shape
    pixels = math.prod(spatial)

    def find(layout: Layout) -> Images | None:
        if layout.plain:
            return Images.in_blocks((n, c, 1, pixels), c if pixels == 1 and c >= width else 1)
        images = folded_images(layout) if spatial else None
        return images if images is not None and images.shape[1] == c else None

    return suitable_images(layout, takes_planes, width, find=find)


def first_suitable(layouts: Iterable[Layout], make: Callable[[Layout], K]) -> tuple[Layout, K]:
    """Return the first layout that a kernel takes, and the kernel."""
    reason = Declined("no layout suits the kernel")
    for layout in dict.fromkeys(layouts):
        try:
            return layout, make(layout)
        except Declined as declined:
            reason = declined
    raise reason
