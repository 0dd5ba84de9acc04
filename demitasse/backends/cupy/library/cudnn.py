"""Convolutions by cuDNN: graphs, plans and their cache.

Every tensor has an explicit number, shape and strides: cuDNN would infer an output with channels
last, and cannot infer the size of a gradient.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.convolutions import Convolution, Rival, rounds_to_tf32
from demitasse.backends.cupy.library.cudnn_library import cudnn
from demitasse.backends.cupy.library.handles import Handle
from demitasse.backends.kernel_cache import read_code, write_code
from demitasse.backends.step import Declined, decline_if
from demitasse.backends.storage import ARRAYS, array_dtype
from demitasse.core.config import settings
from demitasse.errors import DeviceError, ErrorCode

if TYPE_CHECKING:
    from demitasse.backends.cupy.library.engine import Engine

NUMBERS = {"image": 1, "weight": 2, "maps": 3, "bias": 4}  # numbers of the tensors
MOST_AXES = 3  # spatial axes that cuDNN knows, at most

DTYPES = {"float32": "FLOAT", "float64": "DOUBLE", "half": "HALF", "bfloat16": "BFLOAT16"}


def graph_of(cudnn: ModuleType, convolution: Convolution, properties: Any) -> Any:
    """Return the graph of a convolution, checked and without a plan; may raise Declined."""
    window, axes = convolution.geometry.window, len(convolution.geometry.spatial)
    decline_if(window.after, "other pads after the axes than before")
    decline_if(axes > MOST_AXES, f"{axes} spatial axes; cuDNN convolves over {MOST_AXES} at most")
    some = all(map(math.prod, convolution.shapes.values()))
    decline_if(not some, "no elements; cuDNN takes no empty arrays")
    dtype = getattr(cudnn.data_type, DTYPES[convolution.dtype])
    # what is kept in 16 bits is added up, and has its bias, in float32
    computed = cudnn.data_type.FLOAT if convolution.dtype in ARRAYS else dtype
    graph = cudnn.pygraph(
        io_data_type=dtype,
        intermediate_data_type=computed,
        compute_data_type=computed,
        device_property=properties,
    )
    missing = max(0, 2 - axes)  # cuDNN needs two spatial axes; one axis is a width
    fields = (("padding", window.pad, 0), ("stride", window.stride, 1))
    sizes = {
        name: [*[neutral] * missing, *values]
        for name, values, neutral in (*fields, ("dilation", window.dilation, 1))
    }
    shapes: dict[str, list[int]] = {
        name: [*shape[:2], *[1] * missing, *shape[2:]] for name, shape in convolution.shapes.items()
    }
    shape = shapes[convolution.result]
    shapes["bias"] = [1, shape[1], *[1] * (len(shape) - 2)]

    def tensor_of(name: str, dtype: Any = dtype) -> Any:
        """Return a tensor that the graph reads."""
        dims, number = shapes[name], NUMBERS[name]
        strides = _strides(dims, last=convolution.last)
        return graph.tensor(name=name, dim=dims, stride=strides, data_type=dtype, uid=number)

    def computes(tensor: Any, dtype: Any) -> Any:
        """Return a tensor that the graph computes, of the result's shape."""
        tensor.set_dim(shape)
        tensor.set_stride(_strides(shape, last=convolution.last))
        tensor.set_data_type(dtype)
        return tensor

    match convolution.result:
        case "maps":
            result = graph.conv_fprop(image=tensor_of("image"), weight=tensor_of("weight"), **sizes)
        case "image":
            result = graph.conv_dgrad(loss=tensor_of("maps"), filter=tensor_of("weight"), **sizes)
        case "weight":
            result = graph.conv_wgrad(image=tensor_of("image"), loss=tensor_of("maps"), **sizes)
    if convolution.bias:
        bias = tensor_of("bias", computed)
        result = graph.bias(input=computes(result, computed), bias=bias)
    if convolution.relu:
        result = graph.relu(input=computes(result, computed))
    computes(result, dtype)
    result.set_output(True)
    result.set_uid(NUMBERS[convolution.result])
    graph.validate()
    graph.build_operation_graph()
    return graph


def _strides(shape: list[int], *, last: bool) -> list[int]:
    """Return the strides of a dense array, with channels last or in C order, in elements."""
    if not last:
        return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    samples, places, _ = _strides([shape[0], math.prod(shape[2:]), shape[1]], last=False)
    return [samples, 1, *(places * stride for stride in _strides(shape[2:], last=False))]


MOST_TIMED = 8  # greatest number of plans to time, in cuDNN's order of recommendation

Clock = Callable[[Any, Convolution], float]
"""Returns the time that a built graph takes to compute a convolution."""

RIVAL = "rival"  # name of a choice that is none of cuDNN's plans


@dataclass(frozen=True)
class Rules:
    """Options of plans.

    Attributes:
        tf32: True if float32 may be rounded to TF32 on the way.
        deterministic: True if results must be the same bits in every run.
        most_workspace: Scratch memory that one may use, in bytes.
        timed: True for the fastest of several plans, False for the plan that cuDNN recommends.
        narrow: True if values are kept in 16 bits: tensor cores then compute exact products.
    """

    tf32: bool
    deterministic: bool
    most_workspace: int
    timed: bool
    narrow: bool = False

    def notes(self, cudnn: ModuleType) -> list[Any]:
        """Return the frontend's notes of plans that these rules exclude."""
        note = cudnn.numerical_note
        rounding = [note.DOWN_CONVERT_INPUTS, note.REDUCED_PRECISION_REDUCTION]
        if not (self.narrow or self.tf32):
            rounding.insert(0, note.TENSOR_CORE)
        return rounding + [note.NONDETERMINISTIC] * self.deterministic


@dataclass(frozen=True)
class Choice:
    """A plan by cuDNN's name, ``"eng28_k2=4_k3=0"``, engine and knobs; None for unnamed knobs."""

    name: str
    engine: int
    knobs: Mapping[str, int] | None

    @classmethod
    def of(cls, cudnn: ModuleType, graph: Any, index: int) -> Choice:
        """Return one of a graph's plans."""
        engine, found = graph.get_engine_and_knobs_at_index(index)
        knobs = {knob.name: int(value) for knob, value in found.items()}
        unnamed = cudnn.knob_type.NOT_SET in found
        return cls(graph.get_plan_name_at_index(index), engine, None if unnamed else knobs)

    def text(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, text: bytes) -> Choice | None:
        """Return the choice in a JSON text; None for other texts."""
        try:
            found = json.loads(text)
            name, engine, knobs = (found[key] for key in ("name", "engine", "knobs"))
            numbers = [engine, *(() if knobs is None else knobs.values())]
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None
        right = isinstance(name, str) and all(type(n) is int for n in numbers)
        return cls(name, engine, knobs) if right else None


class Plans:
    """Graphs with a plan, for one GPU; ``clock`` times a plan."""

    def __init__(self, cudnn: ModuleType, properties: Any, clock: Clock) -> None:
        self._cudnn, self._properties, self._clock = cudnn, properties, clock
        versions = f"{cudnn.__version__} {cudnn.backend_version()}"
        self._place = f"{versions} {properties.serialize()}"
        self._choices: dict[str, Choice] = {}
        self._refusals = (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError)

    def graph(
        self, convolution: Convolution, rules: Rules, rival: Callable[[], float] | None = None
    ) -> tuple[Any, Choice]:
        """Return a graph ready to be executed, and its plan.

        Decline if no plan keeps the rules, or if ``rival``, the time of other code, is shorter.
        """
        name = self.name(convolution, rules)
        choice = self._choices.get(name)
        if choice is None and (text := read_code(name)) is not None:
            choice = Choice.read(text)
        graph = None if choice is None else self._rebuild(convolution, rules, choice)
        if choice is None or (graph is None and choice.name != RIVAL):
            graph, choice = self._chosen(convolution, rules, rival)
            write_code(name, choice.text())
        self._choices[name] = choice
        why = "our own kernels take less time than the plans of cuDNN"
        decline_if(choice.name == RIVAL, why)
        return graph, choice

    def name(self, convolution: Convolution, rules: Rules) -> str:
        """Return the file name of a choice: a digest of the device, convolution and rules."""
        about = [self._place, asdict(convolution), asdict(rules)]
        return f"cudnn-{hashlib.sha256(json.dumps(about).encode()).hexdigest()}.json"

    def _rebuild(self, convolution: Convolution, rules: Rules, choice: Choice) -> Any | None:
        """Return a graph with a plan that was chosen before; None if the plan cannot be built."""
        cudnn = self._cudnn
        if choice.name == RIVAL:
            return None
        try:
            graph = graph_of(cudnn, convolution, self._properties)
            if choice.knobs is None:
                graph.create_execution_plans(self._modes(convolution))
            else:
                knobs = {getattr(cudnn.knob_type, knob): n for knob, n in choice.knobs.items()}
                graph.create_execution_plan(choice.engine, knobs)
            graph.deselect_numeric_notes(rules.notes(self._cudnn))
            count = graph.get_execution_plan_count()
            names = [graph.get_plan_name_at_index(index) for index in range(count)]
            graph.build_plan_at_index(names.index(choice.name))
        except (*self._refusals, AttributeError, OverflowError):
            return None
        return graph if graph.get_workspace_size() <= rules.most_workspace else None

    def _chosen(
        self, convolution: Convolution, rules: Rules, rival: Callable[[], float] | None
    ) -> tuple[Any, Choice]:
        """Return a graph with the first plan that cuDNN recommends, or the fastest one."""
        try:
            graph = graph_of(self._cudnn, convolution, self._properties)
            graph.create_execution_plans(self._modes(convolution))
            graph.deselect_numeric_notes(rules.notes(self._cudnn))
            best, time = self._best(graph, convolution, rules)
        except self._refusals as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            message = f"cuDNN has no plan for it ({first})"
            raise Declined(message) from error
        if best is None:
            rounding = "" if rules.tf32 else " without TF32"
            repeatable = ", the same bits in every run" if rules.deterministic else ""
            message = (
                f"no plan of cuDNN's{rounding}{repeatable} and with a workspace of at most "
                f"{rules.most_workspace} bytes"
            )
            raise Declined(message)
        if rules.timed and rival is not None and rival() < time:
            return None, Choice(RIVAL, -1, None)
        graph.build_plan_at_index(best)
        return graph, Choice.of(self._cudnn, graph, best)

    def _modes(self, convolution: Convolution) -> list[Any]:
        """Return the heuristics by which cuDNN lists plans.

        Our own kernels can add a bias or a ReLU, too. So cuDNN's plans for both are used only if
        they are recommended for their speed, and not as a fallback.
        """
        mode = self._cudnn.heur_mode
        return [mode.A] if convolution.bias or convolution.relu else [mode.A, mode.FALLBACK]

    def _best(self, graph: Any, convolution: Convolution, rules: Rules) -> tuple[int | None, float]:
        """Return the index of the best plan, or None without one, and its time; 0 if not timed."""
        working = self._working(graph, rules)
        if not rules.timed:
            return next(working, None), 0.0
        times: dict[int, float] = {}
        for index in working:
            times[index] = self._clock(graph, convolution)
            if len(times) == MOST_TIMED:
                break
        best = min(times, key=times.__getitem__, default=None)
        return best, 0.0 if best is None else times[best]

    def _working(self, graph: Any, rules: Rules) -> Iterator[int]:
        """Yield the indices of the plans that can be built, each one built."""
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except self._refusals:
                continue
            if graph.get_workspace_size_plan_at_index(index) <= rules.most_workspace:
                yield index


class Cudnn:
    """cuDNN on one GPU, which must be the current one in every call.

    Every thread has a handle of its own, and every Step a graph: a graph's own memory is written
    while it is executed. ``number`` is the index of the GPU among those that CUDA shows.

    Raises:
        Declined: cuDNN or its frontend cannot be loaded, or does not know the GPU.
    """

    def __init__(self, device: Engine, number: int) -> None:
        self._frontend, self.device, self._local = cudnn(), device, threading.local()
        self._idle: list[Any] = []
        try:
            properties = self._frontend.create_device_properties(number)
        except RuntimeError as error:
            message = f"cuDNN does not take this GPU ({error})"
            raise Declined(message) from error
        self._plans = Plans(self._frontend, properties, self._time)

    def prepare(self, convolution: Convolution, rival: Rival | None = None) -> Executable:
        """Return a convolution ready to run; see ``Engine.prepare_convolution``."""
        rules = Rules(
            tf32=rounds_to_tf32(), deterministic=bool(settings.get("deterministic")),
            most_workspace=self.device.column_budget, timed=bool(settings.get("cudnn_autotune")),
            narrow=convolution.dtype in ARRAYS,
        )  # fmt: skip
        other = None if rival is None else partial(self._time_rival, rival, convolution)
        graph, choice = self._plans.graph(convolution, rules, other)
        self.handle()  # so that none is made while a CUDA graph is recorded
        return Executable(self, graph, choice.engine, int(graph.get_workspace_size()))

    def handle(self) -> Any:
        """Return the calling thread's handle, on the stream that is current."""
        if not hasattr(self._local, "handle"):
            self._local.handle = Handle(self._idle, self._frontend.create_handle)
        handle = self._local.handle.value
        self._frontend.set_stream(handle=handle, stream=self.device.stream())
        return handle

    def _time(self, graph: Any, convolution: Convolution) -> float:
        """Return the milliseconds that a built graph takes, on new arrays."""
        device, (image, weight, maps) = self.device, self._arrays(convolution)
        wide = "float32" if convolution.dtype in ARRAYS else convolution.dtype
        bias = device.empty(convolution.geometry.maps, wide) if convolution.bias else None
        one = Executable(self, graph, 0, int(graph.get_workspace_size()))
        [workspace] = device.scratch("uint8", one.workspace)
        return device.elapsed(lambda: one.run(image, weight, maps, bias, workspace))

    def _time_rival(self, rival: Rival, convolution: Convolution) -> float:
        """Return the milliseconds that other code takes, on new arrays."""
        return self.device.elapsed(partial(rival, *self._arrays(convolution)))

    def _arrays(self, convolution: Convolution) -> list[Array]:
        """Return memory for image, weight and maps."""
        dtype, empty = array_dtype(convolution.dtype), self.device.empty
        return [empty(math.prod(s), dtype).reshape(s) for s in convolution.shapes.values()]


@dataclass(frozen=True)
class Executable:
    """A graph with a plan, by the number of its engine; ``workspace`` is in bytes."""

    library: Cudnn
    graph: Any
    engine: int
    workspace: int

    @property
    def code(self) -> str:
        """Name of the code: "cuDNN:67"."""
        return f"cuDNN:{self.engine}"

    def run(
        self, image: Array, weight: Array, maps: Array, bias: Array | None, workspace: Array
    ) -> None:
        """Queue the convolution on the current stream, without allocating memory or waiting."""
        address = self.library.device.address
        arrays = (image, weight, maps, *(() if bias is None else (bias,)))
        tensors = {number: address(array) for number, array in enumerate(arrays, start=1)}
        try:
            self.graph.execute(tensors, address(workspace), handle=self.library.handle())
        except RuntimeError as error:
            message = f"cuDNN failed: {error}"
            raise DeviceError(message, code=ErrorCode.FAILED, library="cuDNN") from error
