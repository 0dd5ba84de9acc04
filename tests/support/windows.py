"""Windows that hypothesis draws for convolutions and poolings, and how prototxt says them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Axis:
    """A window along one spatial axis, and how many elements there are."""

    kernel: int
    stride: int
    pad: int
    dilation: int
    size: int


@st.composite
def windows(
    draw: st.DrawFn,
    axes: Sequence[int] = (1, 2, 2, 3),
    *,
    transposed: bool = False,
    pooling: bool = False,
) -> list[Axis]:
    """Draw a window over some number of spatial axes, which always fits.

    Args:
        draw: Given by hypothesis.
        axes: What the number of axes is drawn from.
        transposed: For a deconvolution, whose pad shrinks the top.
        pooling: For a pooling: no dilation, and pads smaller than the kernel.
    """
    return [draw(_axis(transposed, pooling)) for _ in range(draw(st.sampled_from(axes)))]


@st.composite
def _axis(draw: st.DrawFn, transposed: bool, pooling: bool) -> Axis:
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dilation = 1 if pooling else draw(st.integers(1, 3))
    extent = dilation * (kernel - 1) + 1
    pad = draw(st.integers(0, min(2, (extent - 1) // 2 if transposed else extent - 1)))
    least = 1 if transposed else max(1, extent - 2 * pad)
    return Axis(kernel, stride, pad, dilation, draw(st.integers(least, least + 5)))


def sizes(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the shape of the spatial axes."""
    return tuple(axis.size for axis in axes)


def convolution_fields(axes: Sequence[Axis]) -> str:
    """Return the fields of a convolution's window."""
    return " ".join(
        f"{field}: {getattr(axis, name)}"
        for field, name in (
            ("kernel_size", "kernel"), ("stride", "stride"), ("pad", "pad"),
            ("dilation", "dilation"),
        )
        for axis in axes
    )  # fmt: skip


def pooling_fields(axes: Sequence[Axis]) -> str:
    """Return the fields of a pooling's window: of two axes each its own, else those of the first.

    Other numbers of axes have one window for all, which may then be larger than some of them.
    """
    names = ("kernel", "stride", "pad")
    if len(axes) == 2:
        sides = zip("hw", axes, strict=True)
        return " ".join(f"{n}_{side}: {getattr(axis, n)}" for side, axis in sides for n in names)
    return f"kernel_size: {axes[0].kernel} stride: {axes[0].stride} pad: {axes[0].pad}"
