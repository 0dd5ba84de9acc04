"""Factors and offsets of channels: y = x * a + b, channel scales of each image, and PReLU.

A normalisation with fixed statistics has this form.
"""

from functools import partial

from demitasse.backends.kernels.images import Images, need_layout
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, OptionalAddress, Output, Struct
from demitasse.backends.kernels.language.values import (
    Vector,
    Word,
    choose,
    clamp_max,
    fma,
    rectified,
)
from demitasse.backends.kernels.planes import Lanes, Plane, PlaneFields, PlaneKernel, Planes
from demitasse.backends.kernels.tuning import Tuning


class NumberFields(Struct):
    """Images and numbers of their channels; all images have the layout of ``x``."""

    x: Address
    numbers: Address
    added: OptionalAddress
    """Images that are added to the product, or numbers of the channels that are."""
    y: Output
    """The result; may be an image that is read."""
    walk: PlaneFields


class NumberGradientFields(Struct):
    """Gradients of the images and of the numbers; all images have the layout of ``x``."""

    x: Address
    numbers: Address
    dy: Address
    dx: Output
    """Gradient of ``x``; may be the memory of ``dy``."""
    gradients: Output
    """Gradients of the numbers."""
    added: OptionalAddress
    """Gradient of the images that were added."""
    walk: PlaneFields


@NumberFields.kernel("channel_factors")
def _factors_kernel(k: Kernel, f: NumberFields, lanes: Lanes, *, x: bool, y: bool) -> None:
    """Write the kernel; ``x`` and ``y`` say whether the images are in bfloat16."""

    def numbers(plane: Plane) -> tuple[Vector, Vector]:
        return plane.numbers(f.numbers), plane.numbers(f.added)

    def write(here: Word, plane: Plane, numbers: tuple[Vector, Vector]) -> None:
        value = rectified(fma(plane.load_from(f.x, here, bf16=x), *numbers))
        plane.store_to(value, f.y, here, bf16=y)

    Planes(k, f.walk, lanes).each_vector(numbers, write)


@NumberFields.kernel("gates")
def _gates_kernel(
    k: Kernel, f: NumberFields, lanes: Lanes, *, adds: bool, x: bool, added: bool, y: bool
) -> None:
    """Write the kernel; ``x``, ``added`` and ``y`` say whether the images are in bfloat16."""

    def write(here: Word, plane: Plane, gate: Vector) -> None:
        value = plane.load_from(f.x, here, bf16=x) * gate
        if adds:
            value += plane.load_from(f.added, here, bf16=added)
        plane.store_to(value, f.y, here, bf16=y)

    planes = Planes(k, f.walk, lanes)
    planes.each_vector(lambda plane: plane.numbers(f.numbers + plane.row), write)


@NumberFields.kernel("prelu")
def _slopes_kernel(k: Kernel, f: NumberFields, lanes: Lanes) -> None:
    def write(here: Word, plane: Plane, slopes: Vector) -> None:
        plane.store(rectified(plane.load(f.x + here), slopes), f.y + here)

    Planes(k, f.walk, lanes).each_vector(lambda plane: plane.numbers(f.numbers), write)


@NumberGradientFields.kernel("gate_gradient")
def _gradient_kernel(
    k: Kernel, f: NumberGradientFields, lanes: Lanes, *, slopes: bool, adds: bool
) -> None:
    """Write the gradients of the images, and those of gates or each plane's sum for slopes."""
    planes = Planes(k, f.walk, lanes, [f.x, f.dy])
    with planes.each() as plane:
        numbers = plane.numbers(f.numbers if slopes else f.numbers + plane.row)

        def step(here: Word, part: Plane, total: Vector) -> list[Vector]:
            x, dy = part.load(f.x + here), part.load(f.dy + here)
            part.store(dy * (choose(x > 0.0, 1.0, numbers) if slopes else numbers), f.dx + here)
            if adds:
                part.store(dy, f.added + here)
            return [fma(dy, clamp_max(x, 0.0) if slopes else x, total)]

        [total] = planes.each_pixel(plane, step, 1)
        if slopes:
            k.store(total, plane.sums)
        else:
            plane.store_numbers(total, f.gradients + plane.row)


@NumberGradientFields.kernel("prelu_gradient_sums")
def _slope_sums_kernel(k: Kernel, f: NumberGradientFields, lanes: Lanes) -> None:
    planes = Planes(k, f.walk, lanes)
    with planes.each(first_image=True) as plane:
        plane.store_numbers(planes.over_images(plane, 1)[0], f.gradients)


def channel_factors(x: Images, tuning: Tuning, y: Images | None = None) -> PlaneKernel:
    """Return y = max(x * factor + offset, 0), channel by channel; NaN stays.

    The images lie alike, in float32 or bfloat16; ``y`` are those of x if they are not given. A call
    takes x, the factors, the offsets, and y, which may be x. Shapes: (C,), (C,).
    """
    need_layout(x.has_whole_vectors(tuning.width), x)
    kernel = partial(_factors_kernel, x=x.bf16, y=(y or x).bf16)
    return PlaneKernel("factors", x, tuning, NumberFields, kernel)


def gates(
    images: Images, tuning: Tuning, *, adds: bool, bf16: tuple[bool, bool, bool] = (False,) * 3
) -> PlaneKernel:
    """Return y = x * gate + other, or without the other; both are rounded by themselves.

    All images lie alike; ``adds`` if there is another image, and ``bf16`` says whether x, the other
    and y are in bfloat16. A call takes x, the gates, (N, C), the other or None, and y.
    """
    x, added, y = bf16
    kernel = partial(_gates_kernel, adds=adds, x=x, added=added, y=y)
    return PlaneKernel("gates", images, tuning, NumberFields, kernel)


def gate_gradient(images: Images, tuning: Tuning, *, adds: bool) -> PlaneKernel:
    """Return the gradients of gates: dx = dy * gate, dgate = sum(x * dy), dother = dy.

    A call takes x, the gates, dy, dx, dgate, and dother or None.
    """
    kernel = partial(_gradient_kernel, slopes=False, adds=adds)
    return PlaneKernel("gates", images, tuning, NumberGradientFields, kernel)


def slopes(images: Images, tuning: Tuning) -> PlaneKernel:
    """Return y = max(x, 0) + slope * min(x, 0), with a slope for each channel; NaN stays.

    A call takes x, the slopes, (C,), and y, which may be x.
    """
    return PlaneKernel("prelu", images, tuning, NumberFields, _slopes_kernel, added=None)


def slope_gradient(images: Images, tuning: Tuning) -> PlaneKernel:
    """Return the gradients of slopes: dx = dy * (1 or slope), dslope = sum(dy * min(x, 0)).

    A call takes x, the slopes, dy, dx, dslope and scratch memory.
    """
    kernel = partial(_gradient_kernel, slopes=True, adds=False)
    return PlaneKernel(
        "prelu gradient", images, tuning, NumberGradientFields, kernel, _slope_sums_kernel,
        bands=True, added=None,
    )  # fmt: skip
