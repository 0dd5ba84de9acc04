"""Steps of a solver as one program: numbers, compilations, layers that are not traced."""

import logging
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from demitasse import Layer, Solver, register_layer
from demitasse.core.config import settings
from demitasse.errors import DataError, NetError
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.training.update_rules import RULES

COMPILED = "/jax/core/compile/backend_compile_duration"

DATA = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 1 dim: 5 dim: 5 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: LABEL } } }
"""
LAYERS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 3 kernel_size: 3 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "drop" type: "Dropout" bottom: "bn" top: "drop" }
"""
END = """
layer { name: "ip" type: "InnerProduct" bottom: "drop" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def solver_of(fields: str = "", layers: str = LAYERS, label: float = 1, **options) -> Solver:
    param = parse_text(
        'base_lr: 0.05 lr_policy: "step" stepsize: 3 gamma: 0.7 weight_decay: 0.01 '
        f"snapshot_after_train: false {fields} "
        f"net_param {{ {DATA.replace('LABEL', str(label))} {layers} {END} }}",
        SolverParameter,
    )
    return Solver(param, device="jax:cpu", seed=2, **options)


def launches(solver: Solver) -> bool:
    return solver._loop._queued.capture.repeats


def arrays_of(solver: Solver) -> list[np.ndarray]:
    blobs = [*solver.net.structure.params_list, *solver.net.blobs.values()]
    found = [np.array(memory.cpu_data()) for memory in solver.history.memories]
    found += [np.array(array) for b in blobs for array in (b.cpu_data(), b.cpu_diff())]
    return [*found, np.array(solver.net.layers[3].saved("mask", (4, 3, 3, 3)).read())]


@pytest.fixture
def compiled() -> Iterator[list[float]]:
    """Seconds of each compilation by XLA from now on."""
    found: list[float] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event == COMPILED:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.clear_event_listeners()


def momentum(kind: str) -> str:
    return "" if kind in {"AdaGrad", "RMSProp"} else "momentum: 0.9"


@pytest.mark.parametrize(
    "fields",
    [*(f'type: "{kind}" {momentum(kind)}' for kind in RULES), "momentum: 0.9 iter_size: 3",
     'momentum: 0.9 clip_gradients: 0.1 regularization_type: "L1" display: 2'],
)  # fmt: skip
def test_a_program_computes_what_single_operations_compute(fields):
    one, queued = solver_of(fields), solver_of(fields)

    one.step(5)
    with settings.override(cuda_graphs="off"):
        queued.step(5)

    assert launches(one)
    assert not launches(queued)
    assert one.net.passes == queued.net.passes
    for got, wanted in zip(arrays_of(one), arrays_of(queued), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=2e-5)
    np.testing.assert_array_equal(arrays_of(one)[-1], arrays_of(queued)[-1])
    assert one.smoothed_loss == pytest.approx(queued.smoothed_loss, rel=1e-5)


@pytest.mark.parametrize("fields", ['type: "Adam" momentum: 0.9', "momentum: 0.9 iter_size: 2"])
def test_twenty_steps_compile_nothing_after_the_first(fields, compiled):
    solver = solver_of(f"{fields} clip_gradients: 1 display: 4")

    solver.step(1)
    known = len(compiled)
    solver.step(19)

    assert known
    assert len(compiled) == known


def test_the_first_step_compiles_one_program_for_all_layers(compiled):
    many = "".join(
        f'layer {{ name: "c{n}" type: "Convolution" bottom: "data" top: "c{n}" convolution_param {{'
        f' num_output: {n} kernel_size: 3 weight_filler {{ type: "xavier" }} }} }} '
        f'layer {{ name: "e{n}" type: "Reduction" bottom: "c{n}" top: "e{n}" loss_weight: 1 }} '
        for n in range(10, 30)
    )
    counts = []
    for layers in (LAYERS, LAYERS + many):
        before = len(compiled)
        solver_of(layers=layers).step(1)
        counts.append(len(compiled) - before)

    assert counts[1] - counts[0] < 5 * 20  # a fill for each new shape, nothing for operations


def test_a_first_step_that_is_not_traced_leaves_the_numbers():
    register_layer("HostSum")(type("HostSum", (HostMean,), {}))
    layer = 'layer { name: "own" type: "HostSum" bottom: "drop" top: "drop" }'
    solver, other = solver_of(layers=LAYERS + layer), solver_of(layers=LAYERS + layer)

    solver.step(1)
    with settings.override(cuda_graphs="off"):
        other.step(1)

    for got, wanted in zip(arrays_of(solver), arrays_of(other), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    fields = f'type: "Adam" momentum: 0.9 snapshot_prefix: "{(tmp_path / "run").as_posix()}"'
    whole, first, second = (solver_of(fields) for _ in range(3))

    whole.step(6)
    first.step(3)
    first.snapshot()
    second.restore(tmp_path / "run_iter_3.solverstate")
    second.step(3)

    for got, wanted in zip(arrays_of(second), arrays_of(whole), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("clear", [True, False])
def test_passes_compute_what_single_operations_compute(clear):
    one, queued = solver_of().net, solver_of().net

    def train(net):
        losses = []
        for _ in range(3):
            losses.append(net.forward_backward())
            if clear:
                net.clear_param_diffs()
        return [*losses, net.forward()]

    found = train(one)
    with settings.override(cuda_graphs="off"):
        wanted = train(queued)

    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for got, blob in zip(one.learnable_params, queued.learnable_params, strict=True):
        np.testing.assert_allclose(got.cpu_data(), blob.cpu_data(), rtol=1e-5)
        np.testing.assert_allclose(got.cpu_diff(), blob.cpu_diff(), rtol=1e-3, atol=2e-5)


def test_a_rate_is_an_argument_and_momentum_a_constant(compiled):
    solver, other = solver_of("momentum: 0.9"), solver_of("momentum: 0.9")
    solver.step(4)
    known = len(compiled)
    solver.param.base_lr = 0.5
    solver.step(1)
    assert len(compiled) == known

    solver.param.momentum = 0.1
    solver.step(5)
    assert launches(solver)
    with settings.override(cuda_graphs="off"):
        other.step(4)
        other.param.base_lr = 0.5
        other.step(1)
        other.param.momentum = 0.1
        other.step(5)

    for got, wanted in zip(arrays_of(solver), arrays_of(other), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=2e-5)


def test_what_the_host_writes_between_steps_counts():
    one, queued = solver_of("momentum: 0.9"), solver_of("momentum: 0.9")

    def train(solver: Solver) -> None:
        solver.step(4)
        solver.net.params["ip"][0].mutable_cpu_data()[...] = 0.25
        solver.step(2)

    train(one)
    with settings.override(cuda_graphs="off"):
        train(queued)

    for got, wanted in zip(arrays_of(one), arrays_of(queued), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=2e-5)


class Doubled(Layer):
    """A layer of somebody else's."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        top[0].write(bottom[0].read() * 2)

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].write_diff(top[0].read_diff() * 2)


class HostMean(Doubled):
    """A layer that reads the host without saying so."""

    graph_capturable = True

    def forward(self, bottom, top):
        top[0].write(bottom[0].read() * float(bottom[0].cpu_data().mean()))


class Traced(Doubled):
    """A layer that may be traced."""

    graph_capturable = True


@pytest.mark.parametrize("kind", [Doubled, HostMean])
def test_a_layer_that_is_not_traced_is_named(kind, caplog):
    register_layer(kind.__name__)(kind)
    layer = f'layer {{ name: "own" type: "{kind.__name__}" bottom: "drop" top: "drop" }}'
    solver = solver_of(layers=LAYERS + layer)

    with caplog.at_level(logging.INFO, "demitasse"):
        solver.step(4)

    assert not launches(solver)
    [text] = [r.message for r in caplog.records if "not launched as one" in r.message]
    assert f"({kind.__name__})" in text


def test_a_layer_of_ones_own_is_traced_if_it_may_be():
    register_layer("Traced")(Traced)
    layer = 'layer { name: "own" type: "Traced" bottom: "drop" top: "drop" }'
    solver = solver_of(layers=LAYERS + layer)

    solver.step(4)

    assert launches(solver)


@pytest.mark.parametrize("fields", ["", "iter_size: 2"])
def test_a_label_that_is_no_class_ends_the_run_and_changes_nothing(fields):
    solver = solver_of(fields)
    solver.step(4)
    before = [np.array(blob.cpu_data()) for blob in solver.net.learnable_params]
    blob = solver.net.blobs["label"]
    solver.net.layers[0].forward = lambda bottom, top: top[1].mutable_cpu_data().fill(7)

    with pytest.raises(DataError):
        solver.step(1)

    assert blob.cpu_data()[0] == 7
    assert solver.iter == 4
    for array, param in zip(before, solver.net.learnable_params, strict=True):
        np.testing.assert_array_equal(array, param.cpu_data())


def test_a_loss_that_is_not_finite_ends_the_run():
    solver = solver_of(on_nonfinite="raise")
    solver.step(4)
    solver.net.params["ip"][0].mutable_cpu_data()[...] = np.inf

    with pytest.raises(NetError):
        solver.step(1)

    assert solver.iter == 4
