"""Kernels of elements and channels, their calls and layouts.

Each function raises ``Declined`` where no kernel can be compiled, or none suits the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from demitasse.backends.cpu.arguments import Argument, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall, images_of, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.images import Images
from demitasse.backends.step import Declined, decline_if

K = TypeVar("K")


def elementwise_call(
    engine: Engine,
    function: str,
    numbers: Sequence[float],
    sources: Sequence[Argument],
    *targets: OutputArg,
) -> KernelCall:
    """Return a call of a function of every element."""
    from demitasse.backends.kernels.elementwise import MOST, Elementwise

    decline_if(len(sources) > MOST, f"{len(sources)} arrays; our kernels read up to {MOST}")
    kernel = Elementwise(function, numbers, targets[0].layout.size, kernel_tuning(engine))
    return KernelCall(engine, (*sources, *targets), kernel.code, kernel)


def map_call(engine: Engine, source: InputArg, target: OutputArg, kernel: Any) -> KernelCall:
    """Return a call of a kernel with one input and one output."""
    return KernelCall(engine, (source, target), kernel.code, kernel)


def suitable_images(
    layout: Layout,
    takes: Callable[..., bool],
    width: int,
    *numbers: float,
    find: Callable[[Layout], Images | None] = images_of,
) -> Images:
    """Return the images of a layout."""
    images = find(layout)
    if images is None or not takes(images, *numbers, width):
        message = f"channels of {layout.shape} that fill no vectors of {width} here"
        raise Declined(message)
    return images


def first_suitable(layouts: Iterable[Layout], make: Callable[[Layout], K]) -> tuple[Layout, K]:
    """Return the first layout that a kernel takes, and the kernel."""
    reason = Declined("no layout suits the kernel")
    for layout in dict.fromkeys(layouts):
        try:
            return layout, make(layout)
        except Declined as declined:
            reason = declined
    raise reason


def factors_call(
    engine: Engine, source: InputArg, target: OutputArg, values: tuple[np.ndarray, np.ndarray]
) -> KernelCall:
    """Return a call that multiplies channels with factors, adds offsets and rectifies.

    The target has the source's blocks of channels. Factors and offsets may change between calls.
    """
    from demitasse.backends.kernels.channel_affine import ChannelFactors

    tuning = kernel_tuning(engine)
    x = suitable_images(source.layout, Images.has_whole_vectors, tuning.width)
    y = images_of(target.layout)
    if y is None:
        message = "an output whose channels lie otherwise than the input's"
        raise Declined(message)
    return map_call(engine, source, target, ChannelFactors((x, y), *values, tuning))
