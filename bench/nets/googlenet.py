"""GoogLeNet: nine modules of four branches each; the main tower, without the two side losses."""

from nets.writer import Writer

__all__ = ["googlenet"]

MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Outputs of 1x1, 3x3 and its reduction, 5x5 and its reduction, and the projection after a pool,
in the order of the paper's table: 1x1, reduce, 3x3, reduce, 5x5, projection."""


def googlenet(batch: int, train: bool, scale: int = 1) -> str:
    """GoogLeNet on 224x224 images."""
    net = Writer("GoogLeNet", (batch, 3, 224, 224), train)
    _conv(net, "conv1", 64 // scale, 7, stride=2, pad=3)
    net.pool("pool1", 3, 2)
    net.lrn("norm1")
    _conv(net, "conv2_reduce", 64 // scale, 1)
    _conv(net, "conv2", 192 // scale, 3, pad=1)
    net.lrn("norm2")
    net.pool("pool2", 3, 2)
    for name, widths in MODULES.items():
        _module(net, name, [width // scale for width in widths])
        if name in {"3b", "4e"}:
            net.pool(f"pool{name[0]}", 3, 2)
    net.mean("pool5")
    net.dropout("drop5", 0.4)
    net.ip("classifier", 1000)
    return net.end()


def _module(net: Writer, name: str, widths: list[int]) -> None:
    one, reduce3, three, reduce5, five, project = widths
    below = net.last
    branches = [_conv(net, f"{name}_1x1", one, 1, below)]
    _conv(net, f"{name}_3x3_reduce", reduce3, 1, below)
    branches.append(_conv(net, f"{name}_3x3", three, 3, pad=1))
    _conv(net, f"{name}_5x5_reduce", reduce5, 1, below)
    branches.append(_conv(net, f"{name}_5x5", five, 5, pad=2))
    net.pool(f"{name}_pool", 3, 1, below, pad=1)
    branches.append(_conv(net, f"{name}_project", project, 1))
    net.concat(f"{name}_out", *branches)


def _conv(net: Writer, name: str, outputs: int, kernel: int, *bottoms: str, **options: int) -> str:
    net.conv(name, outputs, kernel, *bottoms, **options)
    return net.relu(f"relu_{name}")
