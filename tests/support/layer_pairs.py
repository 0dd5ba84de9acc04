"""Pairs of layers: everything that ``cpu`` runs in a faster form, followed by everything.

Kernels agree with each other on layouts, on scratch memory and on which runs inside another one,
so a fault may need two certain layers, one after the other. A pair is a net of both, with nothing,
a ReLU in place, or a normalisation and a ReLU between them.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from net_builder import Budget, NetBuilder
from net_case import Case, Scenario

__all__ = ["MAKERS", "Maker", "pairs"]

Make = Callable[[NetBuilder, str, int | None], str | None]


@dataclass(frozen=True)
class Maker:
    """A layer, or a few that run as one.

    Attributes:
        name: What it is called.
        make: Adds it behind a blob, with so many channels where it can choose; None where the blob
            does not fit.
        channels: How many channels it wants, in small nets and in large ones; None for any.
        chooses: Whether it can give any number of channels.
    """

    name: str
    make: Make
    channels: tuple[int, int] | None = None
    chooses: bool = False


SIDES = {"small": (11, 14), "large": (27, 40)}
ROOMY = Budget(1e12, 1e12, 10**6, 1000, 64, 10)


def _conv(kernel, channels, out=None, stride=(1, 1), pad: Any = "same", dilation=(1, 1), group=1):
    """Return a maker of convolutions: channels for small and large nets, and of the top."""

    def make(b: NetBuilder, x: str, wanted: int | None) -> str | None:
        if len(b.shapes[x]) != 4:
            return None
        c = b.shapes[x][1]
        groups = c if group == "each" else group
        m = c if group == "each" else out or wanted or c
        if c % groups or m % groups:
            return None
        return b.conv(
            x, m, kernel, stride=stride, pad=pad, dilation=dilation, group=groups, tries=1
        )

    return make, channels, out is None and group != "each"


def _image(make: Callable[[NetBuilder, str], str | None]) -> Make:
    return lambda b, x, wanted: make(b, x) if len(b.shapes[x]) == 4 else None


def _any(make: Callable[[NetBuilder, str], str | None]) -> Make:
    return lambda b, x, wanted: make(b, x)


def _act(kind: str, fields: dict[str, Any] | None = None, *, in_place: bool = False) -> Make:
    def make(b: NetBuilder, x: str, wanted: int | None) -> str:
        place = in_place and b.may_be_in_place(x)
        return b.add(kind, x, b.shapes[x], fields or {}, in_place=place)

    return make


def _lrn(region: str) -> Make:
    fields = {"lrn_param": {"alpha": 0.1, "norm_region": region}}
    return _image(lambda b, x: b.add("LRN", x, b.shapes[x], fields))


def _pool(**options: Any) -> Make:
    return _image(lambda b, x: b.pool(x, **options))


def _deconv(k: int, s: int, p: int, *, each: bool = False) -> Make:
    def make(b: NetBuilder, x: str, wanted: int | None) -> str | None:
        if len(b.shapes[x]) != 4:
            return None
        n, c, h, w = b.shapes[x]
        m = c if each else wanted or c
        fields: dict[str, Any] = {"num_output": m, "kernel_size": k, "stride": s, "pad": p}
        if each:
            fields["group"] = c
        if each or b.chance(0.5):
            fields["bias_term"] = False
        shape = (n, m, *((size - 1) * s + k - 2 * p for size in (h, w)))
        return b.add("Deconvolution", x, shape, {"convolution_param": fields})

    return make


def _separable(b: NetBuilder, x: str, wanted: int | None) -> str | None:
    if len(b.shapes[x]) != 4:
        return None
    c = b.shapes[x][1]
    y = b.conv(x, c, (3, 3), stride=(1, 1), pad="same", dilation=(1, 1), group=c, tries=1)
    y = y and b.add("ReLU", y, b.shapes[y], in_place=True)
    return y and b.conv(
        y, wanted or c, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=1, tries=1
    )


def _normed(b: NetBuilder, x: str) -> str:
    y = b.add("BatchNorm", x, b.shapes[x])
    y = b.add("Scale", y, b.shapes[y], {"scale_param": {"bias_term": True}}, in_place=True)
    return b.add("ReLU", y, b.shapes[y], in_place=True)


def _two_of(x: str, b: NetBuilder) -> list[str]:
    return [x, b.add("TanH", x, b.shapes[x])]


def _pointwise_beside(b: NetBuilder, x: str, wanted: int | None) -> str | None:
    if len(b.shapes[x]) != 4:
        return None
    c = b.shapes[x][1]
    y = b.conv(x, c, (1, 1), stride=(1, 1), pad=(0, 0), dilation=(1, 1), group=1, tries=1)
    return y and b.concat([x, y])


def _residual(b: NetBuilder, x: str) -> str | None:
    c = b.shapes[x][1]
    y = b.conv(x, c, (3, 3), stride=(1, 1), pad="same", dilation=(1, 1), group=1, tries=1)
    return y and b.add("ReLU", b.eltwise([y, x], "SUM"), b.shapes[x])


def _sliced(b: NetBuilder, x: str) -> str | None:
    parts = b.slice(x, 2)
    return parts and parts[0]


def _split(b: NetBuilder, x: str) -> str:
    return b.split(x)[0]


def _gate(kind: str) -> Make:
    def make(b: NetBuilder, x: str, wanted: int | None) -> str | None:
        if len(b.shapes[x]) != 4:
            return None
        n, c = b.shapes[x][:2]
        gates = b.global_pool(x)
        gates = b.conv(gates, c, (1, 1), stride=(1, 1), pad=(0, 0), group=1, tries=1)
        gates = b.add("Sigmoid", gates, b.shapes[gates])
        if kind == "Axpy":
            return b.add("Axpy", [gates, x, x], b.shapes[x])
        gates = b.add("Flatten", gates, (n, c))
        return b.add("Scale", [x, gates], b.shapes[x], {"scale_param": {"axis": 0}})

    return make


def _crop(b: NetBuilder, x: str) -> str | None:
    n, c, h, w = b.shapes[x]
    if min(h, w) < 3:
        return None
    like = b.add_input((n, 1, h - 2, w - 1))
    fields = {"crop_param": {"axis": 2, "offset": [1, 1]}}
    return b.add("Crop", [x, like], (n, c, h - 2, w - 1), fields)


def _interp(b: NetBuilder, x: str) -> str:
    n, c, h, w = b.shapes[x]
    fields = {"interp_param": {"height": h + 3, "width": 2 * w}}
    return b.add("Interp", x, (n, c, h + 3, 2 * w), fields)


def _recurrent(type_: str) -> Make:
    def make(b: NetBuilder, x: str, wanted: int | None) -> str | None:
        if len(b.shapes[x]) < 3:
            return None
        t, n = b.shapes[x][:2]
        cont = b.add_input((t, n), "cont")
        fields = {"recurrent_param": {"num_output": 24}}
        return b.add(type_, [x, cont], (t, n, 24), fields)

    return make


def _regions(type_: str) -> Make:
    def make(b: NetBuilder, x: str, wanted: int | None) -> str | None:
        if len(b.shapes[x]) != 4:
            return None
        n, c, h, w = b.shapes[x]
        if type_ == "PSROIPooling" and c % 4:
            return None
        rois = b.add_input((5, 5), f"rois:{n}:{h}:{w}")
        if type_ == "ROIPooling":
            fields: dict[str, Any] = {"pooled_h": 3, "pooled_w": 2, "spatial_scale": 1.0}
            shape = (5, c, 3, 2)
            return b.add(type_, [x, rois], shape, {"roi_pooling_param": fields})
        fields = {"spatial_scale": 1.0, "output_dim": c // 4, "group_size": 2}
        shape = (5, c // 4, 2, 2)
        return b.add(type_, [x, rois], shape, {"psroi_pooling_param": fields})

    return make


def _rows(out: int, axis: int = 1) -> Make:
    def make(b: NetBuilder, x: str, wanted: int | None) -> str | None:
        return b.inner_product(x, out, axis) if len(b.shapes[x]) > axis else None

    return make


def _permute(b: NetBuilder, x: str) -> str:
    n, c, h, w = b.shapes[x]
    return b.add("Permute", x, (n, c, w, h), {"permute_param": {"order": [0, 1, 3, 2]}})


def _channels_last(b: NetBuilder, x: str) -> str:
    n, c, h, w = b.shapes[x]
    return b.add("Permute", x, (n, h, w, c), {"permute_param": {"order": [0, 2, 3, 1]}})


CONVOLUTIONS = {
    "3x3 over tiles": _conv((3, 3), (32, 96)),
    "3x3 over tiles, many filters": _conv((3, 3), (48, 256)),
    "5x5 over tiles": _conv((5, 5), (32, 64)),
    "7x7 over tiles": _conv((7, 7), (16, 48)),
    "2x2": _conv((2, 2), (32, 64), pad=(0, 0)),
    "1x3": _conv((1, 3), (32, 64)),
    "3x1": _conv((3, 1), (32, 64)),
    "1x7": _conv((1, 7), (32, 64)),
    "9x1": _conv((9, 1), (32, 64)),
    "4x4 of stride 2": _conv((4, 4), (32, 64), stride=(2, 2), pad=(1, 1)),
    "6x6 of stride 2": _conv((6, 6), (32, 64), stride=(2, 2), pad=(2, 2)),
    "from few channels": _conv((3, 3), (3, 3)),
    "from few channels, 7x7 of stride 2": _conv((7, 7), (3, 3), stride=(2, 2)),
    "to few channels": _conv((3, 3), (32, 64), 3),
    "each channel": _conv((3, 3), (32, 96), group="each"),
    "each channel, 5x5 of stride 2": _conv((5, 5), (24, 96), stride=(2, 2), group="each"),
    "pointwise": _conv((1, 1), (32, 96), pad=(0, 0)),
    "pointwise of stride 2": _conv((1, 1), (32, 96), stride=(2, 2), pad=(0, 0)),
    "groups of 4": _conv((3, 3), (32, 128), group=8),
    "groups of 16": _conv((3, 3), (32, 64), group=2),
    "pointwise in groups": _conv((1, 1), (24, 96), pad=(0, 0), group=3),
    "3x3 of stride 2": _conv((3, 3), (32, 96), stride=(2, 2)),
    "dilated": _conv((3, 3), (32, 64), pad=(2, 2), dilation=(2, 2)),
    "11x11 of stride 4": _conv((11, 11), (3, 3), stride=(4, 4), pad=(5, 5)),
    "odd channels": _conv((3, 3), (13, 45)),
}
FLOOR = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0)}
THREE = {"kernel": (3, 3), "stride": (2, 2), "pad": (0, 0)}
OTHERS: dict[str, Make] = {
    "separable": _separable,
    "deconvolution": _deconv(4, 2, 1),
    "deconvolution, 2x2": _deconv(2, 2, 0),
    "deconvolution of stride 1": _deconv(3, 1, 1),
    "deconvolution of each channel": _deconv(4, 2, 1, each=True),
    "MAX, rounded down": _pool(**FLOOR, method="MAX", floor=True),
    "MAX, rounded up": _pool(**FLOOR, method="MAX", floor=False),
    "MAX 3x3": _pool(**THREE, method="MAX", floor=False),
    "MAX 3x3, rounded down": _pool(**THREE, method="MAX", floor=True),
    "MAX of stride 1": _pool(kernel=(3, 3), stride=(1, 1), pad=(1, 1), method="MAX"),
    "AVE, rounded down": _pool(**FLOOR, method="AVE", floor=True),
    "AVE of stride 1": _pool(kernel=(3, 3), stride=(1, 1), pad=(1, 1), method="AVE"),
    "global AVE": _image(lambda b, x: b.global_pool(x)),
    "global MAX": _image(lambda b, x: b.global_pool(x, "MAX")),
    "SPP": _image(lambda b, x: b.spp(x)),
    "ROIPooling": _regions("ROIPooling"),
    "PSROIPooling": _regions("PSROIPooling"),
    "LRN": _lrn("ACROSS_CHANNELS"),
    "LRN within": _lrn("WITHIN_CHANNEL"),
    "BatchNorm": _act("BatchNorm"),
    "BatchNorm, Scale and ReLU": _any(_normed),
    "Scale": _act("Scale", {"scale_param": {"bias_term": True}}, in_place=True),
    "Bias": _act("Bias"),
    "ReLU": _act("ReLU"),
    "ReLU in place": _act("ReLU", in_place=True),
    "leaky ReLU": _act("ReLU", {"relu_param": {"negative_slope": 0.1}}, in_place=True),
    "PReLU": _act("PReLU"),
    "PReLU in place": _act("PReLU", in_place=True),
    "ELU": _act("ELU", in_place=True),
    "Sigmoid": _act("Sigmoid"),
    "TanH": _act("TanH", in_place=True),
    "ReLU6": _act("ReLU6", in_place=True),
    "Clip": _act("Clip", {"clip_param": {"min": -0.5, "max": 0.7}}),
    "Power": _act("Power", {"power_param": {"power": 2, "scale": 0.5, "shift": 0.3}}),
    "Swish": _act("Swish"),
    "Softmax": _act("Softmax"),
    "MVN": _image(lambda b, x: b.mvn(x)),
    "Normalize": _image(lambda b, x: b.normalize(x)),
    "Dropout": _act("Dropout", in_place=True),
    "sum": _any(lambda b, x: b.eltwise(_two_of(x, b), "SUM")),
    "sum with coefficients": _any(lambda b, x: b.eltwise(_two_of(x, b), "coeff")),
    "product": _any(lambda b, x: b.eltwise(_two_of(x, b), "PROD")),
    "maximum": _any(lambda b, x: b.eltwise(_two_of(x, b), "MAX")),
    "residual": _image(_residual),
    "Concat": _any(lambda b, x: b.concat(_two_of(x, b))),
    "Concat with a convolution": _pointwise_beside,
    "Slice": _any(_sliced),
    "Split": _any(_split),
    "gates, Scale": _gate("Scale"),
    "gates, Axpy": _gate("Axpy"),
    "ShuffleChannel": _image(lambda b, x: b.shuffle(x)),
    "Permute": _image(_permute),
    "channels last": _image(_channels_last),
    "Crop": _image(_crop),
    "Interp": _image(_interp),
    "Upsample": _image(lambda b, x: b.upsample(x)),
    "InnerProduct": _rows(50),
    "InnerProduct of many rows": _rows(17, 2),
    "Flatten": _any(lambda b, x: b.flatten(x)),
    "LSTM": _recurrent("LSTM"),
    "RNN": _recurrent("RNN"),
}
CHOOSES = {"separable", "deconvolution", "deconvolution, 2x2", "deconvolution of stride 1"}
MAKERS = [
    *(Maker(name, make, wants, chooses) for name, (make, wants, chooses) in CONVOLUTIONS.items()),
    *(Maker(name, make, None, name in CHOOSES) for name, make in OTHERS.items()),
]


def pairs(size: str) -> Iterator[Case]:
    """Return a case for each ordered pair that can be made, in TEST and in TRAIN.

    Args:
        size: "small" or "large".
    """
    number = 0
    for first in MAKERS:
        for second in MAKERS:
            for train in (False, True):
                case = _pair(first, second, size, number, train=train)
                if case is not None:
                    number += 1
                    yield case


def _pair(first: Maker, second: Maker, size: str, number: int, *, train: bool) -> Case | None:
    rng = random.Random(f"{size} {first.name} {second.name} {train}")
    index = int(size == "large")
    usual = (32, 64)[index]
    wanted = second.channels[index] if second.channels else None
    if first.channels:
        channels = first.channels[index]
    else:
        channels = usual if first.chooses else wanted or usual
    n, h, w = rng.choice((1, 2)), rng.choice(SIDES[size]), rng.choice(SIDES[size])
    b = NetBuilder(rng, ROOMY, train, train)
    x = b.add_input((n, channels, h, w))
    x = first.make(b, x, wanted or usual)
    if x is None:
        return None
    between = rng.choice(("", "", "ReLU", "norm"))
    if between == "ReLU" and b.may_be_in_place(x):
        x = b.add("ReLU", x, b.shapes[x], in_place=True)
    elif between == "norm":
        x = _normed(b, x)
    y = second.make(b, x, usual)
    if y is None:
        return None
    threads = rng.choice((1, 2, 2, 4))
    if train:
        steps = (("threads", threads), ("train", 0), ("train", 0), ("train", 1))
        scenario = Scenario("TRAIN", rng.choice((None, "outputs")), steps)
    else:
        passes = (("forward", 0),) * 4 + (("threads", 3), ("forward", 1))
        scenario = Scenario("TEST", "outputs", (("threads", threads), *passes))
    phase = "TRAIN" if train else "TEST"
    name = f"pair {size} {phase}: {first.name} > {second.name}, number {number}"
    return Case(name, rng.randrange(2**31), b.net(), scenario)
