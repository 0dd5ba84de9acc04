"""What the tests of all backends do not see of the torch backend."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from expect_error import expect_error
from goldens import golden_layers

from demitasse import Net
from demitasse.backends import torch as module
from demitasse.backends.torch import TorchBackend
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode, OutOfMemoryError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.training import evaluation

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" } } }
"""


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed (nox -s tests_torch)")


class ShortageError(RuntimeError):
    """As ``torch.OutOfMemoryError``."""


ShortageError.__name__ = "OutOfMemoryError"


@pytest.mark.parametrize(
    "error",
    [
        ShortageError("CUDA out of memory. FileCase to allocate 2.00 GiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["cuda", "mps", "cpu"],
)
def test_a_lack_of_memory_is_called_one(error):
    backend = object.__new__(TorchBackend)
    backend.index = "cuda:0"

    said = backend.explained(error)

    assert type(said) is OutOfMemoryError
    assert said.code == ErrorCode.OUT_OF_MEMORY
    assert said.details["device"] == "torch:cuda:0"
    assert said.__cause__ is error


def test_other_errors_stay_what_they_are():
    backend, error = object.__new__(TorchBackend), RuntimeError("shapes do not match")

    assert backend.explained(error) is error


@pytest.fixture
def on_cpu(torch):
    return TorchBackend("cpu")


def test_without_pytorch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    assert TorchBackend.devices() == []
    assert 'pip install "demitasse[torch]"' in TorchBackend.missing()
    with expect_error(DeviceError, ErrorCode.UNAVAILABLE, mentions="demitasse[torch]"):
        TorchBackend("cpu")


def test_a_broken_pytorch_says_what_is_wrong(monkeypatch):
    def fail(name):
        raise OSError("libcudart.so: cannot open")

    monkeypatch.setattr(module, "import_module", fail)

    assert TorchBackend.devices() == []
    assert "libcudart.so: cannot open" in TorchBackend.missing()


def test_devices_are_those_that_pytorch_has(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)

    assert TorchBackend.devices() == [
        "torch:cpu", "torch:cuda:0", "torch:cuda:1", "torch:xpu:0", "torch:mps",
    ]  # fmt: skip
    assert [TorchBackend.has(i) for i in ("cuda:1", "cuda:2", "mps", "")] == [1, 0, 1, 0]


def test_float64_is_refused_where_there_is_none(on_cpu):
    on_cpu.has_float64 = False  # as on mps

    with expect_error(DeviceError, ErrorCode.UNSUPPORTED, device="torch:cpu", dtype="float64"):
        on_cpu.zeros(3, "float64")
    with expect_error(DeviceError, ErrorCode.UNSUPPORTED, dtype="float64"):
        on_cpu.asarray(np.zeros(3))


def test_means_are_taken_without_float64(torch, monkeypatch):
    net = Net(parse_text(NET, NetParameter), "TEST", device="torch:cpu", seed=1)
    net.blobs["x"].data[...] = 1
    wide = evaluation.mean_outputs(net, 2)
    monkeypatch.setattr(Device("torch:cpu").backend, "has_float64", False)

    narrow = evaluation.mean_outputs(net, 2)

    np.testing.assert_allclose(narrow[0]["y"], wide[0]["y"], rtol=1e-6)


def test_nothing_is_recorded_for_pytorchs_own_gradients(torch):
    net = Net(parse_text(NET, NetParameter), "TEST", device="torch:cpu", seed=1)
    x = torch.ones(6, requires_grad=True)
    net.blobs["x"].data_memory.set_gpu_data(x)

    net.forward()

    y = net.blobs["y"].gpu_data()
    assert y.grad_fn is None
    assert not y.requires_grad


def test_of_values_for_one_place_the_last_stands(on_cpu):
    count = 100_000  # PyTorch would use several threads
    values = on_cpu.asarray(np.arange(count, dtype=np.float32))

    found = on_cpu.scatter(values, on_cpu.asarray(np.arange(count) % 4), 4)

    assert found.tolist() == [count - 4, count - 3, count - 2, count - 1]


@pytest.mark.parametrize("case", golden_layers() if find_spec("torch") else [], ids=str)
def test_recorded_cases_in_double_precision(case):
    net = case.net(device="torch:cpu", dtype="float64")

    case.run(net)

    case.check(net, rtol=1e-4, atol=1e-6)
