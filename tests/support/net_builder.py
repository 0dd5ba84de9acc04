"""Builder of random nets: layers with random fields that fit the shapes of their bottoms.

Each method adds a layer, or returns None where no fields fit; shapes are followed by the rules of
Caffe, and the multiplications are added up, so that a net stays within its budget.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from net_case import Input, Layer, NetSpec, Shape

__all__ = ["BUDGETS", "Budget", "NetBuilder"]


@dataclass(frozen=True)
class Budget:
    """Limits of a net.

    Attributes:
        macs: Multiplications of a forward pass.
        values: Elements of all blobs together.
        channels: Most channels.
        side: Longest side of an image, in pixels.
        batch: Most images.
        blocks: Most blocks of layers.
    """

    macs: float
    values: float
    channels: int
    side: int
    batch: int
    blocks: int


BUDGETS = {
    "small": Budget(3e6, 3e5, 64, 32, 4, 7),
    "medium": Budget(4e7, 2e6, 256, 80, 8, 9),
    "large": Budget(3e8, 9e6, 512, 224, 16, 12),
}

USUAL_CHANNELS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 384, 512)
WINDOWS = [
    (33, lambda rng: (3, 3)),
    (22, lambda rng: (1, 1)),
    (10, lambda rng: (5, 5)),
    (7, lambda rng: (7, 7)),
    (10, lambda rng: rng.choice(((1, 3), (3, 1), (1, 5), (5, 1), (1, 7), (7, 1), (1, 9), (9, 1)))),
    (4, lambda rng: (2, 2)),
    (4, lambda rng: (4, 4)),
    (2, lambda rng: (6, 6)),
    (3, lambda rng: rng.choice(((8, 8), (9, 9), (10, 10), (11, 11)))),
    (8, lambda rng: (rng.randint(1, 7), rng.randint(1, 7))),
]
LEAVES_BOTTOM = {
    "Convolution", "Deconvolution", "InnerProduct", "BatchNorm", "Scale", "Eltwise", "Concat",
    "Pooling", "ConvolutionDepthwise", "DepthwiseConvolution", "Bias", "Crop", "Interp",
}  # fmt: skip
"""Types whose tops may be overwritten before backward: their gradients do not read them."""

MOST_TAPS = 1000
"""Pixels of the largest window of MAX pooling, which portable code takes one by one."""


@dataclass
class NetBuilder:
    """Collects inputs and layers.

    Attributes:
        rng: Source of all choices.
        budget: Limits.
        train: Whether the net is to be trained.
        backward: Whether it runs backward, in TEST too.
        fixed_sides: Whether a layer fixes the sizes of images.
        fixed_batch: Whether a layer fixes the number of images.
    """

    rng: random.Random
    budget: Budget
    train: bool
    backward: bool
    inputs: list[Input] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    writers: dict[str, str] = field(default_factory=dict)
    macs: float = 0
    fixed_sides: bool = False
    fixed_batch: bool = False

    def freeze(self, share: float, *, scattered: bool) -> None:
        """Let a share of the layers learn nothing, by their rates: the first ones, or any."""
        first = int(share * len(self.layers))
        norms = [i for i, layer in enumerate(self.layers) if layer.type == "BatchNorm"]
        if norms and self.chance(0.5):  # so that the Scale after one learns
            first = self.rng.choice(norms) + 1
        for index, layer in enumerate(self.layers):
            chosen = self.chance(share) if scattered else index < first
            if not (chosen or layer.type == "BatchNorm"):  # whose averages have rates of 0 in files
                continue
            count = {
                "BatchNorm": 3,
                "Convolution": 2,
                "Deconvolution": 2,
                "InnerProduct": 2,
                "Scale": 2,
                "PReLU": 1,
            }
            if "param" in layer.fields or layer.type not in count or len(layer.bottoms) > 1:
                continue
            message = layer.fields.get(f"{layer.type.lower()}_param", {})
            message = layer.fields.get("convolution_param", message)
            has_bias = message.get("bias_term", layer.type != "Scale")
            has_bias = layer.fields.get("inner_product_param", {}).get("bias_term", has_bias)
            rates = [{"lr_mult": 0}] * (count[layer.type] if has_bias else 1)
            self.layers[index] = replace(layer, fields={"param": rates, **layer.fields})

    def net(self) -> NetSpec:
        """Return the net; half of those that run backward ask for gradients of their inputs."""
        force = self.backward and self.chance(0.5)
        return NetSpec(tuple(self.inputs), tuple(self.layers), force)

    # -- parts ---------------------------------------------------------------------------------

    @property
    def macs_left(self) -> float:
        return self.budget.macs - self.macs

    @property
    def values(self) -> float:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def values_left(self) -> float:
        return self.budget.values - self.values

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, weighted: Sequence[tuple[float, Any]]) -> Any:
        return self.rng.choices([x for _, x in weighted], [w for w, _ in weighted])[0]

    def add_input(self, shape: Shape, kind: str = "noise", name: str = "") -> str:
        name = name or ("data" if not self.inputs else f"in{len(self.inputs)}")
        self.inputs.append(Input(name, tuple(shape), kind))
        self.shapes[name] = tuple(shape)
        self.writers[name] = "Input"
        return name

    def add(
        self,
        type_: str,
        bottoms: str | Sequence[str],
        shapes: Shape | Sequence[Shape],
        fields: Mapping[str, Any] | None = None,
        *,
        in_place: bool = False,
        macs: float = 0,
    ) -> Any:
        """Add a layer and return its top, or a list of tops where ``shapes`` is a list."""
        bottoms = [bottoms] if isinstance(bottoms, str) else list(bottoms)
        several = isinstance(shapes, list)
        if type_ == "BatchNorm" and self.train and self._has_one_value(bottoms[0]):
            fields = {"batch_norm_param": {"use_global_stats": True}}
        number = len(self.layers)
        name = f"{type_.lower()}{number}"
        tops = [f"{name}_{i}" for i in range(len(shapes))] if several else [name]
        if in_place:
            tops = [bottoms[0]]
        self.layers.append(Layer(name, type_, tuple(bottoms), tuple(tops), dict(fields or {})))
        self.read.update(bottoms)
        for top, shape in zip(tops, shapes if several else [shapes], strict=True):
            self.shapes[top] = tuple(shape)
            self.writers[top] = type_
            self.read.discard(top)
        self.macs += macs
        return tops if several else tops[0]

    def _has_one_value(self, x: str) -> bool:
        """Return whether channels have one value each: it is its own mean, the gradient is 0."""
        shape = self.shapes[x]
        return math.prod(shape) == shape[1]

    def may_be_in_place(self, x: str) -> bool:
        """Return whether a layer may overwrite a blob that nobody else needs."""
        if self.writers[x] == "Input" or x in self.read:
            return False
        return not self.backward or self.writers[x] in LEAVES_BOTTOM

    def in_place(self, x: str, share: float = 0.7) -> bool:
        return self.may_be_in_place(x) and self.chance(share)

    def channels(self, most: int | None = None) -> int:
        """Return a number of channels, mostly a usual one."""
        most = min(most or self.budget.channels, self.budget.channels)
        kind = self.rng.random()
        if kind < 0.7:
            usual = [c for c in USUAL_CHANNELS if c <= most]
            if usual:
                return self.rng.choice(usual)
        if kind < 0.85:
            return self.rng.randint(1, min(most, 20))
        return self.rng.randint(1, most)

    # -- convolutions --------------------------------------------------------------------------

    def conv(
        self,
        x: str,
        out: int | None = None,
        kernel: tuple[int, int] | None = None,
        *,
        stride: tuple[int, int] | None = None,
        pad: tuple[int, int] | str | None = None,
        dilation: tuple[int, int] | None = None,
        group: int | None = None,
        bias: bool | None = None,
        names: Sequence[str] = (),
        type_: str = "Convolution",
        tries: int = 12,
    ) -> str | None:
        """Add a convolution; what is not given is drawn."""
        n, c, h, w = self.shapes[x]
        for attempt in range(tries):
            k = kernel or self.pick(WINDOWS)(self.rng)
            if (h == 1 or w == 1) and kernel is None:
                k = (min(k[0], h) if h == 1 else k[0], min(k[1], w) if w == 1 else k[1])
            m = out or self.channels(max(8, self.budget.channels >> (attempt // 3)))
            g = group or 1
            if group is None and self.chance(0.1):
                divisors = [d for d in range(2, min(c, 64) + 1) if c % d == 0]
                g = self.rng.choice(divisors) if divisors else 1
                m = m if out else -(-m // g) * g
            if c % g or m % g:
                continue
            s = stride or self.pick(
                [(70, (1, 1)), (21, (2, 2)), (3, (3, 3)), (2, (4, 4)), (2, (2, 1)), (2, (1, 2))]
            )
            d = dilation or self.pick(
                [(88, (1, 1)), (6, (2, 2)), (2, (3, 3)), (2, (4, 4)), (2, (1, 2))]
            )
            reach = [(k[i] - 1) * d[i] + 1 for i in (0, 1)]
            same = (reach[0] // 2, reach[1] // 2)
            p = same if pad == "same" else pad
            if p is None:
                p = self.pick(
                    [
                        (65, same),
                        (22, (0, 0)),
                        (8, (self.rng.randint(0, k[0]), self.rng.randint(0, k[1]))),
                        (5, (1, 1)),
                    ]
                )
            y = tuple(
                (size + 2 * p[i] - reach[i]) // s[i] + 1 if size + 2 * p[i] >= reach[i] else 0
                for i, size in enumerate((h, w))
            )
            if min(y) < 1:
                continue
            macs = n * m * math.prod(y) * (c // g) * math.prod(k)
            columns = (c // g) * math.prod(k) * math.prod(y)
            if macs > 0.6 * self.macs_left or columns > 6e6:
                continue
            if n * m * math.prod(y) > 0.5 * self.values_left:
                continue
            fields: dict[str, Any] = {"num_output": m, **_pair("kernel", k)}
            if p != (0, 0) or self.chance(0.1):
                fields |= _pair("pad", p)
            if s != (1, 1) or self.chance(0.1):
                fields |= _pair("stride", s)
            if d != (1, 1):
                fields["dilation"] = d[0] if d[0] == d[1] else list(d)
            if g != 1:
                fields["group"] = g
            has_bias = self.chance(0.55) if bias is None else bias
            if not has_bias:
                fields["bias_term"] = False
            extra = {"param": [{"name": name} for name in names]} if names else {}
            return self.add(type_, x, (n, m, *y), {**extra, "convolution_param": fields}, macs=macs)
        return None

    def depthwise(self, x: str, stride: tuple[int, int] | None = None) -> str | None:
        """Add a depthwise convolution, by one of the types that nets use for that."""
        c = self.shapes[x][1]
        if c < 2:
            return None
        s = stride or self.pick([(70, (1, 1)), (28, (2, 2)), (2, (1, 2))])
        k = self.pick([(70, (3, 3)), (15, (5, 5)), (5, (7, 7)), (5, (1, 3)), (5, (2, 2))])
        multiple = 2 if self.chance(0.06) else 1
        type_ = "Convolution"
        if multiple == 1 and self.chance(0.2):
            type_ = self.rng.choice(("ConvolutionDepthwise", "DepthwiseConvolution"))
        return self.conv(
            x, c * multiple, k, stride=s, group=c, type_=type_, tries=3,
            pad="same" if self.chance(0.85) else None,
            dilation=(2, 2) if self.chance(0.06) else (1, 1),
        )  # fmt: skip

    def deconv(self, x: str, out: int | None = None) -> str | None:
        """Add a deconvolution, mostly one that doubles the size."""
        n, c, h, w = self.shapes[x]
        for _ in range(8):
            k, s, p = self.pick(
                [
                    (40, (4, 2, 1)), (15, (2, 2, 0)), (10, (3, 2, 1)), (8, (3, 1, 1)),
                    (5, (5, 1, 2)), (8, (6, 2, 2)), (5, (5, 2, 2)), (4, (8, 4, 2)),
                    (5, (self.rng.randint(1, 6), self.rng.randint(1, 3), 0)),
                ]
            )  # fmt: skip
            m, g = out or self.channels(128), 1
            if self.chance(0.2) and c > 1:
                g = m = c
            y = tuple((size - 1) * s + k - 2 * p for size in (h, w))
            macs = n * m * (c // g) * k * k * h * w
            if min(y) < 1 or macs > 0.5 * self.macs_left:
                continue
            if n * m * math.prod(y) > 0.3 * self.values_left or m * k * k * h * w > 6e6:
                continue
            fields: dict[str, Any] = {"num_output": m, "kernel_size": k, "stride": s, "pad": p}
            if g != 1:
                fields["group"] = g
            if self.chance(0.5):
                fields["bias_term"] = False
            return self.add(
                "Deconvolution", x, (n, m, *y), {"convolution_param": fields}, macs=macs
            )
        return None

    # -- pooling and resizing ------------------------------------------------------------------

    def pool(self, x: str, **fixed: Any) -> str | None:
        """Add a pooling layer."""
        n, c, h, w = self.shapes[x]
        if not fixed and self.chance(0.08):
            method = self.rng.choice(("MAX", "AVE"))
            return self.global_pool(x, method)
        for _ in range(8):
            k, s, p = self.pick(
                [
                    (30, ((2, 2), (2, 2), (0, 0))), (25, ((3, 3), (2, 2), (0, 0))),
                    (8, ((3, 3), (2, 2), (1, 1))), (10, ((3, 3), (1, 1), (1, 1))),
                    (4, ((2, 2), (1, 1), (0, 0))), (4, ((5, 5), (1, 1), (2, 2))),
                    (3, ((3, 3), (3, 3), (0, 0))), (3, ((7, 7), (1, 1), (0, 0))),
                    (3, ((2, 1), (2, 1), (0, 0))), (3, ((1, 2), (1, 2), (0, 0))),
                    (2, ((9, 9), (1, 1), (4, 4))), (2, ((13, 13), (1, 1), (6, 6))),
                    (4, ((self.rng.randint(1, 5), self.rng.randint(1, 5)),
                         (self.rng.randint(1, 3), self.rng.randint(1, 3)), (0, 0))),
                    (2, ((3, 2), (2, 2), (1, 1))),
                ]
            )  # fmt: skip
            k, s, p = fixed.get("kernel", k), fixed.get("stride", s), fixed.get("pad", p)
            floor = fixed.get("floor", self.chance(0.45))
            if h + 2 * p[0] < k[0] or w + 2 * p[1] < k[1]:
                continue
            y = tuple(pooled(size, k[i], s[i], p[i], floor=floor) for i, size in enumerate((h, w)))
            if min(y) < 1 or n * c * math.prod(y) > 0.5 * self.values_left:
                continue
            ends = [(y[i] - 1) * s[i] < size + p[i] for i, size in enumerate((h, w))]
            if not all(ends):  # the maximum of no element overflows what is computed from it
                continue
            method = fixed.get("method", "MAX" if self.chance(0.65) else "AVE")
            fields: dict[str, Any] = {"pool": method, **_pair("kernel", k)}
            if s != (1, 1) or self.chance(0.3):
                fields |= _pair("stride", s)
            if p != (0, 0):
                fields |= _pair("pad", p)
            if floor:
                fields["round_mode"] = "FLOOR"
            return self.add("Pooling", x, (n, c, *y), {"pooling_param": fields})
        return None

    def global_pool(self, x: str, method: str = "AVE") -> str:
        n, c, h, w = self.shapes[x]
        if h * w > MOST_TAPS:
            method = "AVE"
        fields = {"pool": method, "global_pooling": True}
        return self.add("Pooling", x, (n, c, 1, 1), {"pooling_param": fields})

    def spp(self, x: str) -> str | None:
        n, c, h, w = self.shapes[x]
        levels = self.rng.randint(1, 3)
        if min(h, w) < 2**levels:
            return None
        bins = sum(4**i for i in range(levels))
        method = "AVE" if h * w > MOST_TAPS else self.rng.choice(("MAX", "AVE"))
        fields = {"pyramid_height": levels, "pool": method}
        # one level gives images, several flat rows
        shape = (n, c, 1, 1) if levels == 1 else (n, c * bins)
        return self.add("SPP", x, shape, {"spp_param": fields})

    def interp(self, x: str, to: tuple[int, int] | None = None) -> str | None:
        n, c, h, w = self.shapes[x]
        if to is None and self.chance(0.4):
            z = self.rng.choice((2, 2, 3))
            y = tuple(size + (size - 1) * (z - 1) for size in (h, w))
            fields: dict[str, Any] = {"zoom_factor": z}
        elif to is None and self.chance(0.2) and min(h, w) > 2:
            y = tuple((size - 1) // 2 + 1 for size in (h, w))
            fields = {"shrink_factor": 2}
        else:
            y = to or (self.rng.randint(1, 2 * h + 1), self.rng.randint(1, 2 * w + 1))
            fields = {"height": y[0], "width": y[1]}
            self.fixed_sides = True
        if n * c * math.prod(y) > 0.3 * self.values_left:
            return None
        return self.add("Interp", x, (n, c, *y), {"interp_param": fields})

    def upsample(self, x: str) -> str | None:
        n, c, h, w = self.shapes[x]
        scale = self.rng.choice((2, 2, 3))
        if n * c * h * w * scale**2 > 0.3 * self.values_left:
            return None
        fields = {"upsample_param": {"scale": scale}}
        return self.add("Upsample", x, (n, c, h * scale, w * scale), fields)

    def reorg(self, x: str) -> str | None:
        n, c, h, w = self.shapes[x]
        if h % 2 or w % 2 or c % 4:  # Caffe asks for the latter, too
            return None
        self.fixed_sides = True
        return self.add("Reorg", x, (n, 4 * c, h // 2, w // 2), {"reorg_param": {"stride": 2}})

    def crop(self, x: str) -> str | None:
        """Crop to the size of an earlier blob, or to that of a smaller pooled one."""
        n, c, h, w = self.shapes[x]
        fits = [
            name
            for name, shape in self.shapes.items()
            if len(shape) == 4 and shape[0] == n and shape[2] <= h and shape[3] <= w and name != x
        ]
        if not fits:
            return None
        like = self.rng.choice(fits)
        y = self.shapes[like]
        off = [self.rng.randint(0, h - y[2]), self.rng.randint(0, w - y[3])]
        self.fixed_sides = True
        fields: dict[str, Any] = {"axis": 2, "offset": off}
        if self.chance(0.3):
            fields["offset"] = min(off)
        return self.add("Crop", [x, like], (n, c, *y[2:]), {"crop_param": fields})

    # -- element by element --------------------------------------------------------------------

    def act(self, x: str, kind: str | None = None) -> str:
        """Add an activation, in place or not."""
        kind = kind or self.pick(
            [
                (40, "ReLU"), (8, "slope"), (9, "PReLU"), (8, "ELU"), (7, "Sigmoid"), (6, "TanH"),
                (7, "ReLU6"), (4, "Clip"), (3, "Power"), (3, "AbsVal"), (5, "Swish"), (2, "BNLL"),
                (2, "GELU"), (1, "Exp"), (1, "Log"), (5, "HardSwish"),
            ]
        )  # fmt: skip
        fields: dict[str, Any] = {}
        match kind:
            case "slope":
                kind = "ReLU"
                slope = self.rng.choice((0.1, 0.01, 0.25, 0.3, 1.5))
                fields = {"relu_param": {"negative_slope": slope}}
            case "PReLU" if self.chance(0.2):
                fields = {"prelu_param": {"channel_shared": True}}
            case "ELU":
                fields = {"elu_param": {"alpha": self.rng.choice((1, 1, 0.5, 0.2))}}
            case "Clip":
                low, high = self.rng.choice(((-1, 1), (0, 6), (0, 1), (-0.5, 0.7)))
                fields = {"clip_param": {"min": low, "max": high}}
            case "Power":
                power, scale, shift = self.rng.choice(
                    ((1, 0.5, 0.1), (2, 1, 0), (2, 0.5, 1), (1, -1, 1), (3, 0.3, 0.1), (1, 1, 0.5))
                )
                fields = {"power_param": {"power": power, "scale": scale, "shift": shift}}
            case "Exp":  # bounded: of tanh or a sigmoid
                x = self.act(x, self.rng.choice(("TanH", "Sigmoid")))
            case "Log":
                x = self.act(x, "Sigmoid")
                fields = {"log_param": {"shift": 1}}
        in_place = kind != "AbsVal" and self.in_place(x)
        return self.add(kind, x, self.shapes[x], fields, in_place=in_place)

    def batch_norm(self, x: str, *, scale: bool | None = None) -> str:
        fields: dict[str, Any] = {}
        if self.chance(0.3):
            fields["eps"] = self.rng.choice((1e-3, 1e-4, 2e-5))
        if self.train and self.chance(0.25):
            fields["use_global_stats"] = True
        extra = {"batch_norm_param": fields} if fields else {}
        y = self.add("BatchNorm", x, self.shapes[x], extra, in_place=self.in_place(x))
        if self.chance(0.85) if scale is None else scale:
            y = self.scale(y)
        return y

    def scale(self, x: str) -> str:
        kind = self.rng.random()
        if kind < 0.88:
            fields = {"bias_term": True} if self.chance(0.8) else {}
            in_place = self.in_place(x)
            return self.add("Scale", x, self.shapes[x], {"scale_param": fields}, in_place=in_place)
        if kind < 0.97:
            return self.add("Bias", x, self.shapes[x], {}, in_place=self.in_place(x))
        return self.add("Scale", x, self.shapes[x], {"scale_param": {"num_axes": 0}})

    def lrn(self, x: str) -> str:
        fields: dict[str, Any] = {
            "local_size": self.rng.choice((3, 5, 5, 5, 7)),
            "alpha": self.rng.choice((1e-4, 5e-5, 0.1, 1)),
            "beta": self.rng.choice((0.75, 0.75, 0.5, 1)),
        }
        if self.chance(0.3):
            fields["norm_region"] = "WITHIN_CHANNEL"
        elif self.chance(0.2):
            fields["k"] = 2
        return self.add("LRN", x, self.shapes[x], {"lrn_param": fields})

    def mvn(self, x: str) -> str:
        fields: dict[str, Any] = {}
        if self.chance(0.4):
            fields["across_channels"] = True
        if self.chance(0.3):
            fields["normalize_variance"] = False
        return self.add("MVN", x, self.shapes[x], {"mvn_param": fields} if fields else {})

    def normalize(self, x: str) -> str:
        fields = {"across_spatial": self.chance(0.3), "channel_shared": self.chance(0.4)}
        return self.add("Normalize", x, self.shapes[x], {"norm_param": fields})

    def dropout(self, x: str) -> str:
        fields = {"dropout_param": {"dropout_ratio": self.rng.choice((0.5, 0.2, 0.4))}}
        return self.add("Dropout", x, self.shapes[x], fields, in_place=self.in_place(x))

    def softmax(self, x: str) -> str:
        axis = self.rng.choice((1, 1, 1, -1))
        fields = {"softmax_param": {"axis": axis}} if axis != 1 else {}
        return self.add("Softmax", x, self.shapes[x], fields)

    # -- several bottoms or tops ---------------------------------------------------------------

    def eltwise(self, xs: Sequence[str], operation: str | None = None) -> str:
        operation = operation or self.pick([(70, "SUM"), (12, "coeff"), (9, "PROD"), (9, "MAX")])
        fields: dict[str, Any] = {}
        if operation == "coeff":
            fields = {"coeff": [self.rng.choice((1, -1, 0.5, 0.3)) for _ in xs]}
        elif operation != "SUM" or self.chance(0.3):
            fields = {"operation": operation}
        shape = self.shapes[xs[0]]
        return self.add("Eltwise", xs, shape, {"eltwise_param": fields} if fields else {})

    def concat(self, xs: Sequence[str], axis: int = 1) -> str:
        shape = list(self.shapes[xs[0]])
        shape[axis] = sum(self.shapes[x][axis] for x in xs)
        fields = {"concat_param": {"axis": axis}} if axis != 1 or self.chance(0.3) else {}
        return self.add("Concat", xs, tuple(shape), fields)

    def slice(self, x: str, parts: int = 2) -> list[str] | None:
        """Slice channels, evenly or at points."""
        shape = self.shapes[x]
        c = shape[1]
        if c < parts:
            return None
        fields: dict[str, Any] = {"axis": 1}
        if c % parts == 0 and self.chance(0.6):
            sizes = [c // parts] * parts
        else:
            points = sorted(self.rng.sample(range(1, c), parts - 1))
            sizes = [b - a for a, b in zip([0, *points], [*points, c], strict=True)]
            fields["slice_point"] = points
        shapes = [(shape[0], size, *shape[2:]) for size in sizes]
        return self.add("Slice", x, shapes, {"slice_param": fields})

    def split(self, x: str) -> list[str]:
        return self.add("Split", x, [self.shapes[x]] * 2)

    def gate(self, x: str) -> str | None:
        """Add a squeeze-and-excitation gate."""
        n, c = self.shapes[x][:2]
        squeezed = self.global_pool(x)
        few = max(1, c // self.rng.choice((2, 4, 8, 16)))
        if self.chance(0.5):
            hidden = self.conv(squeezed, few, (1, 1), stride=(1, 1), pad=(0, 0), group=1)
            hidden = hidden and self.act(hidden, "ReLU")
            gates = hidden and self.conv(hidden, c, (1, 1), stride=(1, 1), pad=(0, 0), group=1)
        else:
            hidden = self.act(self.inner_product(squeezed, few), "ReLU")
            gates = self.inner_product(hidden, c)
        if gates is None:
            return None
        gates = self.act(gates, "Sigmoid")
        kind = self.rng.random()
        if kind < 0.35:
            other = self.add("ReLU", x, self.shapes[x]) if self.chance(0.5) else x
            if len(self.shapes[gates]) == 4 or self.chance(0.5):
                return self.add("Axpy", [gates, x, other], self.shapes[x])
        if len(self.shapes[gates]) == 4:
            gates = self.add("Flatten", gates, (n, c))
        return self.add("Scale", [x, gates], self.shapes[x], {"scale_param": {"axis": 0}})

    def shuffle(self, x: str) -> str | None:
        c = self.shapes[x][1]
        groups = [g for g in (2, 3, 4, 8) if c % g == 0 and c > g]
        if not groups:
            return None
        group = self.rng.choice(groups)
        if self.chance(0.6):
            fields = {"shuffle_channel_param": {"group": group}}
            return self.add("ShuffleChannel", x, self.shapes[x], fields)
        n, _, *spatial = self.shapes[x]
        tables = (n, group, c // group, *spatial), (n, c // group, group, *spatial)
        split = {"axis": 1, "num_axes": 1, "shape": {"dim": tables[0][1:3]}}
        joined = {"axis": 1, "num_axes": 2, "shape": {"dim": [c]}}
        y = self.add("Reshape", x, tables[0], {"reshape_param": split})
        y = self.add("Permute", y, tables[1], {"permute_param": {"order": [0, 2, 1]}})
        return self.add("Reshape", y, self.shapes[x], {"reshape_param": joined})

    def roi_pool(self, x: str) -> str | None:
        n, c, h, w = self.shapes[x]
        regions = self.rng.randint(1, 12)
        side = self.rng.choice((2, 3, 5, 6, 7))
        if regions * c * side * side > 0.3 * self.values_left:
            return None
        rois = self.add_input((regions, 5), f"rois:{n}:{h}:{w}")
        self.fixed_sides = self.fixed_batch = True
        if self.chance(0.25):
            group = self.rng.choice((2, 3))
            if c % group**2 == 0:
                fields = {"spatial_scale": 1.0, "output_dim": c // group**2, "group_size": group}
                shape = (regions, c // group**2, group, group)
                return self.add("PSROIPooling", [x, rois], shape, {"psroi_pooling_param": fields})
        fields = {"pooled_h": side, "pooled_w": side, "spatial_scale": 1.0}
        shape = (regions, c, side, side)
        return self.add("ROIPooling", [x, rois], shape, {"roi_pooling_param": fields})

    # -- views and rows ------------------------------------------------------------------------

    def inner_product(self, x: str, out: int | None = None, axis: int = 1) -> str:
        shape = self.shapes[x]
        rows, k = math.prod(shape[:axis]), math.prod(shape[axis:])
        m = out or self.rng.choice((1, 2, 5, 10, 21, 64, 100, 128, 256, 500, 1000))
        while m > 1 and rows * k * m > 0.6 * self.macs_left:
            m //= 2
        fields: dict[str, Any] = {"num_output": m}
        if axis != 1:
            fields["axis"] = axis
        if self.chance(0.35):
            fields["bias_term"] = False
        if self.chance(0.07):
            fields["transpose"] = True
        if len(shape) == 4 and max(shape[2:]) > 1:
            self.fixed_sides = True
        return self.add(
            "InnerProduct", x, (*shape[:axis], m), {"inner_product_param": fields},
            macs=rows * k * m,
        )  # fmt: skip

    def flatten(self, x: str) -> str:
        shape = self.shapes[x]
        flat = (shape[0], math.prod(shape[1:]))
        if self.chance(0.6):
            return self.add("Flatten", x, flat)
        fields = {"reshape_param": {"shape": {"dim": [0, -1]}}}
        return self.add("Reshape", x, flat, fields)

    def permute(self, x: str) -> str:
        shape = self.shapes[x]
        order = self.rng.choice(((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (0, 1, 3, 2)))
        y = tuple(shape[i] for i in order)
        return self.add("Permute", x, y, {"permute_param": {"order": list(order)}})

    def recurrent(self, x: str, cont: str) -> str | None:
        t, n = self.shapes[x][:2]
        k = math.prod(self.shapes[x][2:])
        h = self.rng.choice((1, 3, 8, 16, 32, 50, 64, 100, 128, 256))
        type_ = "LSTM" if self.chance(0.7) else "RNN"
        macs = t * n * (4 if type_ == "LSTM" else 2) * h * (k + h)
        if macs > 0.6 * self.macs_left:
            return None
        weights = {"type": "uniform", "min": -0.08, "max": 0.08}
        fields = {"num_output": h, "weight_filler": weights}
        bottoms = [x, cont]
        if self.chance(0.15):
            bottoms.append(self.add_input((n, self.rng.choice((4, 17, 32)))))
        return self.add(type_, bottoms, (t, n, h), {"recurrent_param": fields}, macs=macs)


def pooled(size: int, kernel: int, stride: int, pad: int, *, floor: bool) -> int:
    """Return how many windows a pooling layer has along an axis, as Caffe counts them."""
    room = size + 2 * pad - kernel
    count = (room // stride if floor else -(-room // stride)) + 1
    if pad and (count - 1) * stride >= size + pad:
        count -= 1
    return count


def _pair(name: str, value: tuple[int, int]) -> dict[str, int]:
    whole = "kernel_size" if name == "kernel" else name
    if value[0] == value[1]:
        return {whole: value[0]}
    return {f"{name}_h": value[0], f"{name}_w": value[1]}
