"""Nets to start from: prototxts of a training net and its solver for a data set.

The nets are LeNet (LeCun et al., 1998), the quick CIFAR-10 net (Krizhevsky, cuda-convnet),
ResNet-20 (He et al., 2015) and SqueezeNet 1.1 (Iandola et al., 2016). SqueezeNet's layers have the
names of the published weights, except for the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, ErrorCode

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
    """A net to start from.

    Attributes:
        layers: Returns the layers between data and loss for a number of classes; the scores are
            the top of the last layer.
        scores: Name of the scores.
        side: Shortest side of an image, in pixels.
        size: Height and width of images, if no data is given.
        batch: Images in a batch for training.
        rate: Learning rate at the start.
        mirror: Mirror half of the training images.
        mean: Mean of each channel that published weights need; empty for that of the data.
        scale: Factor of pixels after the mean.
    """

    layers: Callable[[int], list[str]]
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
    mean = net.mean or data.mean
    values = "".join(f" mean_value: {value:.6g}" for value in mean)
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
    text += net.layers(data.classes)
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
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- layers ------------------------------------------------------------------------------------

XAVIER, MSRA = 'weight_filler { type: "xavier" }', 'weight_filler { type: "msra" }'
RATES = "param { lr_mult: 1 }  param { lr_mult: 2  decay_mult: 0 }"


def _conv(name: str, bottom: str, fields: str, rates: str = RATES) -> str:
    return f"""layer {{
  name: "{name}"  type: "Convolution"  bottom: "{bottom}"  top: "{name}"
  {rates}
  convolution_param {{ {fields} }}
}}
"""


def _relu(name: str, blob: str) -> str:
    return f'layer {{ name: "{name}"  type: "ReLU"  bottom: "{blob}"  top: "{blob}" }}\n'


def _pool(name: str, bottom: str, fields: str) -> str:
    return f"""layer {{
  name: "{name}"  type: "Pooling"  bottom: "{bottom}"  top: "{name}"
  pooling_param {{ {fields} }}
}}
"""


def _product(name: str, bottom: str, outputs: int, filler: str = XAVIER) -> str:
    return f"""layer {{
  name: "{name}"  type: "InnerProduct"  bottom: "{bottom}"  top: "{name}"
  {RATES}
  inner_product_param {{ num_output: {outputs}  {filler} }}
}}
"""


def _lenet(classes: int) -> list[str]:
    half = "pool: MAX  kernel_size: 2  stride: 2"
    return [
        _conv("conv1", "data", f"num_output: 20  kernel_size: 5  {XAVIER}"),
        _pool("pool1", "conv1", half),
        _conv("conv2", "pool1", f"num_output: 50  kernel_size: 5  {XAVIER}"),
        _pool("pool2", "conv2", half),
        _product("ip1", "pool2", 500),
        _relu("relu1", "ip1"),
        _product("ip2", "ip1", classes),
    ]


def _cifar10_quick(classes: int) -> list[str]:
    conv, half = "pad: 2  kernel_size: 5", "kernel_size: 3  stride: 2"
    return [
        _conv("conv1", "data", f"num_output: 32  {conv}  {MSRA}"),
        _pool("pool1", "conv1", f"pool: MAX  {half}"),
        _relu("relu1", "pool1"),
        _conv("conv2", "pool1", f"num_output: 32  {conv}  {MSRA}"),
        _relu("relu2", "conv2"),
        _pool("pool2", "conv2", f"pool: AVE  {half}"),
        _conv("conv3", "pool2", f"num_output: 64  {conv}  {MSRA}"),
        _relu("relu3", "conv3"),
        _pool("pool3", "conv3", f"pool: AVE  {half}"),
        _product("ip1", "pool3", 64),
        _product("ip2", "ip1", classes),
    ]


def _normed(name: str, bottom: str, outputs: int, *, kernel: int = 3, stride: int = 1) -> list[str]:
    """Return a convolution and its batch normalization; the top is ``NAME``."""
    fields = f"num_output: {outputs}  kernel_size: {kernel}  pad: {kernel // 2}  stride: {stride}"
    return [
        _conv(name, bottom, f"{fields}  bias_term: false  {MSRA}", "param { lr_mult: 1 }"),
        f'layer {{ name: "{name}/bn"  type: "BatchNorm"  bottom: "{name}"  top: "{name}"\n'
        "  batch_norm_param { moving_average_fraction: 0.95 } }\n",  # for short runs
        f'layer {{ name: "{name}/scale"  type: "Scale"  bottom: "{name}"  top: "{name}"\n'
        "  scale_param { bias_term: true } }\n",
    ]


def _resnet20(classes: int) -> list[str]:
    parts = [*_normed("conv1", "data", 16), _relu("conv1/relu", "conv1")]
    below = "conv1"
    for stage, outputs in enumerate((16, 32, 64), 1):
        for block in range(1, 4):
            name = f"block{stage}_{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            parts += [
                *_normed(f"{name}/conv1", below, outputs, stride=stride),
                _relu(f"{name}/relu1", f"{name}/conv1"),
                *_normed(f"{name}/conv2", f"{name}/conv1", outputs),
            ]
            if stride == 2:
                parts += _normed(f"{name}/shortcut", below, outputs, kernel=1, stride=2)
                below = f"{name}/shortcut"
            parts += [
                f'layer {{ name: "{name}"  type: "Eltwise"  bottom: "{below}"  '
                f'bottom: "{name}/conv2"  top: "{name}" }}\n',
                _relu(f"{name}/relu", name),
            ]
            below = name
    parts += [
        _pool("pool", below, "pool: AVE  global_pooling: true"),
        _product("score", "pool", classes, MSRA),
    ]
    return parts


def _fire(name: str, bottom: str, squeeze: int) -> list[str]:
    """Return a fire module: a 1x1 convolution, and 1x1 and 3x3 convolutions of its top."""
    small, large = f"{name}/expand1x1", f"{name}/expand3x3"
    before, expand = f"{name}/squeeze1x1", 4 * squeeze
    return [
        _conv(before, bottom, f"num_output: {squeeze}  kernel_size: 1  {XAVIER}"),
        _relu(f"{name}/relu_squeeze1x1", before),
        _conv(small, before, f"num_output: {expand}  kernel_size: 1  {XAVIER}"),
        _relu(f"{name}/relu_expand1x1", small),
        _conv(large, before, f"num_output: {expand}  pad: 1  kernel_size: 3  {XAVIER}"),
        _relu(f"{name}/relu_expand3x3", large),
        f'layer {{ name: "{name}/concat"  type: "Concat"  bottom: "{small}"  '
        f'bottom: "{large}"  top: "{name}/concat" }}\n',
    ]


def _squeezenet(classes: int) -> list[str]:
    half = "pool: MAX  kernel_size: 3  stride: 2"
    parts = [
        _conv("conv1", "data", f"num_output: 64  kernel_size: 3  stride: 2  {XAVIER}"),
        _relu("relu_conv1", "conv1"),
        _pool("pool1", "conv1", half),
    ]
    below = "pool1"
    for number, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        parts += _fire(f"fire{number}", below, squeeze)
        below = f"fire{number}/concat"
        if number in {3, 5}:
            parts.append(_pool(f"pool{number}", below, half))
            below = f"pool{number}"
    new = "param { lr_mult: 10 }  param { lr_mult: 20  decay_mult: 0 }"
    parts += [
        f'layer {{ name: "drop9"  type: "Dropout"  bottom: "{below}"  top: "{below}"\n'
        "  dropout_param { dropout_ratio: 0.5 } }\n",
        "# The new last layer learns faster than the layers with published weights.\n",
        _conv("score", below, f"num_output: {classes}  kernel_size: 1  {MSRA}", new),
        _pool("pool_score", "score", "pool: AVE  global_pooling: true"),
        'layer { name: "flat_score"  type: "Flatten"  bottom: "pool_score"  top: "flat_score" }\n',
    ]
    return parts


NETS = {
    "lenet": StartNet(_lenet, "ip2", side=16, size=28, batch=64, rate=0.01, mirror=False),
    "cifar10_quick": StartNet(_cifar10_quick, "ip2", side=8, size=32, batch=64, rate=0.01),
    "resnet20": StartNet(_resnet20, "score", side=8, size=32, batch=64, rate=0.05),
    "squeezenet": StartNet(
        _squeezenet, "flat_score", side=48, size=227, batch=32, rate=0.001,
        mean=(104, 117, 123), scale=1.0,
    ),
}  # fmt: skip
"""Nets by name."""
