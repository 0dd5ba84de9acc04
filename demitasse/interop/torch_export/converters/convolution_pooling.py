"""Converters of convolution, pooling and other layers over feature maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from demitasse.backends.windows import Shape, Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.layer_graph import LayerNode
from demitasse.interop.torch_export.code import Converter, ModuleCode, sizes
from demitasse.io.proto import PoolingParameter
from demitasse.layers.convolution import ConvolutionBase
from demitasse.layers.im2col import Im2col
from demitasse.layers.interp import Interp
from demitasse.layers.pooling import pooling_method, pooling_window
from demitasse.layers.spp import SPP
from demitasse.layers.upsample import Upsample


def _convolution(node: LayerNode, code: ModuleCode) -> None:
    """Add Conv1d, Conv2d or Conv3d, one module for all bottoms."""
    _product(node, code, "Conv")


def _deconvolution(node: LayerNode, code: ModuleCode) -> None:
    """Add ConvTranspose1d, ConvTranspose2d or ConvTranspose3d."""
    _product(node, code, "ConvTranspose")


def _product(node: LayerNode, code: ModuleCode, kind: str) -> None:
    layer = node.layer_as(ConvolutionBase)
    window, x = layer.window, node.bottoms[0]
    axes = len(window.kernel)
    if not 1 <= axes <= 3:
        message = f"got a convolution over {axes} axes, PyTorch supports 1 to 3"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=axes)
    into, out = x.shape[layer.axis], node.tops[0].shape[layer.axis]
    options = [f"{into}", f"{out}", sizes(window.kernel)]
    options += [f"stride={sizes(window.stride)}"] if set(window.stride) != {1} else []
    pad = tuple(map(min, window.pads))  # other pads become F.pad, or a slice
    options += [f"padding={sizes(pad)}"] if any(pad) else []
    options += [f"dilation={sizes(window.dilation)}"] if set(window.dilation) != {1} else []
    options += [f"groups={layer.group}"] if layer.group != 1 else []
    options += [] if layer.has_bias else ["bias=False"]
    module = code.module(
        node,
        f"nn.{kind}{axes}d({', '.join(options)})",
        weight=layer.blobs[0].cpu_data(),
        bias=layer.blobs[1].cpu_data() if layer.has_bias else None,
    )
    lead = layer.axis != 1  # all axes before the channels are joined
    for bottom, top in zip(node.bottoms, node.tops, strict=True):
        image = code.variable(bottom)
        if lead:
            image = code.reshaped(image, [-1, *bottom.sizes[layer.axis :]])
        if kind == "Conv":
            image = _padded(code, image, window, bottom.shape[layer.axis + 1 :],
                              top.shape[layer.axis + 1 :])  # fmt: skip
        maps = f"{module}({image})"
        if kind == "ConvTranspose":
            maps += _cropped(window)
        code.let(code.reshaped(maps, top.sizes) if lead else maps, top)


def _padded(
    code: ModuleCode, image: str, window: Window, size: Sequence[int], out: Sequence[int]
) -> str:
    """Return the image, padded at its end so that the last window fits.

    Caffe accepts a window that exceeds image and pads by less than a stride.
    """
    beyond = [
        (before - min(before, after),
         max(after, (n - 1) * stride + extent - length - before) - min(before, after))
        for n, stride, extent, length, (before, after) in zip(
            out, window.stride, window.extent, size, window.pads, strict=True
        )
    ]  # fmt: skip
    if not any(map(any, beyond)):
        return image
    return f"F.pad({image}, {_sides(beyond)})"


def _cropped(window: Window) -> str:
    """Return the index that crops a transposed convolution where pads differ."""
    if window.after is None:
        return ""
    low = [min(pair) for pair in window.pads]
    spans = [
        f"{before - least or ''}:{least - after or ''}"
        for (before, after), least in zip(window.pads, low, strict=True)
    ]
    return f"[..., {', '.join(spans)}]"


def _sides(pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return pads of axes in the order of F.pad: the last axis first."""
    return tuple(side for pair in reversed([*pairs]) for side in pair)


def _im2col(node: LayerNode, code: ModuleCode) -> None:
    layer, [x], [y] = node.layer_as(Im2col), node.bottoms, node.tops
    window = layer.window
    if len(window.kernel) != 2:
        message = f"got images of {len(window.kernel)} axes, PyTorch's unfold supports 2"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=len(window.kernel))
    images = code.variable(x)
    if layer.axis != 1:
        images = code.reshaped(images, [-1, *x.sizes[layer.axis :]])
    images = _padded(code, images, window, x.shape[layer.axis + 1 :], y.shape[layer.axis + 1 :])
    options, pad = [sizes(window.kernel)], tuple(map(min, window.pads))
    for name, values, usual in (
        ("dilation", window.dilation, 1), ("padding", pad, 0), ("stride", window.stride, 1)
    ):  # fmt: skip
        options += [f"{name}={sizes(values)}"] if set(values) != {usual} else []
    columns = f"F.unfold({images}, {', '.join(options)})"
    code.let(code.reshaped(columns, y.sizes), y)


def _interp(node: LayerNode, code: ModuleCode) -> None:
    """Add interpolate with aligned corners, after negative pads."""
    p, x, [y] = node.layer_as(Interp).param.interp_param, node.bottoms[0], node.tops
    image = code.variable(x)
    if p.pad_beg or p.pad_end:
        image = code.let(f"F.pad({image}, {(p.pad_beg, p.pad_end) * 2})", "cut")
    height, width = (code.size(size) for size in y.sizes[2:])
    call = f'F.interpolate({image}, ({height}, {width}), mode="bilinear", align_corners=True)'
    code.let(call, y)


def _upsample(node: LayerNode, code: ModuleCode) -> None:
    """Add a repetition of pixels, or a scatter to the indices of a mask."""
    layer, x, [y] = node.layer_as(Upsample), node.bottoms[0], node.tops
    image = code.variable(x)
    if len(node.bottoms) == 1:
        down, right = layer.scale
        code.let(f"{image}.repeat_interleave({down}, -2).repeat_interleave({right}, -1)", y)
        return
    mask = code.variable(node.bottoms[1])
    code.let(code.call("unpool", image, mask, *map(str, y.shape[-2:])), y)


# -- pooling -----------------------------------------------------------------------------------


def _pooling(node: LayerNode, code: ModuleCode) -> None:
    """Add a PyTorch pooling if its windows equal Caffe's, else a call of ``caffe_pool``."""
    p, [x] = node.layer.param.pooling_param, node.bottoms
    image, [top, *mask] = code.variable(x), node.tops
    window = pooling_window(p, x.shape[2:])
    axes = len(window.kernel)
    method, _ = pooling_method(p)
    if axes > 3 or (method == "STOCHASTIC" and axes != 2):
        message = f"got a pooling ({method}) over {axes} axes; PyTorch supports 1 to 3, 2 if random"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=axes)
    if p.global_pooling and not mask and method != "STOCHASTIC":
        kind = "Max" if method == "MAX" else "Avg"
        module = code.module(node, f"nn.Adaptive{kind}Pool{axes}d(1)")
        code.let(f"{module}({image})", top)
        return
    if (
        method != "STOCHASTIC"
        and not mask
        and not _pytorch_has(p, window, x.shape[2:])
        and (axes != 2 or window.after is not None or not pooling_method(p)[1])
    ):
        code.let(_padded_pool(code, image, p, window, x.shape[2:], top.shape[2:]), top)
        return
    if mask or (p.pool != PoolingParameter.STOCHASTIC and _pytorch_has(p, window, x.shape[2:])):
        if not _pytorch_has(p, window, x.shape[2:]):
            message = (
                "a mask of windows outside of the image, or mostly in its pads, has no PyTorch form"
            )
            raise NetError(message, code=ErrorCode.UNSUPPORTED)
        module = code.module(node, _module(p, window, mask=bool(mask)))
        if mask:
            places = code.let_several(f"{module}({image})", [top, "places"])[1]
            code.let(f"{places}.to({code.variable(top)}.dtype)", mask[0])
        else:
            code.let(f"{module}({image})", top)
        return
    code.let(_caffe_pool(code, image, p.pool, window, _rounds_up(p)), top)


def _rounds_up(p: PoolingParameter) -> bool:
    return p.round_mode == PoolingParameter.CEIL


def _pytorch_has(p: PoolingParameter, window: Window, size: Sequence[int]) -> bool:
    """Return True if PyTorch has the same windows.

    PyTorch pads by half a kernel at most, and drops a window that starts after the image, which
    Caffe keeps if there are no pads.
    """
    half = all(2 * pad <= kernel for pad, kernel in zip(window.pad, window.kernel, strict=True))
    half = half and window.after is None
    gaps = any(stride > kernel for stride, kernel in zip(window.stride, window.kernel, strict=True))
    fits = all(
        length + 2 * pad >= kernel
        for length, pad, kernel in zip(size, window.pad, window.kernel, strict=True)
    )
    return half and fits and not (_rounds_up(p) and gaps and not any(window.pad))


def _module(p: PoolingParameter, window: Window, *, mask: bool) -> str:
    method, counts_pads = pooling_method(p)
    kind = "Max" if method == "MAX" else "Avg"
    options = [sizes(window.kernel)]
    options += [f"stride={sizes(window.stride)}"] if window.stride != window.kernel else []
    options += [f"padding={sizes(window.pad)}"] if any(window.pad) else []
    options += ["return_indices=True"] if mask else []
    options += ["ceil_mode=True"] if _rounds_up(p) and set(window.stride) != {1} else []
    options += ["count_include_pad=False"] if kind == "Avg" and not counts_pads else []
    return f"nn.{kind}Pool{len(window.kernel)}d({', '.join(options)})"


def _padded_pool(
    code: ModuleCode, image: str, p: PoolingParameter, window: Window, size: Shape, out: Shape
) -> str:
    """Return a pooling of windows over pads of any size on each side."""
    method, counts_pads = pooling_method(p)
    counted = [pair if counts_pads else (0, 0) for pair in window.pads]
    beyond = [
        (before - low, (n - 1) * stride + extent - length - before - high)
        for n, stride, extent, length, (before, _), (low, high) in zip(
            out, window.stride, window.kernel, size, window.pads, counted, strict=True
        )
    ]
    mode = '"max"' if method == "MAX" else '"mean"'
    how = [window.kernel, window.stride, _sides(counted), _sides(beyond)]
    return code.call("padded_pool", image, mode, *(str(tuple(map(int, one))) for one in how))


def _caffe_pool(code: ModuleCode, image: str, kind: int, window: Window, up: bool) -> str:
    how = [str(tuple(map(int, one))) for one in (window.kernel, window.stride, window.pad)]
    if kind == PoolingParameter.STOCHASTIC:
        code.call("caffe_pool")
        return code.call("expected_pool", image, *how, str(up))
    mode = '"max"' if kind == PoolingParameter.MAX else '"mean"'
    return code.call("caffe_pool", image, mode, *how, str(up))


def _spp(node: LayerNode, code: ModuleCode) -> None:
    """Add a pooling for each level, and cat."""
    layer, [x], [top] = node.layer_as(SPP), node.bottoms, node.tops
    levels = []
    for pool in layer.pools:
        p = pool.param.pooling_param
        window = pooling_window(p, x.shape[2:])
        levels.append(_caffe_pool(code, code.variable(x), p.pool, window, _rounds_up(p)))
    if len(levels) == 1:
        code.let(levels[0], top)
        return
    flat = [f"{code.let(level, 'level')}.flatten(1)" for level in levels]
    code.let(f"torch.cat([{', '.join(flat)}], 1)", top)


CONVERTERS: Mapping[str, Converter] = {
    "Convolution": _convolution,
    "ConvolutionDepthwise": _convolution,
    "Deconvolution": _deconvolution,
    "DepthwiseConvolution": _convolution,
    "Im2col": _im2col,
    "Interp": _interp,
    "NdConvolution": _convolution,
    "NdPooling": _pooling,
    "Pooling": _pooling,
    "SPP": _spp,
    "Upsample": _upsample,
}
