"""A net against the same net in an ONNX file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from needs import needs

onnx = pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")

DIFF = "diff small.prototxt small.onnx --weights small.caffemodel --device numpy"


def model(params, names=lambda name: name):
    """The small net for ONNX; ``names`` gives each array its name."""
    from onnx import TensorProto, helper, numpy_helper

    chain = [
        ("Conv", "conv", ["conv/0", "conv/1"], {"kernel_shape": [3, 3]}),
        ("BatchNormalization", "scale", ["scale/0", "scale/1", "bn/0", "bn/1"], {"epsilon": 1e-5}),
        ("Relu", "relu", [], {}),
        ("MaxPool", "pool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("Flatten", "flat", [], {"axis": 1}),
        ("Gemm", "ip", ["ip/0", "ip/1"], {"transB": 1}),
        ("Softmax", "prob", [], {"axis": 1}),
    ]
    nodes, last = [], "image"
    for kind, name, stored, fields in chain:
        nodes.append(helper.make_node(kind, [last, *stored], [names(name)], **fields))
        last = names(name)
    tensors = [numpy_helper.from_array(array, name) for name, array in params.items()]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [None, 3, 9, 9])
    out = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "small", [image], [out], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_net_that_is_the_same(small, run):
    onnx.save(model(small), "small.onnx")

    result = run(f"{DIFF} --json")

    found = json.loads(result.stdout)
    compared = [one["what"] for one in found["differences"]]
    assert result.exit_code == 0, result.output
    assert "top 'conv' with 'conv' by name" in compared
    assert "top 'ip' with 'ip' by name" in compared
    assert len([what for what in compared if "parameter" in what]) == 8
    [note] = found["notes"]
    assert "layer 'bn' (BatchNorm), top 'bn'" in note


def test_blobs_of_other_names_are_matched_by_order(small, run):
    layers = ["conv", "scale", "relu", "pool", "flat", "ip", "prob"]
    onnx.save(model(small, lambda name: f"array_{layers.index(name)}"), "small.onnx")

    result = run(f"{DIFF} --json")

    compared = [one["what"] for one in json.loads(result.stdout)["differences"]]
    assert result.exit_code == 0, result.output
    assert compared[:6] == [
        "top 'conv' with 'array_0' by order",
        "top 'bn' with 'array_1' by order",
        "top 'bn' with 'array_2' by order",
        "top 'pool' with 'array_3' by order",
        "top 'ip' with 'array_5' by order",
        "top 'prob' with 'array_6' by order",
    ]


def test_the_first_difference_is_explained(small, run):
    small["ip/1"] = small["ip/1"] + np.float32([0, 0.5, 0, 0, 0])
    onnx.save(model(small), "small.onnx")

    result = run(DIFF)

    assert result.exit_code == 1
    explained = result.stdout.split("0.0001")[1]
    assert "layer 'ip' (InnerProduct), top 'ip'" in explained.splitlines()[0]
    assert "Gemm on small.onnx" in explained
    assert "[1]" not in explained
    assert "parameters" in result.stdout.splitlines()[0]


def test_weights_that_lie_beside_the_model_are_read(small, run):
    onnx.save(model(small), "small.onnx", save_as_external_data=True, location="weights.bin",
              size_threshold=0)  # fmt: skip

    assert run(DIFF).exit_code == 0


@needs("links")
@pytest.mark.parametrize("place", ["../secret.bin", "{folder}/secret.bin", "link.bin", "..\\s.bin"])
def test_weights_elsewhere_are_refused(small, run, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "secret.bin").write_bytes(bytes(4096))
    Path("link.bin").symlink_to(folder / "secret.bin")
    made = model(small)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place.format(folder=folder))
    Path("small.onnx").write_bytes(made.SerializeToString())

    result = run(DIFF)

    assert result.exit_code == 3
    assert repr(place.format(folder=folder)) in result.stderr


def test_a_file_that_is_none(small, run):
    Path("small.onnx").write_bytes(b"\xff\x00 no model")

    result = run(DIFF)

    assert result.exit_code == 3
    assert "small.onnx" in result.stderr


def test_onnx_runtime_sends_nothing_and_leaves_no_file(tmp_path):
    """Its import writes a file ``.ses`` for its telemetry, unless a variable is set."""
    code = "from demitasse.testing.reference.onnx import onnx_library as library\n"
    code += "library('onnxruntime', 'this test')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    before = set(tmp_path.iterdir())

    subprocess.run([sys.executable, "-c", code], check=True, env=environment)

    assert set(tmp_path.iterdir()) == before
