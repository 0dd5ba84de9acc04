"""Nets made at random: layers of the catalogue with other fields and shapes, alone and in chains.

A net is a prototxt whose first lines, comments, hold the values of its inputs. It is refused with
one of our exceptions, or runs forward, backward and through an update with the same results on
every device.
"""

import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fields import is_repeated
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from mutations import INTEGERS, REALS, STRINGS
from reader import Reader, put
from tolerance import expect_all_near

from demitasse import Net, Solver
from demitasse.errors import DemitasseError
from demitasse.io.proto import LayerParameter, NetParameter, SolverParameter, parse_text
from demitasse.lint import lint
from demitasse.testing.layer_cases import CASES, OTHER_CASES, LayerCase

__all__ = [
    "add_input",
    "input_values",
    "nets_readers",
    "random_net",
    "random_solver",
    "run_everywhere",
    "text_of",
    "train",
]

DEVICES = ("numpy", "strict:device1", "cpu")
TOLERANCE = 1e-3
"""Of an array's largest value; far more than rounding, far less than a wrong result."""

LARGE = 1e4
"""Where values are larger than this, rounding decides; results are not compared."""

EVERY = [case for table in (CASES, OTHER_CASES) for cases in table.values() for case in cases]
CHAINED = [
    case
    for case in EVERY
    if len(case.bottoms) == 1
    and case.bottoms[0].ndim > 1
    and case.type not in {"Silence", "ArgMax"}
]
JUMPS = {"ArgMax", "Threshold", "DetectionOutput", "Proposal", "BoxAnnotatorOHEM", "Quantization"}
"""Types whose results jump where two values are nearly the same."""


def nets_readers() -> list[Reader]:
    """Return what reads random nets, and random solvers."""
    net, solver = random_net(random.Random(0)), random_solver(random.Random(0))
    return [
        Reader(
            "random nets",
            [net.encode()],
            run_everywhere,
            20_000,
            draw=lambda rng: random_net(rng).encode(),
            opens=True,
        ),
        Reader(
            "random solvers",
            [solver.encode()],
            train,
            10_000,
            draw=lambda rng: random_solver(rng).encode(),
            opens=True,
        ),
    ]


# -- nets ----------------------------------------------------------------------------------------


def random_net(rng: random.Random) -> str:
    """Return the text of a net."""
    net = NetParameter(name="random", force_backward=rng.random() < 0.7)
    values: dict[str, np.ndarray] = {}
    if rng.random() < 0.65:
        _one_layer(rng, net, values)
    else:
        _chain(rng, net, values)
    net.state.phase = rng.choice((0, 0, 1))
    return text_of(net, values)


def text_of(net: NetParameter, values: Mapping[str, np.ndarray]) -> str:
    """Return the text of a net and of the values of its inputs."""
    head = "".join(
        f"# {name}: {' '.join(f'{v:.6g}' for v in array.ravel())}\n"
        for name, array in values.items()
    )
    return head + text_format.MessageToString(net)


def _one_layer(rng: random.Random, net: NetParameter, values: dict[str, np.ndarray]) -> None:
    """Add a layer of the catalogue with some fields or shapes changed."""
    case = rng.choice(EVERY)
    layer = _layer_of(case, "layer")
    for index in range(len(layer.bottom), len(case.bottoms)):
        layer.bottom.append(f"in{index}")
    if not layer.top and case.type != "Silence":
        layer.top.append("out")
    arrays = [np.asarray(array, np.float32) for array in case.bottoms]
    for index in range(len(arrays)):
        if rng.random() < 0.25:
            arrays[index] = _another_array(rng, arrays[index])
    extreme = rng.random() < 0.3
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        _change_some_field(rng, layer, extreme)
    if rng.random() < 0.1 and len(layer.top) < 4:
        layer.top.append(rng.choice(("more", layer.bottom[0] if layer.bottom else "more")))
    for name, array in zip(layer.bottom, arrays, strict=False):
        if name not in values:
            add_input(net, name, array, values)
    net.layer.append(layer)


def _chain(rng: random.Random, net: NetParameter, values: dict[str, np.ndarray]) -> None:
    """Add layers that read one another: in place, through splits, with parameters shared."""
    shape = rng.choice([(2, 4, 4, 3), (2, 4, 4, 3), (3, 4), (2, 3, 4), (2, 2, 6, 6)])
    add_input(net, "x", _noise(rng, shape), values)
    blobs = ["x"]
    for number in range(rng.randrange(1, 9)):
        bottom = rng.choice(blobs[-2:])
        name = f"l{number}"
        what = rng.random()
        if what < 0.15 and len(blobs) > 1:
            one, other = rng.sample(blobs, 2)
            kind = rng.choice(("Eltwise", "Concat"))
            layer = LayerParameter(name=name, type=kind, bottom=[one, other], top=[name])
        elif what < 0.25:
            layer = LayerParameter(name=name, type="EuclideanLoss", bottom=[bottom, bottom])
            layer.top.append(f"loss{number}")
            layer.loss_weight.append(rng.choice((1, 0.5, 0, 2)))
        else:
            layer = _layer_of(rng.choice(CHAINED), name)
            layer.ClearField("bottom")
            layer.ClearField("top")
            layer.bottom.append(bottom)
            layer.top.append(bottom if rng.random() < 0.35 else name)
            if rng.random() < 0.2:
                _change_some_field(rng, layer)
        if rng.random() < 0.15:
            layer.param.add(lr_mult=rng.choice((0, 1, 2)), name=rng.choice(("", "shared")))
        if rng.random() < 0.1:
            layer.propagate_down.extend([rng.random() < 0.5 for _ in layer.bottom])
        if rng.random() < 0.07:
            layer.include.add(phase=rng.choice((0, 1)))
        trial = NetParameter()
        trial.CopyFrom(net)
        trial.layer.append(layer)
        if rng.random() < 0.93 and not _is_possible(trial):
            continue
        net.layer.append(layer)
        blobs += [top for top in layer.top if top not in blobs and not top.startswith("loss")]


def _is_possible(net: NetParameter) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Net(net, "TRAIN", device="numpy").close()
    except Exception:  # what is no exception of ours is found when the net is run
        return False
    return True


def _layer_of(case: LayerCase, name: str) -> LayerParameter:
    layer = parse_text(case.text, LayerParameter)
    layer.name = name
    return layer


def add_input(net: NetParameter, name: str, array: np.ndarray, values: dict[str, Any]) -> None:
    """Add a layer that gives an array, and note what is in it."""
    layer = net.layer.add(name=f"input {name}", type="Input", top=[name])
    layer.input_param.shape.add(dim=array.shape)
    values[name] = array


def _another_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    shape = list(array.shape)
    match rng.randrange(5):
        case 0 if shape:
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 5, 17))
        case 1:
            shape.insert(rng.randrange(len(shape) + 1), rng.choice((1, 2)))
        case 2 if shape:
            del shape[rng.randrange(len(shape))]
        case 3:  # more axes than any library of kernels has
            shape = [rng.choice((1, 1, 1, 2)) for _ in range(rng.randrange(15))]
        case _:
            shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randrange(6))]
    if rng.random() < 0.3:
        return np.full(shape, rng.choice((0, 1, -1, 2, 1e30, np.inf, np.nan)), np.float32)
    if rng.random() < 0.3:
        numbers = [rng.randrange(-1, 4) for _ in range(int(np.prod(shape)))]
        return np.array(numbers, np.float32).reshape(shape)
    return _noise(rng, shape)


def _noise(rng: random.Random, shape: Any) -> np.ndarray:
    numbers = np.random.default_rng(rng.randrange(2**32)).normal(size=shape)
    return np.asarray(numbers, np.float32).round(4)


# -- fields --------------------------------------------------------------------------------------


SMALL = [0, 1, 1, 2, 2, 3, 4, 5, 6, -1, -2]
USUAL = [0.0, 1.0, -1.0, 0.5, 2.0, 0.1, 1e-3, -0.3]


def _change_some_field(rng: random.Random, layer: LayerParameter, extreme: bool = False) -> None:
    """Set, clear or repeat a field of a layer, mostly one that its type reads."""
    target: Any = layer
    own = [
        value
        for field, value in layer.ListFields()
        if field.type == FieldDescriptor.TYPE_MESSAGE and isinstance(value, type(value))
        if not is_repeated(field)
    ]
    while own and rng.random() < 0.9:
        target = rng.choice(own)
        own = [
            value
            for field, value in target.ListFields()
            if field.type == FieldDescriptor.TYPE_MESSAGE and not is_repeated(field)
        ]
        if rng.random() < 0.7:
            break
    fields = list(target.DESCRIPTOR.fields)
    if target is layer:
        names = ("loss_weight", "propagate_down", "param", "bottom", "top", "type", "phase")
        fields = [field for field in fields if field.name in names or rng.random() < 0.02]
    _change_field(rng, target, rng.choice(fields), extreme)


def _change_field(rng: random.Random, target: Any, field: Any, extreme: bool) -> None:
    if rng.random() < 0.15:
        target.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        part = getattr(target, field.name)
        part.add() if is_repeated(field) else part.SetInParent()
    elif is_repeated(field):
        value = getattr(target, field.name)
        if value and rng.random() < 0.4:
            value.pop()
        for _ in range(rng.choice((1, 1, 2, 3))):
            _try(lambda: value.append(_value(rng, field, extreme)))
    else:
        _try(lambda: setattr(target, field.name, _value(rng, field, extreme)))


def _try(change: Any) -> None:
    try:
        change()
    except (ValueError, TypeError):  # out of the range of this field
        return


def _value(rng: random.Random, field: Any, extreme: bool) -> Any:
    usual = rng.random() < (0 if extreme else 0.75)
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(("in0", "out", "xavier", "gaussian", "constant", *STRINGS))
        case FieldDescriptor.TYPE_BYTES:
            return b"x"
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return rng.choice(USUAL if usual else REALS)
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return rng.choice(field.enum_type.values).number
    return rng.choice(SMALL if usual else INTEGERS)


# -- solvers -------------------------------------------------------------------------------------

TRAINED = """
layer { name: "data" type: "DummyData" top: "x" top: "y"
  dummy_data_param { shape { dim: 2 dim: 6 } shape { dim: 2 }
    data_filler { type: "gaussian" } data_filler { value: 1 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "ip1"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "y" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "y" top: "accuracy"
  include { phase: TEST } }
"""
POLICIES = ("fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid", "cosine", "plateau")
TYPES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "AdamW", "LARS", "LAMB")
KEPT = {"net", "train_net", "test_net", "snapshot_prefix", "weights", "snapshot", "test_iter"}
"""What names files, or says how long it takes."""


def random_solver(rng: random.Random) -> str:
    """Return the text of a solver."""
    param = SolverParameter(
        base_lr=0.1, lr_policy=rng.choice(POLICIES), type=rng.choice(TYPES), max_iter=4
    )
    param.random_seed, param.test_interval, param.stepsize = 1, 2, 2
    param.gamma, param.power, param.min_lr = 0.5, 0.7, 1e-3
    param.plateau_winsize.append(1)
    param.stepvalue.extend((1, 2))
    param.test_iter.append(1)
    if param.type in {"SGD", "Nesterov"}:
        param.momentum = 0.5
    param.net_param.CopyFrom(parse_text(TRAINED, NetParameter))
    extreme = rng.random() < 0.5
    fields = [
        field
        for field in param.DESCRIPTOR.fields
        if field.type != FieldDescriptor.TYPE_MESSAGE and field.name not in KEPT
    ]
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        _change_field(rng, param, rng.choice(fields), extreme)
    param.iter_size = min(param.iter_size, 5)
    return text_format.MessageToString(param)


def train(content: bytes) -> None:
    """Make a solver, and train and test a little."""
    param = parse_text(content.decode(), SolverParameter)
    param.snapshot = 0
    param.snapshot_after_train = False
    with Solver(param, device="numpy") as solver:
        solver.step(3)
        solver.test_all()


# -- running -------------------------------------------------------------------------------------


def run_everywhere(content: bytes) -> None:
    """Run a net on every device; fail where results differ."""
    text = content.decode()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        _run_everywhere(text)


def _run_everywhere(text: str) -> None:
    message = parse_text(text, NetParameter)
    results = []
    for device in DEVICES:
        try:
            results.append(dict(_results(message, input_values(text), device)))
        except DemitasseError as error:
            results.append(error)
        except IndexError:
            if device != "strict:device1" or "holds the index" not in str(results[0]):
                raise
            results.append(results[0])
    refused = [isinstance(result, DemitasseError) for result in results]
    on_host, elsewhere, on_cpu = refused
    if on_host and on_cpu and (elsewhere or "holds the index" in str(results[0])):
        raise results[0]  # values are looked at only where they lie in the host's memory
    assert not any(refused), f"only some devices refuse it: {[str(r)[:300] for r in results]}"
    first, *others = results
    if any(np.abs(array).max(initial=0) > LARGE or not np.isfinite(array).all()
           for array in first.values()):  # fmt: skip
        return
    if any(layer.type in JUMPS for layer in message.layer):
        return
    try:
        for device, other in zip(DEVICES[1:], others, strict=True):
            expect_all_near(other, first, TOLERANCE, of=device)
    except AssertionError:
        if not _overwrites(text):
            raise


def _overwrites(text: str) -> bool:
    """Whether a layer in place destroys what another one's gradient needs, as `lint` tells.

    Gradients are then wrong as in Caffe, on the devices that read what was destroyed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = put(Path(folder) / "net.prototxt", text.encode())
        return any(finding.code == "in-place" for finding in lint(file))


def input_values(text: str) -> dict[str, list[float]]:
    """Return the values of a net's inputs that its text holds."""
    lines = [line[2:].partition(": ") for line in text.split("\n") if line.startswith("# ")]
    return {name: [float(word) for word in words.split()] for name, _, words in lines}


def _results(
    message: NetParameter, values: Mapping[str, list[float]], device: str
) -> Iterator[tuple[str, np.ndarray]]:
    given = NetParameter()
    given.CopyFrom(message)
    with Net(given, "TEST" if message.state.phase else "TRAIN", device=device, seed=1) as net:
        inputs = [name for name in net.inputs if name in values]
        for name in inputs:
            blob = net.blobs[name]
            array = np.array(values[name], np.float32)
            if array.size == blob.count:
                blob.mutable_cpu_data()[...] = array.reshape(blob.shape)
        net.forward()
        for name in net.outputs:
            yield f"output {name}", np.array(net.blobs[name].cpu_data())
        rng = np.random.default_rng(3)
        weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
        for name in net.outputs:
            if not weights[name]:
                blob = net.blobs[name]
                blob.mutable_cpu_diff()[...] = rng.normal(size=blob.shape)
        net.clear_param_diffs()
        net.backward(-1)
        for name in inputs:
            if message.force_backward:
                yield f"gradient of {name}", np.array(net.blobs[name].cpu_diff())
        for number, blob in enumerate(net.learnable_params):
            yield f"gradient of parameter {number}", np.array(blob.cpu_diff())
        net.update()
        for number, blob in enumerate(net.learnable_params):
            yield f"parameter {number}", np.array(blob.cpu_data())
        net.forward()
        for name in net.outputs:
            yield f"second output {name}", np.array(net.blobs[name].cpu_data())
