"""A run with any type of layer resumes to the bits of a run that was never interrupted."""

import contextlib
import sys

import numpy as np
import pytest
from expect_error import expect_error
from layer_examples import EXAMPLES

from demitasse import Layer, Solver
from demitasse.errors import ErrorCode, SnapshotError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text, read_binary
from demitasse.io.proto.caffe_pb2 import SolverState
from demitasse.layers.metadata import METADATA
from demitasse.layers.registry import CATALOG, layer_class
from demitasse.layers.user_layer import UserLayer
from demitasse.testing.conformance.file_cases import FILES, LABELS, ROWS

DRIVER = """
layer { name: "driver_data" type: "DummyData" top: "driver_x" top: "driver_y"
  dummy_data_param { shape { dim: 4 dim: 6 } shape { dim: 4 dim: 3 }
    data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "driver_ip" type: "InnerProduct" bottom: "driver_x" top: "driver_ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "driver_drop" type: "Dropout" bottom: "driver_ip" top: "driver_ip" }
layer { name: "driver_loss" type: "EuclideanLoss" bottom: "driver_ip" bottom: "driver_y"
  top: "driver_loss" }
"""
"""Layers that learn, beside the layer under test: every training net has weights."""

SOLVER = """
test_iter: 2 test_interval: 1 base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 7
snapshot_after_train: false
"""

BEFORE, AFTER = 3, 3
"""Iterations before and after the snapshot."""

INTEGERS = {"label", "labels", "same", "index"}
"""Inputs with classes and indices; others have numbers from 0 to 1."""


class Counting(UserLayer):
    """Data layer with state of every kind that ``state_dict`` may have."""

    def setup(self, bottom, top):
        self.n, self.rng, self.seen = 0, np.random.default_rng(3), [("begin", None)]

    def reshape(self, bottom, top):
        top[0].reshape(2, 5)

    def forward(self, bottom, top):
        self.n += 1
        self.seen.append((f"batch {self.n}", b"\0", 0.1 * self.n, -(1 << 70), self.n > 2))
        top[0].data[...] = self.rng.normal(size=(2, 5)) + len(self.seen)

    def backward(self, top, propagate_down, bottom):
        pass

    def state_dict(self):
        table = np.arange(self.n, dtype=np.int16)
        return {
            "n": self.n,
            "rng": self.rng.bit_generator.state,
            "seen": self.seen,
            "table": table,
            "scalar": np.float32(self.n),
            7: {"nested": (1, [2, {}])},
        }

    def load_state_dict(self, state):
        assert state[7] == {"nested": (1, [2, {}])}
        assert isinstance(state["scalar"], np.float32)
        assert (state["table"] == np.arange(state["n"])).all()
        self.n, self.seen = state["n"], state["seen"]
        self.rng.bit_generator.state = state["rng"]


class Forgetful(Counting):
    """Data layer without a way to save its state."""

    state_dict = load_state_dict = None


class Running(Layer):
    """Layer on the device, with a value that is no counter."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)
        self.total = getattr(self, "total", -1.5)

    def forward(self, bottom, top):
        self.total += 0.25
        top[0].write(bottom[0].read() * self.total)

    def state(self):
        return {"total": self.total}

    def set_state(self, state):
        self.total = state["total"]


class ModuleLike(Running):
    """Layer on the device with the methods of a module of PyTorch."""

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


class Unsaved(Running):
    """Layer on the device with state that no hook returns."""

    state, set_state = Layer.state, Layer.set_state


def python_layer(name):
    module = sys.modules[__name__]
    sys.modules.setdefault("resumed_layers", module)
    bottom = 'bottom: "driver_x" ' if issubclass(getattr(module, name), Layer) else ""
    return (
        f'layer {{ name: "layer" type: "Python" {bottom}top: "out" '
        f'python_param {{ module: "resumed_layers" layer: "{name}" }} }}'
    )


def example(name):
    """Return the example of a type, of its class's first name for another name."""
    if name in EXAMPLES:
        return EXAMPLES[name].text, EXAMPLES[name].inputs
    first = first_name(name)
    text = EXAMPLES[first].text.replace(f'type: "{first}"', f'type: "{name}"')
    return text.replace("num_output: 16", "num_output: 15"), EXAMPLES[first].inputs


def first_name(name):
    return next(one for one in EXAMPLES if layer_class(one) is layer_class(name))


def net_of(text, inputs=(), learn=""):
    lines = [
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {size}" for size in shape)
        + " } } }"
        for name, shape in dict(inputs).items()
    ]
    return "\n".join([*lines, DRIVER, text, learn])


def learned_output(name, text):
    """Return a loss on the first top of a layer type with a gradient that has none yet."""
    layers = parse_text(text, NetParameter).layer
    target = next(layer for layer in layers if layer.type == name)
    if METADATA[first_name(name)].gradient != "gradient" or "Loss" in name or not target.top:
        return ""
    return (
        f'layer {{ name: "learned" type: "Reduction" bottom: "{target.top[0]}" '
        'top: "learned_loss" loss_weight: 0.001 }'
    )


class Run:
    """A solver whose Input and MemoryData layers get data, and whose blobs are recorded."""

    def __init__(self, net, fields="", **options):
        param = parse_text(SOLVER + fields, SolverParameter)
        param.net_param.CopyFrom(parse_text(net, NetParameter))
        if not param.test_iter or "HDF5Output" in net:
            param.ClearField("test_iter"), param.ClearField("test_interval")
        self.solver = Solver(param, **options)
        self.nets = [self.solver.net, *self.solver.test_nets]
        for each in self.nets:
            for layer in each.layers:
                if layer.type == "MemoryData":
                    layer.reset(ROWS, LABELS)
        self.solver.on_start.append(self.fill)
        self.recorded = []

    def fill(self):
        """Fill the inputs, as a program that counts iterations by the solver does."""
        rng = np.random.default_rng(self.solver.iter)
        for net in self.nets:
            for layer in net.layers:
                if layer.type == "Input":
                    blob = net.blobs[layer.name]
                    blob.data[...] = values_of(layer.name, blob.shape, rng)

    def train(self, iterations):
        for _ in range(iterations):
            self.fill()  # before the test that comes first
            self.solver.step(1)
            self.recorded.append(
                [
                    {name: np.array(blob.data) for name, blob in net.blobs.items()}
                    for net in self.nets
                ]
                + [[np.array(blob.data) for blob in net.structure.params_list] for net in self.nets]
            )

    def close(self):
        self.solver.close()


def values_of(name, shape, rng):
    if name in INTEGERS:
        return rng.integers(0, 2, shape)
    if name == "cont":
        return np.ones(shape)  # no sequence begins anew: states go from batch to batch
    values = rng.random(shape)
    if name == "regions":
        values = np.tile([0, 2, 3, 20, 25], (shape[0], 1))
    elif name == "objects":
        values = np.tile([0, 1, 0, 0.1, 0.1, 0.4, 0.5, 0], (shape[2], 1)).reshape(shape)
    elif name == "detections":
        values = np.tile([0, 1, 0.9, 0.1, 0.1, 0.4, 0.5], (shape[2], 1)).reshape(shape)
    elif name == "priors":
        corners = rng.random((shape[2] // 4, 2)) / 2
        boxes = np.hstack([corners, corners + 0.4])
        values = np.stack([boxes.reshape(-1), np.full(shape[2], 0.1)])[None]
    elif name == "images":
        values = np.tile([16.0, 16.0, 1.0], (shape[0], 1))
    elif name == "words" and len(shape) == 2:
        values = rng.integers(0, 1000, shape)
    return values


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one.tobytes() == other.tobytes()


@contextlib.contextmanager
def runs(net, fields="", **options):
    made = [Run(net, fields, **options) for _ in range(2)]
    try:
        yield made
    finally:
        for run in made:
            run.close()


def check_resumes(net, folder, fields="", **options):
    """Compare a run with the run that resumes from its snapshot, with ``exact``."""
    with runs(net, fields, **options) as (whole, resumed):
        whole.train(BEFORE)
        _, state = whole.solver.snapshot(folder / "s")
        whole.train(AFTER)

        resumed.solver.restore(state, exact=True)
        resumed.train(AFTER)

        for ours, theirs in zip(resumed.recorded, whole.recorded[BEFORE:], strict=True):
            assert same(ours, theirs)


@pytest.mark.parametrize("name", sorted(CATALOG))
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_every_type_of_layer_resumes_exactly(name, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name in FILES:
        for library in FILES[name].needs:
            pytest.importorskip(library)
        FILES[name].write()
    text, inputs = example(name)
    if name == "Python":
        text, inputs = python_layer("Counting"), {}

    check_resumes(net_of(text, inputs, learned_output(name, text)), tmp_path, device=device)


SEQUENCES = """
layer { name: "rows" type: "DummyData" top: "words" top: "cont"
  dummy_data_param { shape { dim: 3 dim: 2 dim: 5 } shape { dim: 3 dim: 2 }
    data_filler { type: "gaussian" } data_filler { value: 1 } } }
layer { name: "sequence" type: "KIND" bottom: "words" bottom: "cont" top: "sequence"
  recurrent_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Reduction" bottom: "sequence" top: "sum" loss_weight: 0.1 }
"""


def sequences(kind="LSTM"):
    return net_of(SEQUENCES.replace("KIND", kind))


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("fmt", ["BINARYPROTO", "HDF5"])
def test_hidden_states_are_part_of_both_formats(kind, fmt, tmp_path, backend):
    if fmt == "HDF5":
        pytest.importorskip("h5py")

    check_resumes(sequences(kind), tmp_path, f"snapshot_format: {fmt}", device=backend)


def test_hidden_states_of_batches_of_several_sizes(tmp_path):
    text = SEQUENCES.replace("KIND", "LSTM").replace('type: "DummyData"', 'type: "Input"')
    text = text[: text.index("dummy_data_param")] + text[text.index('layer { name: "sequence') :]
    text = text.replace(
        'top: "cont"',
        'top: "cont" input_param { shape { dim: 3 dim: 4 dim: 5 } shape { dim: 3 dim: 4 } } }',
        1,
    )
    with runs(net_of(text), "", device="cpu") as (whole, resumed):

        def fill(run, iteration):
            rng, size = np.random.default_rng(iteration), (4, 2, 3)[iteration % 3]
            for net in run.nets:
                for name, shape in (("words", (3, size, 5)), ("cont", (3, size))):
                    net.blobs[name].reshape(*shape)
                    net.blobs[name].data[...] = values_of(name, shape, rng)

        for run in (whole, resumed):
            run.fill = lambda run=run: fill(run, run.solver.iter)
            run.solver.on_start[:] = [run.fill]
        whole.train(5)
        _, state = whole.solver.snapshot(tmp_path / "s")
        whole.train(4)
        resumed.solver.restore(state)
        resumed.train(4)

        for ours, theirs in zip(resumed.recorded, whole.recorded[5:], strict=True):
            assert same(ours, theirs)


def test_a_solver_goes_back_to_the_hidden_states_of_its_snapshot(tmp_path):
    with runs(sequences()) as (run, _):
        run.train(BEFORE)
        _, state = run.solver.snapshot(tmp_path / "s")
        run.train(AFTER)
        run.solver.restore(state)
        run.train(AFTER)

        for ours, theirs in zip(run.recorded[-AFTER:], run.recorded[BEFORE:], strict=False):
            assert same(ours, theirs)


def test_every_shard_has_hidden_states_and_values_of_its_own(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["words"], file["cont"] = rng.random((30, 2, 5)), np.ones((30, 2))
    (tmp_path / "list.txt").write_text(f"{tmp_path}/rows.h5")
    data = (
        'layer { name: "rows" type: "HDF5Data" top: "words" top: "cont" '
        f'hdf5_data_param {{ source: "{tmp_path.as_posix()}/list.txt" batch_size: 3 }} }}'
    )
    text = data + SEQUENCES[SEQUENCES.index('layer { name: "sequence"') :].replace("KIND", "LSTM")
    text += (
        'layer { name: "ip" type: "InnerProduct" bottom: "sequence" top: "ip" '
        'inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }'
    )
    net = text + python_layer("Counting")

    check_resumes(net, tmp_path, device="cpu", num_shards=2)


def test_a_state_without_the_hidden_states_is_reported(tmp_path, caplog):
    with runs(sequences()) as (run, other):
        run.train(BEFORE)
        _, path = run.solver.snapshot(tmp_path / "s")
        state = read_binary(path, SolverState)
        for part in state.resume.net:
            for layer in part.layer:
                layer.ClearField("blob")
        path.write_bytes(state.SerializeToString())

        with expect_error(SnapshotError, code=ErrorCode.INCOMPATIBLE) as caught:
            other.solver.restore(path, exact=True)
        assert caught.value.details["differences"] == ["sequence", "sequence"]  # of both nets

        caplog.clear()
        other.solver.restore(path)
        [first, second] = [record.getMessage() for record in caplog.records]
        assert "'sequence' (LSTM) of the train net" in first
        assert "'sequence' (LSTM) of the test 0 net" in second
        assert not other.solver.net.layer_by_name("sequence").all_state_blobs()[0].data.any()


@pytest.mark.parametrize("kind", ["Forgetful", "Unsaved"])
def test_a_layer_that_cannot_save_its_state_is_reported(kind, tmp_path, caplog):
    with runs(net_of(python_layer(kind))) as (run, other):
        run.train(BEFORE)
        _, path = run.solver.snapshot(tmp_path / "s")

        with expect_error(SnapshotError, code=ErrorCode.INCOMPATIBLE, mentions=["layer", kind]):
            other.solver.restore(path, exact=True)
        assert other.solver.iter == 0
        caplog.clear()
        other.solver.restore(path)

        assert all(
            "'layer' (Python)" in record.getMessage() and kind in record.getMessage()
            for record in caplog.records
        )
        assert len(caplog.records) == 2


@pytest.mark.parametrize("kind", ["Running", "ModuleLike"])
def test_a_value_of_a_layer_on_the_device_resumes(kind, tmp_path, backend):
    check_resumes(net_of(python_layer(kind)), tmp_path, device=backend)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([{}]), lambda: 0])
def test_a_value_that_is_no_data_is_reported_and_the_snapshot_written(
    value, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(Counting, "state_dict", lambda self: {"n": self.n, "value": value})
    with runs(net_of(python_layer("Counting"))) as (run, other):
        caplog.clear()
        run.train(1)
        _, path = run.solver.snapshot(tmp_path / "s")

        assert "'layer' is not stored" in caplog.text
        with expect_error(SnapshotError, code=ErrorCode.INCOMPATIBLE, mentions="layer"):
            other.solver.restore(path, exact=True)


def test_an_interrupted_iteration_undoes_the_state_of_a_python_layer(tmp_path):
    net = net_of(python_layer("Counting"))
    with runs(net) as (whole, run):
        whole.train(BEFORE + AFTER)
        run.train(BEFORE)

        def interrupt(index):
            if run.solver.net.layers[index].name == "driver_loss":
                raise KeyboardInterrupt

        run.solver.net.after_forward.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.solver.step(1)
        run.solver.net.after_forward.remove(interrupt)
        run.train(AFTER)

        for ours, theirs in zip(run.recorded, whole.recorded, strict=True):
            assert same(ours, theirs)


DAMAGES = {
    "type": lambda value: setattr(value, "type", "module"),
    "dtype": lambda value: setattr(value.item[1].item[7], "dtype", "|O8"),
    "size": lambda value: value.item[1].item[7].dim.append(99),
    "negative": lambda value: value.item[1].item[7].dim.append(-1),
    "text": lambda value: setattr(value.item[0], "data", b"\xff"),
    "pair": lambda value: value.item.add(type="none"),
    "key": lambda value: setattr(value.item[0], "type", "list"),
    "float": lambda value: (setattr(value, "type", "float"), setattr(value, "data", b"1")),
    "other": lambda value: setattr(value, "type", "list"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_value_changes_nothing(damage, tmp_path):
    with runs(net_of(python_layer("Counting"))) as (run, other):
        run.train(1)
        _, path = run.solver.snapshot(tmp_path / "s")
        state = read_binary(path, SolverState)
        [layer] = [one for one in state.resume.net[0].layer if one.layer == "layer"]
        DAMAGES[damage](layer.value)
        path.write_bytes(state.SerializeToString())
        before = [blob.cpu_data().copy() for blob in other.solver.net.learnable_params]

        with expect_error(SnapshotError, code=ErrorCode.CORRUPT):
            other.solver.restore(path)

        after = [blob.cpu_data() for blob in other.solver.net.learnable_params]
        assert all(map(np.array_equal, after, before))
        assert other.solver.net.layer_by_name("layer").user.n == 0


MEMORY = net_of(example("MemoryData")[0])


def test_rows_given_after_a_restore_continue_there(tmp_path):
    with runs(MEMORY) as (whole, resumed):
        whole.train(1)
        _, state = whole.solver.snapshot(tmp_path / "s")
        whole.train(2)
        for net in resumed.nets:
            net.layer_by_name("data").rows = None

        resumed.solver.restore(state)
        for net in resumed.nets:
            net.layer_by_name("data").reset(ROWS, LABELS)
        resumed.train(2)

        for ours, theirs in zip(resumed.recorded, whole.recorded[1:], strict=True):
            assert same(ours, theirs)


def test_other_rows_are_reported(tmp_path):
    with runs(MEMORY) as (whole, resumed):
        whole.train(1)
        _, state = whole.solver.snapshot(tmp_path / "s")
        resumed.solver.net.layer_by_name("data").reset(ROWS + 1, LABELS)

        with expect_error(SnapshotError, code=ErrorCode.INCOMPATIBLE, mentions="data"):
            resumed.solver.restore(state, exact=True)
        resumed.solver.net.layer_by_name("data").reset(ROWS[:2], LABELS[:2])
        resumed.solver.restore(state)
        resumed.train(1)  # continues at a row that there is
