"""Modules of PyTorch as text: what is written needs no PyTorch."""

import ast
import shutil
import subprocess

import numpy as np
import pytest
from expect_error import expect_error
from exporting import message, net

from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop import export_torch
from demitasse.io.proto import text_of
from demitasse.io.weights.safetensors import read_safetensors

DATA = {"data": (2, 3, 8, 8)}


def layer(name, kind, bottoms, tops, fields=""):
    blobs = "".join(f' bottom: "{one}"' for one in bottoms.split())
    blobs += "".join(f' top: "{one}"' for one in tops.split())
    return f'layer {{ name: "{name}" type: "{kind}"{blobs} {fields} }}\n'


def conv(name, bottom, top):
    return layer(name, "Convolution", bottom, top,
                 "convolution_param { num_output: 3 kernel_size: 3 pad: 1 }")  # fmt: skip


SMALL = (
    conv("conv1/3x3", "data", "conv1")
    + layer("relu1", "ReLU", "conv1", "conv1")
    + layer("pool", "Pooling", "conv1", "pool", "pooling_param { kernel_size: 3 stride: 2 }")
    + layer("ip", "InnerProduct", "pool", "ip", "inner_product_param { num_output: 5 }")
    + layer("prob", "Softmax", "ip", "prob")
)

READS_LIKE_THE_NET = """\
    inputs = ("data",)
    outputs = ("prob",)

    def __init__(self):
        super().__init__()
        self.conv1_3x3 = nn.Conv2d(3, 3, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.ip = nn.Linear(48, 5)
        self.prob = nn.Softmax(1)

    def forward(self, data):
        conv1 = self.conv1_3x3(data)
        conv1 = self.relu1(conv1)
        pool = self.pool(conv1)
        ip = self.ip(pool.flatten(1))
        prob = self.prob(ip)
        return prob
"""


def written(text, folder, inputs=DATA, **options):
    """Export a net and return what was done, and the text of the module."""
    done = export_torch(net(text, inputs), None, folder / "net.py", device="numpy", **options)
    return done, done.files[0].read_text()


def test_the_module_reads_like_the_net(tmp_path):
    done, text = written(SMALL, tmp_path)

    assert READS_LIKE_THE_NET in text
    assert done.inputs == {"data": ["batch", 3, 8, 8]}
    assert done.outputs == {"prob": ["batch", 5]}
    assert "demitasse" not in text.lower().replace("written by demitasse", "")


def test_the_weights_are_those_of_the_net(tmp_path):
    done, _ = written(SMALL, tmp_path)

    arrays = read_safetensors(tmp_path / "net.safetensors")

    assert list(arrays) == ["conv1_3x3.weight", "conv1_3x3.bias", "ip.weight", "ip.bias"]
    assert np.array_equal(arrays["ip.weight"], done.net.params["ip"][0].data)


HOSTILE = [
    "a'b",
    "__import__('os').system('true')",
    "x): pass\nimport os #",
    'x"""\\"',
    "class",
    "self",
    "torch",
    "1x1",
    "forward",
    "...",
    "\\",
    "\u00fc\u4e2d\U0001f600",
    "a" * 300,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_becomes_code(name, tmp_path):
    source = message(conv("first", "data", "between") + conv("second", "between", "end"), DATA)
    source.name = name
    source.layer[1].name, source.layer[2].name = name, f"{name} "
    source.layer[1].top[0] = source.layer[2].bottom[0] = name

    done = export_torch(source, None, tmp_path / "net.py", outputs=[name])

    tree = ast.parse(done.files[0].read_text())
    [module] = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    calls = {ast.unparse(one.func) for one in ast.walk(module) if isinstance(one, ast.Call)}
    own = {call for call in calls if call.startswith("self.")}
    assert calls - own == {"super().__init__", "super", "nn.Conv2d"}
    assert len(own) == 2
    assert list(done.outputs) == ["end", name]
    compile(tree, "net.py", "exec")


def test_names_that_become_equal_are_told_apart(tmp_path):
    text = conv("a/b", "data", "x.1") + conv("a-b", "x.1", "x-1") + conv("a_b", "x-1", "x_1")

    _, module = written(text, tmp_path)

    assert "x_1 = self.a_b(data)" in module
    assert "x_1_2 = self.a_b_2(x_1)" in module
    assert "x_1_3 = self.a_b_3(x_1_2)" in module


def test_layers_with_the_same_parameters_are_one_module(tmp_path):
    named = 'param { name: "w" } param { name: "b" } inner_product_param { num_output: 4 }'
    text = (
        layer("slice", "Slice", "data", "one two", "slice_param { axis: 2 }")
        + layer("a", "InnerProduct", "one", "a", named)
        + layer("b", "InnerProduct", "two", "b", named)
    )

    _, module = written(text, tmp_path)

    assert "self.b = self.a" in module
    assert 'return {"a": a, "b": b}' in module


def test_only_helpers_that_are_called_are_brought(tmp_path):
    fields = "pooling_param { kernel_size: 1 stride: 3 }"

    _, plain = written(SMALL, tmp_path)
    _, odd = written(layer("pool", "Pooling", "data", "pool", fields), tmp_path)

    assert "caffe_pool" not in plain
    assert odd.index("def caffe_windows") < odd.index("def caffe_pool") < odd.index("class Net")
    assert "def expected_pool" not in odd


def test_everything_that_has_no_form_is_named_and_nothing_is_written(tmp_path):
    volume = "convolution_param { num_output: 2 kernel_size: 1 }"
    text = "".join(layer(name, "Convolution", "x", name, volume) for name in ("one", "two"))

    with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["one", "two"]):
        export_torch(message(text, {"x": (1, 2, 3, 3, 3, 3)}), None, tmp_path / "net.py")

    assert not list(tmp_path.iterdir())


def test_types_without_a_form_are_named_and_nothing_is_written(tmp_path):
    text = SMALL + layer("mine", "Python", "ip", "mine", 'python_param { module: "m" layer: "L" }')

    with expect_error(NetError, ErrorCode.UNSUPPORTED, layers=["mine"]):
        export_torch(message(text, DATA), None, tmp_path / "net.py")

    assert not list(tmp_path.iterdir())


def test_neither_file_is_written_where_one_cannot_be(tmp_path):
    (tmp_path / "net.safetensors").mkdir()

    with expect_error(OSError, mentions="net.safetensors"):
        written(SMALL, tmp_path)

    assert [one.name for one in tmp_path.iterdir()] == ["net.safetensors"]


def test_another_ending_is_refused(tmp_path):
    with expect_error(ConfigError, ErrorCode.INVALID, field="path", mentions=[".py", "net.txt"]):
        export_torch(net(SMALL, DATA), None, tmp_path / "net.txt")


@pytest.mark.parametrize("length", [3, 20, 30, 45, 60])
def test_lines_are_laid_out_as_formatters_do(length, tmp_path):
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("needs ruff: nox -s lint")
    a, b = "a" * length, "b" * length
    text = (
        conv(a, "data", a)
        + layer(f"{a}_bn", "BatchNorm", a, a)
        + layer(f"{a}_scale", "Scale", a, a, "scale_param { bias_term: true }")
        + conv(b, a, b)
        + layer("sum", "Eltwise", f"{a} {b}", f"{a}{b}")
        + layer("half", "Eltwise", f"{a} {b}", "half", "eltwise_param { coeff: 0.5 coeff: 1 }")
        + layer("cat", "Concat", f"{a} {b} half", "cat")
        + layer("last", "Scale", "cat", "last", "scale_param { bias_term: true }")
    )

    done, _ = written(text, tmp_path, outputs=[a, b])

    command = [ruff, "format", "--isolated", "--diff", str(done.files[0])]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


# -- with PyTorch ------------------------------------------------------------------------------


def test_no_attribute_hides_one_of_a_module():
    torch = pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
    from demitasse.interop.torch_export.code import MODULE

    own = {name for name in dir(torch.nn.Module()) if not name.startswith("_")}

    assert own <= set(MODULE.split())


def test_the_file_loads_its_weights(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
    pytest.importorskip("safetensors", reason="needs safetensors: nox -s frameworks")
    done, text = written(SMALL, tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8), np.float32)
    names = {"__file__": str(done.files[0]), "__name__": "net"}
    exec(compile(text, "net.py", "exec"), names)

    with torch.no_grad():
        found = names["load"]()(torch.from_numpy(x))

    assert np.allclose(found, done.net.predict({"data": x})["prob"], rtol=1e-5, atol=1e-6)


def test_a_module_that_computes_something_else_is_found(tmp_path):
    pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
    done, text = written(SMALL, tmp_path)
    done.files[0].write_text(text.replace("nn.ReLU()", "nn.Tanh()"))

    worst = done.compare().all[1]

    assert worst.layer == "relu1"
    assert worst.relative > 0.1


def test_a_prototxt_in_a_string_has_no_file_name(tmp_path):
    text = text_of(message(SMALL, DATA))

    done = export_torch(text, None, tmp_path / "net.py")

    assert done.module.text.startswith('"""A Caffe net, written by Demitasse')
