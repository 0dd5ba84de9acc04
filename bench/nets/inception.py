"""Inception v3's middle: modules with filters of one row and of one column."""

from nets.writer import Writer

__all__ = ["inception"]

WIDTHS = (128, 160, 160, 192)
"""Outputs inside the branches of each module."""


def inception(batch: int, train: bool, scale: int = 1) -> str:
    """The four modules of Inception v3 on 17x17 maps of 768 channels, and a classifier."""
    net = Writer("Inception-v3", (batch, 768 // scale, 17, 17), train)
    for number, width in enumerate(WIDTHS, 1):
        _module(net, f"mixed{number}", width // scale, 192 // scale)
    net.mean("pool")
    net.ip("classifier", 1000)
    return net.end()


def _module(net: Writer, name: str, width: int, outputs: int) -> None:
    below = net.last
    branches = [_conv(net, f"{name}_1x1", outputs, (1, 1), below)]
    row, column = (1, 7), (7, 1)
    for branch, kernels in (("7", (row, column)), ("77", (column, row, column, row))):
        _conv(net, f"{name}_{branch}_reduce", width, (1, 1), below)
        for step, kernel in enumerate(kernels[:-1]):
            _conv(net, f"{name}_{branch}_{step}", width, kernel)
        branches.append(_conv(net, f"{name}_{branch}", outputs, kernels[-1]))
    net.pool(f"{name}_pool", 3, 1, below, pad=1, kind="AVE")
    branches.append(_conv(net, f"{name}_project", outputs, (1, 1)))
    net.concat(f"{name}_out", *branches)


def _conv(net: Writer, name: str, outputs: int, kernel: tuple[int, int], *bottoms: str) -> str:
    pad = kernel[0] // 2, kernel[1] // 2
    net.conv(name, outputs, kernel, *bottoms, pad=pad, bias=False)
    net.bn(name)
    return net.relu(f"relu_{name}")
