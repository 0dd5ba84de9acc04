"""Training on arrays and batches; frozen parameters."""

import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
from demitasse.core import guesses
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text

NET = """
layer { name: "in" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 4 dim: 6 } shape { dim: 4 } } }
layer { name: "hidden" type: "InnerProduct" bottom: "data" top: "hidden" inner_product_param {
  num_output: 16 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "hidden" top: "hidden" }
layer { name: "fc" type: "InnerProduct" bottom: "hidden" top: "fc" inner_product_param {
  num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
FIELDS = 'lr_policy: "fixed" snapshot_after_train: false '
SGD = "base_lr: 0.1 momentum: 0.9 "


def solver(fields="", net=NET, **options):
    param = parse_text(FIELDS + (fields or SGD), SolverParameter)
    param.net_param.CopyFrom(parse_text(net, NetParameter))
    return dm.Solver(param, seed=3, **options)


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(42, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.float32)


def test_arrays_are_learned(data):
    one = solver()
    loss = one.fit(*data, epochs=30)

    assert one.iter == 30 * 11  # 42 items in batches of 4, the last of 2
    assert loss < 0.2


def test_step_returns_the_loss(data):
    one = solver()
    one.net.set_input("data", data[0][:4])
    one.net.set_input("label", data[1][:4])

    assert one.step() == pytest.approx(one.smoothed_loss)
    assert one.iter == 1


@pytest.mark.parametrize(
    "batches",
    [
        lambda x, y: [(x[i : i + 6], y[i : i + 6]) for i in range(0, 42, 6)],
        lambda x, y: ((x[i : i + 6], y[i : i + 6]) for i in range(0, 42, 6)),
        lambda x, y: [{"label": y[i : i + 6], "data": x[i : i + 6]} for i in range(0, 42, 6)],
    ],
    ids=["tuples", "generator", "dicts"],
)
def test_batches_are_learned_in_order(data, batches):
    one, other = solver(), solver()
    one.fit(batches(*data))
    other.fit({"data": data[0], "label": data[1]}, batch_size=6, shuffle=False)

    assert one.iter == other.iter == 7
    for name in one.net.params:
        for mine, theirs in zip(one.net.params[name], other.net.params[name], strict=True):
            assert np.array_equal(mine.data, theirs.data)


def test_a_data_loader_is_learned(data):
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(*(torch.from_numpy(x).bfloat16() for x in data))
    one = solver()
    one.fit(torch.utils.data.DataLoader(pairs, batch_size=7), epochs=2)

    assert one.iter == 12


def test_a_request_to_stop_ends_all_epochs(data):
    one = solver()
    one.on_gradients_ready.append(lambda: one.iter == 2 and one.request("stop"))

    one.fit(*data, epochs=3)

    assert (one.iter, one.stopped) == (3, True)


def test_early_stopping_ends_all_epochs(data):
    metric = dm.EarlyStopping("loss", patience=2, min_delta=100)
    one = solver(SGD + "test_iter: 1 test_interval: 2 ", early_stopping=metric)
    tests = []
    one.on_test.append(lambda index, means: tests.append(one.iter))

    one.fit(*data, epochs=3)

    assert (one.iter, one.early_stopped, tests) == (4, True, [0, 2, 4])


def test_epochs_are_shuffled_by_the_seed(data):
    runs = [solver() for _ in range(2)]
    losses = [run.fit(*data, epochs=2) for run in runs]

    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("fields", "arguments", "options", "error", "code"),
    [
        (SGD + "iter_size: 2", 2, {}, ConfigError, ErrorCode.UNSUPPORTED),
        (SGD, 2, {"epochs": 0}, ConfigError, ErrorCode.OUT_OF_RANGE),
        (SGD, 2, {"batch_size": 0}, ConfigError, ErrorCode.OUT_OF_RANGE),
        (SGD, 2, {"epochs": 1.5}, ConfigError, ErrorCode.INVALID),
        (SGD, 2, {"batch_size": 2.0}, ConfigError, ErrorCode.INVALID),
        (SGD, 1, {}, NetError, ErrorCode.COUNT_MISMATCH),
    ],
)
def test_wrong_arguments_are_refused(data, fields, arguments, options, error, code):
    one = solver(fields)
    with expect_error(error, code):
        one.fit(*data[:arguments], **options)
    assert one.iter == 0


class Column:
    """A column of a table, as of pandas: indices are names of rows, not positions."""

    def __init__(self, values, names):
        self.values, self.names = values, list(names)
        self.dtype, self.shape = values.dtype, values.shape

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        return self.values[[self.names.index(row) for row in np.atleast_1d(rows)]]


def test_labels_of_a_table_belong_to_the_rows_at_their_positions(data):
    one, other = solver(), solver()
    one.fit(*data)
    other.fit(data[0], Column(data[1], reversed(range(42))))

    assert np.array_equal(one.net.params["fc"][0].data, other.net.params["fc"][0].data)


@pytest.mark.parametrize("rows", [[[1, 2], [3]], np.float32(3)], ids=["ragged", "number"])
def test_data_without_rows_of_one_length_are_refused(rows):
    with expect_error(ShapeError):
        solver().fit(rows, [0, 1])


def test_arrays_of_different_lengths_are_refused(data):
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH):
        solver().fit(data[0], data[1][:5])
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH):
        solver().fit(data[0][:0], data[1][:0])


def test_a_net_with_data_layers_is_not_fitted(data):
    text = NET.replace('"Input"', '"DummyData"').replace("input_param", "dummy_data_param")
    with expect_error(NetError, ErrorCode.UNSUPPORTED):
        solver(net=text).fit(*data)


@pytest.mark.parametrize(
    "fields",
    [
        SGD,
        'type: "Nesterov" ' + SGD,
        'type: "Adam" base_lr: 0.01 momentum: 0.9 momentum2: 0.99',
        'type: "AdamW" base_lr: 0.01 momentum: 0.9 momentum2: 0.99',
        'type: "RMSProp" base_lr: 0.01 rms_decay: 0.9',
    ],
)
@pytest.mark.parametrize("way", ["freeze", "lr_mult"])
def test_frozen_parameters_stay(data, fields, way, device):
    one = solver(fields + " weight_decay: 0.01 clip_gradients: 0.5", device=device)
    one.fit(*data)
    if way == "freeze":
        assert one.net.freeze("hid*") == ["hidden"]
    else:
        for blob in one.net.params["hidden"]:
            blob.lr_mult = 0
    before = {name: [b.data.copy() for b in blobs] for name, blobs in one.net.params.items()}
    one.fit(*data)

    for blob, old in zip(one.net.params["hidden"], before["hidden"], strict=True):
        assert np.array_equal(blob.data, old)
    assert not np.array_equal(one.net.params["fc"][0].data, before["fc"][0])

    one.net.params["hidden"][0].lr_mult = 1
    one.fit(*data)
    assert not np.array_equal(one.net.params["hidden"][0].data, before["hidden"][0])
    assert np.array_equal(one.net.params["hidden"][1].data, before["hidden"][1])


def test_unknown_layers_are_not_frozen():
    with expect_error(NetError, ErrorCode.UNKNOWN, layer="conv*"):
        solver().net.freeze("conv*")


def test_only_parameters_have_factors():
    with expect_error(NetError, ErrorCode.UNSUPPORTED, blob="data"):
        solver().net.blobs["data"].lr_mult = 0


@pytest.mark.parametrize("name", guesses.SOLVER)
def test_names_of_other_trainers_name_ours(name):
    with pytest.raises(AttributeError) as caught:
        getattr(solver(), name)

    assert guesses.SOLVER[name] in str(caught.value)
