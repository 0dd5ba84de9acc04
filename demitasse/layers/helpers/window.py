"""The fields of ``convolution_param`` as a window: kernel, stride, pad and dilation of each axis.

Source: Caffe, ``src/caffe/layers/base_conv_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends.windows import Shape, Window
from demitasse.io.proto import ConvolutionParameter
from demitasse.layers.checks import conflict, out_of_range, wrong_count

__all__ = ["convolution_window"]


def convolution_window(param: ConvolutionParameter, axes: int) -> Window:
    """Read the window of a convolution over ``axes`` spatial axes.

    Raises:
        ConfigError: A field is given in two ways, not once per axis, or 0 where it cannot be.
    """
    kernel = _per_axis(
        axes, "kernel", "kernel_size", param.kernel_size, _hw(param, "kernel", axes), None
    )
    stride = _per_axis(axes, "stride", "stride", param.stride, _hw(param, "stride", axes), 1)
    pad = _per_axis(axes, "pad", "pad", param.pad, _hw(param, "pad", axes), 0)
    dilation = _per_axis(axes, "dilation", "dilation", param.dilation, None, 1)
    for name, values in (("kernel_size", kernel), ("stride", stride)):
        if min(values, default=1) <= 0:
            raise out_of_range(f"convolution_param.{name}", values, "numbers above 0")
    return Window(kernel, stride, pad, dilation)


def _hw(param: ConvolutionParameter, name: str, axes: int) -> Shape | None:
    """Return the values of ``<name>_h`` and ``<name>_w`` when one of them is given."""
    height, width = f"{name}_h", f"{name}_w"
    if not (param.HasField(height) or param.HasField(width)):
        return None
    if axes != 2:
        message = (
            f"convolution_param.{height} and {width} are for 2 spatial axes, the bottom has "
            f"{axes}; give {name} once per axis instead"
        )
        raise conflict(f"convolution_param.{height}", message)
    return getattr(param, height), getattr(param, width)


def _per_axis(
    axes: int,
    name: str,
    listed_name: str,
    listed: Sequence[int],
    hw: Shape | None,
    default: int | None,
) -> Shape:
    if hw is not None:
        if listed:
            message = (
                f"convolution_param has both {listed_name} and {name}_h or {name}_w; remove one"
            )
            raise conflict(f"convolution_param.{listed_name}", message)
        return hw
    if not listed and default is not None:
        return (default,) * axes
    if len(listed) == 1:
        return (listed[0],) * axes
    if len(listed) != axes:
        expected = f"1, or {axes}, one for each spatial axis"
        raise wrong_count(f"convolution_param.{listed_name}", len(listed), expected)
    return tuple(listed)
