"""Nets that make images: DCGAN's generator, an autoencoder, SRCNN, FSRCNN and VDSR."""

from nets.writer import Writer

__all__ = ["autoencoder", "dcgan", "fsrcnn", "srcnn", "vdsr"]

LAYERS = (1000, 500, 250, 30, 250, 500, 1000, 784)
"""Outputs of each layer of the autoencoder; the middle one is linear."""

DEPTH = 20


def dcgan(batch: int, train: bool, scale: int = 1) -> str:
    """DCGAN's generator: images of 64x64 from a hundred numbers."""
    net = Writer("DCGAN", (batch, 100, 1, 1), train)
    for number, outputs in enumerate((512, 256, 128, 64), 1):
        stride, pad = (1, 0) if number == 1 else (2, 1)
        net.deconv(f"deconv{number}", outputs // scale, 4, stride, pad=pad)
        net.bn(f"deconv{number}")
        net.relu(f"relu{number}")
    net.deconv("deconv5", 3, 4, 2, pad=1, bias=True)
    net.layer("TanH", "prob")
    return net.text()


def autoencoder(batch: int, train: bool, scale: int = 1) -> str:
    """Caffe's autoencoder of 28x28 digits, with sigmoids."""
    net = Writer("Autoencoder", (batch, 784), train)
    for number, outputs in enumerate(LAYERS, 1):
        last, code = number == len(LAYERS), outputs == min(LAYERS)
        net.ip(f"ip{number}", outputs if last else outputs // scale)
        if not code:
            net.layer("Sigmoid", f"sigmoid{number}", top="prob" if last else net.last)
    return net.text()


def srcnn(batch: int, train: bool, scale: int = 1) -> str:
    """SRCNN (9-1-5) on 128x128 brightness."""
    shape = batch, 1, 128, 128
    net = Writer("SRCNN", shape, train=False)
    for number, (outputs, kernel) in enumerate(((64, 9), (32, 1)), 1):
        net.conv(f"conv{number}", outputs // scale, kernel, pad=kernel // 2)
        net.relu(f"relu{number}")
    net.conv("prob", 1, 5, pad=2)
    return net.end_image(shape, train)


def fsrcnn(batch: int, train: bool, scale: int = 1) -> str:
    """FSRCNN (56-12-4) on 64x64 brightness, with windows of 8 to double the sides."""
    net = Writer("FSRCNN", (batch, 1, 64, 64), train=False)
    layers = ((56, 5), (12, 1), *[(12, 3)] * 4, (56, 1))
    for number, (outputs, kernel) in enumerate(layers, 1):
        net.conv(f"conv{number}", max(outputs // scale, 8), kernel, pad=kernel // 2)
        net.layer("PReLU", f"prelu{number}", top=net.last)
    net.deconv("prob", 1, 8, 2, pad=3, bias=True)
    return net.end_image((batch, 1, 128, 128), train)


def vdsr(batch: int, train: bool, scale: int = 1) -> str:
    """VDSR on 96x96 brightness: twenty convolutions make what is added to it."""
    shape = batch, 1, 96, 96
    net = Writer("VDSR", shape, train=False)
    for number in range(1, DEPTH):
        net.conv(f"conv{number}", 64 // scale, 3, pad=1)
        net.relu(f"relu{number}")
    net.conv(f"conv{DEPTH}", 1, 3, pad=1)
    net.add("prob", "data", net.last)
    return net.end_image(shape, train)
