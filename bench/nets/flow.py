"""FlowNet-S, a smaller one: how pixels move between two pictures."""

from nets.writer import Writer

__all__ = ["flownet"]

DOWN = ((32, 7, 2), (64, 5, 2), (128, 5, 2), (128, 3, 1), (256, 3, 2), (256, 3, 1), (256, 3, 2),
        (256, 3, 1))  # fmt: skip
"""Outputs, window and stride of each convolution."""

JOINED = (5, 3, 1)
"""Which of them the deconvolutions are joined with, the smallest image first."""


def flownet(batch: int, train: bool, scale: int = 1) -> str:
    """Two pictures of 128x192, one behind the other; movements at three sizes, refined."""
    net, tops = Writer("FlowNet", (batch, 6, 128, 192), train), []
    for number, (outputs, kernel, stride) in enumerate(DOWN):
        net.conv(f"conv{number}", outputs // scale, kernel, stride=stride, pad=kernel // 2)
        tops.append(_leaky(net, f"conv{number}"))
    for number, (place, outputs) in enumerate(zip(JOINED, (128, 64, 32), strict=True)):
        below = net.last
        net.conv(f"flow{number}", 2, 3, pad=1)
        flow = net.deconv(f"flow{number}_up", 2, 4, 2, pad=1, bias=True)
        net.last = below
        net.deconv(f"up{number}", outputs // scale, 4, 2, pad=1, bias=True)
        net.concat(f"joined{number}", tops[place], _leaky(net, f"up{number}"), flow)
    net.conv("prob", 2, 3, pad=1)
    return net.text()


def _leaky(net: Writer, name: str) -> str:
    return net.layer("ReLU", f"relu_{name}", "relu_param { negative_slope: 0.1 }", top=net.last)
