"""ONNX's own examples of its operators: each is imported and right, or refused."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.interop.onnx_import import import_onnx
from demitasse.interop.onnx_import.converters import CONVERTERS

onnx = pytest.importorskip("onnx", reason="needs onnx: nox -s frameworks")
pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass
class Example:
    """A model of one operator, with what it takes and gives."""

    name: str
    model: object
    inputs: list
    outputs: list

    def imported(self, tmp_path, constants):
        """Import with some of the inputs as constants; return the outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.input[:]
        free = {}
        pairs = zip(self.model.graph.input, self.inputs, strict=True)
        for number, (info, array) in enumerate(pairs):
            if number in constants:
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
            else:
                model.graph.input.append(info)
                free[info.name] = array
        onnx.save(model, str(tmp_path / "net.onnx"))
        shapes = {name: array.shape for name, array in free.items()}
        net = import_onnx(tmp_path / "net.onnx", shapes=shapes).net
        for name, array in free.items():
            net.set_input(name, array.astype(np.float32))
        net.forward()
        return [net.blobs[info.name].cpu_data() for info in model.graph.output]


def examples():
    from onnx.backend.test.case.node import collect_testcases

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the examples overflow on purpose
        cases = collect_testcases(None)
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in CONVERTERS or not case.data_sets:
            continue
        inputs, outputs = case.data_sets[0]
        arrays = [_array(one) for one in (*inputs, *outputs)]
        if all(array is not None for array in arrays):
            count = len(inputs)
            example = Example(case.name, case.model, arrays[:count], arrays[count:])
            found.setdefault(nodes[0].op_type, []).append(example)
    return found


def _array(value):
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return None if value is None or isinstance(value, list) else np.asarray(value)


EXAMPLES = examples()


@pytest.mark.parametrize("operator", sorted(EXAMPLES))
def test_examples_of_an_operator_are_right_or_refused(operator, tmp_path):
    right, reasons = 0, []
    for example in EXAMPLES[operator]:
        try:
            try:
                found = example.imported(tmp_path, set())
            except DemitasseError:
                found = example.imported(tmp_path, set(range(1, len(example.inputs))))
        except DemitasseError as error:
            reasons.append(f"{example.name}: {error}")
            continue
        for got, wanted in zip(found, example.outputs, strict=True):
            assert got.shape == wanted.shape, example.name
            np.testing.assert_allclose(
                got, wanted.astype(np.float32), rtol=1e-3, atol=1e-5, err_msg=example.name
            )
        right += 1

    assert right or operator == "LayerNormalization", reasons  # whose examples want the mean, too


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [1, 2, 2], "strides": [1, 2, 2]},
        {"kernel_shape": [3, 3, 3], "strides": [2, 2, 1], "pads": [1, 1, 1, 1, 1, 1]},
        {"kernel_shape": [2, 3, 2], "pads": [0, 1, 0, 1, 1, 0], "ceil_mode": 1},
        {"kernel_shape": [2, 3, 3], "strides": [2, 2, 2], "auto_pad": "SAME_UPPER"},
    ],
)
@pytest.mark.parametrize("with_pads", [0, 1])
def test_pooling_over_three_axes_is_that_of_onnxruntime(operator, options, with_pads, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    counting = {"count_include_pad": with_pads} if operator == "AveragePool" else {}
    node = helper.make_node(operator, ["x"], ["y"], **options, **counting)
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 5, 6, 7]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]  # fmt: skip
    graph = helper.make_graph([node], "pool", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, str(tmp_path / "net.onnx"))
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 6, 7)).astype(np.float32)
    [want] = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})

    net = import_onnx(tmp_path / "net.onnx").net
    net.set_input("x", x)
    net.forward()

    np.testing.assert_allclose(net.blobs["y"].cpu_data(), want, rtol=1e-5, atol=1e-6)


def save_node(tmp_path, operator, shape, constants, outputs=("y",), opset=21, **options):
    """Write a model of one node with inputs ``x`` and constants, None for one left out."""
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]  # fmt: skip
    arrays = [onnx.numpy_helper.from_array(np.asarray(array), name)
              for name, array in constants.items() if array is not None]  # fmt: skip
    node = helper.make_node(operator, ["x", *constants], outputs, **options)
    graph = helper.make_graph([node], "one", info[:1], info[1:], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, str(tmp_path / "net.onnx"))
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    ("operator", "shape", "options"),
    [
        ("InstanceNormalization", (1, 4, 5, 6), {}),
        ("InstanceNormalization", (1, 4, 6), {}),
        ("GroupNormalization", (1, 4, 5, 6), {"num_groups": 2}),
        ("LayerNormalization", (1, 5, 4), {}),
        ("LayerNormalization", (1, 4), {}),
        ("LayerNormalization", (1, 3, 2, 2), {"axis": 1}),
    ],
)
def test_items_of_a_larger_batch_are_normalized_on_their_own(operator, shape, options, tmp_path):
    rng, axis = np.random.default_rng(0), options.get("axis", -1)
    size = shape[axis:] if operator == "LayerNormalization" else shape[1:2]
    weights = {name: rng.random(size, np.float32) for name in "ab"}
    file = save_node(tmp_path, operator, ["N", *shape[1:]], weights, **options)
    x = rng.normal(size=(3, *shape[1:])).astype(np.float32)

    net = import_onnx(file).net
    alone = [np.array(net(item[None])) for item in x]

    np.testing.assert_allclose(net(x), np.concatenate(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "constants", "options", "count"),
    [
        ("Slice", {"a": np.array([0]), "b": np.array([1]), "c": np.array([0])}, {}, 1),
        ("Gather", {"a": np.array(0)}, {"axis": 0}, 1),
        ("Relu", {}, {}, 0),
        ("Expand", {"a": np.array([1, 2, 3])}, {}, 0),
        ("Softmax", {}, {"axis": 0}, 0),
    ],
)
def test_a_net_for_one_batch_alone_is_noted(operator, constants, options, count, tmp_path):
    file = save_node(tmp_path, operator, ["N", 2, 3], constants, **options)

    done = import_onnx(file)

    assert len(done.notes) == count
    assert done.net.blobs["x"].shape == (1, 2, 3)
    larger = import_onnx(file, batch=2).net
    assert larger.blobs["y"].shape[0] == 2 or count


@pytest.mark.parametrize(
    ("operator", "constants"),
    [
        ("Gather", {"a": np.array([-1, -2])}),
        ("Slice", {"a": np.array([0, -2]), "b": np.array([2, -1]), "c": np.array([1, -3])}),
    ],
)
@pytest.mark.parametrize("size", ["N", 3])
def test_items_that_are_counted_from_the_last_are_noted(operator, constants, size, tmp_path):
    done = import_onnx(save_node(tmp_path, operator, [size, 2, 3], constants), batch=3)

    assert len(done.notes) == (size == "N")


@pytest.mark.parametrize(("operator", "wanted"), [("Max", [2, 2, 3]), ("Min", [1, 2, 2])])
def test_a_number_is_a_limit_in_any_batch(operator, wanted, tmp_path):
    done = import_onnx(save_node(tmp_path, operator, ["N", 3], {"a": np.array([2], np.float32)}))

    assert not done.notes
    assert done.net(np.array([[1, 2, 3]] * 4, np.float32)).tolist() == [wanted] * 4


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2"])
def test_a_result_that_onnx_rounds_is_refused(operator, tmp_path):
    file = save_node(tmp_path, operator, [2, 3], {})
    model = onnx.load(str(file))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(model, str(file))

    with expect_error(NetError, ErrorCode.UNSUPPORTED, nodes=[f"node 'y' ({operator})"]):
        import_onnx(file)


@pytest.mark.parametrize(("operator", "wanted"), [("Sub", [-3, 1]), ("Div", [-0.5, 1.5])])
def test_a_constant_without_axes_is_an_operand(operator, wanted, tmp_path):
    file = save_node(tmp_path, operator, [1, 2], {"a": np.float32(2)})

    net = import_onnx(file).net

    assert net(np.array([[-1, 3]], np.float32)).tolist() == [wanted]


def test_scales_of_some_axes_are_not_those_of_the_rounded_sizes(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    constants = {"": None, "a": np.array([2, 1.5], np.float32)}
    file = save_node(tmp_path, "Resize", [1, 2, 5, 7], constants, mode="linear", axes=[-2, 3])
    x = np.random.default_rng(0).normal(size=(1, 2, 5, 7)).astype(np.float32)
    [want] = onnxruntime.InferenceSession(file).run(None, {"x": x})

    net = import_onnx(file).net

    np.testing.assert_allclose(net(x), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("opset", "scale"), [(8, 1.3), (9, 2.3), (10, 1.4), (17, 0.7)])
def test_a_size_that_a_scale_gives_is_rounded_as_in_onnxruntime(opset, scale, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    scales = np.array([1, 1, scale, 1], np.float32)
    constants = {"": None, "a": scales} if opset > 10 else {"a": scales} if opset > 8 else {}
    options = {"scales": scales} if opset == 8 else {}
    operator = "Resize" if opset > 9 else "Upsample"
    file = save_node(tmp_path, operator, [1, 2, 10, 7], constants, opset=opset, mode="linear",
                     **options)  # fmt: skip
    x = np.random.default_rng(0).normal(size=(1, 2, 10, 7)).astype(np.float32)
    [want] = onnxruntime.InferenceSession(file).run(None, {"x": x})

    net = import_onnx(file).net

    assert np.shape(net(x)) == want.shape
    np.testing.assert_allclose(net(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "size", "scale", "options"),
    [
        (10, 7, 0.6, {}),
        (10, 20, 0.7, {}),
        (11, 21, 0.6, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        (11, 10, 1.4, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}),
        (19, 32, 1.2,
         {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "round_prefer_ceil"}),
        (19, 33, 1.3, {}),
        (19, 29, 3.3, {"coordinate_transformation_mode": "pytorch_half_pixel"}),
    ],
)  # fmt: skip
def test_nearest_pixels_are_those_of_onnxruntime(opset, size, scale, options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    constants = {"": None, "a": np.array([1, 1, 1, scale], np.float32)}
    if opset == 10:
        del constants[""]
    elif opset == 11:
        constants = {"roi": np.zeros(0, np.float32), "a": constants["a"]}
    file = save_node(tmp_path, "Resize", [1, 1, 1, size], constants, opset=opset, mode="nearest",
                     **options)  # fmt: skip
    x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
    [want] = onnxruntime.InferenceSession(file).run(None, {"x": x})

    net = import_onnx(file).net

    assert net(x).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("operator", "outputs", "constants", "options"),
    [
        ("Split", ["unused", "y"], {}, {"axis": 2, "num_outputs": 2}),
        ("Split", ["y", "unused"], {}, {"axis": 2, "num_outputs": 2}),
        ("LSTM", ["y", "hidden", "cells"], {"w": (1, 8, 4), "r": (1, 8, 2)}, {"hidden_size": 2}),
        ("LSTM", ["all", "hidden", "y"], {"w": (1, 8, 4), "r": (1, 8, 2)}, {"hidden_size": 2}),
        ("Dropout", ["y", "mask"], {}, {}),
        ("MaxPool", ["y", "places"], {}, {"kernel_shape": [2]}),
    ],
)
def test_what_a_node_computes_for_nothing_is_no_output(
    operator, outputs, constants, options, tmp_path
):
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    arrays = {name: rng.random(shape, np.float32) for name, shape in constants.items()}
    file = save_node(tmp_path, operator, [3, 2, 4], arrays, outputs, **options)
    x = rng.random((3, 2, 4), np.float32)
    [want] = onnxruntime.InferenceSession(file).run(None, {"x": x})

    net = import_onnx(file).net

    assert net.outputs == ["y"]
    np.testing.assert_allclose(net(x), want, rtol=1e-5, atol=1e-6)


def test_other_activations_of_the_second_direction_are_refused(tmp_path):
    constants = {"w": np.ones((2, 8, 4), np.float32), "r": np.ones((2, 8, 2), np.float32)}
    activations = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"]
    file = save_node(tmp_path, "LSTM", [3, 2, 4], constants, hidden_size=2,
                     direction="bidirectional", activations=activations)  # fmt: skip

    with expect_error(NetError, mentions="activations other than the default"):
        import_onnx(file)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_operands_of_the_first_opsets_are_aligned_by_their_axis(operator, tmp_path):
    each = np.array([1, 2, 4], np.float32)
    options = {"opset": 6, "broadcast": 1, "axis": 1}
    file = save_node(tmp_path, operator, [2, 3, 3, 3], {"a": each}, **options)
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 3)).astype(np.float32)
    functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}

    net = import_onnx(file).net

    want = functions[operator](x, each.reshape(3, 1, 1))
    np.testing.assert_allclose(net(x), want, rtol=1e-6)


def test_a_computed_operand_of_the_first_opsets_is_refused(tmp_path):
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 3, 3]),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]  # fmt: skip
    node = helper.make_node("Add", ["x", "a"], ["y"], "plus", broadcast=1, axis=1)
    graph = helper.make_graph([node], "one", info[:2], info[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=10)
    onnx.save(model, str(tmp_path / "net.onnx"))

    with pytest.raises(DemitasseError, match="'plus'"):
        import_onnx(tmp_path / "net.onnx")


def test_a_note_names_an_output_that_layers_read(tmp_path):
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xyz"]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Sigmoid", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "two", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(model, str(tmp_path / "net.onnx"))

    done = import_onnx(tmp_path / "net.onnx")

    assert done.net.outputs == ["z"]
    [note] = done.notes
    assert note.startswith("output 'y' is no output of the net, as layers read it")


def test_indices_become_floats(tmp_path):
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    nodes = [helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
             helper.make_node("Cast", ["best"], ["float"], to=TensorProto.FLOAT),
             helper.make_node("Sigmoid", ["float"], ["y"])]  # fmt: skip
    graph = helper.make_graph(nodes, "indices", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(model, str(tmp_path / "net.onnx"))

    net = import_onnx(tmp_path / "net.onnx").net

    found = net(np.array([[0, 2, 1], [5, 4, 3]], np.float32))
    np.testing.assert_allclose(found, 1 / (1 + np.exp([-1.0, 0.0])), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["INT32", "UINT8"])
def test_a_check_gives_integers_to_inputs_of_integers(dtype, tmp_path):
    from onnx import TensorProto, helper

    pytest.importorskip("onnxruntime")
    x = helper.make_tensor_value_info("x", getattr(TensorProto, dtype), [2, 30])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 30])
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = helper.make_model(helper.make_graph([node], "one", [x], [y]), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 21)])  # fmt: skip
    onnx.save(model, str(tmp_path / "net.onnx"))

    done = import_onnx(tmp_path / "net.onnx", check=True)

    assert done.compare().worst.relative == 0


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMax"])
def test_a_reduction_of_no_axes_is_that_of_each_value(operator, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = save_node(tmp_path, operator, [2, 3, 4], {}, noop_with_empty_axes=1)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    [want] = onnxruntime.InferenceSession(file).run(None, {"x": x})

    net = import_onnx(file).net

    np.testing.assert_allclose(net(x), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"auto_pad": "SAME_UPPER", "output_padding": [1, 1]}, "replace it by pads"),
        ({"output_shape": [4, 4]}, r"got output_shape \[4, 4\], expected sizes of at least"),
    ],
)
def test_sizes_of_a_transposed_convolution_that_are_unclear_are_refused(options, reason, tmp_path):
    weights = {"w": np.ones((2, 3, 2, 2), np.float32)}
    strides = [1 if "output_shape" in options else 2] * 2
    file = save_node(tmp_path, "ConvTranspose", [1, 2, 5, 5], weights, strides=strides, **options)

    with pytest.raises(DemitasseError, match=reason):
        import_onnx(file)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 2), (1, 3, 2, 3), (1, 2, 2, 3)])
def test_slopes_of_the_first_opsets_are_those_of_channels(shape, tmp_path):
    slopes = np.array([0.5, 2, 4], np.float32)[: shape[1]]
    file = save_node(tmp_path, "PRelu", shape, {"a": slopes}, opset=6)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    net = import_onnx(file).net

    want = np.where(x < 0, x * slopes.reshape(-1, *(1,) * (len(shape) - 2)), x)
    np.testing.assert_allclose(net(x), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("operator", "constants", "options"),
    [
        ("Flatten", {}, {"axis": 0}),
        ("Unsqueeze", {"axes": np.array([0])}, {}),
        ("Unsqueeze", {"axes": np.array([3, -5])}, {}),
        ("ReduceMax", {}, {}),
        ("ReduceMin", {}, {"keepdims": 0}),
        ("ReduceMean", {}, {}),
    ],
)
def test_a_new_first_axis_is_no_batch(operator, constants, options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = save_node(tmp_path, operator, ["N", 2, 4], constants, **options)
    x = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    [want] = onnxruntime.InferenceSession(file).run(None, {"x": x})

    net = import_onnx(file).net
    found = net(x)

    assert np.shape(found) == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 5, 3, 2, 2)])
def test_responses_of_any_axes_are_normalized(shape, tmp_path):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    file = save_node(tmp_path, "LRN", shape, {}, size=3, alpha=0.5)

    net = import_onnx(file).net

    squares = np.pad(x**2, [(0, 0), (1, 1), *[(0, 0)] * (len(shape) - 2)])
    sums = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    np.testing.assert_allclose(net(x), x / (1 + 0.5 / 3 * sums) ** 0.75, rtol=1e-4, atol=1e-5)
