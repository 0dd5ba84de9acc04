"""What is refused, and what files are left behind."""

import random
from contextlib import suppress

import numpy as np
import pytest
from click.testing import CliRunner
from expect_error import expect_error

from demitasse import Net
from demitasse.cli.root import cli
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode, NetError
from demitasse.interop.onnx_import import import_onnx

onnx = pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
helper = onnx.helper


def write(path, nodes, constants=None, shape=(2, 3, 6, 6), outputs=("y",), opset=17):
    """Write a model with one input, x."""
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes,
        "net",
        [info],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports), str(path))
    return path


def convolution(path, **how):
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **how)
    return write(path, [node], {"w": weight})


def test_both_files_are_written_and_make_the_same_net(tmp_path):
    model = convolution(tmp_path / "net.onnx")

    done = import_onnx(model, tmp_path / "net.prototxt", tmp_path / "net.caffemodel")

    read = Net(tmp_path / "net.prototxt", "TEST", weights=tmp_path / "net.caffemodel")
    for net in (done.net, read):
        net.set_input("x", np.ones((2, 3, 6, 6), np.float32))
        net.forward()
    assert np.array_equal(read.blobs["y"].cpu_data(), done.net.blobs["y"].cpu_data())
    assert read.layer_names == ["x", "conv"]


def test_all_nodes_without_a_layer_are_named_and_nothing_is_written(tmp_path):
    nodes = [
        helper.make_node("Sin", ["x"], ["a"], name="wave"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Cos", ["x"], ["c"], name="other"),
        helper.make_node("Add", ["b", "c"], ["y"], name="sum"),
    ]
    model = write(tmp_path / "net.onnx", nodes)

    nodes = ["node 'wave' (Sin)", "node 'other' (Cos)"]
    with expect_error(NetError, ErrorCode.UNSUPPORTED, nodes=nodes):
        import_onnx(model, tmp_path / "net.prototxt", tmp_path / "net.caffemodel")

    assert list(tmp_path.iterdir()) == [model]


def test_operators_stay_on_the_line_of_their_node(tmp_path):
    node = helper.make_node("a\x1b[2J\nI1122 FORGED", ["x"], ["y"], name="n")
    model = write(tmp_path / "net.onnx", [node])

    with expect_error(NetError, ErrorCode.UNSUPPORTED) as caught:
        import_onnx(model)

    assert "\nI1122" not in caught.value.message


def test_no_file_is_written_when_one_cannot_be(tmp_path):
    model = convolution(tmp_path / "net.onnx")

    with expect_error(OSError, mentions="nowhere"):
        import_onnx(model, tmp_path / "net.prototxt", tmp_path / "nowhere" / "net.caffemodel")

    assert list(tmp_path.iterdir()) == [model]


def test_a_model_is_not_overwritten(tmp_path):
    model = convolution(tmp_path / "net.onnx")
    content = model.read_bytes()

    for files in (tmp_path / "a", tmp_path / "a"), (tmp_path / "a", model), (model, tmp_path / "a"):
        with expect_error(ConfigError, ErrorCode.CONFLICT, field="prototxt"):
            import_onnx(model, *files)

    assert list(tmp_path.iterdir()) == [model]
    assert model.read_bytes() == content


@pytest.mark.parametrize("shape", [("n", 3, 6, 6), (None, 3, 6, 6)])
def test_a_free_batch_is_1_or_what_is_asked_for(tmp_path, shape):
    node = helper.make_node("Relu", ["x"], ["y"])
    model = write(tmp_path / "net.onnx", [node], shape=shape)

    assert import_onnx(model).net.blobs["y"].shape == (1, 3, 6, 6)
    assert import_onnx(model, batch=np.int64(5)).net.blobs["y"].shape == (5, 3, 6, 6)


def test_other_free_sizes_must_be_given(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    model = write(tmp_path / "net.onnx", [node], shape=(1, 3, "height", 6))

    with expect_error(ConfigError, ErrorCode.MISSING, input="x", mentions="--shape x="):
        import_onnx(model)
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="shapes", got="z"):
        import_onnx(model, shapes={"x": (1, 3, 4, 6), "z": (1, 3, 4, 6)})
    assert import_onnx(model, shapes={"x": (1, 3, 4, 6)}).net.blobs["y"].shape == (1, 3, 4, 6)


@pytest.mark.parametrize("shape", [(), (3, 4, 6), (1, 1, 3, 4, 6)])
def test_a_shape_of_another_number_of_axes_is_refused(shape, tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    model = write(tmp_path / "net.onnx", [node], shape=("N", 3, "height", 6))

    with expect_error(ConfigError, ErrorCode.SHAPE_MISMATCH, input="x", mentions="expected 4 axes"):
        import_onnx(model, shapes={"x": shape})


def test_shapes_that_are_computed_are_constants(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "first"], ["row"]),
        helper.make_node("Concat", ["row", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"], name="view"),
    ]
    constants = {"zero": np.array(0), "first": np.array([0]), "rest": np.array([-1])}
    model = write(tmp_path / "net.onnx", nodes, constants)

    net = import_onnx(model).net

    assert net.layer_names == ["x", "view"]
    net.blobs["x"].reshape((7, 3, 6, 6))
    net.reshape()
    assert net.blobs["y"].shape == (7, 108)


def test_weights_outside_the_folder_are_refused(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret").write_bytes(bytes(4096))
    model = onnx.load(str(convolution(tmp_path / "net.onnx")))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path = tmp_path / "inside" / "net.onnx"
    path.write_bytes(model.SerializeToString())

    with expect_error(DataError, ErrorCode.UNTRUSTED, got="../secret"):
        import_onnx(path)


@pytest.mark.parametrize("name", ["x", "y"])
def test_values_with_the_name_of_another_are_refused(tmp_path, name):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["y"], [name])]
    path = tmp_path / "net.onnx"
    write(path, nodes)

    with expect_error(DataError, ErrorCode.DUPLICATE, got=name):
        import_onnx(path)


def test_names_that_are_no_text_are_refused(tmp_path):
    model = convolution(tmp_path / "net.onnx")
    model.write_bytes(model.read_bytes().replace(b"conv", b"c\xd8nv"))

    with expect_error(DataError, ErrorCode.CORRUPT):
        import_onnx(model)


def test_arrays_that_would_be_huge_are_not_computed(tmp_path):
    nodes = [
        helper.make_node("ConstantOfShape", ["sizes"], ["huge"], name="zeros"),
        helper.make_node("ReduceSum", ["huge"], ["one"], keepdims=0),
        helper.make_node("Add", ["x", "one"], ["y"]),
    ]
    model = write(tmp_path / "net.onnx", nodes, {"sizes": np.array([2**20, 2**20])})

    with expect_error(NetError, ErrorCode.UNSUPPORTED, mentions="zeros"):
        import_onnx(model)


def test_arrays_that_would_be_huge_together_are_not_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("demitasse.interop.onnx_import.model.MOST", 3 * 2**10)
    nodes = []
    for i in range(5):
        nodes.append(helper.make_node("ConstantOfShape", ["sizes"], [f"large{i}"], name=f"c{i}"))
        nodes.append(helper.make_node("ReduceSum", [f"large{i}"], [f"one{i}"], keepdims=0))
    nodes.append(helper.make_node("Sum", ["x", *(f"one{i}" for i in range(5))], ["y"]))
    model = write(tmp_path / "net.onnx", nodes, {"sizes": np.array([2**5, 2**5])})

    with expect_error(NetError, ErrorCode.UNSUPPORTED, mentions="c4") as caught:
        import_onnx(model)

    assert "'c1'" not in str(caught.value)


def test_texts_are_not_computed(tmp_path):
    nodes = [
        helper.make_node("Cast", ["sizes"], ["text"], to=onnx.TensorProto.STRING, name="texts"),
        helper.make_node("Cast", ["text"], ["number"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "number"], ["y"]),
    ]
    model = write(tmp_path / "net.onnx", nodes, {"sizes": np.array([2])})

    with expect_error(NetError, ErrorCode.UNSUPPORTED, mentions="texts"):
        import_onnx(model)


def test_a_division_by_0_before_an_erf_is_refused(tmp_path):
    nodes = [
        helper.make_node("Div", ["x", "zero"], ["a"], name="quotient"),
        helper.make_node("Erf", ["a"], ["y"], name="erf"),
    ]
    model = write(tmp_path / "net.onnx", nodes, {"zero": np.zeros((), np.float32)})

    with expect_error(NetError, ErrorCode.UNSUPPORTED, mentions="node 'quotient' (Div)"):
        import_onnx(model)


def test_pads_that_are_computed_from_a_shape_are_constants(tmp_path):
    nodes = [  # as PyTorch exports the pads of TensorFlow's EfficientNet
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["size"]),
        helper.make_node("Sub", ["nine", "size"], ["lacking"]),
        helper.make_node("Cast", ["lacking"], ["number"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Clip", ["number", "least"], ["clipped"]),
        helper.make_node("Cast", ["clipped"], ["pad"], to=onnx.TensorProto.INT64),
        helper.make_node("Concat", ["zeros", "pad"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"], name="pad"),
    ]
    constants = {"last": np.array([3]), "nine": np.array([9]), "zeros": np.zeros(7, np.int64),
                 "least": np.zeros((), np.float32)}  # fmt: skip

    net = import_onnx(write(tmp_path / "net.onnx", nodes, constants)).net

    assert net(np.ones((2, 3, 6, 6), np.float32)).shape == (2, 3, 6, 9)


@pytest.mark.parametrize("operator", ["GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("opset", [12, 15, 16])
def test_comparisons_of_constants_are_computed_in_every_opset(operator, opset, tmp_path):
    nodes = [
        helper.make_node(operator, ["row", "row"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["numbers"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "numbers"], ["y"]),
    ]
    constants = {"row": np.arange(6, dtype=np.float32)}
    model = write(tmp_path / "net.onnx", nodes, constants, opset=opset)

    assert np.all(import_onnx(model).net(np.ones((2, 3, 6, 6), np.float32)) == 1)


@pytest.mark.parametrize("outputs", [["y", "a"], ["y", "b"]])
def test_a_value_inside_a_gelu_that_others_read_is_there(outputs, tmp_path):
    nodes = [
        helper.make_node("Mul", ["x", "root"], ["a"], name="inside"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Erf", ["a"], ["erf"], name="erf"),
        helper.make_node("Add", ["erf", "one"], ["sum"], name="sum"),
        helper.make_node("Mul", ["x", "sum"], ["twice"], name="twice"),
        helper.make_node("Mul", ["twice", "half"], ["y"], name="gelu"),
    ]
    numbers = {"root": 0.5**0.5, "one": 1, "half": 0.5}
    constants = {name: np.array(number, np.float32) for name, number in numbers.items()}

    net = import_onnx(write(tmp_path / "net.onnx", nodes, constants, outputs=outputs)).net

    found = net(np.ones((2, 3, 6, 6), np.float32))
    assert [float(found[name][0, 0, 0, 0]) for name in outputs] == pytest.approx(
        [0.841345, 0.707107], abs=1e-6
    )


GROUPS = np.array([2, 3, 1, 6, 6])
IMAGES = np.array([2, 3, 6, 6])


def shuffle(perm=(0, 2, 1, 3, 4), table=GROUPS, images=IMAGES):
    """Nodes that transpose groups of channels, and constants."""
    nodes = [
        helper.make_node("Reshape", ["x", "table"], ["groups"], name="groups"),
        helper.make_node("Transpose", ["groups"], ["turned"], perm=perm, name="turn"),
        helper.make_node("Reshape", ["turned", "images"], ["y"], name="shuffle"),
    ]
    return nodes, {"table": np.array(table), "images": np.array(images)}


def kinds(net):
    return [net.layer_by_name(name).type for name in net.layer_names]


def test_transposed_groups_of_channels_are_one_layer(tmp_path):
    model = write(tmp_path / "net.onnx", *shuffle())

    imported = import_onnx(model, check=True)

    assert kinds(imported.net) == ["Input", "ShuffleChannel"]
    assert imported.net.layer_names[1] == "shuffle"


@pytest.mark.parametrize(
    "other",
    [
        {"perm": (0, 2, 1, 4, 3)},
        {"table": (2, 3, 6, 6, 1), "perm": (0, 2, 1, 3, 4)},
        {"table": (3, 2, 1, 6, 6)},
        {"images": (2, 1, 18, 6)},
    ],
    ids=str,
)
def test_other_transpositions_keep_their_layers(other, tmp_path):
    model = write(tmp_path / "net.onnx", *shuffle(**other))

    assert "ShuffleChannel" not in kinds(import_onnx(model, check=True).net)


def test_groups_that_others_read_keep_their_layers(tmp_path):
    nodes, constants = shuffle()
    model = write(tmp_path / "net.onnx", nodes, constants, outputs=["y", "groups"])

    assert "ShuffleChannel" not in kinds(import_onnx(model, check=True).net)


@pytest.mark.parametrize(
    ("operator", "fields", "kind"),
    [
        ("Sigmoid", {}, "Swish"),
        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, "HardSwish"),
        ("HardSigmoid", {}, "Eltwise"),
    ],
    ids=str,
)
@pytest.mark.parametrize("operands", [["x", "gate"], ["gate", "x"]], ids=str)
def test_values_times_their_sigmoid_are_one_layer(operands, operator, fields, kind, tmp_path):
    nodes = [
        helper.make_node(operator, ["x"], ["gate"], **fields),
        helper.make_node("Mul", operands, ["y"], name="swish"),
    ]

    net = import_onnx(write(tmp_path / "net.onnx", nodes), check=True).net

    assert kinds(net)[-1] == kind
    assert (len(kinds(net)) == 2) == (kind != "Eltwise")


def test_a_sigmoid_that_others_read_stays_a_layer(tmp_path):
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["gate"]),
        helper.make_node("Mul", ["x", "gate"], ["y"]),
    ]
    model = write(tmp_path / "net.onnx", nodes, outputs=["y", "gate"])

    assert "Sigmoid" in kinds(import_onnx(model, check=True).net)


def test_hard_swish_is_one_layer(tmp_path):
    model = write(tmp_path / "net.onnx", [helper.make_node("HardSwish", ["x"], ["y"])])

    assert kinds(import_onnx(model, check=True).net) == ["Input", "HardSwish"]


def weight():
    return np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("pads", [[0, 0, 1, 1], [2, 0, 1, 3], [0, 1, 0, 0]], ids=str)
def test_other_pads_behind_than_before_are_fields_of_a_convolution(pads, group, stride, tmp_path):
    how = {"pads": pads, "strides": [stride, stride], "group": group}
    model = write(
        tmp_path / "net.onnx",
        [helper.make_node("Conv", ["x", "w"], ["y"], **how)],
        {"w": weight()[: 4 if group == 1 else 3, : 3 // group]},
    )

    assert kinds(import_onnx(model, check=True).net) == ["Input", "Convolution"]


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "how",
    [
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
        {"pads": [1, 0, 0, 1]},
        {"pads": [1, 1, 1, 1], "ceil_mode": 1},
    ],
    ids=str,
)
def test_pads_of_pooling_need_no_further_layer(how, kind, tmp_path):
    fields = {"kernel_shape": [3, 3], "strides": [2, 2]} | how
    model = write(tmp_path / "net.onnx", [helper.make_node(kind, ["x"], ["y"], **fields)])

    assert kinds(import_onnx(model, check=True).net) == ["Input", "Pooling"]


@pytest.mark.parametrize("own", [{}, {"pads": [1, 0, 2, 0]}, {"auto_pad": "VALID"}], ids=str)
def test_zeros_around_images_are_pads_of_the_convolution(own, tmp_path):
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("Conv", ["padded", "w"], ["y"], strides=[2, 2], **own),
    ]
    model = write(
        tmp_path / "net.onnx", nodes, {"pads": np.array([0, 0, 0, 1, 0, 0, 1, 2]), "w": weight()}
    )

    assert kinds(import_onnx(model, check=True).net) == ["Input", "Convolution"]


@pytest.mark.parametrize(
    ("pads", "more", "own"),
    [
        ([0, 0, 0, 1, 0, 0, 1, 2], {"value": np.float32(1)}, {}),
        ([0, 0, 0, 1, 0, 0, 1, -1], {}, {}),
        ([0, 0, 1, 1, 0, 0, 1, 1], {}, {"auto_pad": "SAME_UPPER"}),
        ([0, 0, 1, 1, 0, 0, 1, 1], {"mode": "edge"}, {}),
    ],
    ids=str,
)
def test_other_pads_before_a_convolution_stay_layers_of_their_own(pads, more, own, tmp_path):
    constants = {"pads": np.array(pads), "w": weight()}
    constants |= {name: value for name, value in more.items() if name == "value"}
    mode = {name: value for name, value in more.items() if name == "mode"}
    nodes = [
        helper.make_node(
            "Pad", ["x", "pads", *(["value"] if "value" in more else [])], ["a"], **mode
        ),
        helper.make_node("Conv", ["a", "w"], ["y"], **own),
    ]
    model = write(tmp_path / "net.onnx", nodes, constants)

    assert kinds(import_onnx(model, check=True).net) != ["Input", "Convolution"]


def with_functions(path, bodies):
    """Write a model that calls the first of some functions, given as the names they call."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for name, calls in bodies.items():
        names = ["a", *(f"t{i}" for i in range(len(calls) - 1)), "b"]
        body = [
            helper.make_node(call, [names[i]], [names[i + 1]], domain="own" * (call in bodies))
            for i, call in enumerate(calls)
        ]
        functions.append(helper.make_function("own", name, ["a"], ["b"], body, imports))
    model = onnx.load(
        str(write(path, [helper.make_node(next(iter(bodies)), ["x"], ["y"], domain="own")]))
    )
    model.functions.extend(functions)
    model.opset_import.append(imports[1])
    path.write_bytes(model.SerializeToString())
    return path


def test_functions_are_put_in_the_place_of_their_calls(tmp_path):
    path = with_functions(tmp_path / "net.onnx", {"F": ["Relu", "G"], "G": ["Abs", "Abs"]})

    assert len(import_onnx(path).net.layer_names) == 4


def test_functions_that_grow_beyond_all_bounds_are_refused(tmp_path):
    bodies = {f"F{i}": [f"F{i + 1}"] * 10 for i in range(12)} | {"F12": ["Relu"]}

    with expect_error(NetError, ErrorCode.LIMIT, got=10**12, expected=100_000):
        import_onnx(with_functions(tmp_path / "net.onnx", bodies))


def test_functions_that_call_themselves_are_refused(tmp_path):
    path = with_functions(tmp_path / "net.onnx", {"F": ["Relu", "G"], "G": ["F"]})

    with expect_error(NetError, ErrorCode.LIMIT, mentions=["'F'", "'own'"]):
        import_onnx(path)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_refused_by_our_own_errors(tmp_path, seed):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 0, 0, 1], strides=[2, 1]),
        helper.make_node("AveragePool", ["a"], ["b"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"], axis=1),
    ]
    constants = {"w": np.ones((4, 3, 3, 3), np.float32), "s": np.array([0, -1])}
    whole = write(tmp_path / "whole.onnx", nodes, constants).read_bytes()
    chance, damaged = random.Random(seed), tmp_path / "damaged.onnx"

    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = len(data) if chance.random() < 0.8 else chance.randrange(len(data))
        damaged.write_bytes(data[:cut])
        with suppress(DemitasseError):
            import_onnx(damaged)


def test_the_verb_writes_and_checks(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")
    model = convolution(tmp_path / "net.onnx", pads=[0, 1, 2, 1])

    done = CliRunner().invoke(cli, ["import", str(model), "--check"])

    assert done.exit_code == 0, done.output
    assert "They agree" in done.stdout
    assert (tmp_path / "net.prototxt").exists()
    assert (tmp_path / "net.caffemodel").exists()


@pytest.mark.parametrize("names", [["wrong"], ["x", "more"]])
def test_inputs_that_the_model_does_not_have_are_refused(names, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: nox -s frameworks")
    done = import_onnx(convolution(tmp_path / "net.onnx"))

    with expect_error(DemitasseError, ErrorCode.FAILED, mentions=names[-1]):
        done.compare(dict.fromkeys(names, np.zeros((2, 3, 6, 6), np.float32)))


@pytest.mark.parametrize("batch", [0, "3", 2.5])
def test_a_batch_that_is_no_number_is_refused(batch, tmp_path):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="batch", got=batch):
        import_onnx(convolution(tmp_path / "net.onnx"), batch=batch)
