"""``caffe.get_solver`` and the solver classes, as scripts written for Caffe use them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error

import demitasse.compat.pycaffe as caffe
from demitasse.compat.pycaffe import _caffe
from demitasse.errors import ConfigError

pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize("name", ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"])
def test_solver_classes(folder, name):
    file = folder / "solver.prototxt"
    text = file.read_text().replace("momentum: 0.9", "momentum: 0.9 delta: 1e-8")
    if name in {"AdaGrad", "RMSProp"}:
        text = text.replace("momentum: 0.9", "")

    file.write_text(text + f'type: "{name}"')
    solver = caffe.get_solver("solver.prototxt")

    assert type(solver).__name__ == f"{name}Solver"
    assert isinstance(solver, caffe.SGDSolver)
    assert type(getattr(caffe, f"{name}Solver")("solver.prototxt")) is type(solver)


def test_a_solver_steps_snapshots_and_goes_on(on_backend):
    solver = caffe.SGDSolver("solver.prototxt")
    solver.net.blobs["data"].data[...] = np.random.default_rng(0).random((4, 6))
    solver.net.blobs["label"].data[...] = [0, 1, 2, 0]
    calls = []
    solver.add_callback(lambda: calls.append("start"), lambda: calls.append("gradients"))

    solver.step(2)
    solver.snapshot()
    weights = solver.net.params["ip"][0].data.copy()
    other = caffe.get_solver("solver.prototxt")
    other.restore("out_iter_2.solverstate")

    assert calls == ["start", "gradients"] * 2
    assert solver.iter == other.iter == 2
    assert solver.test_nets == []
    assert solver.param.max_iter == 4
    np.testing.assert_array_equal(other.net.params["ip"][0].data, weights)


def test_an_unknown_solver_type_names_the_known(folder):
    file = folder / "solver.prototxt"
    file.write_text(file.read_text() + 'type: "SDG"')

    with expect_error(ConfigError, mentions="SGD"):
        caffe.get_solver("solver.prototxt")


def test_the_rate_is_that_of_the_next_update(folder):
    file = folder / "solver.prototxt"
    text = file.read_text().replace('"fixed"', '"step" gamma: 0.5 stepsize: 2')
    file.write_text(text)
    solver = caffe.SGDSolver("solver.prototxt")
    rates = []

    for _ in range(5):
        rates.append(solver.lr)
        solver.step(1)

    np.testing.assert_allclose(rates, [0.1, 0.1, 0.05, 0.05, 0.025])


def test_fields_can_be_changed_on_the_way():
    solver = caffe.SGDSolver("solver.prototxt")

    solver.param.base_lr = 0.01
    solver.param.max_iter = 2
    solver.solve()

    assert solver.iter == 2
    assert solver.lr == pytest.approx(0.01)
    assert (solver.param.display, solver.param.layer_wise_reduce) == (0, True)
    assert isinstance(solver.param, _caffe.SolverParameter)


def test_another_net_can_hold_a_solvers_weights():
    solver, net = caffe.SGDSolver("solver.prototxt"), caffe.Net("net.prototxt", caffe.TEST)

    solver.share_weights(net)
    solver.net.params["ip"][0].data[...] = 5

    assert (net.params["ip"][0].data == 5).all()


def test_gradients_are_applied_as_they_are():
    solver = caffe.SGDSolver("solver.prototxt")
    before = solver.net.params["ip"][1].data.copy()

    solver.net.params["ip"][1].diff[...] = 1
    solver.apply_update()

    np.testing.assert_allclose(solver.net.params["ip"][1].data, before - 0.1, rtol=1e-6)
    assert solver.iter == 1


@pytest.mark.parametrize("name", ["solver.prototxt", b"solver.prototxt", Path("solver.prototxt")])
def test_files_are_named_in_any_way(name):
    solver = caffe.get_solver(name)

    solver.snapshot()
    solver.restore(b"out_iter_0.solverstate")

    assert caffe.SGDSolver(name).iter == 0


def test_a_file_that_is_not_there_is_a_runtime_error():
    for make in (caffe.get_solver, caffe.SGDSolver):
        with expect_error(RuntimeError, mentions="missing"):
            make("missing.prototxt")


def test_one_process_trains_with_the_names_for_several():
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    caffe.set_multiprocess(True)
    solver = caffe.SGDSolver("solver.prototxt")
    nccl = caffe.NCCL(solver, caffe.NCCL.new_uid())

    nccl.bcast()
    solver.add_callback(nccl)
    solver.net.after_backward(nccl)
    solver.step(1)

    assert (caffe.solver_count(), caffe.solver_rank(), caffe.has_nccl()) == (1, 0, False)
    assert solver.iter == 1


def test_callbacks_come_in_pairs():
    with expect_error(TypeError, mentions=["add_callback", "NCCL"]):
        caffe.SGDSolver("solver.prototxt").add_callback(lambda: None)


def test_classes_can_be_pickled():
    classes = [caffe.Net, caffe.AdamSolver, caffe.Layer, caffe.TRAIN]

    assert pickle.loads(pickle.dumps(classes)) == classes


def test_a_timer_tells_milliseconds():
    timer = caffe.Timer()
    unused = timer.ms

    timer.start()
    timer.stop()

    assert unused == 0
    assert timer.ms == timer.ms > 0
