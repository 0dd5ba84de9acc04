"""``cvdnn.Net`` does what ``cv2.dnn.Net`` does with small nets."""

import re

import numpy as np
import pytest
from expect_error import expect_error
from opencv_nets import (
    BRANCHES,
    DETECTOR,
    IN_PLACE,
    LIKE_OPENCV,
    NO_SHAPE,
    TWO_INPUTS,
    detector_inputs,
    net_of,
)

from demitasse import Net, cvdnn
from demitasse.errors import ErrorCode
from demitasse.io.proto import NetParameter

CONVOLUTION = """
input: "data" input_dim: 1 input_dim: 1 input_dim: 4 input_dim: 4
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "y"
  convolution_param { num_output: 2 kernel_size: 3 }
}
"""


def weights_of(*arrays: np.ndarray) -> bytes:
    """A caffemodel with parameters for layer conv."""
    net = NetParameter()
    layer = net.layer.add(name="conv", type="Convolution")
    for array in arrays:
        layer.blobs.add(data=array.ravel()).shape.dim.extend(array.shape)
    return net.SerializeToString()


WEIGHTS = weights_of(np.ones((2, 1, 3, 3)), np.array([1.0, -1.0]))


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


# -- what it is ------------------------------------------------------------------------------------


def test_layers_are_numbered_after_the_inputs_and_have_names_of_their_own():
    net = net_of(IN_PLACE)

    assert net.getLayerNames() == ("power", "relu", "twice", "twice_1")
    assert net.getLayerId("relu") == 2
    assert net.getLayerId("data") == -1
    assert net.getLayer(0).name == "_input"
    assert net.getLayer(0).outputNameToIndex("data") == 0
    assert net.getLayer("twice_1").type == "AbsVal"
    assert net.getLayerTypes() == ("AbsVal", "Power", "ReLU", "TanH", "__NetInputLayer__")
    assert net.getLayersCount("ReLU") == net.getLayersCount("__NetInputLayer__") == 1


def test_outputs_are_the_layers_that_no_other_reads():
    net = net_of(BRANCHES)

    assert net.getUnconnectedOutLayersNames() == ("tanh", "sum")
    assert net.getUnconnectedOutLayers().tolist() == [2, 3]


def test_an_empty_net():
    net = cvdnn.Net()

    assert net.empty()
    assert net.getLayerNames() == ()
    with expect_error(cvdnn.error, ErrorCode.BAD_STATE, mentions="readNetFromCaffe"):
        net.forward()


def test_training_layers_are_left_out():
    rule = 'layer { name: "t" type: "AbsVal" bottom: "y" top: "t" include { phase: TRAIN } }'

    assert net_of(NO_SHAPE + rule).getLayerNames() == ("relu",)


# -- running ---------------------------------------------------------------------------------------


def test_forward_gives_the_last_layer_or_those_named(backend, monkeypatch):
    monkeypatch.setenv("DEMITASSE_DEVICE", backend)
    net, data = net_of(IN_PLACE), values(1, 2, 3, 3)
    net.setInput(data)

    last = net.forward()
    before, after = net.forward(["power", "relu"])

    want = 2 * data - 1
    assert np.allclose(before, want, atol=1e-6)
    assert np.allclose(after, want.clip(0), atol=1e-6)
    assert np.allclose(last, np.abs(np.tanh(want.clip(0))), atol=1e-6)
    assert np.allclose(net.forward("twice"), np.tanh(want.clip(0)), atol=1e-6)


def test_several_names_come_in_the_order_asked_for():
    net = net_of(IN_PLACE)
    net.setInput(values(1, 2, 3, 3))

    relu, power, again = net.forward(("relu", "power", "relu"))

    assert np.array_equal(relu, power.clip(0))
    assert np.array_equal(relu, again)
    assert np.array_equal(relu, net.forward(outBlobNames=["relu"])[0])
    assert len(net.forward([])) == 1
    assert np.array_equal(net.forward(""), net.forward(None))


def test_what_was_returned_is_not_written_to():
    net = net_of(IN_PLACE)
    net.setInput(values(1, 2, 3, 3))
    first = net.forward()
    kept = first.copy()

    net.setInput(values(1, 2, 3, 3) + 1)
    net.forward()

    assert np.array_equal(first, kept)


def test_all_outputs_of_a_layer_can_be_retrieved():
    net, data = net_of(BRANCHES), values(1, 4, 2, 2)
    net.setInput(data)

    (halves, (total,)) = net.forwardAndRetrieve(["cut", "sum"])

    assert np.array_equal(halves[0], data[:, :2])
    assert np.array_equal(halves[1], data[:, 2:])
    assert np.allclose(total, data[:, :2] + data[:, 2:])


def test_the_net_takes_the_shape_of_what_it_is_given():
    net = net_of(IN_PLACE)

    net.setInput(values(5, 2, 4, 7))

    assert net.forward().shape == (5, 2, 4, 7)


def test_a_file_without_shapes_waits_for_the_first_input():
    net = net_of(NO_SHAPE)
    with expect_error(cvdnn.error, ErrorCode.MISSING, blob="data", mentions="setInput"):
        net.forward()

    net.setInput(np.array([[-1.0, 2.0]]))

    assert net.forward().tolist() == [[0, 2]]


def test_inputs_are_scaled_after_the_mean_is_subtracted():
    net = net_of(NO_SHAPE)

    net.setInput(np.full((1, 2, 1, 1), 10, np.uint8), "data", 0.5, (4, 6))

    assert net.forward().ravel().tolist() == [3, 2]


def test_every_input_must_be_given():
    net = net_of(TWO_INPUTS)
    net.setInput(np.ones((3, 2), np.float32))
    with expect_error(cvdnn.error, ErrorCode.MISSING, blob="y"):
        net.forward()

    net.setInput(np.ones((3, 2), np.float32), "y")

    assert net.forward().tolist() == [[2, 2]] * 3


def test_fields_that_opencv_reads_otherwise():
    net, data = net_of(LIKE_OPENCV), np.full((1, 4, 5, 6), 2, np.float32)
    net.setInput(data)

    prior, plain, two = net.forward(["prior", "plain", "two"])

    assert prior[0, 0].min() == 0  # clipped without being told to
    assert np.allclose(plain[0, 0], 2 / (1 + 1e-4 / 5 * 3 * 4) ** 0.75)  # alpha 0.0001
    assert np.allclose(two[0, 0], 2 / (1 + 1 / 5 * 3 * 4) ** 0.75)  # k 1


def test_axpy_multiplies_the_second_bottom_as_in_senet():  # OpenCV: the third
    text = """
        input: "a" input_shape { dim: 1 dim: 2 dim: 1 dim: 1 }
        layer { name: "x" type: "Power" bottom: "a" top: "x" power_param { scale: 2 shift: 1 } }
        layer { name: "y" type: "Power" bottom: "a" top: "y" power_param { scale: -1 shift: 5 } }
        layer { name: "o" type: "Axpy" bottom: "a" bottom: "x" bottom: "y" top: "o" }"""
    net = cvdnn.readNetFromCaffe(text.encode())
    net.setInput(np.array([3, 4], np.float32).reshape(1, 2, 1, 1))

    assert net.forward().ravel().tolist() == [3 * 7 + 2, 4 * 9 + 1]


@pytest.mark.parametrize(
    ("images", "shape", "scores"),
    [
        (1, (1, 1, 5, 7), [0.9972, 0.9808, 0.6472, 0.6154]),
        (2, (1, 1, 10, 7), [0.8895, 0.7215, 0.5943, 0.5715, 0.4858, 0.8903, 0.8765, 0.8326]),
    ],
)
def test_detections_are_filled_up_with_zeros(images, shape, scores):
    net = net_of(DETECTOR)
    for name, array in detector_inputs(images).items():
        net.setInput(array, name)

    found = net.forward()

    assert found.shape == shape
    assert np.allclose(found[0, 0, : len(scores), 2], scores, atol=1e-4)  # by OpenCV 4.14
    assert not found[0, 0, -1].any()


def test_no_detections_are_zeros_alone():
    net = net_of(DETECTOR)
    for name, array in detector_inputs(1).items():
        net.setInput(array * (name != "score"), name)

    found = net.forward()

    assert found.shape == (1, 1, 5, 7)
    assert not found.any()


@pytest.mark.parametrize(
    ("call", "code", "mentions"),
    [
        (lambda net: net.forward("nothing"), ErrorCode.UNKNOWN, ["forward", "'nothing'", "power"]),
        (lambda net: net.forward("z"), ErrorCode.UNKNOWN, ["'z'", "'twice_1'"]),
        (lambda net: net.forward(["relu", "_input"]), ErrorCode.INVALID, "'_input'"),
        (
            lambda net: net.setInput(values(1), "label"),
            ErrorCode.UNKNOWN,
            ["setInput", "'label'"],
        ),
        (lambda net: net.setInput(None), ErrorCode.INVALID, "NoneType"),
        (
            lambda net: net.setInput(values(1, 5, 1, 1), "", 1, (1, 2)),
            ErrorCode.COUNT_MISMATCH,
            ["mean", "(1, 5, 1, 1)"],
        ),
        (lambda net: net.getLayer(9), ErrorCode.OUT_OF_RANGE, "9"),
        (lambda net: net.getLayer(1.5), ErrorCode.INVALID, "1.5"),
        (lambda net: net.getParam("relu"), ErrorCode.OUT_OF_RANGE, ["'relu'", "0"]),
        (lambda net: net.getFLOPS([1, 2], [3]), ErrorCode.INVALID, "getFLOPS"),
        (lambda net: net.getFLOPS([[1, 2], [3, 4]]), ErrorCode.COUNT_MISMATCH, "2"),
        (lambda net: net.setPreferableTarget(99), ErrorCode.UNKNOWN, ["99", "DNN_TARGET_CPU"]),
        (
            lambda net: net.setPreferableBackend(99),
            ErrorCode.UNKNOWN,
            ["99", "DNN_BACKEND_DEFAULT"],
        ),
        (lambda net: cvdnn.getAvailableTargets(99), ErrorCode.UNKNOWN, "99"),
    ],
)
def test_what_a_net_cannot_do_is_refused(call, code, mentions):
    net = net_of(IN_PLACE)

    with expect_error(cvdnn.error, code, mentions=mentions):
        call(net)


def test_an_input_that_does_not_fit_is_refused_with_the_layer():
    net = cvdnn.readNetFromCaffe(CONVOLUTION.encode(), WEIGHTS)
    net.setInput(values(1, 3, 4, 4))

    with expect_error(cvdnn.error, place="forward", mentions="conv"):
        net.forward()


# -- parameters and figures ------------------------------------------------------------------------


def test_parameters_are_read_and_replaced():
    net = cvdnn.readNetFromCaffe(CONVOLUTION.encode(), WEIGHTS)
    net.setInput(np.ones((1, 1, 4, 4), np.float32))

    net.setParam(layerName="y", numParam=1, blob=np.array([5.0, 6.0]))

    assert net.getParam("y").shape == net.getParam(layerName="y").shape == (2, 1, 3, 3)
    assert net.getLayer(layerName="y").name == "y"
    assert net.getParam(1, 1).tolist() == [5, 6]
    assert [blob.shape for blob in net.getLayer("y").blobs] == [(2, 1, 3, 3), (2,)]
    assert net.forward()[0, :, 0, 0].tolist() == [14, 15]
    with expect_error(cvdnn.error, ErrorCode.SHAPE_MISMATCH, layer="y", mentions=["(2,)", "(3,)"]):
        net.setParam("y", 1, np.zeros(3))


@pytest.mark.parametrize("weights", [WEIGHTS, b""])
def test_parameters_of_a_layer_are_assigned(weights):
    net = cvdnn.readNetFromCaffe(CONVOLUTION.encode(), weights)
    net.setInput(np.ones((1, 1, 4, 4), np.float32))
    layer = net.getLayer(net.getLayerId("y"))

    with expect_error(cvdnn.error, ErrorCode.SHAPE_MISMATCH, place="blobs", layer="y"):
        layer.blobs = [np.ones((2, 1, 3, 4))]
    with expect_error(cvdnn.error, ErrorCode.SHAPE_MISMATCH, place="blobs", layer="y"):
        layer.blobs = []
    layer.blobs = [np.full((2, 3, 3), 0.5), np.array([[3, 4]])]
    with_bias = net.forward()
    layer.blobs = [np.ones((2, 1, 3, 3), np.float32)]  # as OpenCV, without a bias

    assert with_bias[0, :, 0, 0].tolist() == [7.5, 8.5]
    assert net.forward()[0, :, 0, 0].tolist() == [9, 9]
    assert [blob.shape for blob in layer.blobs] == [(2, 1, 3, 3), (2,)]


def test_figures_are_counted_as_opencv_counts():
    net = cvdnn.readNetFromCaffe(CONVOLUTION.encode(), WEIGHTS)

    made = 2 * 2 * 2
    assert net.getFLOPS([1, 1, 4, 4]) == made * (2 * 9 + 1)
    assert net.getFLOPS(1, [3, 1, 4, 4]) == 3 * made * (2 * 9 + 1)
    assert net.getMemoryConsumption([1, 1, 4, 4]) == (4 * 20, 4 * (16 + made))
    assert net.getMemoryConsumption(1, [1, 1, 4, 4]) == (4 * 20, 4 * made)


@pytest.mark.parametrize(
    ("layer", "flops"),  # by OpenCV 4.14
    [
        ('type: "Exp"', 72),
        ('type: "Log"', 24),
        ('type: "Swish"', 72),
        ('type: "MVN"', 156),
        ('type: "MVN" mvn_param { normalize_variance: false }', 150),
    ],
)
def test_figures_of_layers_without_parameters(layer, flops):
    net = net_of(
        'input: "x" input_shape { dim: 2 dim: 2 dim: 2 dim: 3 }'
        f'layer {{ name: "y" bottom: "x" top: "y" {layer} }}'
    )

    assert net.getFLOPS([2, 2, 2, 3]) == flops


def test_shapes_of_all_layers():
    net = cvdnn.readNetFromCaffe(CONVOLUTION.encode(), WEIGHTS)

    numbers, read, made = net.getLayersShapes([2, 1, 5, 4])

    assert numbers.tolist() == [0, 1]
    assert [shape.tolist() for (shape,) in read] == [[2, 1, 5, 4], [2, 1, 5, 4]]
    assert [shape.tolist() for (shape,) in made] == [[2, 1, 5, 4], [2, 2, 3, 2]]
    assert net.getLayersShapes(netInputShape=[2, 1, 5, 4])[0].tolist() == [0, 1]


def test_times_are_of_the_last_forward():
    net = net_of(IN_PLACE)
    net.setInput(values(1, 2, 3, 3))
    net.forward()

    total, layers = net.getPerfProfile()

    assert layers.shape == (4,)
    assert total >= layers.sum() > 0


def test_the_graph_is_dumped(tmp_path):
    net = net_of(BRANCHES)

    net.dumpToFile(str(tmp_path / "net.dot"))

    text = (tmp_path / "net.dot").read_text()
    assert text == net.dump()
    assert '"_input" -> "cut"' in text
    assert text.count('"cut" -> ') == 3


def test_a_target_that_is_not_here_is_replaced_with_a_warning(monkeypatch):
    monkeypatch.setattr(
        "demitasse.compat.cvdnn.targets.available_devices", lambda: ("cpu", "numpy")
    )
    net = net_of(NO_SHAPE)

    net.setPreferableBackend(cvdnn.DNN_BACKEND_CUDA)
    with pytest.warns(RuntimeWarning, match=r"DNN_TARGET_CUDA.* cpu") as warned:
        net.setPreferableTarget(cvdnn.DNN_TARGET_CUDA)

    assert warned[0].filename == __file__
    net.setInput(np.array([[3.0]]))
    assert net.forward().tolist() == [[3]]
    assert cvdnn.getAvailableTargets(cvdnn.DNN_BACKEND_CUDA) == []
    assert cvdnn.getAvailableTargets(cvdnn.DNN_BACKEND_OPENCV) == [cvdnn.DNN_TARGET_CPU]


def test_a_name_that_is_not_here_says_where_it_is():
    with pytest.raises(AttributeError, match=r"'readNetFromONNX'.*cv2\.dnn"):
        cvdnn.readNetFromONNX("net.onnx")
    assert not hasattr(cvdnn, "__wrapped__")


# -- names of Convolutions -------------------------------------------------------------------------

FILLED = 'num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" }'
TWO_CONVOLUTIONS = f"""
input: "data" input_shape {{ dim: 1 dim: 2 dim: 5 dim: 5 }}
input: "other" input_shape {{ dim: 1 dim: 2 dim: 5 dim: 5 }}
layer {{ name: "conv" type: "Convolution" bottom: "data" bottom: "other" top: "a" top: "b"
        convolution_param {{ {FILLED} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "b" top: "b" }}
layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "s" }}
"""


def test_a_convolution_is_a_layer_for_each_top(tmp_path):
    (tmp_path / "n.prototxt").write_text(TWO_CONVOLUTIONS)
    made = Net(tmp_path / "n.prototxt", "TEST")
    made.save(tmp_path / "n.caffemodel")
    net = cvdnn.readNetFromCaffe(str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel"))
    first, second = values(1, 2, 5, 5), values(1, 2, 5, 5) + 1
    net.setInput(first, "data")
    net.setInput(second, "other")

    a, b, relu, total = net.forward(["a", "b", "relu", "sum"])

    assert net.getLayerNames() == ("a", "b", "relu", "sum")
    assert net.getLayerId("conv") == -1
    assert net.getLayer("b").outputNameToIndex("b") == 0
    assert net.getUnconnectedOutLayers().tolist() == [4]
    assert np.array_equal(net.getParam("a"), net.getParam("b"))
    assert net.getFLOPS(2, [first.shape, second.shape]) == 50 * (2 * 9 * 2 + 1)
    made.set_input("data", first)
    made.set_input("other", second)
    made.forward()
    assert np.array_equal(a, made.blobs["a"].data)
    assert np.array_equal(relu, made.blobs["b"].data)
    assert np.array_equal(relu, np.maximum(b, 0))
    assert np.array_equal(total, a + relu)


@pytest.mark.parametrize(
    "layers",
    [
        'layer { name: "x" type: "Power" bottom: "data" top: "q" } '
        'layer { name: "c" type: "Convolution" bottom: "q" top: "x" convolution_param { F } }',
        'layer { name: "c" type: "Convolution" bottom: "data" top: "x" convolution_param { F } } '
        'layer { name: "d" type: "Convolution" bottom: "x" top: "x" convolution_param { F } }',
    ],
)
def test_a_convolution_called_like_another_layer_is_refused_as_by_opencv(layers):
    with expect_error(cvdnn.error, ErrorCode.DUPLICATE, mentions="'x'"):
        net_of('input: "data" input_dim: [1, 2, 5, 5]' + layers.replace("F", FILLED))


def test_priors_keep_fractions_of_sizes():
    net = net_of(
        """
        input: "map" input_dim: [1, 1, 1, 1] input: "image" input_dim: [1, 3, 100, 100]
        layer { name: "p" type: "PriorBox" bottom: "map" bottom: "image" top: "p"
                prior_box_param { min_size: 35.84 max_size: 76.8 } }
        """
    )
    net.setInput(values(1, 1, 1, 1), "map")
    net.setInput(values(1, 3, 100, 100), "image")

    boxes = net.forward()[0, 0].reshape(2, 4)

    assert np.allclose(100 * (boxes[:, 2] - boxes[:, 0]), [35.84, np.sqrt(35.84 * 76.8)])


def test_log_is_natural_whatever_its_fields_say():
    net = net_of(
        """
        input: "x" input_dim: [1, 1, 1, 3]
        layer { name: "p" type: "Log" bottom: "x" top: "p"
                log_param { base: 10 scale: 3 shift: 1 } }
        """
    )
    x = np.array([[[[0.5, 1, 4]]]], np.float32)
    net.setInput(x)

    np.testing.assert_allclose(net.forward(), np.log(x), rtol=1e-6)


def test_arguments_have_the_names_and_orders_of_all_overloads():
    net = net_of(IN_PLACE)
    shape = net.getLayersShapes([[1, 1, 2, 3]])[1][0][0].tolist()
    net.setInput(values(*shape), scalefactor=None)
    wanted = net.forward("power")

    for found in (
        net.forward(None, "power"),
        net.forward(wanted.copy(), "power"),
        net.forward(outputBlobs=None, outputName="power"),
        net.forward(["power"], None),
    ):
        assert isinstance(found, tuple)
        np.testing.assert_array_equal(found, [wanted])
    assert len(net.forward(outputBlobs=None)) == 1
    for count in (net.getFLOPS, net.getMemoryConsumption):
        assert count(netInputShape=shape) == count(netInputShapes=[shape]) == count(shape)
        assert count(layerId=1, netInputShape=shape) == count(1, netInputShapes=[shape])


# -- layers of users -------------------------------------------------------------------------------

CROPPED = """
input: "data" input_dim: 1 input_dim: 1 input_dim: 8 input_dim: 8
input: "like" input_dim: 1 input_dim: 1 input_dim: 4 input_dim: 4
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 }
}
layer { name: "crop" type: "Crop" bottom: "conv" bottom: "like" top: "crop"
  crop_param { axis: 2 offset: 1 } }
layer { name: "relu" type: "ReLU" bottom: "crop" top: "crop" }
"""


class CropLayer:
    """Cuts the middle out, as in OpenCV's example of edge detection."""

    def __init__(self, params, blobs):
        self.params, self.blobs = params, blobs

    def getMemoryShapes(self, inputs):  # noqa: N802
        (images, channels, H, W), (_, _, height, width) = inputs
        self.top, self.left = (H - height) // 2, (W - width) // 2
        return [[images, channels, height, width]]

    def forward(self, inputs):
        assert self.params == {"axis": 2, "offset": [1]}
        height, width = inputs[1].shape[2:]
        rows = slice(self.top, self.top + height)
        return [inputs[0][:, :, rows, self.left : self.left + width]]


@pytest.fixture
def crop_layer():
    cvdnn.registerLayer("Crop", CropLayer)
    yield
    cvdnn.unregisterLayer("Crop")


def outputs_of(net, size: int = 8):
    net.setInput(values(1, 1, size, size), "data")
    net.setInput(values(1, 1, 4, 4), "like")
    return net.forward(["conv", "crop", "relu"])


def test_a_registered_class_computes_its_layers(crop_layer):
    net = cvdnn.readNetFromCaffe(CROPPED.encode(), WEIGHTS)

    for size in 8, 12:
        conv, crop, relu = outputs_of(net, size)
        edge = (size - 4) // 2
        np.testing.assert_array_equal(crop, conv[:, :, edge:-edge, edge:-edge])
        np.testing.assert_array_equal(relu, np.maximum(crop, 0))
    assert net.getLayer("crop").type == "Crop"


def test_a_class_is_chosen_when_a_net_first_runs(request):
    ran, waits = (cvdnn.readNetFromCaffe(CROPPED.encode(), WEIGHTS) for _ in range(2))
    waits.setParam("conv", 1, np.array([2.0, 3.0]))
    before = outputs_of(ran)
    request.getfixturevalue("crop_layer")
    after, middle = outputs_of(ran), outputs_of(waits)
    cvdnn.unregisterLayer("Crop")

    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_array_equal(middle[1], middle[0][:, :, 2:-2, 2:-2])
    np.testing.assert_allclose((middle[0] - before[0])[0, :, 0, 0], [1, 4], rtol=1e-5)  # biases
    np.testing.assert_array_equal(outputs_of(waits)[1], middle[1])


def test_a_class_may_be_registered_before_the_inputs_are_set(request):
    text = re.sub(r"input_dim: \d+", "", CROPPED)
    net = cvdnn.readNetFromCaffe(text.encode(), WEIGHTS)
    assert net.getLayersShapes([(1, 1, 8, 8), (1, 1, 4, 4)])
    request.getfixturevalue("crop_layer")

    with expect_error(cvdnn.error, code=ErrorCode.MISSING, mentions="setInput"):
        net.forward()
    conv, crop, _ = outputs_of(net)

    np.testing.assert_array_equal(crop, conv[:, :, 2:-2, 2:-2])


def test_a_registered_type_may_be_unknown():
    class Twice(CropLayer):
        def getMemoryShapes(self, inputs):  # noqa: N802
            return inputs

        def forward(self, inputs):
            return [2 * inputs[0]]

    text = CONVOLUTION + 'layer { name: "twice" type: "Twice" bottom: "y" top: "z" }'
    cvdnn.registerLayer("Twice", Twice)
    net = cvdnn.readNetFromCaffe(text.encode(), WEIGHTS)
    net.setInput(values(1, 1, 4, 4))
    y, z = net.forward(["y", "twice"])
    cvdnn.unregisterLayer("Twice")
    cvdnn.unregisterLayer("Twice")  # nothing is registered any more

    np.testing.assert_array_equal(z, 2 * y)
    with expect_error(cvdnn.error, code=ErrorCode.UNKNOWN):
        cvdnn.readNetFromCaffe(text.encode(), WEIGHTS)
