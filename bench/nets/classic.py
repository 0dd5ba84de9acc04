"""Caffe's own nets: LeNet, CIFAR-10 quick, CaffeNet; and one for grey images."""

from nets.writer import Writer

__all__ = ["caffenet", "cifar10_quick", "grey", "lenet"]


def lenet(batch: int, train: bool, scale: int = 1) -> str:
    """LeNet on 28x28 digits."""
    net = Writer("LeNet", (batch, 1, 28, 28), train)
    net.conv("conv1", 20 // scale, 5, filler="xavier")
    net.pool("pool1", 2, 2)
    net.conv("conv2", 50 // scale, 5, filler="xavier")
    net.pool("pool2", 2, 2)
    net.ip("ip1", 500 // scale)
    net.relu("relu1")
    net.ip("ip2", 10)
    return net.end()


def cifar10_quick(batch: int, train: bool, scale: int = 1, side: int = 32) -> str:
    """The quick net for 32x32 images of ten kinds: max pooling first, then means."""
    net = Writer("CIFAR10_quick", (batch, 3, side, side), train)
    for number, outputs, pool in ((1, 32, "MAX"), (2, 32, "AVE"), (3, 64, "AVE")):
        net.conv(f"conv{number}", outputs // scale, 5, pad=2)
        if number == 1:
            net.pool("pool1", 3, 2)
        net.relu(f"relu{number}")
        if number > 1:
            net.pool(f"pool{number}", 3, 2, kind=pool)
    net.ip("ip1", 64 // scale)
    net.ip("ip2", 10)
    return net.end()


def caffenet(batch: int, train: bool, scale: int = 1) -> str:
    """CaffeNet: AlexNet with pooling before normalisation."""
    net = Writer("CaffeNet", (batch, 3, 227, 227), train)
    net.conv("conv1", 96 // scale, 11, stride=4)
    net.relu("relu1")
    net.pool("pool1", 3, 2)
    net.lrn("norm1")
    net.conv("conv2", 256 // scale, 5, pad=2, group=2)
    net.relu("relu2")
    net.pool("pool2", 3, 2)
    net.lrn("norm2")
    for number, outputs, group in ((3, 384, 1), (4, 384, 2), (5, 256, 2)):
        net.conv(f"conv{number}", outputs // scale, 3, pad=1, group=group)
        net.relu(f"relu{number}")
    net.pool("pool5", 3, 2)
    for number in (6, 7):
        net.ip(f"fc{number}", 4096 // scale)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}", 0.5)
    net.ip("fc8", 1000)
    return net.end()


def grey(batch: int, train: bool, scale: int = 1) -> str:
    """Four convolutions on 128x128 images of one channel."""
    net = Writer("grey", (batch, 1, 128, 128), train)
    for number, outputs in enumerate((16, 32, 64, 128), 1):
        net.conv(f"conv{number}", outputs // scale, 5 if number == 1 else 3, pad=1)
        net.relu(f"relu{number}")
        net.pool(f"pool{number}", 2, 2)
    net.ip("ip1", 256 // scale)
    net.relu("relu5")
    net.ip("ip2", 36)
    return net.end()
