"""The device `cpu` in processes of their own: narrower vectors, and numpy without llvmlite."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.language import target
from demitasse.backends.kernels.language.target import WIDE, vector_width

pytestmark = pytest.mark.skipif(
    not (jit.status().ready and vector_width()), reason=str(jit.status())
)

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/layers/test_recorded_cases.py",
    "tests/net/test_in_place.py",
    "tests/net/test_nonfinite_values.py",
    "tests/plan/test_replay.py",
)


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(
    vector_width() < WIDE, reason="without AVX-512, these are the instructions of all tests"
)
@pytest.mark.parametrize(
    "most", ["AVX512_CORE", pytest.param("AVX2", marks=pytest.mark.exhaustive)]
)
def test_recorded_cases_layers_in_place_and_numbers_that_are_none(most):
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "--backends=cpu"]

    done = run("-m", "pytest", *options, *TESTS, ONEDNN_MAX_CPU_ISA=most)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 500


NET = """
import sys
import numpy as np
from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

def conv(name, bottom, fields):
    return (f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
            f'convolution_param {{ {fields} weight_filler {{ type: "xavier" }} }} }}')

def layer(name, kind, bottom, top="", fields=""):
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top or name}" {fields} }}'

TEXT = chr(10).join([
    "force_backward: true" if sys.argv[1] == "TRAIN" else "",
    'layer { name: "x" type: "Input" top: "x" '
    'input_param { shape { dim: 2 dim: 3 dim: 40 dim: 40 } } }',
    conv("few", "x", "num_output: 64 kernel_size: 3 pad: 1"), layer("r", "ReLU", "few", "few"),
    conv("many", "few", "num_output: 64 kernel_size: 3 pad: 1"),
    conv("pixels", "many", "num_output: 64 kernel_size: 1"),
    layer("norm", "BatchNorm", "many"), layer("sum", "Eltwise", "pixels norm"),
    layer("joined", "Concat", "sum many"), layer("pool", "Pooling", "joined", "",
        "pooling_param { kernel_size: 2 stride: 2 }"),
    layer("ip", "InnerProduct", "pool", "",
        'inner_product_param { num_output: 7 weight_filler { type: "xavier" } }'),
])
outputs = []
for device in ("cpu", "numpy"):
    net = Net(parse_text(TEXT, NetParameter), sys.argv[1], device=device, seed=3)
    for one in net.params["norm"]:
        one.data[...] = 1
    for _ in range(4):
        net.blobs["x"].data[...] = np.random.default_rng(0).normal(size=(2, 3, 40, 40))
        net.clear_param_diffs()
        net.forward()
        if sys.argv[1] == "TRAIN":
            net.blobs["ip"].diff[...] = np.random.default_rng(1).normal(size=(2, 7))
            net.backward()
    learned = [blobs[0].diff for name, blobs in net.params.items() if name != "norm"]
    outputs.append([np.array(one) for one in (net.blobs["ip"].data, *learned)])
    print(net.device.backend.name, *(step.code for step in net.plan.steps() if step), sep="|")
for one, other in zip(*outputs):
    print(np.abs(one - other).max() / max(1e-30, np.abs(other).max()))
"""


@pytest.mark.parametrize(
    ("phase", "codes"),
    [
        ("TEST", {"direct", "winograd", "igemm", "copy", "few"}),
        ("TRAIN", {"direct", "winograd", "igemm", "norm", "sum", "copy"}),
    ],
)
def test_kernels_run_all_layers(phase, codes):
    done = run("-c", NET, phase)

    assert done.returncode == 0, done.stderr
    own, plain, *errors = done.stdout.splitlines()
    name, *code = own.split("|")
    assert name == "cpu"
    assert not [one for one in code if "llvm:" not in one and one != "shared memory"]
    assert codes <= {one.split()[0] for one in code}
    assert plain.startswith("numpy|")
    assert max(map(float, errors)) < 1e-4


GROUPS = """
import sys
import numpy as np
from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text
from demitasse.plan.report import report

TEXT = '''
force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 32 dim: 15 dim: 11 } } }
layer { name: "before" type: "Convolution" bottom: "x" top: "before" convolution_param {
  num_output: CHANNELS kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "groups" type: "Convolution" bottom: "before" top: "groups" convolution_param {
  num_output: CHANNELS group: GROUPS WINDOW weight_filler { type: "xavier" } } }
layer { name: "y" type: "Convolution" bottom: "groups" top: "y" convolution_param {
  num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
'''
for window in sys.argv[3:]:
    names = {"CHANNELS": sys.argv[1], "GROUPS": sys.argv[2], "WINDOW": window}
    text, outputs = TEXT, []
    for name, value in names.items():
        text = text.replace(name, value)
    for options in ({"device": "cpu"}, {"device": "numpy", "optimize": False}):
        net = Net(parse_text(text, NetParameter), "TRAIN", seed=1, **options)
        rng = np.random.default_rng(2)
        for _ in range(2):  # weights are taken again where they have changed
            net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
            net.forward()
            net.blobs["y"].diff[...] = rng.normal(size=net.blobs["y"].shape)
            net.clear_param_diffs()
            net.backward()
            net.params["groups"][0].data[...] *= 1.5
        learned = [blob.diff for name in ("before", "groups") for blob in net.params[name]]
        outputs.append([np.array(one) for one in (net.blobs["x"].diff, *learned)])
        if not outputs[1:]:
            codes = {layer.name: layer for layer in report(net.plan)}["groups"]
    errors = [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(*outputs)]
    print(codes.code, codes.backward_code, max(errors), sep="|")
"""


@pytest.mark.parametrize("channels", [40, 12], ids=["many", "few"])
def test_depthwise_convolutions_train_in_kernels(channels):
    windows = (
        "kernel_size: 3 pad: 1", "kernel_size: 3 pad: 1 stride: 2 bias_term: false",
        "kernel_size: 7 pad: 3", "kernel_size: 5 pad: 2 stride: 3 dilation: 2",
        "kernel_h: 1 kernel_w: 3 pad_h: 1 pad_w: 4 stride: 2",
    )  # fmt: skip

    done = run("-c", GROUPS, str(channels), str(channels), *windows)

    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert len(lines) == len(windows)
    for code, back, error in lines:
        assert code.startswith("depthwise llvm")
        assert back == code
        assert float(error) < 2e-6


@pytest.mark.parametrize("phase", ["TEST", "TRAIN"])
def test_without_llvmlite_numpy_runs_everything(phase):
    hidden = "import sys\nsys.modules['llvmlite'] = None\n" + NET

    done = run("-c", hidden, phase)

    assert done.returncode == 0, done.stderr
    own, plain, *errors = done.stdout.splitlines()
    assert "llvm:" not in own
    assert own.startswith("numpy|")
    assert plain.startswith("numpy|")
    assert max(map(float, errors)) < 1e-4


AVX2 = {"avx2", "fma", "f16c"}
"""Instruction sets of vectors of 8 floats."""


@pytest.mark.parametrize(
    ("machine", "most", "has", "width"),
    [
        ("x86_64", "", {*AVX2, *target.AVX512}, 16),
        ("x86_64", "AVX2", {*AVX2, *target.AVX512}, 8),
        ("x86_64", "avx512_core_vnni", AVX2, 8),
        ("x86_64", "SSE41", AVX2, 0),
        ("x86_64", "", {"avx2"}, 0),
        ("x86_64", "", {"avx2", "fma"}, 0),
        ("x86_64", "", {"avx2", "f16c"}, 0),
        ("aarch64", "", {"asimd", "fp"}, 4),
        ("aarch64", "", {"fp"}, 0),
        ("", "", None, 0),
    ],
)
def test_vectors_are_as_wide_as_the_processor_has_them(monkeypatch, machine, most, has, width):
    monkeypatch.setattr(target, "architecture", lambda: machine)
    monkeypatch.setattr(target, "processor_features", lambda: has and frozenset(has))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)

    assert vector_width() == width


def test_a_processor_of_linux_is_read_by_its_architecture(monkeypatch, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\n"
        "processor\t: 1\nCPU part\t: 0xd05\n"
    )
    monkeypatch.setattr(target, "CPUINFO", file)
    monkeypatch.setattr(target, "_processor_fields", target._processor_fields.__wrapped__)
    monkeypatch.setattr(target, "architecture", lambda: "aarch64")

    assert target.processor_features() == {"fp", "asimd"}
    assert "0xd0c" in (target.processor_signature() or ())
    monkeypatch.setattr(target, "architecture", lambda: "x86_64")
    assert target.processor_signature() is None
