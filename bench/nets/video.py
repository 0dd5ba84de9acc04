"""C3D, a smaller one: what happens in a film, by convolutions over pictures and time."""

from nets.writer import Writer

__all__ = ["c3d"]

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Outputs of the convolutions between two poolings."""


def c3d(batch: int, train: bool, scale: int = 1) -> str:
    """Sixteen pictures of 64x64, and one of 101 actions."""
    net = Writer("C3D", (batch, 3, 16, 64, 64), train)
    for stage, outputs in enumerate(STAGES, 1):
        if stage > 1:
            net.pool(f"pool{stage - 1}", 2, 2)
        for place, count in enumerate(outputs):
            net.conv(f"conv{stage}{'ab'[place]}", count // scale, 3, pad=1)
            net.relu(f"relu{stage}{'ab'[place]}")
    for name in ("fc6", "fc7"):
        net.ip(name, 2048 // scale)
        net.relu(f"relu_{name}")
        net.dropout(f"drop_{name}", 0.5)
    net.ip("fc8", 101)
    return net.end()
