"""Build a net from a message: read the arguments, create layers and blobs in Caffe's order.

Filter, insert splits, create, wire, set up, share parameters, find the layers that need backward.

Source: Caffe, ``Net::Init`` in ``src/caffe/net.cpp``.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from demitasse.backends.storage import STORAGES, Stored
from demitasse.blob import Blob
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.core.log import get_logger
from demitasse.core.out_of_memory import with_location
from demitasse.core.paths import is_text
from demitasse.core.threads import Pool, wanted_threads
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, PrototxtError
from demitasse.graph import (
    LayerSetup,
    Param,
    append_params,
    compute_backward_needs,
    filter_net,
    insert_splits,
    move_strides,
    moved_weight,
    moved_weights,
    raise_faults,
    wire,
)
from demitasse.io.proto import (
    LayerParameter,
    NetParameter,
    Phase,
    ReadNet,
    read_net,
    read_net_text,
    upgrade_net,
)
from demitasse.layers import Layer, LayerContext, create_layer
from demitasse.net.structure import LayerSequence, Structure

log = get_logger(__name__)

WORTH_THREADS = 1 << 18  # elements of parameters from which threads are faster than none


def read_source(
    source: str | os.PathLike[str] | NetParameter, ignore_unknown_fields: bool
) -> ReadNet:
    """Return the current form of a file, of prototxt in a string, or of a copy of a message."""
    if isinstance(source, NetParameter):
        param = deepcopy(source)
        upgrade_net(param)
        return ReadNet(param)
    if is_text(source):
        return read_net_text(source, ignore_unknown_fields=ignore_unknown_fields)
    if not isinstance(source, (str, bytes, os.PathLike)):
        kind = type(source).__name__
        message = f"got a {kind}, expected a prototxt or a message; give a NetSpec's to_proto()"
        raise PrototxtError(message, code=ErrorCode.INVALID, got=kind)
    return read_net(source, ignore_unknown_fields=ignore_unknown_fields)


def order_arguments(phase: Any, weights: Any) -> tuple[Any, Any]:
    """Return phase and weights, which pycaffe takes as ``Net(file, weights, phase)``, too."""
    if phase is None or _is_phase(phase) or not (weights is None or _is_phase(weights)):
        return phase, weights
    is_file = not isinstance(phase, (str, int)) or Path(str(phase)).suffix
    return (weights, phase) if is_file else (phase, weights)


def _is_phase(value: Any) -> bool:
    known = dict(Phase.items())
    return value.upper() in known if isinstance(value, str) else value in known.values()


def phase_number(phase: object) -> Any:
    """Return the number of a phase given by name or number, or raise a ConfigError."""
    known = dict(Phase.items())
    if str(phase).upper() in known:
        return known[str(phase).upper()]
    if phase in known.values():
        return phase
    message = f"got phase {phase!r}, expected TRAIN or TEST"
    raise ConfigError(message, code=ErrorCode.UNKNOWN, field="phase", got=phase)


NARROW_DTYPES: Mapping[str, Stored] = {"float16": "half", "bfloat16": "bfloat16"}
"""Storage of values by the ``dtype`` of 16 bits that asks for it."""


def resolve_dtype(dtype: str, storage: Stored | None) -> tuple[str, Stored | None]:
    """Return the compute dtype and the storage that two arguments ask for (ConfigError).

    Values of 16 bits are stored so, and computed with in float32.
    """
    wanted = NARROW_DTYPES.get(dtype)
    if wanted is None and dtype not in {"float32", "float64"}:
        message = f"got dtype {dtype!r}, expected float32, float64, float16 or bfloat16"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="dtype", got=dtype)
    if wanted is not None and storage not in (None, wanted):
        message = f"dtype {dtype!r} is storage {wanted!r}, and storage is {storage!r}; give one"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="dtype", got=dtype)
    return (dtype, storage) if wanted is None else ("float32", wanted)


def choose_storage(storage: Stored | None, device: Device, dtype: str, phase: str) -> Stored:
    """Return the storage of values on the device; None asks the settings (ConfigError)."""

    def fault(code: ErrorCode, message: str, **details: Any) -> ConfigError:
        return ConfigError(message, code=code, field="storage", got=chosen, **details)

    chosen: Stored = settings.get("gpu_storage_dtype") if storage is None else storage
    if chosen not in STORAGES:
        message = f"got storage {chosen!r}, expected one of {', '.join(STORAGES)}"
        raise fault(ErrorCode.UNKNOWN, message)
    by_argument = "".join(f" (dtype {d})" for d, s in NARROW_DTYPES.items() if s == chosen)
    asked = by_argument if storage is not None else f" ({settings.where('gpu_storage_dtype')})"
    if chosen not in device.backend.storages:
        has = ", ".join(device.backend.storages)
        message = (
            f"got storage {chosen!r}{asked}, expected one that {device} has: {has}; GPUs have all, "
            "cpu also half where kernels are compiled, and bfloat16 on processors with AVX512_BF16"
        )
        raise fault(ErrorCode.UNSUPPORTED, message)
    if chosen != "float" and phase == "TRAIN" and not device.backend.trains_narrow:
        message = (
            f"storage {chosen!r}{asked} of {device} is for nets of phase TEST; train with dtype "
            "float32 and storage 'float', the defaults"
        )
        raise fault(ErrorCode.UNSUPPORTED, message, phase=phase)
    if chosen != "float" and dtype != "float32":
        message = f"storage {chosen!r}{asked} is for nets of float32; got dtype {dtype}"
        raise fault(ErrorCode.CONFLICT, message, dtype=dtype)
    return chosen


def as_sequence(weights: Any) -> Iterable[Any]:
    """Return files or messages of weights as a sequence, from None, one or several."""
    if weights is None:
        return ()
    if isinstance(weights, (str, os.PathLike, NetParameter)):
        return (weights,)
    return tuple(weights)


def layer_label(layer: Layer | LayerParameter) -> str:
    """Return the name of a layer in messages: ``layer 'conv1' (Convolution)``."""
    return f"layer {layer.name!r} ({layer.type})"


def assemble(
    message: NetParameter,
    context: LayerContext,
    origins: Sequence[str] = (),
    kept: Collection[str] | None = None,
) -> Structure:
    """Build a net's layers and blobs from a whole net with its state filled in.

    ``origins`` are the ``file:line`` of each layer, where known. ``kept`` are the names of all
    blobs that are read besides the outputs; the others may be computed in part only. None computes
    all blobs as in the message. One NetError lists all faults found before set-up.
    """
    filtered, taken = filter_net(message)
    places = [origins[i] for i in taken] if origins else []
    if kept is not None:
        filtered, whence = move_strides(filtered, kept, places)
        places = [places[i] if i >= 0 else "" for i in whence] if places else []
    split, source = insert_splits(filtered, places)
    for producer, which in moved_weights(filtered):
        weighted = filtered.layer[producer]
        log.warning("%s: %s", layer_label(weighted), moved_weight(weighted.top[which]))
    for param in split.layer:
        if not param.HasField("phase"):
            param.phase = message.state.phase

    def origin_of(index: int) -> str:
        return places[source[index]] if places and source[index] >= 0 else ""

    layers = _create(split, context, origin_of)
    needed = [layer.tops.low if layer.auto_tops else 0 for layer in layers]
    graph = wire(split, needed, origin_of)
    blobs = [Blob((), context.dtype, context.device, name) for name in graph.blobs]
    records: list[Param] = []
    params: list[Blob] = []
    memory_used = 0
    for index, (layer, node) in enumerate(zip(layers, graph.nodes, strict=True)):
        bottom = [blobs[b] for b in node.bottoms]
        top = [blobs[t] for t in node.tops]
        try:
            layer.initialize(bottom, top)
            for i in range(len(layer.blobs)):
                spec = node.param.param[i] if i < len(node.param.param) else None
                layer.set_param_propagate_down(i, spec is None or spec.lr_mult != 0)
            append_params(records, index, layer.param, [b.shape for b in layer.blobs])
        except (DemitasseError, MemoryError, OSError) as error:
            fault = with_location(error, layer_label(layer))
            if isinstance(fault, DemitasseError):
                fault.from_line(origin_of(index))
            raise fault from fault.__cause__
        params += layer.blobs
        memory_used += sum(blob.count for blob in top) * {"float32": 4, "float64": 8}[context.dtype]
    setups = [
        LayerSetup(
            params=tuple(layer.param_propagate_down(i) for i in range(len(layer.blobs))),
            losses=tuple(bool(layer.loss(i)) for i in range(len(node.tops))),
            allow_force=tuple(layer.allow_force_backward(i) for i in range(len(node.bottoms))),
            without_gradient=frozenset(
                i for i in range(len(node.bottoms)) if not layer.has_gradient(i)
            ),
        )
        for layer, node in zip(layers, graph.nodes, strict=True)
    ]
    needs = compute_backward_needs(graph, setups, message.force_backward)
    for node, setup, trained in zip(graph.nodes, setups, needs.layers, strict=True):
        for index in sorted(setup.without_gradient):  # as labels and indices
            if trained and needs.blobs[node.bottoms[index]]:
                name = graph.blobs[node.bottoms[index]]
                log.info("%s has no gradient for its bottom %r", layer_label(node.param), name)
    for layer, wanted in zip(layers, needs.params, strict=True):
        for index, want in enumerate(wanted):
            layer.set_param_propagate_down(index, want)
    structure = Structure(
        split, graph, LayerSequence(layers), tuple(blobs), needs, tuple(records), tuple(params),
        memory_used=memory_used,
    )  # fmt: skip
    structure.share_weights()
    for record, blob in zip(records, params, strict=True):
        blob.learning_factors = record.owner or record
    return structure


def _create(
    net: NetParameter, context: LayerContext, origin_of: Callable[[int], str]
) -> list[Layer]:
    """Create all layers; one error lists all unknown types."""
    layers: list[Layer] = []
    faults: list[DemitasseError] = []
    for index, param in enumerate(net.layer):
        try:
            layers.append(create_layer(deepcopy(param), Phase.Name(param.phase), context))
        except DemitasseError as error:
            error.at(layer_label(param), layer=param.name)
            faults.append(error.from_line(origin_of(index)))
    raise_faults(faults)
    return layers


def initialize_parameters(params: Iterable[Blob]) -> None:
    """Create the initial values of all parameters that were not loaded, on all cores."""
    threads = wanted_threads()
    waiting = [blob.data_memory for blob in params if blob.data_memory.lazy]
    waiting.sort(key=lambda memory: -memory.size)
    if sum(memory.size for memory in waiting) < WORTH_THREADS or threads < 2:
        return  # the first reader of each parameter initializes it
    with Pool(threads, "demitasse-begin") as pool:
        list(pool.map(lambda memory: memory.cpu_data(), dict.fromkeys(waiting)))
