"""Which nets a solver makes, in which states, with which weights."""

from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error, expect_warning

from demitasse import Net, Solver
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, PrototxtError, ShapeError
from demitasse.io.proto import write_binary, write_text
from demitasse.io.proto.write import text_of
from demitasse.training import RULES

STAGED = """
name: "staged" state { level: 3 stage: "file" }
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "file" type: "Power" bottom: "x" top: "a" include { stage: "file" } }
layer { name: "own" type: "Power" bottom: "x" top: "b" include { stage: "own" } }
layer { name: "train" type: "Power" bottom: "x" top: "c" include { phase: TRAIN } }
layer { name: "test" type: "Power" bottom: "x" top: "d" include { phase: TEST } }
layer { name: "high" type: "Power" bottom: "x" top: "e" include { min_level: 3 } }
"""


def layers(net):
    return [name for name in net.layer_names if name not in {"x", "x_x_0_split"}]


@pytest.mark.parametrize("kind", RULES)
def test_the_file_chooses_the_rule(fields, kind):
    momentum = 0 if kind in {"AdaGrad", "RMSProp"} else 0.9

    solver = Solver(fields(type=kind, momentum=momentum))

    assert solver.type == kind
    params = len(solver.net.learnable_params)
    assert len(solver.history.memories) == RULES[kind].formula.histories * params
    assert kind in repr(solver)


def test_a_type_that_is_given_wins_over_the_file(fields):
    solver = Solver(fields(type="SGD"), type="Adam")

    assert solver.type == solver.param.type == "Adam"
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="type", got="Adamm"):
        Solver(fields(), type="Adamm")


def test_a_solver_may_be_text(fields):
    param = fields("max_iter: 7")

    solver = Solver(text_of(param), type="Adam")

    assert (solver.param.max_iter, solver.type) == (7, "Adam")
    with expect_error(PrototxtError, ErrorCode.UNKNOWN, mentions="max_iters"):
        Solver(f"{text_of(param)}\nmax_iters: 3")
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="iter_size") as caught:
        Solver(f"{text_of(param)}\niter_size: 0")
    assert "base_lr" not in str(caught.value)  # the text is no place


def test_sgd_is_the_default(fields):
    assert Solver(fields()).type == "SGD"


def test_a_training_net_without_a_loss_is_warned_of(fields, caplog):
    Solver(fields())
    assert "no loss" not in caplog.text

    Solver(fields(net=STAGED))
    assert caplog.text.count("has no loss") == 1


class Careful(Solver):
    """Halves all gradients, stops after some updates, and notes what it is asked for."""

    def __init__(self, source, *, most, **options):
        super().__init__(source, **options)
        self.most, self.calls = most, []

    def apply_update(self):
        self.calls.append("update")
        for blob in self.net.learnable_params:
            blob.scale_diff(0.5)
        super().apply_update()
        if self.iter >= self.most:
            self.request("stop")

    def test(self, index=0):
        self.calls.append("test")
        return super().test(index)

    def snapshot(self, prefix=None):
        self.calls.append("snapshot")
        return super().snapshot(prefix)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_solver_can_be_subclassed(fields, tmp_path, kind):
    param = fields("test_iter: 1 test_interval: 2 snapshot: 2", type=kind,
                   snapshot_prefix=str(tmp_path / "s"))  # fmt: skip

    mine = Careful(param, most=3, device="numpy")
    mine.solve()

    assert type(mine) is Careful
    assert (mine.type, mine.iter, mine.stopped) == (kind, 3, True)
    assert mine.calls == ["test", "update", "update", "snapshot", "test", "update"]
    assert repr(mine).startswith(f"Careful({kind}, ")
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unknown_type_is_refused(fields):
    known = ["'Adam'?", *RULES]
    with expect_error(ConfigError, ErrorCode.UNKNOWN, mentions=known, field="type", got="Adamm"):
        Solver(fields(type="Adamm"))


def test_one_train_net_is_needed(fields):
    fields_of_nets = "train_net_param, train_net, net_param, net"
    with expect_error(ConfigError, ErrorCode.MISSING, mentions=fields_of_nets, field="net"):
        Solver(fields(net=""))


def test_two_train_nets_are_refused(fields):
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="net", got=["net_param", "net"]):
        Solver(fields('net: "other.prototxt"'))


def test_states_merge_phase_then_net_then_solver(fields):
    solver = Solver(
        fields(
            'train_state { stage: "own" } test_state { stage: "own" } test_state { level: 1 } '
            "test_iter: 1 test_iter: 1 test_interval: 1",
            net=STAGED,
        )
    )

    assert layers(solver.net) == ["file", "own", "train", "high"]
    assert layers(solver.test_nets[0]) == ["file", "own", "test", "high"]
    assert layers(solver.test_nets[1]) == ["file", "test"]


def test_states_of_a_net_in_a_file(fields, tmp_path):
    (tmp_path / "net.prototxt").write_text(STAGED)

    solver = Solver(
        fields('net: "net.prototxt" train_state { stage: "own" level: 1 }', net=""),
        base_dir=tmp_path,
    )

    assert layers(solver.net) == ["file", "own", "train"]


def test_the_phase_of_a_net_file_wins_over_the_default(fields):
    net = STAGED.replace("state {", "state { phase: TEST")

    assert Solver(fields(net=net)).net.phase == "TEST"


def test_test_nets_come_in_caffes_order(fields, tmp_path):
    (tmp_path / "file.prototxt").write_text(STAGED.replace('"staged"', '"from a file"'))
    param = fields('test_net: "file.prototxt" test_interval: 1 test_iter: [1, 1, 1, 1]', net=STAGED)
    param.test_net_param.add().CopyFrom(param.net_param)
    param.test_net_param[0].name = "from a message"

    solver = Solver(param, base_dir=tmp_path)

    names = [net.name for net in solver.test_nets]
    assert names == ["from a message", "from a file", "staged", "staged"]
    assert [net.phase for net in solver.test_nets] == ["TEST"] * 4


@pytest.mark.parametrize(
    ("text", "code", "details"),
    [
        ("test_iter: 1", ErrorCode.OUT_OF_RANGE, {"field": "test_interval", "got": 0}),
        (
            "test_iter: 0 test_interval: 1",
            ErrorCode.UNSUPPORTED,
            {"place": "test_iter: 0 of test net 0"},
        ),
        (
            "test_iter: -1 test_interval: 1",
            ErrorCode.OUT_OF_RANGE,
            {"field": "test_iter", "net": 0, "got": -1},
        ),
        (
            "test_iter: [1, 1] test_interval: 1 test_state { }",
            ErrorCode.COUNT_MISMATCH,
            {"field": "test_state", "got": 1, "expected": 2},
        ),
        (
            'test_net: "a" test_interval: 1',
            ErrorCode.COUNT_MISMATCH,
            {"field": "test_iter", "got": 0, "expected": 1},
        ),
    ],
)
def test_counts_that_do_not_fit_are_refused(fields, text, code, details):
    with expect_error(ConfigError, code, **details):
        Solver(fields(text))


def test_without_a_generic_net_every_test_iter_needs_a_net(fields):
    param = fields("test_iter: [1, 1] test_interval: 1")
    param.train_net_param.CopyFrom(param.net_param)
    param.test_net_param.add().CopyFrom(param.net_param)
    param.ClearField("net_param")

    count = {"field": "test_iter", "got": 2, "expected": 1}
    with expect_error(ConfigError, ErrorCode.COUNT_MISMATCH, **count):
        Solver(param)


def test_a_fault_in_a_net_names_the_field_of_the_solver(fields):
    with expect_error(DemitasseError, mentions="Powerr", place="solver's net_param"):
        Solver(fields(net=STAGED.replace("Power", "Powerr")))


def test_a_missing_net_file_names_the_field_of_the_solver(fields):
    with expect_error(DemitasseError, mentions="nowhere.prototxt", place="solver's net"):
        Solver(fields('net: "nowhere.prototxt"', net=""))


def test_test_nets_hold_the_training_nets_weights(fields, backend):
    solver = Solver(fields("test_iter: 1 test_interval: 100"), device=backend)

    solver.net.params["ip1"][0].data[...] = 5

    shared = solver.test_nets[0].params["ip1"][0]
    assert shared.data_memory is solver.net.params["ip1"][0].data_memory
    assert np.all(shared.data == 5)


def test_all_nets_have_the_seed_of_the_solver(fields):
    solver = Solver(fields("test_iter: 1 test_interval: 1 test_initialization: false"))

    assert [net.seed for net in (solver.net, *solver.test_nets)] == [7, 7]


def test_an_argument_is_stronger_than_random_seed(fields):
    assert Solver(fields(), seed=11).net.seed == 11


def test_a_seed_may_be_as_long_as_the_entropy_of_numpy(fields, tmp_path):
    solver = Solver(fields(snapshot_prefix=str(tmp_path / "s")), seed=(1 << 127) + 11)
    _, state = solver.snapshot()

    solver.restore(state, exact=True)

    assert solver.net.seed == 11


def test_one_seed_makes_one_training_run(fields, backend):
    weights = []
    for seed in (3, 3, 4):
        solver = Solver(fields(random_seed=seed), device=backend)
        solver.step(3)
        weights.append(solver.net.params["ip1"][0].data.copy())

    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


def test_weights_are_loaded_in_order(fields, tmp_path, lines):
    names = []
    for value in (1, 2):
        param = fields().net_param
        param.layer[3].name = f"other{value}"
        net = Net(param, "TRAIN")
        net.params["ip1"][0].data[...] = value
        names.append(tmp_path / f"{value}.caffemodel")
        net.save(names[-1])
    param = fields("test_iter: 1 test_interval: 1")
    param.weights.append(f"{names[0].name}, {names[1].name}")

    solver = Solver(param, base_dir=tmp_path)

    assert np.all(solver.net.params["ip1"][0].data == 2)
    assert "Ignoring source layer other1" in lines()
    assert any("weights for ip2" in line for line in lines())


def test_a_layer_that_a_file_has_twice_is_told(fields, tmp_path, lines):
    message = Net(fields().net_param, "TRAIN").to_proto()
    message.layer.append(message.layer[1])
    write_binary(tmp_path / "w.caffemodel", message)

    Solver(fields(f'weights: "{tmp_path.as_posix()}/w.caffemodel"'))

    assert any("Layer ip1 " in line for line in lines())


def test_weights_that_do_not_fit_are_refused(fields, tmp_path):
    param = fields()
    param.net_param.layer[1].inner_product_param.num_output = 4
    Net(param.net_param, "TRAIN").save(tmp_path / "w.caffemodel")

    with expect_error(ShapeError, mentions="ip1"):
        Solver(fields(f'weights: "{(tmp_path / "w.caffemodel").as_posix()}"'))


def test_files_are_looked_for_beside_the_solver(fields, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "net.prototxt").write_text(STAGED)
    write_text(folder / "solver.prototxt", fields('net: "net.prototxt"', net=""))
    monkeypatch.chdir(tmp_path)

    solver = Solver("here/solver.prototxt")

    assert solver.net.name == "staged"
    assert Path(solver.param.snapshot_prefix) == Path("here/solver")


@pytest.mark.parametrize(
    ("text", "code", "got"),
    [
        ("iter_size: 0", ErrorCode.OUT_OF_RANGE, 0),
        ("average_loss: 0", ErrorCode.OUT_OF_RANGE, 0),
        ("display: -1", ErrorCode.OUT_OF_RANGE, -1),
        ("snapshot: -1", ErrorCode.OUT_OF_RANGE, -1),
        ("test_interval: -1", ErrorCode.OUT_OF_RANGE, -1),
        ("lr_policy: 'cosines'", ErrorCode.UNKNOWN, "cosines"),
    ],
)
def test_fields_are_checked_before_any_net_is_made(fields, text, code, got):
    with expect_error(ConfigError, code, field=text.partition(":")[0], got=got):
        Solver(fields(text, net=""))


def test_a_missing_policy_is_refused_by_the_first_update(fields):
    solver = Solver(fields(drop="lr_policy"))

    with expect_error(ConfigError, ErrorCode.MISSING, field="lr_policy"):
        solver.step(1)


def test_fields_that_are_not_known_are_left_out_when_asked(tmp_path):
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "DummyData" top: "x" colour: 3 '
        "dummy_data_param { shape { dim: 1 } } }"
    )
    file = tmp_path / "solver.prototxt"
    file.write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" flavour: 2 snapshot_after_train: false'
    )

    with expect_error(DemitasseError, mentions="flavour"):
        Solver(file)
    solver = Solver(file, ignore_unknown_fields=True)

    assert solver.net.blob_names == ["x"]


def test_old_names_of_arguments_warn(fields, monkeypatch):
    monkeypatch.setattr("demitasse.core.deprecated._warned", set())

    for old, new in ({"ranks": 2}, "world_size"), ({"shards": 1}, "num_shards"):
        with expect_warning(DeprecationWarning, mentions=[*old, new]):
            Solver(fields(), **old).close()
