"""ResNet-50: bottleneck blocks with batch normalisation; strides in the first 1x1 convolution."""

from nets.writer import Writer

__all__ = ["resnet50"]

STAGES = ((2, 64, 3), (3, 128, 4), (4, 256, 6), (5, 512, 3))
"""Number, inner width and blocks of each stage."""


def resnet50(batch: int, train: bool, scale: int = 1) -> str:
    """ResNet-50 on 224x224 images."""
    net = Writer("ResNet-50", (batch, 3, 224, 224), train)
    _conv(net, "conv1", 64 // scale, 7, stride=2, pad=3)
    net.relu("relu_conv1")
    net.pool("pool1", 3, 2)
    for stage, width, blocks in STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            _block(net, f"{stage}{'abcdef'[block]}", width // scale, stride, first=block == 0)
    net.mean("pool5")
    net.ip("classifier", 1000)
    return net.end()


def _block(net: Writer, name: str, width: int, stride: int, *, first: bool) -> None:
    below = net.last
    shortcut = (
        _conv(net, f"{name}_shortcut", 4 * width, 1, below, stride=stride) if first else below
    )
    _conv(net, f"{name}_in", width, 1, below, stride=stride)
    net.relu(f"relu_{name}_in")
    _conv(net, f"{name}_mid", width, 3, pad=1)
    net.relu(f"relu_{name}_mid")
    _conv(net, f"{name}_out", 4 * width, 1)
    net.add(f"{name}_sum", shortcut, net.last)
    net.relu(f"relu_{name}_sum")


def _conv(net: Writer, name: str, outputs: int, kernel: int, *bottoms: str, **options: int) -> str:
    net.conv(name, outputs, kernel, *bottoms, bias=False, **options)
    return net.bn(name)
