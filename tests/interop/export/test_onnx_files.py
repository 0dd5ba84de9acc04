"""Files of ONNX as others see them: names, sizes, versions, numbers of 16 bits, files beside."""

import numpy as np
import pytest
from expect_error import expect_error
from exporting import expect_same, message, net

import demitasse as dm
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.interop.onnx_export import OPSETS, files
from demitasse.interop.onnx_export.converters import CONVERTERS

onnx = pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")

SMALL = """
name: "small"
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
IMAGE = {"data": (2, 3, 9, 9)}


@pytest.fixture
def small():
    return net(SMALL, IMAGE)


def written(done):
    return onnx.load(done.files[0])


def run(done, arrays):
    session = onnxruntime.InferenceSession(done.files[0])
    return session.run(None, {one.name: arrays[one.name] for one in session.get_inputs()})


def test_everything_is_called_as_in_the_net(small, tmp_path):
    done = expect_same(small, tmp_path)

    graph = written(done).graph
    nodes = [(node.op_type, node.name, list(node.output)) for node in graph.node]
    assert graph.name == "small"
    assert nodes == [
        ("Conv", "conv", ["conv@conv"]),
        ("BatchNormalization", "bn", ["conv@scale"]),
        ("Relu", "relu", ["conv"]),
        ("MaxPool", "pool", ["pool"]),
        ("Flatten", "ip/Flatten", ["ip/Flatten"]),
        ("Gemm", "ip", ["ip"]),
        ("Softmax", "prob", ["prob"]),
    ]
    assert {one.name for one in graph.initializer} >= {"conv/weight", "ip/bias", "bn/mean"}
    assert done.inputs == {"data": ["batch", 3, 9, 9]}
    assert done.outputs == {"prob": ["batch", 5]}


def test_every_blob_has_its_shape(small, tmp_path):
    graph = written(expect_same(small, tmp_path)).graph

    shapes = {
        one.name: [d.dim_param or d.dim_value for d in one.type.tensor_type.shape.dim]
        for one in graph.value_info
    }
    assert shapes["pool"] == ["batch", 4, 3, 3]
    assert shapes["conv@conv"] == ["batch", 4, 7, 7]


def test_blobs_that_are_asked_for_are_outputs_too(small, tmp_path):
    done = expect_same(small, tmp_path, outputs=["conv", "ip"])

    assert list(done.outputs) == ["prob", "conv", "ip"]


def test_only_what_leads_to_them_is_written(small, tmp_path):
    done = expect_same(small, tmp_path, outputs=["pool"], only=True)

    assert list(done.outputs) == ["pool"]
    assert [node.name for node in written(done).graph.node] == ["conv", "bn", "relu", "pool"]


def test_any_batch_runs(small, tmp_path):
    done = expect_same(small, tmp_path)
    images = np.random.default_rng(0).standard_normal((7, 3, 9, 9), np.float32)

    [prob] = run(done, {"data": images})

    np.testing.assert_allclose(prob, small.predict(images)["prob"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("batch", "size"), [(5, 5), ("fixed", 2), ("dynamic", "batch")])
def test_the_batch_that_is_asked_for(batch, size, small, tmp_path):
    done = expect_same(small, tmp_path, batch=batch)

    assert done.inputs["data"][0] == size
    assert done.outputs["prob"][0] == size


FIXED = """layer { name: "r" type: "Reshape" bottom: "data" top: "r"
  reshape_param { shape { dim: 2 dim: -1 } } }"""


def test_a_free_batch_is_refused_where_a_layer_fixes_it(tmp_path):
    with expect_error(NetError, ErrorCode.SHAPE_MISMATCH, mentions="'r' (Reshape)"):
        expect_same(net(FIXED, IMAGE), tmp_path, batch="dynamic")

    assert not list(tmp_path.iterdir())


def test_where_nothing_is_said_the_batch_is_fixed_with_a_word(tmp_path):
    done = expect_same(net(FIXED, IMAGE), tmp_path)

    assert done.inputs == {"data": [2, 3, 9, 9]}
    assert "layer 'r' (Reshape)" in done.notes[-1]


def test_an_input_that_is_no_batch_keeps_its_size_with_a_word(tmp_path):
    text = 'layer { name: "scale" type: "Scale" bottom: "data" bottom: "s" top: "y" }'

    done = expect_same(net(text, {**IMAGE, "s": (3,)}), tmp_path)

    assert done.inputs == {"data": ["batch", 3, 9, 9], "s": [3]}
    [note] = done.notes
    assert "input 's'" in note
    assert "3" in note


@pytest.mark.parametrize("batch", [0, -1, "any", 1.5])
def test_other_batches_are_refused(batch, small, tmp_path):
    with expect_error(ConfigError, ErrorCode.INVALID, field="batch", got=batch):
        expect_same(small, tmp_path, batch=batch)


EVERY_VERSION = (
    SMALL
    + """
layer { name: "gelu" type: "GELU" bottom: "ip" top: "gelu" }
layer { name: "sum" type: "Reduction" bottom: "gelu" top: "sum"
  reduction_param { axis: 1 operation: MEAN } }
layer { name: "slice" type: "Slice" bottom: "prob" top: "a" top: "b"
  slice_param { axis: 0 } }
layer { name: "mvn" type: "MVN" bottom: "pool" top: "mvn" }
layer { name: "norm" type: "Normalize" bottom: "pool" top: "norm" }
layer { name: "up" type: "Interp" bottom: "pool" top: "up" interp_param { height: 5 width: 4 } }
layer { name: "best" type: "ArgMax" bottom: "ip" top: "best"
  argmax_param { top_k: 2 out_max_val: true } }
"""
)


@pytest.mark.parametrize("opset", [13, 14, 15, 17, 18, 20, 21, 22])
def test_every_version_of_the_operators(opset, tmp_path):
    done = expect_same(net(EVERY_VERSION, IMAGE), tmp_path, opset=opset)

    assert [one.version for one in written(done).opset_import] == [opset]


@pytest.mark.parametrize("opset", [OPSETS[0] - 1, OPSETS[-1] + 1])
def test_other_versions_are_refused(opset, small, tmp_path):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="opset", got=opset):
        expect_same(small, tmp_path, opset=opset)


def test_what_the_checker_refuses_is_not_written(small, tmp_path, monkeypatch):
    monkeypatch.setitem(CONVERTERS, "Softmax", lambda node, graph: graph.add("Nothing"))

    with expect_error(NetError, ErrorCode.FAILED, mentions="Nothing"):
        dm.export_onnx(small, None, tmp_path / "net.onnx")

    assert not list(tmp_path.iterdir())


def test_shared_weights_are_stored_once(tmp_path):
    shared = """
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
      inner_product_param { num_output: 3 bias_term: false } }
    layer { name: "b" type: "InnerProduct" bottom: "y" top: "b" param { name: "w" }
      inner_product_param { num_output: 3 bias_term: false } }
    """

    done = expect_same(net(shared, {"x": (2, 4), "y": (2, 4)}), tmp_path)

    assert [one.name for one in written(done).graph.initializer] == ["a/weight"]


def test_numbers_of_16_bits_inside(small, tmp_path):
    done = dm.export_onnx(small, None, tmp_path / "net.onnx", float16=True, check=True)

    kinds = {one.data_type for one in written(done).graph.initializer}
    [image] = written(done).graph.input
    assert kinds == {onnx.TensorProto.FLOAT16}
    assert image.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert 0 < done.compare().worst.relative < 1e-2


EMBED = """
layer { name: "embed" type: "Embed" bottom: "data" top: "embed"
  embed_param { input_dim: 5000 num_output: 3 weight_filler { type: "gaussian" std: 1 } } }
"""
UNPOOL = """
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" top: "mask"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "up" type: "Upsample" bottom: "pool" bottom: "mask" top: "up"
  upsample_param { scale: 2 } }
"""
ARGMAX = 'layer { name: "best" type: "ArgMax" bottom: "data" top: "best" }'


@pytest.mark.parametrize(
    ("text", "array"),
    [
        (EMBED, np.array([[1, 2049, 2051, 4999]])),
        (UNPOOL, np.arange(64 * 64).reshape(1, 1, 64, 64) % 1009),
        (ARGMAX, np.arange(5000)[None] == 4999),
    ],
    ids=["embed", "unpool", "argmax"],
)
def test_indices_are_exact_in_numbers_of_16_bits(text, array, tmp_path):
    array = array.astype(np.float32)
    done = dm.export_onnx(net(text, {"data": array.shape}), None, tmp_path / "net.onnx",
                          float16=True)  # fmt: skip

    found = done.compare({"data": array})

    assert found.worst.relative < 1e-3
    assert all(one.relative == 0 for one in found.all if one.type == "ArgMax")


def test_large_constants_go_to_a_file_beside(small, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    monkeypatch.setattr(files, "SMALL", 50)

    done = expect_same(small, tmp_path)

    assert [file.name for file in done.files] == ["net.onnx", "net.onnx.data"]
    assert done.files[1].stat().st_size > 100
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(small, tmp_path, monkeypatch):
    target = tmp_path / "net.onnx"
    target.write_bytes(b"old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(files, "_raw", full)

    with expect_error(OSError, mentions="no space left"):
        dm.export_onnx(small, None, target)

    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


# -- images --------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(1).integers(0, 256, (2, 3, 9, 9))


@pytest.mark.parametrize("uint8", [False, True])
@pytest.mark.parametrize(
    "mean", [None, 100.0, [104.0, 117.0, 123.0], np.ones((3, 11, 11), np.float32)]
)
def test_images_are_prepared_as_asked(uint8, mean, small, tmp_path):
    how = dm.Preprocess(mean=mean, scale=np.float32(0.5), bgr=True, uint8=uint8)
    done = expect_same(small, tmp_path, preprocess=how)
    kind = np.uint8 if uint8 else np.float32
    wanted = IMAGES[:, ::-1].astype(np.float32)
    if mean is not None:
        wanted = wanted - (np.reshape(mean, (-1, 1, 1)) if np.ndim(mean) == 1 else np.mean(mean))

    [prob] = run(done, {"data": IMAGES.astype(kind)})

    expected = small.predict((wanted * 0.5).astype(np.float32))["prob"]
    np.testing.assert_allclose(prob, expected, rtol=1e-4, atol=1e-6)


def test_a_mean_that_does_not_fit_is_refused(small, tmp_path):
    with expect_error(ConfigError, ErrorCode.SHAPE_MISMATCH, field="mean", got=(2, 1, 1)):
        expect_same(small, tmp_path, preprocess=dm.Preprocess(mean=[1, 2]))


@pytest.mark.parametrize("mean", ["mean.binaryproto", [[1, 2], [3]]])
def test_a_mean_that_is_no_array_of_numbers_is_refused(mean, small, tmp_path):
    with expect_error(ConfigError, ErrorCode.INVALID, field="mean"):
        expect_same(small, tmp_path, preprocess=dm.Preprocess(mean=mean))


def test_a_net_without_images_cannot_have_them_prepared(tmp_path):
    text = 'layer { name: "relu" type: "ReLU" bottom: "x" top: "y" }'

    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="input", got=""):
        expect_same(net(text, {"x": (2, 3)}), tmp_path, preprocess=dm.Preprocess(scale=2))


# -- the check -----------------------------------------------------------------------------------


def test_a_file_that_computes_something_else_is_refused(small, tmp_path):
    done = dm.export_onnx(small, None, tmp_path / "net.onnx", check=True)
    model = written(done)
    [bias] = [one for one in model.graph.initializer if one.name == "ip/bias"]
    bias.CopyFrom(onnx.numpy_helper.from_array(np.arange(5, dtype=np.float32) * 9, "ip/bias"))
    onnx.save(model, done.files[0])

    first = done.compare().first_divergence(1e-4)

    assert (first.layer, first.device) == ("ip", "onnxruntime")
    assert first.inputs < 1e-5


def test_a_net_of_a_file_and_weights_of_another(small, tmp_path):
    (tmp_path / "net.prototxt").write_text(dm.proto.text_of(message(SMALL, IMAGE)))
    small.save(tmp_path / "net.caffemodel")

    done = dm.export_onnx(
        tmp_path / "net.prototxt", tmp_path / "net.caffemodel", tmp_path / "net.onnx", check=True
    )

    assert not done.notes


def test_a_net_in_double_precision_is_written_in_single(small, tmp_path):
    double = dm.Net(message(SMALL, IMAGE), "TEST", device="numpy", dtype="float64")
    for mine, theirs in zip(double.learnable_params, small.learnable_params, strict=True):
        mine.data = theirs.cpu_data()

    done = expect_same(double, tmp_path)

    kinds = {one.data_type for one in written(done).graph.initializer}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_a_net_takes_no_weights_besides_its_own(small, tmp_path):
    small.save(tmp_path / "net.caffemodel")

    with expect_error(ConfigError, ErrorCode.CONFLICT, field="weights"):
        dm.export_onnx(small, tmp_path / "net.caffemodel", tmp_path / "net.onnx")


def test_layers_that_get_no_weights_are_named(small, tmp_path):
    done = dm.export_onnx(message(SMALL, IMAGE), None, tmp_path / "net.onnx")

    assert any("layer 'conv'" in note for note in done.notes)


def test_a_layer_that_is_training_only_leaves_a_net_with_nothing(tmp_path):
    text = """layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss" }"""

    with expect_error(NetError, ErrorCode.MISSING, field="outputs"):
        dm.export_onnx(message(text, {"a": (2, 3), "b": (2, 3)}), None, tmp_path / "net.onnx")
