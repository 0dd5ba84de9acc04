"""Nets to start from: prototxts of a training net and its solver for a data set.

The nets are LeNet (LeCun et al., 1998), the quick CIFAR-10 net (Krizhevsky, cuda-convnet),
ResNet-20 (He et al., 2015) and SqueezeNet 1.1 (Iandola et al., 2016). SqueezeNet's layers have the
names of the published weights, except for the last layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.text_encoding import CEscape

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode

FOLDER = Path(__file__).with_name("start_nets")
"""Layers of each net; CLASSES is replaced by the number of classes."""

EPOCHS = 40
"""Times that the solver reads the training images."""

FEWEST = 400
"""Fewest iterations of the solver."""

LARGEST_TEST_BATCH = 50


@dataclass(frozen=True)
class StartData:
    """Data of a net.

    Attributes:
        shape: Channels, height and width of the images.
        mean: Mean of each channel, from 0 to 255.
        sources: Paths of the LMDBs for training and test.
        train, test: Number of images; 0 if unknown.
    """

    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    sources: tuple[str, str]
    train: int = 0
    test: int = 0


@dataclass(frozen=True)
class StartNet:
    """A net to start from; its layers between data and loss are in a prototxt of its name.

    Attributes:
        scores: Top of the last layer.
        side: Shortest side of an image, in pixels.
        size: Height and width of images, if no data is given.
        batch: Images in a batch for training.
        rate: Learning rate at the start.
        mirror: Mirror half of the training images.
        mean: Mean of each channel that published weights need; empty for that of the data.
        scale: Factor of pixels after the mean.
    """

    scores: str
    side: int
    size: int
    batch: int
    rate: float
    mirror: bool = True
    mean: tuple[float, ...] = ()
    scale: float = 0.0078125


def default_net(shape: Sequence[int]) -> str:
    """Return the name of a net for images: LeNet for small gray images, else the CIFAR-10 net."""
    is_small = 16 <= min(shape[1:]) <= max(shape[1:]) <= 32
    return "lenet" if shape[0] == 1 and is_small else "cifar10_quick"


def net_files(name: str, data: StartData, prefix: str) -> dict[str, str]:
    """Return the prototxts of a net in ``NETS``: file name -> text.

    ``prefix`` is the folder of the files as the solver names it, with its slash; it may be empty.
    """
    if name not in NETS:
        message = f"got net {name!r}{suggestion(name, NETS)}; expected one of {', '.join(NETS)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="net", got=name)
    net = NETS[name]
    channels, *sides = data.shape
    if min(sides) < net.side:
        message = (
            f"got images of {sides[0]}x{sides[1]} pixels, expected at least {net.side}x{net.side} "
            f"for {name}; choose another --net, or larger images by --size"
        )
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="size", got=sides)
    if net.mean and len(net.mean) != channels:
        message = (
            f"got images of {channels} channel, expected {len(net.mean)} for {name}, whose "
            "published weights are for colours; choose another --net, or colour images"
        )
        raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, field="net", got=channels)
    if data.classes < 2:
        message = f"got {data.classes} classes, expected at least 2"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="classes", got=data.classes)
    return {
        "train_val.prototxt": _train_val(name, net, data),
        "solver.prototxt": _solver(name, net, data, prefix),
    }


def _train_val(name: str, net: StartNet, data: StartData) -> str:
    values = "".join(f" mean_value: {value:.6g}" for value in net.mean or data.mean)
    scale = "" if net.scale == 1 else f" scale: {net.scale:.7g}"
    batches = {"TRAIN": _train_batch(net, data), "TEST": _test_batches(data)[0]}
    text = [f'name: "{name}"\n']
    for phase, source in zip(("TRAIN", "TEST"), data.sources, strict=True):
        mirror = "  mirror: true" if net.mirror and phase == "TRAIN" else ""
        text.append(f"""layer {{
  name: "data"  type: "Data"  top: "data"  top: "label"
  include {{ phase: {phase} }}
  transform_param {{{values} {scale}{mirror} }}
  data_param {{ source: {_quoted(source)}  backend: LMDB  batch_size: {batches[phase]} }}
}}
""")
    layers = (FOLDER / f"{name}.prototxt").read_text(encoding="utf-8")
    text.append(layers.replace("CLASSES", str(data.classes)))
    text.append(f"""layer {{
  name: "accuracy"  type: "Accuracy"  bottom: "{net.scores}"  bottom: "label"  top: "accuracy"
  include {{ phase: TEST }}
}}
layer {{
  name: "loss"  type: "SoftmaxWithLoss"  bottom: "{net.scores}"  bottom: "label"  top: "loss"
}}
""")
    return "".join(text)


def _solver(name: str, net: StartNet, data: StartData, prefix: str) -> str:
    batch = _train_batch(net, data)
    epoch = math.ceil(data.train / batch) if data.train else 500
    iterations = max(FEWEST, EPOCHS * epoch) if data.train else 10_000
    size, count = _test_batches(data)
    read = f"  # with batches of {size}, for {data.test} test images" if data.test else ""
    epochs = (
        f"  # reads each image {iterations * batch / data.train:.3g} times" if data.train else ""
    )
    return f"""net: {_quoted(f"{prefix}train_val.prototxt")}
test_iter: {count}{read}
test_interval: {max(epoch, iterations // 10)}
type: "SGD"
base_lr: {net.rate:g}
momentum: 0.9
weight_decay: 0.0005
lr_policy: "poly"  # with power 1: a straight line down to 0 at max_iter
power: 1
max_iter: {iterations}{epochs}
display: {max(iterations // 20, 1)}
snapshot_prefix: {_quoted(f"{prefix}{name}")}
random_seed: 1
"""


def _train_batch(net: StartNet, data: StartData) -> int:
    return min(net.batch, data.train) if data.train else net.batch


def _test_batches(data: StartData) -> tuple[int, int]:
    """Return size and number of the batches of a test, which reads each image once if possible."""
    if not data.test:
        return LARGEST_TEST_BATCH, 20
    most = min(LARGEST_TEST_BATCH, data.test)
    size = next(one for one in range(most, 0, -1) if data.test % one == 0)
    size = size if 4 * size >= most else most
    return size, math.ceil(data.test / size)


def _quoted(text: str) -> str:
    escaped = CEscape(text, as_utf8=True)  # type: ignore[arg-type]  # the stub lacks str
    return f'"{escaped}"'


NETS = {
    "lenet": StartNet("ip2", side=16, size=28, batch=64, rate=0.01, mirror=False),
    "cifar10_quick": StartNet("ip2", side=8, size=32, batch=64, rate=0.01),
    "resnet20": StartNet("score", side=8, size=32, batch=64, rate=0.05),
    "squeezenet": StartNet(
        "flat_score", side=48, size=227, batch=32, rate=0.001,
        mean=(104, 117, 123), scale=1.0,
    ),
}  # fmt: skip
"""Nets by name."""
