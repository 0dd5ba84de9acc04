"""Nets for the first run on a GPU, as prototxt; their inputs are filled once, from no database."""

from collections.abc import Iterator

import numpy as np
from nets import NETS as NETS_OF_PEERS

from demitasse import Net
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.training import Solver

__all__ = ["NETS", "fill", "net_of", "solver_of"]


def inputs(batch: int, *shape: int) -> str:
    """An input "data" (batch, *shape) and an input "label" (batch,)."""
    dims = " ".join(f"dim: {n}" for n in (batch, *shape))
    return f"""
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}
layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: {batch} }} }} }}
"""


class Text:
    """Layers one after the other, written out."""

    def __init__(self, head: str) -> None:
        self.lines, self.last = [head], "data"

    def layer(self, kind: str, name: str, fields: str = "", *more: str, in_place: bool = False):
        top = self.last if in_place else name
        bottoms = " ".join(f'bottom: "{b}"' for b in (self.last, *more))
        self.lines.append(
            f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top}" {fields} }}'
        )
        self.last = top
        return self

    def conv(self, name: str, outputs: int, kernel: int, fields: str = ""):
        return self.layer(
            "Convolution", name,
            f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} {fields} "
            'weight_filler { type: "xavier" } }',
        )  # fmt: skip

    def pool(self, name: str, kernel: int, stride: int, kind: str = "MAX"):
        return self.layer(
            "Pooling", name,
            f"pooling_param {{ pool: {kind} kernel_size: {kernel} stride: {stride} }}",
        )  # fmt: skip

    def ip(self, name: str, outputs: int):
        return self.layer(
            "InnerProduct", name,
            f'inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }}',
        )  # fmt: skip

    def relu(self, name: str):
        return self.layer("ReLU", name, in_place=True)

    def loss(self) -> str:
        self.layer("SoftmaxWithLoss", "loss", "", "label")
        return "\n".join(self.lines)


def lenet(batch: int, scale: int = 1) -> str:
    """LeNet as Caffe's examples have it."""
    text = Text(inputs(batch, 1, 28, 28))
    text.conv("conv1", 20 // scale, 5).pool("pool1", 2, 2)
    text.conv("conv2", 50 // scale, 5).pool("pool2", 2, 2)
    return text.ip("ip1", 500 // scale).relu("relu1").ip("ip2", 10).loss()


def caffenet(batch: int, scale: int = 1) -> str:
    """CaffeNet: the reference model, pooling before normalisation."""
    side = 227 if scale == 1 else 67
    text = Text(inputs(batch, 3, side, side))
    lrn = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"
    text.conv("conv1", 96 // scale, 11, "stride: 4").relu("relu1").pool("pool1", 3, 2)
    text.layer("LRN", "norm1", lrn)
    text.conv("conv2", 256 // scale, 5, "pad: 2 group: 2").relu("relu2").pool("pool2", 3, 2)
    text.layer("LRN", "norm2", lrn)
    text.conv("conv3", 384 // scale, 3, "pad: 1").relu("relu3")
    text.conv("conv4", 384 // scale, 3, "pad: 1 group: 2").relu("relu4")
    text.conv("conv5", 256 // scale, 3, "pad: 1 group: 2").relu("relu5").pool("pool5", 3, 2)
    text.ip("fc6", 4096 // scale).relu("relu6").layer("Dropout", "drop6", in_place=True)
    text.ip("fc7", 4096 // scale).relu("relu7").layer("Dropout", "drop7", in_place=True)
    return text.ip("fc8", 1000 // scale).loss()


def windows(batch: int, scale: int = 1) -> str:
    """Every kernel with awkward windows: what to compare, not what to time."""
    text = Text(inputs(batch, 6, 23, 19))
    text.conv("dilated", 8, 3, "pad: 2 dilation: 2 group: 2").layer("Sigmoid", "sigmoid")
    text.pool("mean", 3, 2, "AVE").conv("pointwise", 12, 1).layer("TanH", "tanh")
    deconvolution = (
        "convolution_param { num_output: 9 kernel_size: 3 stride: 2 pad: 1 group: 3 "
        'bias_term: false weight_filler { type: "xavier" } }'
    )
    text.layer("Deconvolution", "deconv", deconvolution)
    text.layer("LRN", "norm", "lrn_param { local_size: 3 alpha: 0.1 }").pool("pool", 3, 2)
    text.layer("BatchNorm", "bn").layer("Scale", "scale", "scale_param { bias_term: true }")
    text.layer("ELU", "elu").ip("ip", 30 // scale)
    return text.loss()


def residual(batch: int, scale: int = 1) -> str:
    """Four blocks of a residual net: BatchNorm, Scale, ReLU and sums."""
    text = Text(inputs(batch, 3, 32, 32))

    def conv(name: str) -> None:
        text.conv(name, 16 // scale, 3, "pad: 1 bias_term: false")
        text.layer("BatchNorm", f"{name}_norm", in_place=True)
        text.layer("Scale", f"{name}_scale", "scale_param { bias_term: true }", in_place=True)

    conv("first")
    text.relu("first_relu")
    for index in range(4):
        before = text.last
        conv(f"conv{index}")
        text.layer("Eltwise", f"sum{index}", "", before).relu(f"relu{index}")
    return text.pool("mean", 32, 1, "AVE").ip("ip", 10).loss()


def googlenet(batch: int, scale: int = 1) -> str:
    """GoogLeNet, one of the nets that are compared with peers."""
    return NETS_OF_PEERS["googlenet"](batch, True, scale)


NETS = {
    "lenet": lenet, "caffenet": caffenet, "windows": windows, "residual": residual,
    "googlenet": googlenet,
}  # fmt: skip


def fill(net: Net, seed: int = 0) -> Net:
    """Put random numbers and labels into the inputs of a net."""
    rng = np.random.default_rng(seed)
    data, label = net.blobs["data"], net.blobs["label"]
    data.mutable_cpu_data()[...] = rng.normal(size=data.shape)
    label.mutable_cpu_data()[...] = rng.integers(0, 10, label.shape)
    return net


def net_of(name: str, device: str | Device, batch: int, scale: int = 1, **options) -> Net:
    """Make one of the nets, its inputs filled."""
    message = parse_text(NETS[name](batch, scale), NetParameter)
    return fill(Net(message, "TRAIN", device=device, seed=1, **options))


def solver_of(
    name: str, device: str | Device, batch: int, scale: int = 1, iter_size: int = 1,
    dtype: str = "float32",
) -> Solver:  # fmt: skip
    """Make a solver that trains one of the nets on one batch."""
    fields = 'base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 max_iter: 100000'
    fields += f" iter_size: {iter_size}"
    message = parse_text(f"{fields} snapshot_after_train: false", SolverParameter)
    message.net_param.CopyFrom(parse_text(NETS[name](batch, scale), NetParameter))
    solver = Solver(message, device=device, seed=1, dtype=dtype)
    fill(solver.net)
    return solver


def cases(dry: bool) -> Iterator[tuple[str, int, int]]:
    """Which nets are timed: name, batch, what widths are divided by."""
    if dry:
        yield from (("lenet", 2, 5), ("caffenet", 2, 16))
        return
    yield from (("lenet", 1, 1), ("lenet", 64, 1), ("caffenet", 1, 1), ("caffenet", 256, 1))
