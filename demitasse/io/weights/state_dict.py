"""State_dicts of PyTorch: files, maps from layers to modules, and conversion of parameters.

A map file has a line per module: ``conv1 = features.0``, or ``bn1 + scale1 = features.1`` for a
BatchNorm and its Scale. ``#`` begins a comment. A name with ``=``, ``+`` or ``#`` is written in
double quotes, as in JSON.
"""

import json
import os
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.axes import shape_string
from demitasse.core.extras import needs_extra
from demitasse.core.paths import code_of, read_text, reason_of, regular_file
from demitasse.core.text import suggestion
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, ShapeError, WeightsError
from demitasse.graph import listed
from demitasse.io.data.databases.database import check_memory
from demitasse.io.proto import LayerParameter
from demitasse.io.weights.batch_norm import running_averages
from demitasse.io.weights.formats import Parameters
from demitasse.io.weights.npz import check_members
from demitasse.io.weights.safetensors import read_safetensors, write_safetensors

Tensors = dict[str, np.ndarray]  # tensors of a module by name (weight, bias, running_mean, ...)

NAMES: Mapping[str, tuple[str, ...]] = {"Bias": ("bias",), "Parameter": ("value",)}
"""Layer type -> PyTorch's names of its parameters, if not weight and bias."""

AVERAGES = ("running_mean", "running_var")

LSTM_NAMES = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")

GATES = (0, 1, 3, 2)
"""Caffe's gates are i, f, o, g, PyTorch's i, f, g, o; the permutation is its own inverse."""


@dataclass(frozen=True)
class Unit:
    """The layers of one module: one layer, or a BatchNorm and its Scale."""

    layers: tuple[LayerParameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.layers)

    def __str__(self) -> str:
        """Return the names as written in a map file."""
        return " + ".join(self.names)

    def to_torch(self, blobs: Sequence[Sequence[np.ndarray]]) -> Tensors:
        """Return the module's tensors, from the parameters of each layer."""
        first, own = self.layers[0], [np.asarray(blob) for blob in blobs[0]]
        if first.type == "BatchNorm":
            averages = dict(zip(AVERAGES, running_averages(own[:3]), strict=True))
            return averages | _affine(own[3:5] if len(own) == 5 else blobs[-1], self)
        if first.type == "LSTM" and len(own) == 3:
            weight, bias, hidden = map(_exchanged, own)
            values = (weight, bias.reshape(-1), hidden, np.zeros_like(bias.reshape(-1)))
            return dict(zip(LSTM_NAMES, values, strict=True))
        names = NAMES.get(first.type, ("weight", "bias"))
        if len(own) > len(names):
            message = (
                f"layer {first.name!r} ({first.type}) has {len(own)} parameters; PyTorch has no "
                "such module, remove the layer from the map"
            )
            raise WeightsError(message, code=ErrorCode.UNSUPPORTED, layer=first.name, got=len(own))
        found = dict(zip(names, own, strict=False))
        for name, array in found.items():
            if name == "bias" or first.type == "PReLU":
                found[name] = array.reshape(-1)
            elif first.type in {"InnerProduct", "Embed"}:
                matrix = array.reshape(array.shape[-2:])
                turned = first.type == "InnerProduct" and first.inner_product_param.transpose
                found[name] = matrix.T if turned else matrix
        return found

    def wanted(self, shapes: Sequence[Sequence[tuple[int, ...]]]) -> Tensors:
        """Return tensors as ``to_torch`` does, for shapes of the parameters of each layer."""
        one = np.float32(1)
        return self.to_torch([[np.broadcast_to(one, shape) for shape in its] for its in shapes])

    def to_caffe(
        self, tensors: Tensors, shapes: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[list[np.ndarray]]:
        """Return the parameters of each layer, of the given shapes, from the module's tensors."""
        wanted = self.wanted(shapes)
        _need(self, tensors, wanted)
        first = self.layers[0]
        if first.type == "BatchNorm":
            averages = [tensors[name] for name in AVERAGES]
            found = [[*averages, np.ones(1, np.float32)]]
            affine = [tensors[name] for name in ("weight", "bias") if name in wanted]
            if affine and len(shapes[-1]) == 1:
                bias = affine.pop()
                if bias.any():
                    message = (
                        f"the module of {self} has a bias other than 0, but the Scale has none; "
                        "set bias_term: true"
                    )
                    layer, code = self.names[-1], ErrorCode.INCOMPATIBLE
                    raise WeightsError(message, code=code, layer=layer, field="bias_term")
            if len(self.layers) == 2:
                found.append(affine)
            else:
                found[0] += affine
        elif first.type == "LSTM" and len(shapes[0]) == 3:
            weight, bias, hidden, more = (tensors[name] for name in LSTM_NAMES)
            found = [[_exchanged(one) for one in (weight, bias + more, hidden)]]
        else:
            turned = first.type == "InnerProduct" and first.inner_product_param.transpose
            arrays = [tensors[name] for name in wanted]
            found = [[one.T if turned and one.ndim == 2 else one for one in arrays]]
        return [
            [array.reshape(shape) for array, shape in zip(layer, its, strict=True)]
            for layer, its in zip(found, shapes, strict=True)
        ]


def _units_of(layers: Sequence[LayerParameter]) -> list[Unit]:
    """Return units of layers with parameters; a Scale behind a BatchNorm joins its unit."""
    found: list[Unit] = []
    normed: dict[str, int] = {}  # blob -> unit that ends with the BatchNorm making the blob
    for layer in layers:
        place = normed.pop(layer.bottom[0], None) if layer.bottom else None
        if layer.type == "Scale" and place is not None and len(layer.bottom) == 1:
            found[place] = Unit((*found[place].layers, layer))
            continue
        for top in layer.top:
            normed.pop(top, None)
        if layer.type == "BatchNorm":
            normed[layer.top[0]] = len(found)
        found.append(Unit((layer,)))
    return found


def _affine(blobs: Sequence[np.ndarray], unit: Unit) -> Tensors:
    """Return weight and bias of a normalization; PyTorch has both or neither."""
    if len(unit.layers) == 1 and len(blobs) != 2:
        return {}
    weight = blobs[0].reshape(-1)
    bias = blobs[1].reshape(-1) if len(blobs) > 1 else np.zeros(weight.shape, weight.dtype)
    return {"weight": weight, "bias": bias}


def _exchanged(array: np.ndarray) -> np.ndarray:
    """Return an array with the last two of four gates swapped. Shapes: (4 H, ...)."""
    gates = array.reshape(4, -1, *array.shape[1:])
    return gates[list(GATES)].reshape(array.shape)


def _need(unit: Unit, tensors: Tensors, wanted: Tensors) -> None:
    module = f"the module of {unit} ({' and '.join(layer.type for layer in unit.layers)})"
    missing = [name for name in wanted if name not in tensors]
    extra = [name for name in tensors if name not in wanted]
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has the unexpected {', '.join(extra)}"] if extra else []
        message = f"{module} {' and '.join(parts)}"
        code = ErrorCode.MISSING if missing else ErrorCode.UNKNOWN
        raise WeightsError(message, code=code, layer=unit.names[0])
    for name, array in wanted.items():
        got, expected, layer = tensors[name].shape, array.shape, unit.names[0]
        if got != expected:
            message = (
                f"got {name} of {module} of {shape_string(got)}, expected {shape_string(expected)}"
            )
            code = ErrorCode.SHAPE_MISMATCH
            raise ShapeError(
                message, code=code, layer=layer, param=name, got=got, expected=expected
            )


Pairs = list[tuple[Unit, str]]  # units with the names of their modules
UNREAD = "num_batches_tracked"  # counter of PyTorch's BatchNorm, which Caffe does not have

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[=+#"]|[^\s=+#"]+)')


def _modules_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensors]:
    """Return the tensors of each module of a state_dict, in order."""
    found: dict[str, Tensors] = {}
    for name, array in arrays.items():
        module, _, tensor = name.rpartition(".")
        if tensor != UNREAD:
            found.setdefault(module, {})[tensor] = array
    return found


def _read_map(path: Path, layers: Sequence[LayerParameter]) -> Pairs:
    """Read a map file for layers with parameters; a ConfigError lists all faulty lines."""
    try:
        lines = read_text(path, "strict").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read as a map of names: {reason_of(error, path)}"
        raise ConfigError(message, code=code_of(error), file=str(path)) from error
    known = {layer.name: layer for layer in layers}
    pairs: Pairs = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        tokens = takewhile(lambda token: token != "#", TOKEN.findall(line))
        try:
            words = [json.loads(one) if one.startswith('"') else one for one in tokens]
        except ValueError:  # e.g. a lone backslash or quote
            words = [line]
        if not words:
            continue
        *left, equals, module = words if len(words) > 2 else ["", "", ""]
        names = left[::2]
        if equals != "=" or any(sign != "+" for sign in left[1::2]) or len(left) % 2 == 0:
            faults.append(f"line {number} is not LAYER = MODULE or LAYER + LAYER = MODULE: {line}")
            continue
        wrong = [name for name in names if name not in known]
        faults += [
            f"line {number}: there is no layer {name!r} with parameters{suggestion(name, known)}"
            for name in wrong
        ]
        if not wrong:
            pairs.append((Unit(tuple(known[name] for name in names)), module))
    if faults:
        message = f"{path} is no map of this net:\n{listed(faults)}"
        raise ConfigError(message, code=ErrorCode.INVALID, file=str(path), faults=len(faults))
    return pairs


def map_text(pairs: Pairs) -> str:
    """Return the text of a map file."""

    def quoted(name: str) -> str:
        return name if re.fullmatch(r'[^\s=+#"]+', name) else json.dumps(name)

    return "".join(
        f"{' + '.join(map(quoted, unit.names))} = {quoted(module)}\n" for unit, module in pairs
    )


def _by_order(
    units: Sequence[Unit], wanted: Sequence[Tensors], modules: Mapping[str, Tensors]
) -> Pairs:
    """Pair each unit with the first unused module with tensors of the same shapes.

    The ``wanted`` tensors of each unit are in the order of the net, ``modules`` in that of the
    state_dict. A WeightsError lists all units without a module.
    """
    left, pairs, faults = dict(modules), list[tuple[Unit, str]](), list[str]()
    for unit, tensors in zip(units, wanted, strict=True):
        same = [name for name, theirs in left.items() if _shapes(theirs) == _shapes(tensors)]
        if not same:
            near = suggestion(unit.names[0], left)
            faults.append(f"{unit}, which needs {_shapes_text(tensors)}{near}")
            continue
        best = unit.names[0] if unit.names[0] in same else same[0]
        pairs.append((unit, best))
        del left[best]
    if faults:
        there = [f"{name}: {_shapes_text(tensors)}" for name, tensors in left.items()]
        message = (
            f"by order and shape no module matches\n{listed(faults)}\n"
            f"unused modules are\n{listed(there or ['none'])}\nGive the pairs with --map"
        )
        raise WeightsError(message, code=ErrorCode.INCOMPATIBLE, faults=len(faults))
    return pairs


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in tensors.items()}


def _shapes_text(tensors: Tensors) -> str:
    return ", ".join(f"{name} {shape_string(array.shape)}" for name, array in tensors.items())


def to_state_dict(
    layers: Sequence[LayerParameter], weights: Parameters, path: Path | None
) -> tuple[dict[str, np.ndarray], Pairs]:
    """Return the state_dict of a file's parameters, and its pairs, by a map file or layer names."""
    if path is None:
        pairs = [(unit, unit.names[0]) for unit in _units_of(layers)]
    else:
        pairs = _read_map(path, layers)
    found: dict[str, np.ndarray] = {}
    for unit, module in pairs:
        tensors = unit.to_torch([list(weights[name].values()) for name in unit.names])
        for name, array in tensors.items():
            key = f"{module}.{name}"
            if not np.array_equal(found.get(key, array), array, equal_nan=True):
                message = f"{unit} and an earlier line have other values of {key}; name two modules"
                raise WeightsError(message, code=ErrorCode.CONFLICT, layer=unit.names[0], param=key)
            found[key] = np.ascontiguousarray(array)
    return found, pairs


def pairs_for(
    layers: Sequence[LayerParameter],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    arrays: Mapping[str, np.ndarray],
    path: Path | None,
) -> Pairs:
    """Return the pairs of a net's layers and modules, by a map file, or by order and shapes."""
    if path is not None:
        return _read_map(path, layers)
    units = _units_of(layers)
    wanted = [unit.wanted([shapes[name] for name in unit.names]) for unit in units]
    return _by_order(units, wanted, _modules_of(arrays))


def to_parameters(
    pairs: Pairs, shapes: Mapping[str, Sequence[tuple[int, ...]]], arrays: Mapping[str, np.ndarray]
) -> tuple[Parameters, list[str]]:
    """Return a net's parameters, and the unused modules; a WeightsError lists all faults."""
    modules, faults, found = _modules_of(arrays), list[str](), Parameters()
    for unit, module in pairs:
        if module not in modules:
            near = suggestion(module, modules)
            faults.append(f"there is no module {module!r} for {unit}{near}")
            continue
        try:
            blobs = unit.to_caffe(modules[module], [shapes[name] for name in unit.names])
        except (ShapeError, WeightsError) as error:
            faults.append(f"module {module!r}: {error}")
            continue
        for name, layer in zip(unit.names, blobs, strict=True):
            both = zip(found.get(name, {}).values(), layer, strict=False)
            if not all(np.array_equal(*pair, equal_nan=True) for pair in both):
                faults.append(f"{name!r} has two modules with other values; name one")
            found[name] = dict(enumerate(np.ascontiguousarray(one) for one in layer))
    given = {name for unit, _ in pairs for name in unit.names}
    faults += [f"{name!r} has no module" for name in shapes if name not in given]
    if faults:
        message = f"the state_dict does not fit the net:\n{listed(faults)}"
        raise WeightsError(message, code=ErrorCode.INCOMPATIBLE, faults=len(faults))
    taken = {module for _, module in pairs}
    return found, [name for name in modules if name not in taken]


PICKLED = {".pt", ".pth"}
ZIP = b"PK\x03\x04"  # start of PyTorch's present format; older ones are not compressed

ENDINGS = {*PICKLED, ".safetensors"}  # extensions of files of state_dicts
WRAPPED = ("state_dict", "model_state_dict", "model")  # keys of the state_dict in a checkpoint
PARALLEL = "module."  # prefix of names saved by DataParallel


def read_state_dict(path: Path) -> dict[str, np.ndarray]:
    """Read a state_dict, as float32 in place of 16 bits; files that would run code are refused."""
    arrays = _unpickled(path) if path.suffix in PICKLED else read_safetensors(path)
    if arrays and all(name.startswith(PARALLEL) for name in arrays):
        arrays = {name.removeprefix(PARALLEL): array for name, array in arrays.items()}
    return {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in arrays.items()
    }


def write_state_dict(path: Path, arrays: dict[str, np.ndarray], dtype: str | None) -> None:
    """Write a state_dict, atomically; "float32", "float16" or "bfloat16", or unchanged."""
    if path.suffix not in PICKLED:
        write_safetensors(path, arrays, "pt", dtype)
        return
    torch = _torch()
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    if dtype is not None:
        tensors = {name: one.to(getattr(torch, dtype)) for name, one in tensors.items()}
    with atomic_write(path) as file:
        torch.save(tensors, file)


def _unpickled(path: Path) -> dict[str, np.ndarray]:
    torch = _torch()
    try:
        with regular_file(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(ZIP)) == ZIP:
                with zipfile.ZipFile(file) as archive:
                    check_members(archive, size)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # exceptions for damaged files have no common base
        reason = reason_of(error, path)
        if isinstance(error, pickle.UnpicklingError):  # PyTorch advises to run code of the file
            reason = (
                "it is damaged, or holds more than tensors, such as a whole module; save the "
                "module's tensors with torch.save(net.state_dict(), ...)"
            )
        message = f"{path} cannot be read as a state_dict: {reason}"
        raise WeightsError(message, code=ErrorCode.UNREADABLE, file=str(path)) from error
    for key in WRAPPED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and torch.is_tensor(one) for name, one in found.items()
    ):
        message = (
            f"{path} is no state_dict, a dictionary of tensors; save one with "
            "torch.save(net.state_dict(), ...)"
        )
        raise WeightsError(message, code=ErrorCode.UNREADABLE, file=str(path))
    try:  # tensors may repeat one number, or share their numbers
        check_memory("tensors", 4 * sum(one.numel() for one in found.values()), size)
    except ValueError as error:
        message = f"{path} cannot be read as a state_dict: {error}"
        raise WeightsError(message, code=ErrorCode.LIMIT, file=str(path)) from error
    halves = {torch.bfloat16, torch.float16}
    arrays = {}
    for name, one in found.items():
        try:
            wide = one.float() if one.dtype in halves else one
            arrays[name] = wide.contiguous().numpy(force=True)
        except (RuntimeError, TypeError) as error:  # e.g. quantized, sparse
            got = f"{one.dtype}, {one.layout}, on {one.device}"
            message = f"{path}: got tensor {name!r} of {got}, expected dense numbers"
            code = ErrorCode.DTYPE_MISMATCH
            raise WeightsError(message, code=code, file=str(path), param=name, got=got) from error
    return arrays


def _torch() -> Any:
    what, instead = "a .pt or .pth file", "use .safetensors"
    with needs_extra(DemitasseError, what, "PyTorch", "torch", instead=instead):
        return import_module("torch")
