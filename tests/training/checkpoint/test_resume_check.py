"""A state knows what its run was made of, and says so when it is gone on from otherwise."""

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse import Solver, settings
from demitasse.errors import ConfigError, ErrorCode, SnapshotError
from demitasse.io.data import write_database
from demitasse.io.proto import SolverState, read_binary, write_binary

FORMATS = ["binary", "hdf5"]
HDF5 = "snapshot_format: HDF5"
METRIC = (
    'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2 plateau_metric: "loss" '
    "test_iter: 1 test_interval: 4"
)


def made(fields, folder, text="", device="numpy", **values):
    return Solver(fields(text, snapshot_prefix=str(folder / "s"), **values), device=device)


def saved(fields, folder, text="", **values):
    solver = made(fields, folder, text, **values)
    solver.step(2)
    return solver.snapshot()


def refused(*differences, mentions=()):
    return expect_error(
        SnapshotError, ErrorCode.INCOMPATIBLE, mentions=mentions, differences=[*differences]
    )


def changes_told(lines):
    return [line for line in lines if line.startswith("The run that resumes from")]


def small_net(fields):
    return str(fields().net_param)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_same_run_goes_on_without_a_word(fields, tmp_path, fmt, lines, backend):
    if fmt == "hdf5":
        pytest.importorskip("h5py")
    text = HDF5 if fmt == "hdf5" else ""
    solver = made(fields, tmp_path, text, device=backend)
    solver.step(2)
    _, state = solver.snapshot()

    made(fields, tmp_path, text, device=backend).restore(state, exact=True)

    assert not changes_told(lines())


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_weights_of_another_run_are_refused(fields, tmp_path, fmt):
    if fmt == "hdf5":
        pytest.importorskip("h5py")
    text = HDF5 if fmt == "hdf5" else ""
    (tmp_path / "other").mkdir()
    weights, state = saved(fields, tmp_path, text)
    others, _ = saved(fields, tmp_path / "other", text, random_seed=8)
    others.replace(weights)
    solver = made(fields, tmp_path, text)

    with refused("weights", mentions="--force"):
        solver.restore(state)

    assert solver.iter == 0
    solver.restore(state, force=True)
    assert solver.iter == 2


@needs("/proc")
@pytest.mark.parametrize("name", ["/proc/self/mem", "/proc/self/pagemap"])
def test_weights_that_are_a_file_of_the_system_are_refused(fields, tmp_path, name):
    _, path = saved(fields, tmp_path)
    state = read_binary(path, SolverState)
    state.learned_net = name
    write_binary(path, state)
    solver = made(fields, tmp_path)

    with refused("weights"):
        solver.restore(path)


def test_weights_that_cannot_be_read_are_refused(fields, tmp_path, monkeypatch):
    _, path = saved(fields, tmp_path)
    solver = made(fields, tmp_path)

    def broken(weights):
        raise OSError(5, "Input/output error", str(weights))

    monkeypatch.setattr("demitasse.training.checkpoint.resume_check.file_digest", broken)
    with expect_error(SnapshotError, ErrorCode.UNREADABLE, mentions=".caffemodel"):
        solver.restore(path)


def test_a_renamed_layer_is_refused(fields, tmp_path):
    _, state = saved(fields, tmp_path)
    solver = made(fields, tmp_path, net=small_net(fields).replace('name: "ip1"', 'name: "fc1"'))

    with refused("parameter", mentions=["parameter 0 of layer 'ip1'", "'fc1'"]):
        solver.restore(state)

    solver.restore(state, force=True)


def test_another_type_of_solver_is_refused(fields, tmp_path):
    _, state = saved(fields, tmp_path)
    solver = made(fields, tmp_path, type="Nesterov")

    with refused("type", mentions=["SGD", "Nesterov"]):
        solver.restore(state)

    solver.restore(state, force=True)


@pytest.mark.parametrize(
    ("values", "mentions"),
    [
        ({"base_lr": 0.5}, ["base_lr", "0.1", "0.5"]),
        ({"iter_size": 2}, ["iter_size", "1", "2"]),
        ({"text": 'lr_policy: "step" stepsize: 3 gamma: 0.5'}, ["lr_policy", "fixed", "step"]),
        ({"device": "readonly"}, ["device", "numpy", "readonly"]),
    ],
)
def test_what_changes_numbers_is_warned_of_or_refused(fields, tmp_path, lines, values, mentions):
    _, state = saved(fields, tmp_path)
    solver = made(fields, tmp_path, **values)

    mentions = [*mentions, "--exact"]
    with expect_error(SnapshotError, ErrorCode.INCOMPATIBLE, mentions=mentions) as caught:
        solver.restore(state, exact=True)
    assert mentions[0] in caught.value.details["differences"]
    solver.restore(state)

    assert all(name in lines()[-1] for name in mentions[:-1])


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('lr_policy: "poly"', {"max_iter": 9}),
        ('lr_policy: "cosine"', {"max_iter": 9}),
        ('lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2', {"average_loss": 9}),
        (METRIC, {"test_interval": 9}),
        ('lr_policy: "fixed" type: "LARS"', {"trust_coefficient": 9.0}),
    ],
)
def test_fields_of_one_policy_or_type_are_warned_of_or_refused(fields, tmp_path, text, changed):
    _, state = saved(fields, tmp_path, text, drop="lr_policy")
    solver = made(fields, tmp_path, text, drop="lr_policy", **changed)

    with refused(*changed):
        solver.restore(state, exact=True)


@pytest.mark.parametrize("factor", ["lr_mult", "decay_mult"])
def test_factors_that_were_set_are_warned_of_or_refused(fields, tmp_path, lines, factor):
    solver = made(fields, tmp_path)
    setattr(solver.net.params["ip2"][0], factor, 0)
    _, state = solver.snapshot()
    other = made(fields, tmp_path)

    with refused(f"{factor} of parameter 0 of layer 'ip2'"):
        other.restore(state, exact=True)
    other.restore(state)

    assert f"{factor} of parameter 0 of layer 'ip2' was 0, is 1" in lines()[-1]


def test_numbers_are_told_as_they_were_written(fields, tmp_path, lines):
    _, state = saved(fields, tmp_path)
    stages = 'lr_policy: "multifixed" stagelr: [0.1, 0.01] stageiter: [1, 2] weight_decay: 1e-4'

    made(fields, tmp_path, stages, drop="lr_policy").restore(state)

    assert "stagelr was none, is 0.1, 0.01" in lines()[-1]
    assert "weight_decay was 0.01, is 1e-04" in lines()[-1]


def test_another_batch_is_warned_of(fields, tmp_path, lines):
    _, state = saved(fields, tmp_path)
    solver = made(fields, tmp_path, net=small_net(fields).replace("dim: 4", "dim: 3"))

    solver.restore(state)

    assert ": data" in lines()[-1]


def test_another_seed_is_warned_of_and_the_old_one_kept(fields, tmp_path, lines):
    _, state = saved(fields, tmp_path)
    solver = made(fields, tmp_path, random_seed=9)

    solver.restore(state, exact=True)

    assert all(name in lines()[-1] for name in ("seed", "7", "9"))
    assert solver.net.seed == 7


def test_another_number_of_threads_is_warned_of_or_refused(fields, tmp_path, lines):
    with settings.override(threads=1):
        _, state = saved(fields, tmp_path, device="cpu")
    with settings.override(threads=2):
        solver = made(fields, tmp_path, device="cpu")

        with refused("threads", mentions=["1", "2"]):  # BLAS has one thread in both
            solver.restore(state, exact=True)
        solver.restore(state)

    assert all(name in lines()[-1] for name in ("threads", "1", "2"))


DATA = """
layer { name: "d" type: "Data" top: "x" top: "y"
  data_param { source: "SOURCE" backend: LMDB batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""


def database(folder, name, count, first=0):
    rng = np.random.default_rng(first)
    images = (rng.integers(0, 255, (1, 4, 4), np.uint8) for _ in range(count))
    write_database(folder / name, ((image, i % 3) for i, image in enumerate(images)))
    return DATA.replace("SOURCE", (folder / name).as_posix())


@pytest.mark.parametrize(
    ("count", "first", "mentions"),
    [(6, 0, ["5 records", "6"]), (5, 1, []), (5, 0, [])],
    ids=["another size", "another content", "moved"],
)
def test_another_database_is_warned_of(fields, tmp_path, lines, count, first, mentions):
    _, state = saved(fields, tmp_path, net=database(tmp_path, "one", 5))
    solver = made(fields, tmp_path, net=database(tmp_path, "two", count, first))

    solver.restore(state)

    place = ["layer 'd' of the train net", str(tmp_path / "one"), str(tmp_path / "two")]
    assert all(name in lines()[-1] for name in (*place, *mentions))
    if (count, first) != (5, 0):
        with refused("d"):
            solver.restore(state, exact=True)


def test_a_database_that_was_moved_is_exact_enough(fields, tmp_path):
    _, state = saved(fields, tmp_path, net=database(tmp_path, "one", 5))
    solver = made(fields, tmp_path, net=database(tmp_path, "two", 5))

    solver.restore(state, exact=True)

    assert solver.iter == 2


@pytest.mark.parametrize("field", ["run", "resume"])
def test_a_state_that_tells_nothing_goes_on_as_ever(fields, tmp_path, field, lines):
    """Caffe's states, and those of older versions."""
    _, state = saved(fields, tmp_path)
    message = read_binary(state, SolverState)
    (message if field == "resume" else message.resume).ClearField(field)
    write_binary(state, message)
    solver = made(fields, tmp_path, base_lr=0.5)

    solver.restore(state)

    assert not changes_told(lines()[-1:])
    with refused("fingerprint"):
        solver.restore(state, exact=True)


def test_to_force_and_to_be_exact_contradict_each_other(fields, tmp_path):
    _, state = saved(fields, tmp_path)

    with expect_error(ConfigError, ErrorCode.CONFLICT, mentions=["force", "exact"]):
        made(fields, tmp_path).restore(state, force=True, exact=True)
