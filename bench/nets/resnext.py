"""What grew out of ResNet-50: ResNeXt-50 with groups, SE-ResNet-50 with weighed channels."""

from nets.writer import Writer

__all__ = ["resnext50", "senet50"]

STAGES = ((2, 64, 3), (3, 128, 4), (4, 256, 6), (5, 512, 3))
"""Number, a fourth of the outputs, and blocks of each stage; all but the first halve the image."""

GROUPS = 32
REDUCTION = 16
"""How many times fewer outputs the layer has that looks at all channels' means."""


def resnext50(batch: int, train: bool, scale: int = 1) -> str:
    """ResNeXt-50 (32x4d) on 224x224 images."""
    return _net("ResNeXt-50", batch, train, scale, groups=GROUPS // scale)


def senet50(batch: int, train: bool, scale: int = 1) -> str:
    """SE-ResNet-50 on 224x224 images."""
    return _net("SE-ResNet-50", batch, train, scale)


def _net(name: str, batch: int, train: bool, scale: int, groups: int = 1) -> str:
    """Write either; what has no groups weighs its channels."""
    net = Writer(name, (batch, 3, 224, 224), train)
    net.conv_bn_relu("conv1", 64 // scale, 7, stride=2, pad=3)
    net.pool("pool1", 3, 2)
    for stage, width, blocks in STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            name = f"{stage}{'abcdef'[block]}"
            _block(net, name, width // scale, stride, groups, first=block == 0)
    net.mean("pool5")
    net.ip("classifier", 1000)
    return net.end()


def _block(net: Writer, name: str, width: int, stride: int, groups: int, *, first: bool) -> None:
    below = shortcut = net.last
    if first:
        net.conv(f"{name}_shortcut", 4 * width, 1, below, stride=stride, bias=False)
        shortcut = net.bn(f"{name}_shortcut")
    inside = width if groups == 1 else 2 * width
    net.conv(f"{name}_in", inside, 1, below, bias=False)
    net.bn(f"{name}_in")
    net.relu(f"relu_{name}_in")
    net.conv_bn_relu(f"{name}_mid", inside, 3, stride=stride, pad=1, group=groups)
    net.conv(f"{name}_out", 4 * width, 1, bias=False)
    top = net.bn(f"{name}_out")
    if groups == 1:
        net.layer("Axpy", f"{name}_sum", "", _weights(net, name, 4 * width), top, shortcut)
    else:
        net.add(f"{name}_sum", shortcut, top)
    net.relu(f"relu_{name}_sum")


def _weights(net: Writer, name: str, channels: int) -> str:
    """Write what makes a number from 0 to 1 for each channel, from the means of all."""
    net.mean(f"{name}_mean")
    net.conv(f"{name}_squeeze", channels // REDUCTION, 1)
    net.relu(f"relu_{name}_squeeze")
    net.conv(f"{name}_excite", channels, 1)
    return net.layer("Sigmoid", f"{name}_weights", top=net.last)
