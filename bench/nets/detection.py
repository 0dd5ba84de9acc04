"""MobileNet-SSD without what turns its numbers into boxes."""

from nets.small import mobilenet_blocks
from nets.writer import Writer

__all__ = ["ssd_mobilenet"]

MORE = ((256, 512), (128, 256), (128, 256), (64, 128))
"""Outputs of the 1x1 and of the 3x3 convolution of each further stage, which halves the image."""

CLASSES = 21


def ssd_mobilenet(batch: int, train: bool, scale: int = 1) -> str:
    """MobileNet-SSD on 300x300 images: offsets and probabilities of all its boxes."""
    net = Writer("MobileNet-SSD", (batch, 3, 300, 300), train)
    sources = mobilenet_blocks(net, scale, {12, 14})
    for number, (inner, outputs) in enumerate(MORE, 15):
        net.conv_bn_relu(f"conv{number}_1", inner // scale, 1)
        sources.append(net.conv_bn_relu(f"conv{number}_2", outputs // scale, 3, stride=2, pad=1))
    for kind, values in (("loc", 4), ("conf", CLASSES)):
        flat = [
            _head(net, f"{kind}{number}", source, values * (6 if number else 3))
            for number, source in enumerate(sources)
        ]
        net.concat(kind, *flat)
    net.layer("Reshape", "rows", f"reshape_param {{ shape {{ dim: 0 dim: -1 dim: {CLASSES} }} }}")
    net.layer("Softmax", "classes", "softmax_param { axis: 2 }")
    net.layer("Flatten", "flat")
    net.concat("prob", "loc", "flat")
    return net.text()


def _head(net: Writer, name: str, source: str, outputs: int) -> str:
    net.conv(f"{name}_conv", outputs, 1, source)
    net.layer("Permute", f"{name}_last", "permute_param { order: 0 order: 2 order: 3 order: 1 }")
    return net.layer("Flatten", f"{name}_flat")
