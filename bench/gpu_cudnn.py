"""Convolution by cuDNN's Python frontend against our own: is a provider worth having?

An experiment, not part of the package: the frontend's interface changes from month to month.
"""

from importlib import import_module
from typing import Any

import gpu_nets
import numpy as np
from gpu_times import timed

from demitasse import Net
from demitasse.device import Device
from demitasse.proto import NetParameter, parse_text

__all__ = ["convolutions", "facts"]

LAYERS = {
    # name: samples, channels, size, outputs, kernel, stride, pad, groups
    "caffenet conv1": (256, 3, 227, 96, 11, 4, 0, 1),
    "caffenet conv2": (256, 96, 27, 256, 5, 1, 2, 2),
    "caffenet conv3": (256, 256, 13, 384, 3, 1, 1, 1),
    "resnet 3x3": (64, 64, 56, 64, 3, 1, 1, 1),
    "resnet 1x1": (64, 256, 56, 64, 1, 1, 0, 1),
}

KINDS = ("forward", "image", "weight")


def facts(device: Device, dry: bool) -> dict[str, Any]:
    """Versions of the frontend and the library, and the properties it sees of the GPU."""
    del device
    cudnn = import_module("cudnn")
    found: dict[str, Any] = {"frontend": cudnn.__version__, "library": cudnn.backend_version()}
    if not dry:
        found["device"] = bytes(cudnn.create_device_properties(0).serialize()).decode()
    return found


class Graph:
    """One convolution, or one of its gradients, as a cuDNN graph. Arrays are NCHW, float32.

    Args:
        kind: "forward", "image" (gradient of the image) or "weight" (gradient of the weight).
        sizes: One of ``LAYERS``.
        exact: Leave out plans that round to TF32.
        handle: cuDNN's, or None to describe the graph alone.
    """

    def __init__(self, kind: str, sizes: tuple[int, ...], *, exact: bool, handle: Any) -> None:
        cudnn = import_module("cudnn")
        n, c, size, m, kernel, stride, pad, groups = sizes
        out = (size + 2 * pad - kernel) // stride + 1
        self.shapes = {
            "image": (n, c, size, size),
            "weight": (m, c // groups, kernel, kernel),
            "map": (n, m, out, out),
        }
        real = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            io_data_type=real, intermediate_data_type=real, compute_data_type=real, handle=handle
        )
        self.uids = {name: i for i, name in enumerate(self.shapes, start=1)}
        window = {"padding": [pad] * 2, "stride": [stride] * 2, "dilation": [1, 1]}
        if kind == "forward":
            image, weight = self.tensor("image", real), self.tensor("weight", real)
            made, name = self.graph.conv_fprop(image=image, weight=weight, **window), "map"
        elif kind == "image":
            loss, weight = self.tensor("map", real), self.tensor("weight", real)
            made, name = self.graph.conv_dgrad(loss=loss, filter=weight, **window), "image"
        else:
            image, loss = self.tensor("image", real), self.tensor("map", real)
            made, name = self.graph.conv_wgrad(image=image, loss=loss, **window), "weight"
        made.set_output(True).set_uid(self.uids[name]).set_dim(list(self.shapes[name]))
        made.set_stride(self.strides(name)).set_data_type(real)
        self.handle = handle
        if handle is not None:
            self.build(cudnn, exact)

    def tensor(self, name: str, real: Any) -> Any:
        """Describe an input."""
        return self.graph.tensor(
            name=name, dim=list(self.shapes[name]), stride=self.strides(name), data_type=real,
            uid=self.uids[name],
        )  # fmt: skip

    def strides(self, name: str) -> list[int]:
        """Return elements from one index to the next along each axis; unset, they mean NHWC."""
        _, c, h, w = self.shapes[name]
        return [c * h * w, h * w, w, 1]

    def build(self, cudnn: Any, exact: bool) -> None:
        """Check the graph, choose a plan and build it; this needs a GPU."""
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if exact:
            self.graph.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE])
        self.graph.check_support()
        self.graph.build_plans()

    def run(self, arrays: dict[str, Any], workspace: Any) -> None:
        """Queue it."""
        given = {self.uids[name]: array for name, array in arrays.items()}
        self.graph.execute(given, workspace, handle=self.handle)


def ours(device: Device, sizes: tuple[int, ...]) -> Net:
    """The same convolution as a net of our own."""
    n, c, size, m, kernel, stride, pad, groups = sizes
    window = f"kernel_size: {kernel} stride: {stride} pad: {pad} group: {groups}"
    text = f"""
force_backward: true
{gpu_nets.inputs(n, c, size, size)}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {{
  num_output: {m} {window} bias_term: false weight_filler {{ type: "xavier" }} }} }}
"""
    net = Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=1)
    rng = np.random.default_rng(0)
    net.blobs["data"].mutable_cpu_data()[...] = rng.normal(size=net.blobs["data"].shape)
    net.blobs["conv"].mutable_cpu_diff()[...] = rng.normal(size=net.blobs["conv"].shape)
    net.forward()
    net.backward()
    return net


def convolutions(device: Device, dry: bool) -> dict[str, Any]:
    """Milliseconds of each layer and direction, cuDNN's largest difference from ours."""
    cudnn = import_module("cudnn")
    if dry:
        graphs = [
            Graph(kind, sizes, exact=True, handle=None)
            for sizes in LAYERS.values()
            for kind in KINDS
        ]
        return {"graphs described": len(graphs)}
    cupy = import_module("cupy")
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=cupy.cuda.get_current_stream().ptr)
    found: dict[str, Any] = {}
    for name, sizes in LAYERS.items():
        net = ours(device, sizes)
        index = net.layer_names.index("conv")
        found[name] = {
            "our forward": timed(device, lambda n=net, i=index: n.forward(i, i), 10) / 1e3,
            "our backward": timed(device, lambda n=net, i=index: n.backward(i, i), 10) / 1e3,
        }
        net.clear_param_diffs()
        net.backward()
        for exact in (True, False):
            for kind in KINDS:
                graph = Graph(kind, sizes, exact=exact, handle=handle)
                label = f"cudnn {kind}, {'float32' if exact else 'TF32'}"
                found[name][label] = against(device, net, kind, graph)
    cudnn.destroy_handle(handle)
    return found


def against(device: Device, net: Net, kind: str, graph: Graph) -> dict[str, float]:
    """Time a graph, and hold its result against what the net has computed."""
    cupy = import_module("cupy")
    data, conv, weight = net.blobs["data"], net.blobs["conv"], net.learnable_params[0]
    arrays = {"image": data.gpu_data(), "weight": weight.gpu_data(), "map": conv.gpu_diff()}
    output, wanted = {
        "forward": ("map", conv.gpu_data()),
        "image": ("image", data.gpu_diff()),
        "weight": ("weight", weight.gpu_diff()),
    }[kind]
    arrays[output] = cupy.empty(graph.shapes[output], "float32")
    nbytes = graph.graph.get_workspace_size()
    workspace = cupy.empty(max(1, nbytes), "uint8")
    spent = timed(device, lambda: graph.run(arrays, workspace), 10)
    gap = float(abs(arrays[output] - wanted).max() / abs(wanted).max())
    return {"milliseconds": spent / 1e3, "relative difference": gap, "workspace": nbytes}
