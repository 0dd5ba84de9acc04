"""Convolution by cuDNN against our own kernels: how fast, how near, and what becomes of NaN."""

from importlib import import_module
from typing import Any

import gpu_nets
import numpy as np
from gpu_times import timed

from demitasse import Net
from demitasse.backends import ops
from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.cudnn_library import status
from demitasse.backends.step import Declined
from demitasse.backends.windows import ConvGeometry
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text

__all__ = ["convolutions", "not_finite"]

LAYERS = {
    # name: samples, channels, size, outputs, kernel, stride, pad, groups
    "caffenet conv1": (256, 3, 227, 96, 11, 4, 0, 1),
    "caffenet conv2": (256, 96, 27, 256, 5, 1, 2, 2),
    "caffenet conv3": (256, 256, 13, 384, 3, 1, 1, 1),
    "resnet 3x3": (64, 64, 56, 64, 3, 1, 1, 1),
    "resnet 1x1": (64, 256, 56, 64, 1, 1, 0, 1),
}

APPENDED = {"": {}, " + bias": {"bias": True}, " + bias + ReLU": {"bias": True, "relu": True}}

WAYS = {
    "float32": {"tf32": "off"},
    "float32, timed": {"tf32": "off", "cudnn_autotune": True},
    "TF32": {"tf32": "auto"},
    "TF32, timed": {"tf32": "auto", "cudnn_autotune": True},
    "TF32, in any order": {"tf32": "auto", "deterministic": False},
}
"""Settings to measure with."""


def ours(device: Device, sizes: tuple[int, ...]) -> Net:
    """A convolution as a net whose layer our own kernels run."""
    n, c, size, m, kernel, stride, pad, groups = sizes
    window = f"kernel_size: {kernel} stride: {stride} pad: {pad} group: {groups}"
    text = f"""
force_backward: true
{gpu_nets.inputs(n, c, size, size)}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {{
  num_output: {m} {window} weight_filler {{ type: "xavier" }} }} }}
"""
    net = Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=1)
    rng = np.random.default_rng(0)
    net.blobs["data"].mutable_cpu_data()[...] = rng.normal(size=net.blobs["data"].shape)
    net.blobs["conv"].mutable_cpu_diff()[...] = rng.normal(size=net.blobs["conv"].shape)
    with settings.override(cudnn=False):
        net.forward()
        net.backward(-1)
    return net


def geometry(net: Net) -> ConvGeometry:
    """The sizes of the net's convolution."""
    op = net.plan.entries[net.layer_names.index("conv")].layer.op
    assert isinstance(op, ops.Conv)
    return ConvGeometry.of(op)


def convolutions(device: Device, dry: bool) -> dict[str, Any]:
    """Milliseconds of each layer and product, and how far cuDNN's are from ours."""
    found: dict[str, Any] = {}
    layers = {"tiny": (2, 4, 9, 6, 3, 1, 1, 2)} if dry else LAYERS
    for name, sizes in layers.items():
        net = ours(device, sizes)
        index = net.layer_names.index("conv")
        found[name] = {
            "our forward": timed(device, lambda n=net, i=index: n.forward(i, i), 10) / 1e3,
            "our backward": timed(device, lambda n=net, i=index: n.backward(i, i), 10) / 1e3,
        }
        net.clear_param_diffs()
        net.backward(-1)
        for way, chosen in WAYS.items():
            with settings.override(**chosen):
                for label, convolution in products(net).items():
                    found[name][f"{label}, {way}"] = against(device, net, convolution)
    return found


def products(net: Net) -> dict[str, Convolution]:
    """The products of the net's convolution, by what they are called."""
    shape = geometry(net)
    found = {
        f"map{appended}": Convolution("maps", shape, "float32", **options)
        for appended, options in APPENDED.items()
    }
    found["image"] = Convolution("image", shape, "float32")
    found["weight"] = Convolution("weight", shape, "float32")
    return found


def against(device: Device, net: Net, convolution: Convolution) -> dict[str, Any]:
    """Time a product, and hold its result against what the net has computed."""
    data, conv, (weight, bias) = net.blobs["data"], net.blobs["conv"], net.learnable_params
    wanted = {
        "maps": conv.gpu_data(), "image": data.gpu_diff(), "weight": weight.gpu_diff(),
    }[convolution.result]  # fmt: skip
    if convolution.relu:
        wanted = wanted * (wanted > 0)
    arrays = {"image": data.gpu_data(), "weight": weight.gpu_data(), "maps": conv.gpu_diff()}
    arrays[convolution.result] = wanted * 0
    with device.backend.enter():
        engine = device.backend.engine
        try:
            prepared = engine.prepare_convolution(convolution)
        except Declined as declined:
            return {"none": str(declined)}
        appended = bias.gpu_data() if convolution.bias else None
        [workspace] = engine.scratch("uint8", prepared.workspace)
        given = (*(arrays[name] for name in ("image", "weight", "maps")), appended, workspace)
        spent = timed(device, lambda: prepared.run(*given), 10)
    gap = float(abs(arrays[convolution.result] - wanted).max() / abs(wanted).max())
    return {
        "milliseconds": spent / 1e3,
        "relative difference": gap,
        "code": prepared.code,
        "workspace": prepared.workspace,
    }


def not_finite(device: Device, dry: bool) -> dict[str, Any]:
    """What cuDNN's ReLU after a convolution makes of NaN and minus infinity; Caffe's makes NaN."""
    del dry
    if not status().loaded:
        return {"none": status().reason}
    cupy = import_module("cupy")
    net = ours(device, (2, 4, 8, 4, 1, 1, 0, 1))
    convolution = Convolution("maps", geometry(net), "float32", bias=True, relu=True)
    shapes, found = convolution.shapes, {}
    with settings.override(tf32=True), device.backend.enter():
        engine = device.backend.engine
        prepared = engine.prepare_convolution(convolution)
        [workspace] = engine.scratch("uint8", prepared.workspace)
        for name in ("nan", "-inf"):
            image = cupy.full(shapes["image"], float(name), "float32")
            weight = cupy.full(shapes["weight"], 1, "float32")
            maps, bias = cupy.empty(shapes["maps"], "float32"), cupy.zeros(4, "float32")
            prepared.run(image, weight, maps, bias, workspace)
            found[name] = str(float(maps.ravel()[0]))
    return {**found, "code": prepared.code}
