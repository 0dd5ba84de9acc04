"""Nets for small machines: SqueezeNet 1.1, MobileNet 1."""

from collections.abc import Container

from nets.writer import Writer

__all__ = ["mobilenet", "mobilenet_blocks", "quarter_mobilenet", "squeezenet"]

FIRES = ((2, 16, 64), (3, 16, 64), (4, 32, 128), (5, 32, 128), (6, 48, 192), (7, 48, 192),
         (8, 64, 256), (9, 64, 256))  # fmt: skip
"""Number of each fire module, outputs of its squeezing and of each expanding convolution."""

BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
          *[(512, 1)] * 5, (1024, 2), (1024, 1))  # fmt: skip
"""Outputs and stride of each depthwise and pointwise pair of convolutions."""


def squeezenet(batch: int, train: bool, scale: int = 1) -> str:
    """SqueezeNet 1.1 on 227x227 images."""
    net = Writer("SqueezeNet", (batch, 3, 227, 227), train)
    net.conv("conv1", 64 // scale, 3, stride=2)
    net.relu("relu_conv1")
    net.pool("pool1", 3, 2)
    for number, squeeze, expand in FIRES:
        _fire(net, f"fire{number}", squeeze // scale, expand // scale)
        if number in {3, 5}:
            net.pool(f"pool{number}", 3, 2)
    net.dropout("drop9", 0.5)
    net.conv("conv10", 1000, 1)
    net.relu("relu_conv10")
    net.mean("pool10")
    net.layer("Flatten", "flat")
    return net.end()


def _fire(net: Writer, name: str, squeeze: int, expand: int) -> None:
    net.conv(f"{name}_squeeze", squeeze, 1)
    below = net.relu(f"relu_{name}_squeeze")
    net.conv(f"{name}_1x1", expand, 1)
    one = net.relu(f"relu_{name}_1x1")
    net.conv(f"{name}_3x3", expand, 3, below, pad=1)
    net.concat(f"{name}_out", one, net.relu(f"relu_{name}_3x3"))


def mobilenet(batch: int, train: bool, scale: int = 1) -> str:
    """MobileNet 1 of full width on 224x224 images."""
    net = Writer("MobileNet", (batch, 3, 224, 224), train)
    mobilenet_blocks(net, scale)
    net.mean("pool")
    net.ip("classifier", 1000)
    return net.end()


def quarter_mobilenet(batch: int, train: bool, scale: int = 1) -> str:
    """MobileNet 1 of a quarter of the width on 128x128 images."""
    net = Writer("Quarter-MobileNet", (batch, 3, 128, 128), train)
    mobilenet_blocks(net, 4 * scale)
    net.mean("pool")
    net.ip("classifier", 1000)
    return net.end()


def mobilenet_blocks(net: Writer, scale: int, kept: Container[int] = ()) -> list[str]:
    """Write the convolutions of MobileNet; return what the blocks of these numbers make."""
    width, tops = 32 // scale, []
    net.conv_bn_relu("conv1", width, 3, stride=2, pad=1)
    for number, (outputs, stride) in enumerate(BLOCKS, 2):
        name = f"conv{number}"
        net.conv_bn_relu(f"{name}_depthwise", width, 3, stride=stride, pad=1, group=width)
        width = outputs // scale
        top = net.conv_bn_relu(f"{name}_pointwise", width, 1)
        if number in kept:
            tops.append(top)
    return tops
