"""VGG-16: thirteen convolutions of 3x3 and three fully connected layers."""

from nets.writer import Writer

__all__ = ["vgg16"]

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Outputs and number of convolutions of each stage."""


def vgg16(batch: int, train: bool, scale: int = 1) -> str:
    """VGG-16 on 224x224 images."""
    net = Writer("VGG-16", (batch, 3, 224, 224), train)
    for stage, (outputs, count) in enumerate(STAGES, 1):
        for number in range(1, count + 1):
            net.conv(f"conv{stage}_{number}", outputs // scale, 3, pad=1)
            net.relu(f"relu{stage}_{number}")
        net.pool(f"pool{stage}", 2, 2)
    for number in (6, 7):
        net.ip(f"fc{number}", 4096 // scale)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}", 0.5)
    net.ip("fc8", 1000)
    return net.end()
