"""What the tests of all backends do not see of the torch backend."""

import copy
import re
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error
from goldens import golden_layers

from demitasse import Net
from demitasse.backends import torch as module
from demitasse.backends.torch import TorchBackend
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode, NetError, OutOfMemoryError
from demitasse.examples.digits import prepare
from demitasse.io.proto import NetParameter, parse_text
from demitasse.layers.metadata import layer_metadata
from demitasse.testing.conformance.test_layers import net_of
from demitasse.testing.layer_cases import CASES
from demitasse.training import evaluation

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" } } }
"""

STATEFUL_NET = """
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 4 dim: 1 dim: 9 dim: 9 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "pool" type: "Pooling" bottom: "bn" top: "pool" pooling_param {
  kernel_size: 3 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
  num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
"""A net with running averages, random numbers and a loss, of a batch of four."""


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


# -- functions and modules -------------------------------------------------------------------------


@pytest.fixture
def trained(torch):
    """A net after a forward and a backward pass, and its inputs."""
    text = STATEFUL_NET.replace('name: "conv"', 'name: "conv.1"')
    net = Net(text, "TRAIN", device="torch:cpu", seed=2, force_backward=True)
    x = torch.randn((4, 1, 9, 9), generator=torch.Generator().manual_seed(1))
    label = torch.arange(4.0)
    module = net.as_torch_module()  # of the running averages before the pass
    net({"data": x, "label": label})
    net.backward()
    return net, module, x, label


def test_a_module_has_the_gradients_of_its_net(torch, trained):
    net, module, x, label = trained
    x.requires_grad_()

    loss = module(x, label)
    loss.backward()

    names = [name for name, _ in module.named_parameters()]
    assert names == [f"layers.{name}" for name in
                     ("conv_1.weight", "conv_1.bias", "ip.weight", "ip.bias")]  # fmt: skip
    assert loss.item() == pytest.approx(float(net.blobs["loss"].data))
    params = [*net.params["conv.1"], *net.params["ip"]]
    for parameter, blob in zip(module.parameters(), params, strict=True):
        np.testing.assert_array_equal(parameter.grad.numpy(), blob.diff)
    np.testing.assert_array_equal(x.grad.numpy(), net.blobs["data"].diff)
    for buffer, blob in zip(module.buffers(), net.params["bn"], strict=True):
        np.testing.assert_allclose(buffer.numpy(), blob.data, rtol=1e-6)


def test_layers_whose_names_differ_by_a_dot_have_parameters_of_their_own(torch):
    text = "".join(
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" '
        f'inner_product_param {{ num_output: {count} weight_filler {{ type: "msra" }} }} }}\n'
        for name, bottom, count in (("ip_1", "x", 4), ("ip.1", "ip_1", 3))
    )
    net = Net('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 5 } } }'
              + text, "TEST", seed=1)  # fmt: skip
    x = np.ones((2, 5), np.float32)

    module = net.as_torch_module()

    assert [tuple(p.shape) for p in module.parameters()] == [(4, 5), (4,), (3, 4), (3,)]
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach(), net(x), rtol=1e-5)


def test_gradients_pass_a_module_on_both_sides(torch, trained):
    _, module, x, label = trained
    before = torch.nn.Linear(9, 9)

    (module(before(x), label) ** 2).backward()

    assert all(float(p.grad.abs().sum()) > 0 for p in before.parameters())
    assert all(float(p.grad.abs().sum()) > 0 for p in module.parameters())


def test_each_call_of_a_module_drops_other_values(torch, trained):
    _, module, x, label = trained

    losses = [module(x, label).item() for _ in range(2)]
    module.eval()
    frozen = [module(x, label).item() for _ in range(2)]

    assert losses[0] != losses[1]
    assert frozen[0] == frozen[1]


@pytest.mark.parametrize("change", ["pruned", "weight_norm", "spectral_norm"])
def test_a_module_takes_weights_that_pytorch_computes(torch, change):
    scale = "layer { name: 's' type: 'Scale' bottom: 'y' top: 's' scale_param { bias_term: true } }"
    module = Net(NET + scale, "TRAIN", device="cpu", seed=1).as_torch_module()
    x, utils = torch.ones(2, 3), torch.nn.utils
    ip, s = module.layers.ip, module.layers.s
    expected = module(x) / 2

    if change == "pruned":  # bias and weight of Scale have one shape
        prune = pytest.importorskip("torch.nn.utils.prune")
        prune.custom_from_mask(s, "weight", torch.full((4,), 0.5))
    else:
        getattr(utils.parametrizations, change)(ip)
        ip.eval()  # spectral_norm iterates at each reading in training
        expected = (x @ ip.weight.T + ip.bias) * s.weight + s.bias
    found = module(x)
    found.sum().backward()

    torch.testing.assert_close(found, expected)
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_module_learns_by_an_optimizer_of_pytorch(torch, trained):
    _, module, x, label = trained
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = module(x, label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert np.mean(losses[-5:]) < 0.5 * losses[0]


def test_functions_are_differentiated_vectorized_and_compiled(torch, trained):
    _, module, x, label = trained
    function, state = module.function, module.function.state
    params = function.params

    def loss(params, x, label):
        return function.loss(function(params, {"data": x, "label": label}, state, 0)[0])

    gradients = torch.func.grad(loss)(params, x, label)
    each = torch.func.vmap(
        lambda x, label: torch.func.grad(loss)(params, x[None], label[None]), in_dims=(0, 0)
    )(x, label)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(params, x, label)

    for name, arrays in gradients.items():
        for index, array in enumerate(arrays):
            alone = torch.func.grad(loss)(params, x[2:3], label[2:3])[name][index]
            torch.testing.assert_close(each[name][index][2], alone, rtol=1e-4, atol=1e-5)
            assert array.shape == params[name][index].shape
    torch.testing.assert_close(compiled, loss(params, x, label))


def test_gradients_of_gradients_are_those_of_finite_differences(torch):
    function = Net(STATEFUL_NET, "TRAIN", seed=2, dtype="float64").as_function("torch:cpu")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((2, 1, 9, 9), generator=generator, dtype=torch.float64)
    label, key = torch.arange(2.0), torch.tensor(3)
    arrays = [a.requires_grad_() for layer in function.params.values() for a in layer]

    def loss(x, *arrays):
        rest = iter(arrays)
        params = {n: tuple(next(rest) for _ in layer) for n, layer in function.params.items()}
        inputs = {"data": x, "label": label}
        return function.loss(function(params, inputs, function.state, key)[0])

    def penalty(x):
        return (torch.func.grad(loss)(x, *arrays) ** 2).sum()

    torch.autograd.gradgradcheck(loss, (x.requires_grad_(), *arrays), fast_mode=True)
    [first] = torch.autograd.grad(loss(x, *arrays), x, create_graph=True)
    [second] = torch.autograd.grad((first**2).sum(), x)
    torch.testing.assert_close(torch.func.grad(penalty)(x), second)
    assert float(second.abs().max()) > 1e-6


HOST = {"BatchReindex", "Filter", "MultiBoxLoss", "PSROIPooling", "ROIAlign", "ROIPooling"}
SMOOTH = [
    case for cases in CASES.values() for case in cases
    if layer_metadata(case.type).gradient == "gradient" and case.type not in {*HOST, "GELU"}
]  # fmt: skip


@pytest.mark.parametrize("case", SMOOTH[::3], ids=str)
def test_second_gradients_of_layers_are_those_of_finite_differences(torch, case):
    param, inputs = net_of(case)
    function = Net(param, case.phase, seed=1, dtype="float64").as_function("torch:cpu")
    layers = [(name, len(arrays)) for name, arrays in function.params.items()]
    arrays = [torch.from_numpy(array.astype(float)) for array in inputs.values()]
    arrays += [array for layer in function.params.values() for array in layer]
    noise = partial(torch.randn, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def loss(at):
        given, rest = dict(zip(inputs, at, strict=False)), iter(at[len(inputs) :])
        params = {name: tuple(next(rest) for _ in range(count)) for name, count in layers}
        outputs, _ = function(params, given, function.state, 3)
        return sum((weight * outputs[name]).sum() for name, weight in weights.items())

    def slope(step, **options):
        """Return the gradient at a place, and its product with ``across``."""
        at = [(a + step * b).requires_grad_() for a, b in zip(arrays, along, strict=True)]
        found = torch.autograd.grad(loss(at), at, allow_unused=True, **options)
        pairs = zip(found, across, strict=True)
        return at, found, sum((g * b).sum() for g, b in pairs if g is not None)

    named = function(function.params, dict(zip(inputs, arrays, strict=False)), function.state, 3)
    weights = {name: noise(value.shape) for name, value in named[0].items()}
    along, across = ([noise(a.shape) for a in arrays] for _ in range(2))
    constant = [g is None for g in slope(0.0)[1]]
    along = [b * (not c) for b, c in zip(along, constant, strict=True)]

    at, _, total = slope(0.0, create_graph=True)
    second = torch.autograd.grad(total, at, allow_unused=True, materialize_grads=True)

    found = sum((g * b).sum() for g, b in zip(second, along, strict=True))
    near = (slope(1e-6)[2] - slope(-1e-6)[2]) / 2e-6
    torch.testing.assert_close(found, near, rtol=1e-4, atol=1e-5)


def test_a_result_without_gradient_does_not_end_the_gradient_of_the_loss(torch):
    smooth = STATEFUL_NET.replace('type: "Dropout"', 'type: "TanH"')
    more = 'layer { name: "best" type: "ArgMax" bottom: "ip" top: "best" }'
    net = Net(smooth + more, "TRAIN", device="torch:cpu", seed=2)
    x, label = torch.randn(4, 1, 9, 9), torch.arange(4.0)

    outputs = net.as_torch_module()(x, label)
    outputs["loss"].backward()
    net({"data": x, "label": label})
    net.backward()

    assert outputs["best"].shape == (4, 1, 1)
    module = net.as_torch_module()
    module(x, label)["loss"].backward()
    np.testing.assert_array_equal(module.layers["ip"].weight.grad, net.params["ip"][0].diff)


def test_a_copy_of_a_module_has_parameters_and_averages_of_its_own(torch, trained):
    _, module, x, label = trained

    other = copy.deepcopy(module)
    with torch.no_grad():
        other.layers["ip"].weight.zero_()
    other(x, label)

    assert module.layers["ip"].weight.abs().sum() > 0
    assert float(module.layers["bn"].state2) == 0 < float(other.layers["bn"].state2)
    assert (module.passes, other.passes) == (0, 1)


@pytest.mark.parametrize("wrong", ["three", "twice", "unknown"])
def test_inputs_that_a_module_does_not_have_are_refused(torch, trained, wrong):
    _, module, x, label = trained
    arguments, named = {
        "three": ((x, label, label), {}),
        "twice": ((x, label), {"data": x}),
        "unknown": ((x,), {"labels": label}),
    }[wrong]

    with expect_error(NetError, ErrorCode.UNKNOWN, mentions=["data", "label"]):
        module(*arguments, **named)


@pytest.mark.parametrize("name", ["training", "pop", "forward", "_parameters"])
def test_a_layer_may_have_a_name_that_modules_use(torch, name):
    module = Net(NET.replace('"ip"', f'"{name}"'), "TEST").as_torch_module()

    assert module(torch.ones(2, 3)).shape == (2, 4)
    assert list(module.state_dict()) == [f"layers.{name}_.weight", f"layers.{name}_.bias"]


def test_a_layer_without_a_name_has_a_parameter(torch):
    module = Net(NET.replace('"ip"', '""'), "TEST").as_torch_module()

    assert module(torch.ones(2, 3)).shape == (2, 4)
    assert [name for name, _ in module.named_parameters()] == ["layers._.weight", "layers._.bias"]


@pytest.mark.usefixtures("torch")
def test_the_page_on_pytorch_is_followed(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "digits")
    page = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"
    code = re.findall("^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, object] = {}

    exec("\n".join(code), names)

    assert names["each"]["conv1"][0].shape == (4, 16, 1, 5, 5)
