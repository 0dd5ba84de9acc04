"""Residual nets: ResNet-50, -26 and -18, and ResNet-20 for small images."""

from nets.writer import Writer

__all__ = ["resnet18", "resnet20", "resnet26", "resnet50"]

STAGES = ((2, 64, 3), (3, 128, 4), (4, 256, 6), (5, 512, 3))
"""Number, inner width and blocks of each stage of ResNet-50."""


def resnet50(batch: int, train: bool, scale: int = 1) -> str:
    """ResNet-50 on 224x224 images; strides in the first 1x1 convolution."""
    net = _begin("ResNet-50", batch, train, scale)
    for stage, width, blocks in STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            _bottleneck(net, f"{stage}{'abcdef'[block]}", width // scale, stride, first=block == 0)
    return _end(net, 1000)


def resnet26(batch: int, train: bool, scale: int = 1) -> str:
    """ResNet-50 with two blocks in each stage, on 128x128 images."""
    net = _begin("ResNet-26", batch, train, scale, size=128)
    for stage, width, _ in STAGES:
        for block in range(2):
            stride = 2 if block == 0 and stage > 2 else 1
            _bottleneck(net, f"{stage}{'ab'[block]}", width // scale, stride, first=block == 0)
    return _end(net, 1000)


def resnet18(batch: int, train: bool, scale: int = 1) -> str:
    """ResNet-18 on 224x224 images."""
    net = _begin("ResNet-18", batch, train, scale)
    for stage, width, _ in STAGES:
        for block in range(2):
            _basic(net, f"{stage}{'ab'[block]}", width // scale, first=block == 0 and stage > 2)
    return _end(net, 1000)


def resnet20(batch: int, train: bool, scale: int = 1) -> str:
    """ResNet-20 on 32x32 images of ten kinds."""
    net = Writer("ResNet-20", (batch, 3, 32, 32), train)
    _conv(net, "conv1", 16 // scale, 3, pad=1)
    net.relu("relu_conv1")
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for block in range(3):
            _basic(net, f"{stage}{'abc'[block]}", width // scale, first=block == 0 and stage > 1)
    return _end(net, 10)


def _begin(name: str, batch: int, train: bool, scale: int, size: int = 224) -> Writer:
    net = Writer(name, (batch, 3, size, size), train)
    _conv(net, "conv1", 64 // scale, 7, stride=2, pad=3)
    net.relu("relu_conv1")
    net.pool("pool1", 3, 2)
    return net


def _end(net: Writer, classes: int) -> str:
    net.mean("pool5")
    net.ip("classifier", classes)
    return net.end()


def _bottleneck(net: Writer, name: str, width: int, stride: int, *, first: bool) -> None:
    below = net.last
    shortcut = (
        _conv(net, f"{name}_shortcut", 4 * width, 1, below, stride=stride) if first else below
    )
    _conv(net, f"{name}_in", width, 1, below, stride=stride)
    net.relu(f"relu_{name}_in")
    _conv(net, f"{name}_mid", width, 3, pad=1)
    net.relu(f"relu_{name}_mid")
    _conv(net, f"{name}_out", 4 * width, 1)
    _sum(net, name, shortcut)


def _basic(net: Writer, name: str, width: int, *, first: bool) -> None:
    """Two convolutions of 3x3; the first of a stage halves the image."""
    below, stride = net.last, 1 + first
    shortcut = _conv(net, f"{name}_shortcut", width, 1, below, stride=stride) if first else below
    _conv(net, f"{name}_in", width, 3, below, pad=1, stride=stride)
    net.relu(f"relu_{name}_in")
    _conv(net, f"{name}_out", width, 3, pad=1)
    _sum(net, name, shortcut)


def _sum(net: Writer, name: str, shortcut: str) -> None:
    net.add(f"{name}_sum", shortcut, net.last)
    net.relu(f"relu_{name}_sum")


def _conv(net: Writer, name: str, outputs: int, kernel: int, *bottoms: str, **options: int) -> str:
    net.conv(name, outputs, kernel, *bottoms, bias=False, **options)
    return net.bn(name)
