"""LeNet from Caffe's state at iteration 5000: a hundred iterations, every loss, the weights after.

The state is of 2014: old net format, history with four axes, weights under a path that is gone.
"""

import json
import re

import numpy as np
import pytest

from demitasse import Solver
from demitasse.io.proto import SolverParameter, read_text
from demitasse.training import read_state


@pytest.fixture(scope="module")
def mnist(reference_data, tmp_path_factory):
    """MNIST as the databases that Caffe's example makes."""
    from demitasse.io.data.databases.mnist import convert

    folder = tmp_path_factory.mktemp("mnist")
    convert(reference_data / "data" / "mnist", folder)
    return folder


@pytest.mark.slow
def test_lenet_continues_as_caffe_did(reference_data, mnist, tmp_path, backend):
    if backend.startswith(("strict", "readonly")):
        pytest.skip("these run the portable code of numpy, only more slowly")
    model = reference_data / "models" / "lenet_mnist_v1"
    want = json.loads((reference_data / "caffe_made" / "lenet_resume_5000_5100.json").read_text())
    net = (model / "lenet_train_test.prototxt").read_text()
    (tmp_path / "net.prototxt").write_text(re.sub("examples/mnist", str(mnist), net))
    param = read_text(reference_data / "caffe_made" / "lenet_solver_cpu.prototxt", SolverParameter)
    param.net, param.snapshot_prefix = str(tmp_path / "net.prototxt"), str(tmp_path / "lenet")
    param.test_initialization = False
    solver = Solver(param, device=backend)
    solver.restore(model / "lenet_iter_5000.solverstate")
    losses = []
    solver.on_gradients_ready.append(lambda: losses.append(float(solver.net.blobs["loss"].data)))

    solver.step(100)

    assert solver.iter == want["end_iter"]
    np.testing.assert_allclose(losses, want["losses"], rtol=1e-3, atol=1e-6)
    _, file = solver.snapshot()
    theirs = read_state(reference_data / "caffe_made" / "lenet_iter_5100.solverstate")
    for ours, their in zip(read_state(file).history, theirs.history, strict=True):
        scale = np.abs(their).max()
        assert np.abs(ours.reshape(-1) - their.reshape(-1)).max() < 1e-3 * scale
    other = Solver(param, device=backend)
    other.net.load(reference_data / "caffe_made" / "lenet_iter_5100.caffemodel")
    for ours, their in zip(solver.net.learnable_params, other.net.learnable_params, strict=True):
        scale = np.abs(their.data).max()
        assert np.abs(ours.data - their.data).max() < 1e-4 * scale
    [means] = solver.test_all()
    assert float(means["accuracy"]) == pytest.approx(want["test_accuracy"], abs=1.5e-4)
    assert float(means["loss"]) == pytest.approx(want["test_loss"], rel=2e-3)
    solver.close()
    other.close()
