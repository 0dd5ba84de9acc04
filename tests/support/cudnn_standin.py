"""A stand-in for cuDNN's frontend: the module ``cudnn``, as far as we use it, on the host.

It takes the graphs that the real one takes, refuses what that refuses, and computes them by their
definition on the memory at the addresses it is given. ``Frontend()`` is a new one, with plans of
its own making; what it was asked is in ``asked``. That the real one has all that is used here is
tested in test_cudnn_wheel.py.
"""

import ctypes
import json
import math
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from types import ModuleType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from demitasse.backends.storage import ARRAYS, narrowed, widen_into

DataType = Enum("data_type", ["FLOAT", "DOUBLE", "HALF", "BFLOAT16", "NOT_SET"])
HeurMode = Enum("heur_mode", ["A", "B", "FALLBACK"])
KnobType = Enum("knob_type", ["NOT_SET", "TILE_SIZE", "SPLIT_K", "WORKSPACE"])
Note = Enum(
    "numerical_note",
    ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC"],
)
TYPES = {DataType.FLOAT: np.float32, DataType.DOUBLE: np.float64}
NARROW = {DataType.HALF: "half", DataType.BFLOAT16: "bfloat16"}


class cudnnGraphNotSupportedError(Exception):
    pass


@dataclass(frozen=True)
class Plan:
    """One way to compute a graph.

    Attributes:
        engine: Its number.
        notes: What it does to numbers.
        knobs: Its knobs.
        workspace: Bytes of scratch memory that it overwrites.
        mode: Which heuristics name it.
    """

    engine: int
    notes: frozenset[Note] = frozenset()
    knobs: dict[KnobType, int] = field(default_factory=dict)
    workspace: int = 0
    mode: HeurMode = HeurMode.A

    @property
    def name(self):
        return "_".join([f"eng{self.engine}", *(f"k{k.value}={n}" for k, n in self.knobs.items())])


FAST = Plan(67, frozenset({Note.TENSOR_CORE}), {KnobType.TILE_SIZE: 5}, 1000)
LARGE = Plan(38, workspace=1 << 40)
UNSTEADY = Plan(7, frozenset({Note.NONDETERMINISTIC}), {KnobType.NOT_SET: 3}, workspace=77)
"""A plan with a knob that the frontend has no name for."""

STEADY = Plan(1, knobs={KnobType.SPLIT_K: 2}, workspace=288, mode=HeurMode.FALLBACK)
SLOW = Plan(0, mode=HeurMode.FALLBACK)
FUSED = Plan(51, frozenset({Note.TENSOR_CORE}), workspace=400)
FUSED_SLOW = Plan(11, mode=HeurMode.FALLBACK)

PLANS = {
    "maps": [FAST, LARGE, STEADY, SLOW],
    "image": [FAST, UNSTEADY, STEADY, SLOW],
    "weight": [FAST, UNSTEADY, STEADY, SLOW],
    "fused": [FUSED, FUSED_SLOW],
}
"""By what a graph computes; much as cuDNN 9.28 has them for an H200."""


class Properties:
    def __init__(self, text):
        self.text = text

    def serialize(self):
        return self.text


@dataclass
class Handle:
    stream: int = 0


class Tensor:
    """A tensor of a graph; nothing of it is inferred."""

    def __init__(self, dim=None, stride=None, data_type=None, uid=None):
        self.dim, self.stride, self.data_type, self.uid = dim, stride, data_type, uid
        self.output = False

    def set_dim(self, dim):
        self.dim = dim

    def set_stride(self, stride):
        self.stride = stride

    def set_data_type(self, data_type):
        self.data_type = data_type

    def set_uid(self, uid):
        self.uid = uid

    def set_output(self, output):
        self.output = output

    def at(self, address):
        """The array at an address, as it is kept."""
        kind = NARROW.get(self.data_type)
        dtype = np.dtype(ARRAYS[kind] if kind else TYPES[self.data_type])
        memory = (ctypes.c_char * (math.prod(self.dim) * dtype.itemsize)).from_address(address)
        strides = [dtype.itemsize * step for step in self.stride]
        return as_strided(np.frombuffer(memory, dtype), self.dim, strides)

    def read(self, address):
        """The values at an address."""
        kept, kind = self.at(address), NARROW.get(self.data_type)
        if kind is None:
            return kept
        wide = np.empty(kept.shape, np.float32)
        widen_into(kept, kind, wide)
        return wide

    def write(self, address, values):
        """Write values to an address, rounded to what is kept there."""
        kind = NARROW.get(self.data_type)
        self.at(address)[...] = narrowed(values, kind) if kind else values

    def check(self):
        assert self.dim is not None
        assert self.data_type in TYPES or self.data_type in NARROW
        assert self.last or self.stride == _dense(self.dim), "neither C order nor channels last"

    @property
    def last(self):
        """Whether it has channels last."""
        n, c, *spatial = self.dim
        outer, *inner, one = _dense([n, *spatial, c])
        return self.stride == [outer, one, *inner]


def _dense(dim):
    """The strides of C order."""
    return [math.prod(dim[axis + 1 :]) for axis in range(len(dim))]


class Graph:
    """As ``cudnn.pygraph``."""

    def __init__(
        self, frontend, io_data_type, intermediate_data_type, compute_data_type, device_property
    ):
        assert intermediate_data_type is compute_data_type
        assert compute_data_type is (DataType.FLOAT if io_data_type in NARROW else io_data_type)
        assert isinstance(device_property, Properties)
        self.frontend, self.dtype = frontend, compute_data_type
        self.inputs, self.operations, self.plans = [], [], None
        self.barred, self.built, self.state = set(), None, "new"

    def tensor(self, name, dim, stride, data_type, uid):
        assert name
        made = Tensor(dim, stride, data_type, uid)
        self.inputs.append(made)
        return made

    def conv_fprop(self, image, weight, padding, stride, dilation):
        return self._operation("maps", (image, weight), (padding, stride, dilation))

    def conv_dgrad(self, loss, filter, padding, stride, dilation):
        return self._operation("image", (loss, filter), (padding, stride, dilation))

    def conv_wgrad(self, image, loss, padding, stride, dilation):
        return self._operation("weight", (image, loss), (padding, stride, dilation))

    def bias(self, input, bias):
        return self._operation("bias", (input, bias))

    def relu(self, input):
        return self._operation("relu", (input,))

    def _operation(self, name, inputs, window=None):
        assert self.state == "new"
        result = Tensor()
        self.operations.append((name, inputs, result, window))
        return result

    @property
    def _kind(self):
        """Which of ``PLANS`` it has."""
        return "fused" if len(self.operations) > 1 else self.operations[0][0]

    def validate(self):
        for _, inputs, result, _ in self.operations:
            for tensor in (*inputs, result):
                tensor.check()
                if len(tensor.dim) not in {4, 5}:
                    raise ValueError("a tensor of a convolution has 4 or 5 axes")
        tensors = [one for _, inputs, result, _ in self.operations for one in (*inputs, result)]
        plain = all(one.stride == _dense(one.dim) for one in tensors)
        assert plain or all(one.last for one in tensors), "one layout for all tensors"
        assert [result.output for *_, result, _ in self.operations][-1] is True
        self.state = "valid"

    def build_operation_graph(self):
        assert self.state == "valid"
        name, inputs, result, window = self.operations[0]
        image, weight, maps = _three(name, inputs, result)
        for axis, (pad, step, spread) in enumerate(zip(*window, strict=True), 2):
            span = image.dim[axis] + 2 * pad - spread * (weight.dim[axis] - 1) - 1
            if maps.dim[axis] != span // step + 1:
                raise RuntimeError("detail::finalize failed with message: is_valid_spatial_dim")
        if [name for name, *_ in self.operations][1:] == ["relu"]:
            raise RuntimeError("no engine takes a ReLU without a bias")
        self.state = "described"

    def create_execution_plans(self, heuristics):
        assert self.state == "described"
        self.frontend.asked.append(self._kind)
        found = [plan for plan in self.frontend.plans[self._kind] if plan.mode in heuristics]
        if not found:
            raise cudnnGraphNotSupportedError("no engine proposed a plan for this graph\nbecause")
        self.plans = found

    def create_execution_plan(self, engine_id, knobs):
        assert self.state == "described"
        assert all(isinstance(knob, KnobType) for knob in knobs)
        if KnobType.NOT_SET in knobs:
            raise RuntimeError("convert_to_backend_knob_type(type, backend_type) failed")
        for plan in self.frontend.plans[self._kind]:
            if (plan.engine, plan.knobs) == (engine_id, knobs):
                self.plans = [plan]
                return
        raise RuntimeError("Invalid engine id.")

    def deselect_numeric_notes(self, notes):
        assert self.plans is not None, "before there are plans, nothing is deselected"
        self.barred |= set(notes)

    def get_execution_plan_count(self):
        return len(self.plans)

    def build_plan_at_index(self, index):
        if self.plans[index].notes & self.barred:
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        if self.plans[index].engine in self.frontend.broken:
            raise cudnnGraphNotSupportedError("cudnnFinalize Descriptor Failed")
        self.built = self.plans[index]

    def get_plan_name_at_index(self, index):
        return self.plans[index].name

    def get_engine_and_knobs_at_index(self, index):
        return self.plans[index].engine, dict(self.plans[index].knobs)

    def get_workspace_size(self):
        return self.built.workspace

    def get_workspace_size_plan_at_index(self, index):
        return self.plans[index].workspace

    def execute(self, tensor_dict, workspace, handle):
        if self.frontend.failing:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        self.frontend.executed.append((self._kind, self.built.engine, handle))
        known = {one.uid: one for one in self.inputs}
        known |= {result.uid: result for *_, result, _ in self.operations if result.output}
        assert set(tensor_dict) >= set(known)
        built, addresses = self.built, dict(tensor_dict)

        def work():
            ctypes.memset(workspace, 255, built.workspace)
            self._compute(built, known, addresses)

        self.frontend.submit(handle.stream, work)

    def _compute(self, built, known, addresses):
        arrays = {one: one.read(addresses[one.uid]) for one in self.inputs}
        floats = all(one.data_type is DataType.FLOAT for one in self.inputs)
        rough = Note.TENSOR_CORE in built.notes and floats
        for name, inputs, result, window in self.operations:
            given = [arrays[one] for one in inputs]
            if window is not None:
                given = [_tf32(one) for one in given] if rough else given
                shapes = [one.dim for one in _three(name, inputs, result)]
                computed = COMPUTES[name](*given, shapes, *window)
            else:
                computed = np.maximum(given[0], 0) if name == "relu" else given[0] + given[1]
            computed = computed.astype(TYPES[self.dtype])
            arrays[result] = computed
            if result.output:
                result.write(addresses[result.uid], computed)


class Frontend(ModuleType):
    """As the module ``cudnn``.

    Attributes:
        plans: What its heuristics name, by what a graph computes.
        broken: Engines that cannot be built.
        failing: Whether whatever is executed fails.
        asked: What heuristics were asked for, one by one.
        executed: What was computed, by which engine and with which handle.
        handles: All that were made.
        submit: Is given a stream and what is to be computed on it; computes it at once.
    """

    __version__ = "1.32.0"
    data_type, heur_mode, knob_type, numerical_note = DataType, HeurMode, KnobType, Note
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError  # noqa: N815 - the frontend's name

    def __init__(self, version=92801, gpu="NVIDIA H200"):
        super().__init__("cudnn")
        self.version, self.gpu = version, gpu
        self.plans = {kind: list(plans) for kind, plans in PLANS.items()}
        self.broken, self.failing = set(), False
        self.asked, self.executed, self.handles = [], [], []
        self.submit = lambda stream, work: work()

    def backend_version(self):
        return self.version

    def create_device_properties(self, number):
        assert type(number) is int
        return Properties(json.dumps({"deviceName": self.gpu, "cudaDeviceId": number}))

    def create_handle(self):
        self.handles.append(Handle())
        return self.handles[-1]

    def set_stream(self, handle, stream):
        handle.stream = stream

    def pygraph(self, **options):
        return Graph(self, **options)


def _three(name, inputs, result):
    """Image, weight and maps of a convolution."""
    match name:
        case "maps":
            return inputs[0], inputs[1], result
        case "image":
            return result, inputs[1], inputs[0]
    return inputs[0], result, inputs[1]


def _tf32(array):
    """The array with ten bits of mantissa."""
    return (np.ascontiguousarray(array).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _taps(shapes, padding, stride, dilation):
    """For every tap of the window: its index, and what it sees of the padded image."""
    image, weight, maps = shapes
    padded = [n + 2 * p for n, p in zip(image[2:], padding, strict=True)]
    inside = tuple(slice(p, p + n) for n, p in zip(image[2:], padding, strict=True))
    seen = []
    for tap in product(*map(range, weight[2:])):
        spots = zip(tap, dilation, stride, maps[2:], strict=True)
        seen.append((tap, tuple(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in spots)))
    return padded, inside, seen


def _groups(shapes):
    """For every group: its channels of the image, and its channels of the map."""
    image, weight, maps = shapes
    depth = weight[1]
    count = image[1] // depth
    width = maps[1] // count
    return [
        (slice(g * depth, (g + 1) * depth), slice(g * width, (g + 1) * width)) for g in range(count)
    ]


def _fprop(image, weight, shapes, *window):
    padded, inside, taps = _taps(shapes, *window)
    canvas = np.zeros((*image.shape[:2], *padded))
    canvas[(..., *inside)] = image
    maps = np.zeros(shapes[2])
    for channels, own in _groups(shapes):
        for tap, spots in taps:
            part, weights = canvas[(slice(None), channels, *spots)], weight[(own, ..., *tap)]
            maps[:, own] += np.einsum("nc...,mc->nm...", part, weights)
    return maps


def _dgrad(maps, weight, shapes, *window):
    padded, inside, taps = _taps(shapes, *window)
    canvas = np.zeros((*shapes[0][:2], *padded))
    for channels, own in _groups(shapes):
        for tap, spots in taps:
            part = np.einsum("nm...,mc->nc...", maps[:, own], weight[(own, ..., *tap)])
            canvas[(slice(None), channels, *spots)] += part
    return canvas[(..., *inside)]


def _wgrad(image, maps, shapes, *window):
    padded, inside, taps = _taps(shapes, *window)
    canvas = np.zeros((*image.shape[:2], *padded))
    canvas[(..., *inside)] = image
    weight = np.zeros(shapes[1])
    for channels, own in _groups(shapes):
        for tap, spots in taps:
            part = canvas[(slice(None), channels, *spots)]
            sums = np.einsum("nm...,nc...->mc...", maps[:, own], part)
            weight[(own, slice(None), *tap)] = sums.sum(axis=tuple(range(2, sums.ndim)))
    return weight


COMPUTES = {"maps": _fprop, "image": _dgrad, "weight": _wgrad}
