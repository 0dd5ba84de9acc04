"""In-place layers: chains of them, and shapes that cannot be in place."""

from functools import lru_cache

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import NetError
from demitasse.io.proto import NetParameter, parse_text

FILLERS = "filler { value: -1.5 } bias_filler { value: 0.25 }"
LAYERS = {
    "ReLU": 'type: "ReLU"',
    "leaky ReLU": 'type: "ReLU" relu_param { negative_slope: 0.1 }',
    "TanH": 'type: "TanH"',
    "Sigmoid": 'type: "Sigmoid"',
    "Power": 'type: "Power" power_param { scale: -2 shift: 0.5 }',
    "PReLU": 'type: "PReLU"',
    "Dropout": 'type: "Dropout"',
    "Scale": f'type: "Scale" scale_param {{ bias_term: true {FILLERS} }}',
    "BatchNorm": 'type: "BatchNorm"',
    "Softmax": 'type: "Softmax"',
}
CONVOLUTION = (
    'type: "Convolution" convolution_param { num_output: 8 kernel_size: 3 pad: 1 '
    'weight_filler { type: "gaussian" std: 0.3 } }'
)
SHAPE = (3, 8, 5, 4)


def layer(name, bottom, top, text):
    return f'layer {{ name: "{name}" bottom: "{bottom}" top: "{top}" {text} }}'


@lru_cache(maxsize=1024)
def parsed(text):
    return parse_text(text, NetParameter)


def run(text, phase, device, *, optimize):
    """Return the output of a pass and, in phase TRAIN, all gradients."""
    net = Net(parsed(text), phase, device=device, optimize=optimize, seed=3)
    rng = np.random.default_rng(5)
    for name, blobs in net.params.items():
        if net.layer_by_name(name).type == "BatchNorm":
            for blob, value in zip(blobs, (0.3, 3.0, 1.5), strict=True):
                blob.data[...] = value
    net.blobs["x"].data[...] = rng.normal(size=SHAPE)
    net.forward()
    [output] = net.outputs
    if phase == "TEST":  # deployed: no gradient is asked for, so layers may be folded together
        return [np.array(net.blobs[output].data)]
    net.blobs[output].diff[...] = rng.normal(size=SHAPE)
    net.backward()
    gradients = [blob.diff for blobs in net.params.values() for blob in blobs]
    return [np.array(a) for a in (net.blobs[output].data, net.blobs["x"].diff, *gradients)]


@lru_cache(maxsize=1024)
def one_by_one(text, phase):
    return run(text, phase, "numpy", optimize=False)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("start", ["convolution", "input"])
@pytest.mark.parametrize("second", LAYERS)
@pytest.mark.parametrize("first", LAYERS)
@pytest.mark.parametrize("apart", [False, True], ids=["in_place", "apart"])
def test_two_layers_are_two_layers(first, second, apart, start, phase, backend_with_steps):
    expect_two_layers(LAYERS[first], second, apart, start, phase, backend_with_steps)


@pytest.mark.parametrize("first", ["ELU", "Swish"])
@pytest.mark.parametrize("second", LAYERS)
@pytest.mark.parametrize("apart", [False, True], ids=["in_place", "apart"])
def test_what_overwrites_a_result_is_in_the_gradient(first, second, apart, backend_with_steps):
    # as in Caffe, which takes it from input and result
    first = f'type: "{first}"'
    expect_two_layers(first, second, apart, "convolution", "TRAIN", backend_with_steps)


def expect_two_layers(first, second, apart, start, phase, device):
    """Run two layers, of which the second is in place, and each by itself on numpy."""
    before = CONVOLUTION if start == "convolution" else 'type: "Power" power_param { scale: 2 }'
    top = "z" if apart else "y"
    text = "\n".join(
        [
            f"force_backward: {str(phase == 'TRAIN').lower()}",
            'layer { name: "x" type: "Input" top: "x" input_param { shape { '
            f"{' '.join(f'dim: {n}' for n in SHAPE)} }} }} }}",
            layer("start", "x", "y", before),
            layer("first", "y", top, first),
            layer("second", top, top, LAYERS[second]),
        ]
    )

    got = run(text, phase, device, optimize=True)

    for mine, other in zip(got, one_by_one(text, phase), strict=True):
        # a scale before a normalisation has a gradient of nearly 0, a difference of large sums
        assert np.abs(mine - other).max() <= 1e-4 * max(1.0, np.abs(other).max())


INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 4, 4, 3] } } }'


def net(*layers):
    return Net(parse_text(INPUT + "".join(layers), NetParameter), device="numpy")


@pytest.mark.parametrize(
    "fields",
    [
        'type: "Im2col" convolution_param { kernel_size: 2 }',
        'type: "Convolution" convolution_param { num_output: 4 kernel_size: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }',
        'type: "Reduction" reduction_param { axis: 1 }',
        'type: "InnerProduct" inner_product_param { num_output: 5 }',
    ],
    ids=lambda fields: fields.split('"')[1],
)
def test_another_shape_in_place_is_refused_with_both(fields):
    relu = 'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'
    layer = f'layer {{ name: "l" bottom: "y" top: "y" {fields} }}'

    with expect_error(NetError, place="layer 'l'", mentions="(2, 4, 4, 3)"):
        net(relu, layer)


def test_the_same_shape_in_place_is_not_refused():
    fields = "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }"

    made = net(f'layer {{ name: "c" type: "Convolution" bottom: "x" top: "x" {fields} }}')

    assert made.blobs["x"].shape == (2, 4, 4, 3)


@pytest.mark.parametrize("kind", ["EuclideanLoss", "HingeLoss", "MultinomialLogisticLoss"])
def test_a_loss_in_the_place_of_its_bottom_is_refused(kind):
    labels = 'layer { name: "y" type: "Input" top: "y" input_param { shape { dim: 2 } } }'
    layer = f'layer {{ name: "l" type: "{kind}" bottom: "x" bottom: "y" top: "x" }}'

    with expect_error(NetError, place="layer 'l'"):
        net(labels, layer)
