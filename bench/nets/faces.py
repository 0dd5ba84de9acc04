"""Small nets for faces: Ultra-Light detectors, a detector of separable units, PFLD's landmarks."""

from nets.writer import Writer

__all__ = ["face_units", "pfld", "rfb_face", "slim_face"]

SLIM_BLOCKS = ((32, 1), (32, 2), (32, 1), (64, 2), (64, 1), (64, 1), (64, 1), (128, 2), (128, 1),
               (128, 1), (256, 2), (256, 1))  # fmt: skip
"""Outputs and stride of each depthwise and pointwise pair of convolutions."""

SOURCES = {7: 3, 10: 2, 12: 2}
"""Number of a block that a head reads, and boxes of a position."""

LAST_BOXES = 3

RFB_BLOCK = 7
"""The block that the receptive field block replaces."""

RATES = ((1, 2), (1, 3), (2, 5))
"""Layers of 3x3 before the dilated convolution of each branch, and its dilation."""

UNITS = ((32, False), (32, True), (64, False), (64, True), (64, False), (64, True), (64, False),
         (64, True), (64, False))  # fmt: skip
"""Outputs of each separable unit, and whether pooling comes before it."""


def slim_face(batch: int, train: bool, scale: int = 1) -> str:
    """Ultra-Light face detector, slim, on 320x240 images: offsets and scores of all boxes."""
    return _ultra_light("Slim-face", batch, train, scale, rfb=False)


def rfb_face(batch: int, train: bool, scale: int = 1) -> str:
    """Ultra-Light face detector with a receptive field block, on 320x240 images."""
    return _ultra_light("RFB-face", batch, train, scale, rfb=True)


def _ultra_light(name: str, batch: int, train: bool, scale: int, *, rfb: bool) -> str:
    net = Writer(name, (batch, 3, 240, 320), train)
    net.conv_bn_relu("conv0", 16 // scale, 3, stride=2, pad=1)
    width, sources = 16 // scale, []
    for number, (outputs, stride) in enumerate(SLIM_BLOCKS, 1):
        if rfb and number == RFB_BLOCK:
            _receptive_field(net, width)
        else:
            net.conv_bn_relu(f"depthwise{number}", width, 3, stride=stride, pad=1, group=width)
            net.conv_bn_relu(f"pointwise{number}", outputs // scale, 1)
        width = outputs // scale
        if number in SOURCES:
            sources.append((net.last, width, SOURCES[number]))
    net.conv("narrow", 64 // scale, 1)
    net.relu("relu_narrow")
    _separable(net, "last", 64 // scale, 256 // scale, net.last, stride=2)
    sources.append((net.relu("relu_last"), 256 // scale, LAST_BOXES))
    for kind, values in (("loc", 4), ("conf", 2)):
        flat = []
        for number, (source, channels, boxes) in enumerate(sources):
            head = f"{kind}{number}"
            if number < len(SOURCES):
                _separable(net, head, channels, values * boxes, source)
            else:
                net.conv(head, values * boxes, 3, source, pad=1)
            order = "order: 0 order: 2 order: 3 order: 1"
            net.layer("Permute", f"{head}_last", f"permute_param {{ {order} }}")
            flat.append(net.layer("Flatten", f"{head}_flat"))
        net.concat(kind, *flat)
    net.layer("Reshape", "rows", "reshape_param { shape { dim: 0 dim: -1 dim: 2 } }")
    net.layer("Softmax", "classes", "softmax_param { axis: 2 }")
    net.layer("Flatten", "flat")
    net.concat("prob", "loc", "flat")
    return net.text()


def _separable(
    net: Writer, name: str, inputs: int, outputs: int, source: str, stride: int = 1
) -> None:
    """Write a depthwise convolution with ReLU and a 1x1 convolution."""
    net.conv(f"{name}_depthwise", inputs, 3, source, stride=stride, pad=1, group=inputs)
    net.relu(f"relu_{name}_depthwise")
    net.conv(name, outputs, 1)


def _receptive_field(net: Writer, width: int) -> None:
    """Write three branches of dilated convolutions beside a shortcut."""
    below, inner, branches = net.last, width // 8, []
    for number, (layers, dilation) in enumerate(RATES):
        net.last = below
        net.conv(f"rfb{number}_in", inner, 1, bias=False)
        net.bn(f"rfb{number}_in")
        for layer in range(layers):
            net.conv_bn_relu(f"rfb{number}_{layer}", 2 * inner, 3, pad=1)
        net.conv(f"rfb{number}_wide", 2 * inner, 3, pad=dilation, dilation=dilation, bias=False)
        branches.append(net.bn(f"rfb{number}_wide"))
    net.concat("rfb_branches", *branches)
    net.conv("rfb_linear", width, 1, bias=False)
    linear = net.bn("rfb_linear")
    net.last = below
    net.conv("rfb_shortcut", width, 1, bias=False)
    net.add("rfb", net.bn("rfb_shortcut"), linear)
    net.relu("relu_rfb")


def face_units(batch: int, train: bool, scale: int = 1) -> str:
    """Face detector of 1x1 and depthwise units on 320x240 images, as libfacedetection 3 has."""
    net = Writer("Face-units", (batch, 3, 240, 320), train)
    net.conv_bn_relu("conv0", 16 // scale, 3, stride=2, pad=1)
    _unit(net, "unit0", 16 // scale)
    net.relu("relu_unit0")
    sources = []
    for number, (outputs, pooled) in enumerate(UNITS, 1):
        if pooled:
            net.pool(f"pool{number}", 2, 2)
        _unit(net, f"unit{number}", outputs // scale)
        net.relu(f"relu_unit{number}")
        if number > 4 and not pooled:
            sources.append(net.last)
    flat = []
    for number, source in enumerate(sources):
        net.last = source
        _unit(net, f"head{number}", 16)
        flat.append(net.layer("Flatten", f"head{number}_flat"))
    net.concat("prob", *flat)
    return net.text()


def _unit(net: Writer, name: str, outputs: int) -> None:
    """Write a 1x1 convolution with a bias and a depthwise one with its normalisation."""
    net.conv(f"{name}_in", outputs, 1)
    net.conv(f"{name}_mid", outputs, 3, pad=1, group=outputs, bias=False)
    net.bn(f"{name}_mid")


def pfld(batch: int, train: bool, scale: int = 1) -> str:
    """PFLD on 112x112 images: coordinates of 98 landmarks."""
    net, width = Writer("PFLD", (batch, 3, 112, 112), train), 64 // scale
    net.conv_bn_relu("conv1", width, 3, stride=2, pad=1)
    net.conv_bn_relu("conv2", width, 3, pad=1, group=width)
    blocks = ((64, 2, 2, 5), (128, 2, 2, 1), (128, 4, 1, 6), (16, 2, 1, 1))
    for stage, (outputs, times, stride, count) in enumerate(blocks, 3):
        for block in range(count):
            name, inside, below = f"{stage}{'abcdef'[block]}", width * times, net.last
            first = 1 if block else stride
            net.conv_bn_relu(f"{name}_in", inside, 1)
            net.conv_bn_relu(f"{name}_mid", inside, 3, stride=first, pad=1, group=inside)
            net.conv(f"{name}_out", outputs // scale, 1, bias=False)
            net.bn(f"{name}_out")
            if block:
                net.add(f"{name}_sum", below, net.last)
            width = outputs // scale
    near = net.last
    middle = net.conv_bn_relu("conv7", 32 // scale, 3, stride=2, pad=1)
    net.conv("conv8", 128 // scale, 7)
    far = net.relu("relu_conv8")
    flat = []
    for number, source in enumerate((near, middle)):
        net.last = source
        net.mean(f"mean{number}")
        flat.append(net.layer("Flatten", f"mean{number}_flat"))
    net.last = far
    flat.append(net.layer("Flatten", "far_flat"))
    net.concat("features", *flat)
    net.ip("prob", 196)
    return net.text()
