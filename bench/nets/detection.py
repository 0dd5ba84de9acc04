"""Detectors without what turns their numbers into boxes or joints: MobileNet-SSD, tiny YOLO 2, and
a pose machine."""

from nets.small import mobilenet_blocks
from nets.writer import Writer

__all__ = ["pose_machine", "ssd_mobilenet", "tiny_yolo"]

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


def tiny_yolo(batch: int, train: bool, scale: int = 1) -> str:
    """Tiny YOLO 2 on 416x416 images: five boxes of twenty classes at each of its places."""
    net = Writer("Tiny-YOLO-2", (batch, 3, 416, 416), train)
    for number, outputs in enumerate((16, 32, 64, 128, 256, 512, 1024, 1024), 1):
        net.conv(f"conv{number}", outputs // scale, 3, pad=1, bias=False)
        net.bn(f"conv{number}")
        net.layer("ReLU", f"relu{number}", "relu_param { negative_slope: 0.1 }", top=net.last)
        if number < 6:
            net.pool(f"pool{number}", 2, 2)
    net.conv("prob", 5 * (5 + 20), 1)
    return net.text()


def pose_machine(batch: int, train: bool, scale: int = 1) -> str:
    """Two stages of a convolutional pose machine on 184x184 images: maps of 15 joints."""
    net, joints = Writer("pose machine", (batch, 3, 184, 184), train=False), 15
    for number in (1, 2, 3):
        net.conv(f"conv{number}", 128 // scale, 9, pad=4)
        net.relu(f"relu{number}")
        net.pool(f"pool{number}", 3, 2)
    net.conv("features", 32, 5, pad=2)
    features = net.relu("relu_features")
    net.conv("conv5", 512 // scale, 9, pad=4)
    net.relu("relu5")
    net.conv("maps1", joints, 1)
    net.concat("both", "maps1", features)
    for number in (1, 2, 3):
        net.conv(f"refine{number}", 128 // scale, 11, pad=5)
        net.relu(f"relu_refine{number}")
    net.conv("prob", joints, 1)
    return net.end_image((batch, joints, 23, 23), train)
