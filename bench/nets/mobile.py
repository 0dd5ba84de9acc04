"""Nets for telephones: MobileNet 2 and 3, ShuffleNet, ShuffleNet 2."""

from nets.writer import Writer

__all__ = ["mobilenet_v2", "mobilenet_v3", "shufflenet", "shufflenet_v2"]

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
          (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
"""How many times wider blocks are inside, outputs, how many there are, stride of the first."""

UNITS = (
    (3, 16, 16, 0, "ReLU", 1), (3, 64, 24, 0, "ReLU", 2), (3, 72, 24, 0, "ReLU", 1),
    (5, 72, 40, 24, "ReLU", 2), (5, 120, 40, 32, "ReLU", 1), (5, 120, 40, 32, "ReLU", 1),
    (3, 240, 80, 0, "HardSwish", 2), (3, 200, 80, 0, "HardSwish", 1),
    (3, 184, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1),
    (3, 480, 112, 120, "HardSwish", 1), (3, 672, 112, 168, "HardSwish", 1),
    (5, 672, 160, 168, "HardSwish", 2), (5, 960, 160, 240, "HardSwish", 1),
    (5, 960, 160, 240, "HardSwish", 1),
)  # fmt: skip
"""Units of MobileNet 3, large: size of the window, channels inside, outputs, channels of the gate
or 0, activation, stride."""

STAGES = ((240, 4), (480, 8), (960, 4))
"""Outputs and units of each stage of ShuffleNet; the first halves the image."""

HALVES = ((116, 4), (232, 8), (464, 4))
"""Those of ShuffleNet 2."""

GROUPS = 3


def mobilenet_v2(batch: int, train: bool, scale: int = 1) -> str:
    """MobileNet 2 of full width on 224x224 images, with ReLU6."""
    net, width = Writer("MobileNet-2", (batch, 3, 224, 224), train), 32 // scale
    _conv6(net, "conv1", width, 3, stride=2, pad=1)
    for stage, (times, outputs, blocks, first) in enumerate(BLOCKS, 1):
        for block in range(blocks):
            stride = 1 if block else first
            _inverted(net, f"{stage}{'abcd'[block]}", times, width, outputs // scale, stride)
            width = outputs // scale
    _conv6(net, "last", 1280 // scale, 1)
    net.mean("pool")
    net.ip("classifier", 1000)
    return net.end()


def _inverted(net: Writer, name: str, times: int, width: int, outputs: int, stride: int) -> None:
    """Widen, look around in each channel, narrow; and add what came where it fits."""
    below, inside = net.last, times * width
    if times > 1:
        _conv6(net, f"{name}_widen", inside, 1)
    _conv6(net, f"{name}_depthwise", inside, 3, stride=stride, pad=1, group=inside)
    net.conv(f"{name}_narrow", outputs, 1, bias=False)
    net.bn(f"{name}_narrow")
    if stride == 1 and width == outputs:
        net.add(f"{name}_sum", below, net.last)


def mobilenet_v3(batch: int, train: bool, scale: int = 1) -> str:
    """MobileNet 3, large, on 224x224 images, with HardSwish and gates."""
    net, width = Writer("MobileNet-3", (batch, 3, 224, 224), train), 16 // scale
    _conv_and(net, "HardSwish", "conv1", width, 3, stride=2, pad=1)
    for number, unit in enumerate(UNITS, 1):
        width = _unit_v3(net, f"unit{number}", width, scale, *unit)
    _conv_and(net, "HardSwish", "last", 960 // scale, 1)
    net.mean("pool")
    net.ip("hidden", 1280 // scale)
    net.layer("HardSwish", "hard_swish_hidden", top=net.last)
    net.ip("classifier", 1000)
    return net.end()


def _unit_v3(
    net: Writer, name: str, width: int, scale: int, kernel: int, inside: int, outputs: int,
    gate: int, kind: str, stride: int,
) -> int:  # fmt: skip
    """Widen, look around in each channel, weigh, narrow; return the channels."""
    below, inside, outputs = net.last, inside // scale, outputs // scale
    if inside != width:
        _conv_and(net, kind, f"{name}_widen", inside, 1)
    around = {"stride": stride, "pad": kernel // 2, "group": inside}
    _conv_and(net, kind, f"{name}_depthwise", inside, kernel, **around)
    if gate:
        _gate(net, name, inside, gate // scale)
    net.conv(f"{name}_narrow", outputs, 1, bias=False)
    net.bn(f"{name}_narrow")
    if stride == 1 and width == outputs:
        net.add(f"{name}_sum", below, net.last)
    return outputs


def _gate(net: Writer, name: str, channels: int, squeezed: int) -> None:
    """Weigh each channel by the hard sigmoid of what the means of all make."""
    image = net.last
    net.mean(f"{name}_mean")
    net.conv(f"{name}_squeeze", squeezed, 1)
    net.relu(f"relu_{name}_squeeze")
    net.conv(f"{name}_excite", channels, 1)
    net.layer("Power", f"{name}_part", "power_param { scale: 0.16666667 shift: 0.5 }", top=net.last)
    net.layer("Clip", f"{name}_limits", "clip_param { min: 0 max: 1 }", top=net.last)
    gate = net.layer("Flatten", f"{name}_gate")
    net.layer("Scale", f"{name}_gated", "scale_param { axis: 0 }", image, gate)


def _conv6(net: Writer, name: str, outputs: int, kernel: int, **options: int) -> None:
    _conv_and(net, "ReLU6", name, outputs, kernel, **options)


def _conv_and(net: Writer, kind: str, name: str, outputs: int, kernel: int, **options: int) -> None:
    """Write a convolution, its normalisation, and an activation of a kind."""
    net.conv(name, outputs, kernel, bias=False, **options)
    net.bn(name)
    net.layer(kind, f"relu_{name}", top=net.last)


def shufflenet(batch: int, train: bool, scale: int = 1) -> str:
    """ShuffleNet of three groups on 224x224 images."""
    net, width = Writer("ShuffleNet", (batch, 3, 224, 224), train), 24 // scale
    net.conv_bn_relu("conv1", width, 3, stride=2, pad=1)
    net.pool("pool1", 3, 2)
    for stage, (outputs, units) in enumerate(STAGES, 2):
        for unit in range(units):
            made = outputs // scale - (0 if unit else width)
            group = 1 if stage == 2 and not unit else GROUPS
            _unit(net, f"{stage}{'abcdefgh'[unit]}", outputs // scale // 4, made, group, not unit)
        width = outputs // scale
    net.mean("pool5")
    net.ip("classifier", 1000)
    return net.end()


def _unit(net: Writer, name: str, inside: int, made: int, group: int, halve: bool) -> None:
    """Two grouped convolutions, their channels shuffled, and a depthwise one between them."""
    below = net.last
    net.conv_bn_relu(f"{name}_in", inside, 1, group=group)
    net.layer("ShuffleChannel", f"{name}_shuffle", f"shuffle_channel_param {{ group: {GROUPS} }}")
    _depthwise(net, f"{name}_mid", inside, 1 + halve)
    net.conv(f"{name}_out", made, 1, group=GROUPS, bias=False)
    top = net.bn(f"{name}_out")
    if halve:
        net.concat(f"{name}_sum", net.pool(f"{name}_pool", 3, 2, below, kind="AVE"), top)
    else:
        net.add(f"{name}_sum", below, top)
    net.relu(f"relu_{name}")


def shufflenet_v2(batch: int, train: bool, scale: int = 1) -> str:
    """ShuffleNet 2 of full width on 224x224 images: half of the channels pass by each unit."""
    net = Writer("ShuffleNet-2", (batch, 3, 224, 224), train)
    net.conv_bn_relu("conv1", 24 // scale, 3, stride=2, pad=1)
    net.pool("pool1", 3, 2)
    width = 24 // scale
    for stage, (outputs, units) in enumerate(HALVES, 2):
        for unit in range(units):
            half = outputs // scale // 2
            _half_unit(net, f"{stage}{'abcdefgh'[unit]}", width, half, not unit)
            width = 2 * half
    net.conv_bn_relu("conv5", 1024 // scale, 1)
    net.mean("pool5")
    net.ip("classifier", 1000)
    return net.end()


def _half_unit(net: Writer, name: str, width: int, half: int, halve: bool) -> None:
    """Three convolutions of half of the channels; where it halves the image, of all, twice."""
    passing = right = net.last
    if halve:
        _depthwise(net, f"{name}_left", width, 2)
        passing = net.conv_bn_relu(f"{name}_left_out", half, 1)
    else:
        fields = f'top: "{name}_right" slice_param {{ slice_point: {half} }}'
        passing, right = net.layer("Slice", f"{name}_left", fields), f"{name}_right"
    net.last = right
    net.conv_bn_relu(f"{name}_in", half, 1)
    _depthwise(net, f"{name}_mid", half, 1 + halve)
    net.conv_bn_relu(f"{name}_out", half, 1)
    net.concat(f"{name}_joined", passing, net.last)
    net.layer("ShuffleChannel", f"{name}_shuffle", "shuffle_channel_param { group: 2 }")


def _depthwise(net: Writer, name: str, channels: int, stride: int) -> None:
    net.conv(name, channels, 3, stride=stride, pad=1, group=channels, bias=False)
    net.bn(name)
