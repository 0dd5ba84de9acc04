"""Names, numbers and refusals beside OpenCV 4 itself, where it is installed."""

import json

import numpy as np
import pytest
from opencv_nets import (
    BRANCHES,
    DETECTOR,
    IMAGE_DETECTOR,
    IN_PLACE,
    LIKE_OPENCV,
    MAPS,
    NO_SHAPE,
    detector_inputs,
    net_of,
)

from demitasse import Net, cvdnn
from demitasse.compat.cvdnn import constants

cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed; it is compared with by hand")
if not hasattr(cv2.dnn, "readNetFromCaffe"):
    pytest.skip("this OpenCV no longer reads Caffe's files", allow_module_level=True)


def both(text: str):
    """The net of a text, ours and OpenCV's."""
    return net_of(text), cv2.dnn.readNetFromCaffe(bytearray(text.encode()))


@pytest.mark.parametrize("name", [name for name in dir(constants) if name.startswith("DNN_")])
def test_numbers_are_opencvs(name):
    assert getattr(cvdnn, name) == getattr(cv2.dnn, name)


@pytest.mark.parametrize("seed", range(40))
def test_blobs_of_images_are_equal(seed):
    rng = np.random.default_rng(seed)
    height, width, H, W = (int(size) for size in rng.integers(1, 60, 4))
    image = rng.integers(0, 256, (height, width, *rng.choice([1, 3, 4], 1)), np.uint8)
    options = {
        "scalefactor": float(rng.choice([1, 1 / 255, 0.007843])),
        "size": (W, H) if seed % 5 else (0, 0),
        "mean": [(), (104, 117, 123), (1.1,)][seed % 3],
        "swapRB": bool(rng.integers(2)),
        "crop": bool(rng.integers(2)),
    }

    got, want = (dnn.blobFromImage(image, **options) for dnn in (cvdnn, cv2.dnn))
    floats = image.astype(np.float32)
    got_float, want_float = (dnn.blobFromImage(floats, **options) for dnn in (cvdnn, cv2.dnn))

    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    assert np.allclose(got_float, want_float, rtol=1e-5, atol=1e-3 * options["scalefactor"])


@pytest.mark.parametrize("seed", range(10))
def test_letterboxes_are_equal(seed):
    rng = np.random.default_rng(seed)
    height, width, H, W = (int(size) for size in rng.integers(20, 60, 4))
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    ours, theirs = cvdnn.Image2BlobParams(), cv2.dnn.Image2BlobParams()
    for params in (ours, theirs):
        params.size, params.paddingmode = (W, H), cvdnn.DNN_PMODE_LETTERBOX
        params.mean, params.borderValue = (1.0, 2.0, 3.0, 0.0), (10.0, 20.0, 30.0, 0.0)
        params.swapRB = bool(seed % 2)
        params.datalayout = cvdnn.DNN_LAYOUT_NHWC if seed % 3 else cvdnn.DNN_LAYOUT_NCHW

    got = cvdnn.blobFromImageWithParams(image, ours)
    want = cv2.dnn.blobFromImageWithParams(image, theirs)

    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_boxes_stay(seed):
    rng = np.random.default_rng(seed)
    boxes = np.concatenate([rng.uniform(0, 30, (40, 2)), rng.uniform(-1, 20, (40, 2))], 1).round(1)
    scores = rng.uniform(0, 1, 40).round(1)
    classes = rng.integers(0, 3, 40)
    options = (0.2, 0.1 * (seed % 10), [1.0, 0.9][seed % 2], [0, 15][seed % 2])

    got = cvdnn.NMSBoxes(boxes, scores, *options)
    by_class = cvdnn.NMSBoxesBatched(boxes, scores, classes, *options)

    assert list(got) == list(cv2.dnn.NMSBoxes(boxes, scores, *options))
    assert list(by_class) == list(cv2.dnn.NMSBoxesBatched(boxes, scores, classes, *options))
    outside = boxes - [100, 100, 0, 0]  # all coordinates are negative
    by_class = cvdnn.NMSBoxesBatched(outside, scores, classes, *options)
    assert list(by_class) == list(cv2.dnn.NMSBoxesBatched(outside, scores, classes, *options))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (IN_PLACE, (3, 2, 4, 5)),
        (BRANCHES, (2, 4, 2, 2)),
        (NO_SHAPE, (3, 4)),
        (MAPS, (1, 3, 5, 5)),
        (LIKE_OPENCV, (1, 4, 5, 6)),
    ],
)
def test_layers_give_the_same(text, shape):
    ours, theirs = both(text)
    data = np.random.default_rng(0).integers(0, 9, shape).astype(np.uint8)
    for net in (ours, theirs):
        net.setInput(data, "", 0.5, (1, 2, 3, 4) if len(shape) == 4 else 0)

    assert ours.getLayerNames() == theirs.getLayerNames()
    assert ours.getUnconnectedOutLayersNames() == theirs.getUnconnectedOutLayersNames()
    names = list(ours.getLayerNames())
    for got, want in zip(ours.forward(names), theirs.forward(names), strict=True):
        assert got.shape == want.shape
        assert np.allclose(got, want, atol=1e-6)
    assert ours.getMemoryConsumption(shape) == theirs.getMemoryConsumption(shape)
    assert ours.getFLOPS(shape) == theirs.getFLOPS(shape)


@pytest.mark.parametrize("images", [1, 2, 3])
@pytest.mark.parametrize("keep", [2, 5, 9])
def test_detections_are_equal(images, keep):
    ours, theirs = both(DETECTOR.replace("keep_top_k: 5", f"keep_top_k: {keep}"))
    for net in (ours, theirs):
        for name, array in detector_inputs(images).items():
            net.setInput(array, name)

    got, want = ours.forward(), theirs.forward()

    assert got.shape == want.shape
    assert np.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_models_detect_the_same(seed, tmp_path):
    (tmp_path / "net.prototxt").write_text(IMAGE_DETECTOR)
    (tmp_path / "net.caffemodel").write_bytes(b"\n\x03net")  # a message of a name alone
    files = (str(tmp_path / "net.caffemodel"), str(tmp_path / "net.prototxt"))
    frame = np.random.default_rng(seed).integers(0, 256, (40 + seed, 50), np.uint8)
    found = []
    for dnn in (cvdnn, cv2.dnn):
        model = dnn.DetectionModel(*files)
        model.setInputParams(1 / 255.0, (4, 4), 3.0)
        found.append(model.detect(frame, 0.3))

    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        assert np.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("model", ["lenet_mnist_v1", "mtcnn_det1", "ultralight_rfb320"])
def test_every_layer_of_a_trained_model_gives_the_same(model, reference_data):
    entry = json.loads((reference_data / "refs" / "index.json").read_text())[model]
    files = [str(reference_data / "models" / entry[what]) for what in ("net", "weights")]
    ours, theirs = cvdnn.readNetFromCaffe(*files), cv2.dnn.readNetFromCaffe(*files)
    with np.load(reference_data / "refs" / model / "input.npz") as inputs:
        data = inputs[inputs.files[0]]
    for net in (ours, theirs):
        net.setInput(data)
    names = list(ours.getLayerNames())

    assert names == list(theirs.getLayerNames())
    for got, want in zip(ours.forward(names), theirs.forward(names), strict=True):
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()
    assert ours.getFLOPS(data.shape) == theirs.getFLOPS(data.shape)
    assert ours.getMemoryConsumption(data.shape) == theirs.getMemoryConsumption(data.shape)


@pytest.mark.parametrize(
    "call",
    [
        lambda dnn, net: dnn.readNetFromCaffe("/nowhere.prototxt"),
        lambda dnn, net: dnn.readNetFromCaffe(bytearray(b"no net"), bytearray()),
        lambda dnn, net: dnn.readNet("/nowhere.caffemodel"),
        lambda dnn, net: net.forward(),
        lambda dnn, net: net.forward("nothing"),
        lambda dnn, net: net.forward(["nothing"]),
        lambda dnn, net: net.forward("z"),
        lambda dnn, net: net.setInput(np.zeros((1, 2), np.float32), "nothing"),
        lambda dnn, net: net.getLayer(99),
        lambda dnn, net: net.getParam("relu"),
        lambda dnn, net: dnn.Net().forward(),
        lambda dnn, net: dnn.blobFromImages([]),
        lambda dnn, net: dnn.blobFromImage(np.zeros((2, 2, 2), np.uint8)),
        lambda dnn, net: dnn.blobFromImage(np.zeros((2, 2), np.uint8), size=(0, 3)),
        lambda dnn, net: dnn.blobFromImage(np.zeros((2, 2), np.uint8), ddepth=6),
        lambda dnn, net: dnn.imagesFromBlob(np.zeros((2, 2), np.float32)),
        lambda dnn, net: dnn.NMSBoxes([[0, 0, 1, 1]], [], 0.5, 0.4),
    ],
)
def test_both_refuse_the_same(call):
    ours, theirs = both(IN_PLACE)

    with pytest.raises(cv2.error):
        call(cv2.dnn, theirs)
    with pytest.raises(cvdnn.error):
        call(cvdnn, ours)


CONV = 'convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" } }'
NAMES = {
    "other tops": """
        layer { name: "c1" type: "Convolution" bottom: "data" top: "x" CONV }
        layer { name: "r" type: "ReLU" bottom: "x" top: "x" }
        layer { name: "c2" type: "Convolution" bottom: "x" top: "y" CONV }
        layer { name: "s" type: "Sigmoid" bottom: "x" top: "z" }""",
    "a top called like an input": """
        layer { name: "c1" type: "Convolution" bottom: "data" top: "data" CONV }""",
    "each channel": """
        layer { name: "c1" type: "ConvolutionDepthwise" bottom: "data" top: "x" CONV }
        layer { name: "d1" type: "Deconvolution" bottom: "x" top: "y" CONV }""",
    "split": """
        layer { name: "c1" type: "Convolution" bottom: "data" top: "x" CONV }
        layer { name: "sp" type: "Split" bottom: "x" top: "u" top: "v" }
        layer { name: "c2" type: "Convolution" bottom: "u" top: "cu" CONV }
        layer { name: "r" type: "ReLU" bottom: "v" top: "v" }""",
    "several tops": """
        input: "other" input_shape { dim: 1 dim: 2 dim: 5 dim: 5 }
        layer { name: "c" type: "Convolution" bottom: "data" bottom: "other" top: "a" top: "b"
                CONV }
        layer { name: "r" type: "ReLU" bottom: "b" top: "b" }
        layer { name: "e" type: "Eltwise" bottom: "a" bottom: "b" top: "e" }""",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_convolutions_are_equal(name, tmp_path):
    text = 'input: "data" input_shape { dim: 1 dim: 2 dim: 5 dim: 5 }' + NAMES[name]
    files = str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")
    (tmp_path / "n.prototxt").write_text(text.replace("CONV", CONV))
    Net(files[0], "TEST").save(files[1])
    nets = [dnn.readNetFromCaffe(*files) for dnn in (cvdnn, cv2.dnn)]
    inputs = {"data": np.random.default_rng(1).normal(size=(1, 2, 5, 5)).astype(np.float32)}
    if "other" in text:
        inputs["other"] = inputs["data"] + 1
    shapes = [[1, 2, 5, 5]] * len(inputs)
    for net in nets:
        for key, value in inputs.items():
            net.setInput(value, key)

    ours, theirs = nets
    names = tuple(theirs.getLayerNames())

    assert ours.getLayerNames() == names
    assert ours.getUnconnectedOutLayersNames() == tuple(theirs.getUnconnectedOutLayersNames())
    assert [*ours.getUnconnectedOutLayers()] == [*np.ravel(theirs.getUnconnectedOutLayers())]
    for one in (*names, "c1", "c2", "x", "data", "_input"):
        assert ours.getLayerId(one) == theirs.getLayerId(one)
    for got, want in zip(ours.forward(names), theirs.forward(names), strict=True):
        assert np.allclose(got, want, atol=1e-4)
    for number, one in enumerate(names, 1):
        assert ours.getLayer(number).type == theirs.getLayer(number).type
        assert ours.getFLOPS(number, shapes) == theirs.getFLOPS(number, shapes)
        retrieved = [net.forwardAndRetrieve([one])[0] for net in nets]
        assert [a.shape for a in retrieved[0]] == [a.shape for a in retrieved[1]]


@pytest.mark.parametrize("seed", range(6))
def test_priors_of_fractional_sizes_are_equal(seed):
    rng = np.random.default_rng(seed)
    least = rng.uniform(3, 60, 2)
    fields = " ".join(f"min_size: {a:.3f} max_size: {a + b:.3f}"
                      for a, b in zip(least, rng.uniform(1, 60, 2), strict=True))  # fmt: skip
    text = f"""
        input: "map" input_shape {{ dim: 1 dim: 2 dim: 3 dim: 4 }}
        input: "image" input_shape {{ dim: 1 dim: 3 dim: 96 dim: 128 }}
        layer {{ name: "p" type: "PriorBox" bottom: "map" bottom: "image" top: "p"
                prior_box_param {{ {fields} aspect_ratio: {rng.uniform(1.5, 3):.3f}
                                  clip: {str(bool(seed % 2)).lower()} flip: true
                                  variance: 0.1 }} }}"""
    nets = both(text)
    for net in nets:
        net.setInput(np.zeros((1, 2, 3, 4), np.float32), "map")
        net.setInput(np.zeros((1, 3, 96, 128), np.float32), "image")

    got, want = (net.forward() for net in nets)

    assert got.shape == want.shape
    assert np.allclose(got, want, atol=1e-6)
