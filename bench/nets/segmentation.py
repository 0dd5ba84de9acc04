"""Nets that give a class to every pixel: FCN, SegNet's basic one, U-Net, DeepLab, lanes."""

from nets.writer import Writer

__all__ = ["deeplab", "fcn", "lanes", "segnet", "unet"]

CLASSES = 21
STAGES = 4


def fcn(batch: int, train: bool, scale: int = 1) -> str:
    """FCN-32s over AlexNet on 256x256 images: a deconvolution enlarges 32 times, Crop cuts."""
    side = 256
    net = Writer("FCN-AlexNet", (batch, 3, side, side), train)
    net.conv("conv1", 96 // scale, 11, stride=4, pad=100)
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
    for number, kernel in ((6, 6), (7, 1)):
        net.conv(f"fc{number}", 4096 // scale, kernel)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}", 0.5)
    net.conv("score_small", CLASSES, 1)
    net.deconv("score_large", CLASSES, 63, 32)
    net.layer("Crop", "score", "crop_param { axis: 2 offset: 18 }", "score_large", "data")
    return net.end()


def segnet(batch: int, train: bool, scale: int = 1) -> str:
    """SegNet's basic net on 352x480 images: what pooling took is put back where it was."""
    net, width = Writer("SegNet-basic", (batch, 3, 352, 480), train), 64 // scale
    for number in range(1, STAGES + 1):
        net.conv(f"conv{number}", width, 7, pad=3)
        net.bn(f"conv{number}")
        net.relu(f"relu{number}")
        net.pool(f"pool{number}", 2, 2, mask=f"mask{number}")
    for number in range(STAGES, 0, -1):
        mask = f"mask{number}"
        net.layer("Upsample", f"up{number}", "upsample_param { scale: 2 }", net.last, mask)
        net.conv(f"decode{number}", width, 7, pad=3)
        net.bn(f"decode{number}")
    net.conv("score", CLASSES, 1)
    return net.end()


def lanes(batch: int, train: bool, scale: int = 1) -> str:
    """A small net with two classes on 256x512 images: lanes and what else there is.

    A filter of each colour comes before the encoder, and a deconvolution of each class behind it.
    """
    net, width = Writer("lanes", (batch, 3, 256, 512), train), 32 // scale
    net.conv("blur", 3, 5, pad=2, group=3, bias=False)
    for number, stride in enumerate((2, 1, 2, 1)):
        net.conv_bn_relu(f"conv{number}", width, 3, stride=stride, pad=1)
        width *= stride
    net.conv("score_small", 2, 1)
    net.deconv("score", 2, 8, 4, pad=2, group=2)
    return net.end()


def unet(batch: int, train: bool, scale: int = 1) -> str:
    """A narrow U-Net on 256x256 images: what each stage made is joined to what comes back to it."""
    net, width, skips = Writer("U-Net", (batch, 3, 256, 256), train), 16 // scale, []
    for number in range(1, STAGES + 1):
        skips.append(_pair(net, f"down{number}", width))
        net.pool(f"pool{number}", 2, 2)
        width *= 2
    _pair(net, "middle", width)
    for number in range(STAGES, 0, -1):
        width //= 2
        net.deconv(f"deconv{number}", width, 2, 2, bias=True)
        net.concat(f"joined{number}", skips.pop(), net.last)
        _pair(net, f"up{number}", width)
    net.conv("score", 2, 1)
    return net.end()


def _pair(net: Writer, name: str, outputs: int) -> str:
    for which in "ab":
        net.conv(f"{name}{which}", outputs, 3, pad=1)
        net.relu(f"relu_{name}{which}")
    return net.last


def deeplab(batch: int, train: bool, scale: int = 1) -> str:
    """A narrow DeepLab on 161x161 images: dilated convolutions, whose scores Interp enlarges."""
    side = 161
    net = Writer("DeepLab", (batch, 3, side, side), train)
    for number, outputs in enumerate((64, 128, 256), 1):
        _pair(net, f"conv{number}", outputs // scale)
        net.pool(f"pool{number}", 3, 2, pad=1)
    for number, dilation in ((4, 2), (5, 2), (6, 4)):
        net.conv(f"conv{number}", 256 // scale, 3, pad=dilation, dilation=dilation)
        net.relu(f"relu{number}")
    net.conv("score_small", CLASSES, 1)
    net.layer("Interp", "score", f"interp_param {{ height: {side} width: {side} }}")
    return net.end()
