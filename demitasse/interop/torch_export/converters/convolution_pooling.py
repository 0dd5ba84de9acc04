"""Converters of convolution, pooling and other layers over feature maps."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from demitasse.backends.windows import Shape, Window
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.layer_graph import LayerNode, pads_to_fit
from demitasse.interop.torch_export.code import Converter, ModuleCode, Result, size_options, sizes
from demitasse.io.proto import PoolingParameter
from demitasse.layers.convolution import ConvolutionBase
from demitasse.layers.im2col import Im2col
from demitasse.layers.interp import Interp
from demitasse.layers.pooling import pooling_method, pooling_window
from demitasse.layers.spp import SPP
from demitasse.layers.upsample import Upsample


def _convolution(node: LayerNode, code: ModuleCode, kind: str = "Conv") -> Result:
    """Add a convolution, or with ConvTranspose a transposed one: one module for all bottoms."""
    layer = node.layer_as(ConvolutionBase)
    window, x, axis = layer.window, node.bottoms[0], layer.axis
    axes = len(window.kernel)
    if not 1 <= axes <= 3:
        message = f"got a convolution over {axes} axes, PyTorch supports 1 to 3"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=axes)
    options = [str(x.shape[axis]), str(node.tops[0].shape[axis]), sizes(window.kernel)]
    options += size_options(
        stride=(window.stride, 1),
        padding=(tuple(map(min, window.pads)), 0),  # other pads become F.pad, or a slice
        dilation=(window.dilation, 1),
        groups=([layer.group], 1),
    )
    options += [] if layer.has_bias else ["bias=False"]
    module = code.module(
        node,
        f"nn.{kind}{axes}d({', '.join(options)})",
        weight=layer.blobs[0].cpu_data(),
        bias=layer.blobs[1].cpu_data() if layer.has_bias else None,
    )
    lead, results = axis != 1, []  # all axes before the channels are joined
    for bottom, top in zip(node.bottoms, node.tops, strict=True):
        image = code.variable(bottom)
        if lead:
            image = code.reshaped(image, [-1, *bottom.sizes[axis:]])
        if kind == "Conv":
            image = _padded(image, window, bottom.shape[axis + 1 :], top.shape[axis + 1 :])
        maps = f"{module}({image})"
        if kind == "ConvTranspose" and window.after is not None:  # crop where pads differ
            spans = [f"{before - min(before, after) or ''}:{min(before, after) - after or ''}"
                     for before, after in window.pads]  # fmt: skip
            maps += f"[..., {', '.join(spans)}]"
        results.append(code.reshaped(maps, top.sizes) if lead else maps)
    return results


def _padded(image: str, window: Window, size: Shape, out: Shape) -> str:
    """Return the image with the pads that are not equal on both sides."""
    beyond = [
        (before - min(before, after), end - min(before, after))
        for (before, after), end in zip(window.pads, pads_to_fit(window, size, out), strict=True)
    ]
    return f"F.pad({image}, {_sides(beyond)})" if any(map(any, beyond)) else image


def _sides(pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return pads of axes in the order of F.pad: the last axis first."""
    return tuple(side for pair in reversed([*pairs]) for side in pair)


def _im2col(node: LayerNode, code: ModuleCode) -> Result:
    layer, [x], [y] = node.layer_as(Im2col), node.bottoms, node.tops
    window, axis = layer.window, layer.axis
    if len(window.kernel) != 2:
        message = f"got images of {len(window.kernel)} axes, PyTorch's unfold supports 2"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=len(window.kernel))
    images = code.variable(x)
    if axis != 1:
        images = code.reshaped(images, [-1, *x.sizes[axis:]])
    images = _padded(images, window, x.shape[axis + 1 :], y.shape[axis + 1 :])
    options = size_options(
        dilation=(window.dilation, 1),
        padding=(tuple(map(min, window.pads)), 0),
        stride=(window.stride, 1),
    )
    columns = f"F.unfold({', '.join([images, sizes(window.kernel), *options])})"
    return code.reshaped(columns, y.sizes)


def _interp(node: LayerNode, code: ModuleCode) -> Result:
    """Add interpolate with aligned corners, after negative pads."""
    p, x, [y] = node.layer_as(Interp).param.interp_param, node.bottoms[0], node.tops
    image = code.variable(x)
    if p.pad_beg or p.pad_end:
        image = code.let(f"F.pad({image}, {(p.pad_beg, p.pad_end) * 2})", "cut")
    height, width = (code.size(size) for size in y.sizes[2:])
    return f'F.interpolate({image}, ({height}, {width}), mode="bilinear", align_corners=True)'


def _upsample(node: LayerNode, code: ModuleCode) -> Result:
    """Add a repetition of pixels, or a scatter to the indices of a mask."""
    layer, (image, *mask), [y] = node.layer_as(Upsample), node.bottoms, node.tops
    if mask:
        return code.call("unpool", *node.bottoms, *y.shape[-2:])
    down, right = layer.scale
    repeated = f"repeat_interleave({down}, -2).repeat_interleave({right}, -1)"
    return f"{code.variable(image)}.{repeated}"


# -- pooling -----------------------------------------------------------------------------------

MODES = {"AVE": '"mean"', "MAX": '"max"'}
"""Pooling method -> argument of ``caffe_pool`` and ``padded_pool``."""


def _pooling(node: LayerNode, code: ModuleCode) -> Result:
    """Add a PyTorch pooling if its windows equal Caffe's, else a call of ``caffe_pool``."""
    p, [x] = node.layer.param.pooling_param, node.bottoms
    image, [top, *mask] = code.variable(x), node.tops
    window = pooling_window(p, x.shape[2:])
    axes, (method, counts_pads) = len(window.kernel), pooling_method(p)
    random = method == "STOCHASTIC"
    if axes > 3 or (random and axes != 2):
        message = f"got a pooling ({method}) over {axes} axes; PyTorch supports 1 to 3, 2 if random"
        raise NetError(message, code=ErrorCode.UNSUPPORTED, got=axes)
    kind = "Max" if method == "MAX" else "Avg"
    same = _pytorch_has(p, window, x.shape[2:])
    if mask:
        if not same:
            message = (
                "a mask of windows outside of the image, or mostly in its pads, has no PyTorch form"
            )
            raise NetError(message, code=ErrorCode.UNSUPPORTED)
        module = code.module(node, _module(p, window, mask=True))
        places = code.let_several(f"{module}({image})", [top, "places"])[1]
        code.let(f"{places}.to({code.variable(top)}.dtype)", mask[0])
        return []
    if p.global_pooling and not random:
        return code.apply(node, f"nn.Adaptive{kind}Pool{axes}d(1)")
    if same and not random:
        return code.apply(node, _module(p, window))
    if not random and (axes != 2 or window.after is not None or not counts_pads):
        return _padded_pool(code, image, p, window, x.shape[2:], top.shape[2:])
    return _caffe_pool(code, image, p, window)


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


def _module(p: PoolingParameter, window: Window, *, mask: bool = False) -> str:
    method, counts_pads = pooling_method(p)
    kind = "Max" if method == "MAX" else "Avg"
    options = [sizes(window.kernel)]
    options += [f"stride={sizes(window.stride)}"] if window.stride != window.kernel else []
    options += size_options(padding=(window.pad, 0))
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
    how = window.kernel, window.stride, _sides(counted), _sides(beyond)
    return code.call("padded_pool", image, MODES[method], *how)


def _caffe_pool(code: ModuleCode, image: str, p: PoolingParameter, window: Window) -> str:
    method, _ = pooling_method(p)
    how = window.kernel, window.stride, window.pad, _rounds_up(p)
    if method == "STOCHASTIC":
        return code.call("expected_pool", image, *how)
    return code.call("caffe_pool", image, MODES[method], *how)


def _spp(node: LayerNode, code: ModuleCode) -> Result:
    """Add a pooling for each level, and cat."""
    layer, [x] = node.layer_as(SPP), node.bottoms
    levels = []
    for pool in layer.pools:
        p = pool.param.pooling_param
        window = pooling_window(p, x.shape[2:])
        levels.append(_caffe_pool(code, code.variable(x), p, window))
    if len(levels) == 1:
        return levels[0]
    flat = [f"{code.let(level, 'level')}.flatten(1)" for level in levels]
    return f"torch.cat([{', '.join(flat)}], 1)"


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(
        ("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "NdConvolution"),
        _convolution,
    ),
    **dict.fromkeys(("NdPooling", "Pooling"), _pooling),
    "Deconvolution": partial(_convolution, kind="ConvTranspose"),
    "Im2col": _im2col,
    "Interp": _interp,
    "SPP": _spp,
    "Upsample": _upsample,
}
