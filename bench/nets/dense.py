"""DenseNet-121: every layer of a block reads what all before it have made."""

from nets.writer import Writer

__all__ = ["densenet121"]

BLOCKS = (6, 12, 24, 16)
"""Layers of each block."""

GROWTH = 32
"""Channels that a layer adds."""


def densenet121(batch: int, train: bool, scale: int = 1) -> str:
    """DenseNet-121 on 224x224 images."""
    net, growth = Writer("DenseNet-121", (batch, 3, 224, 224), train), GROWTH // scale
    width = 2 * growth
    net.conv("conv1", width, 7, stride=2, pad=3, bias=False)
    _norm(net, "conv1")
    net.pool("pool1", 3, 2)
    for block, count in enumerate(BLOCKS, 2):
        for number in range(1, count + 1):
            _layer(net, f"{block}_{number}", growth)
        width += count * growth
        _norm(net, f"block{block}", top=f"block{block}_norm")
        if block <= len(BLOCKS):
            width //= 2
            net.conv(f"between{block}", width, 1, bias=False)
            net.pool(f"pool{block}", 2, 2, kind="AVE")
    net.mean("pool5")
    net.ip("classifier", 1000)
    return net.end()


def _layer(net: Writer, name: str, growth: int) -> None:
    below = net.last
    _norm(net, f"{name}_in", top=f"norm{name}")
    net.conv(f"conv{name}_in", 4 * growth, 1, bias=False)
    _norm(net, f"{name}_mid")
    net.conv(f"conv{name}_out", growth, 3, pad=1, bias=False)
    net.concat(f"concat{name}", below, net.last)


def _norm(net: Writer, name: str, top: str = "") -> None:
    net.bn(name, top)
    net.relu(f"relu_{name}")
