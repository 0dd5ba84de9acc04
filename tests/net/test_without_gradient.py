"""Bottoms without a gradient: labels, indices, regions, weights of losses."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.layers import Layer, register_layer, unregister
from demitasse.layers.base import Exactly
from demitasse.training import Solver

ROIS = np.array([[0, 0, 0, 3, 3], [0, 1, 2, 4, 5], [0, 0, 1, 5, 4]], dtype=float)
CONV = """
layer { name: "conv" type: "Convolution" bottom: "x" top: "map"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
"""
INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [1, 2, 6, 6] } } }'


def sum_of(*blobs):
    """A loss layer for each blob, the sum of its values."""
    return "".join(
        f'layer {{ name: "sum_{b}" type: "Reduction" bottom: "{b}" top: "s_{b}" loss_weight: 1 }}'
        for b in blobs
    )


def build(text, device="numpy", **options):
    return Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=3, **options)


@pytest.fixture
def propose():
    """Makes ``Propose`` a layer type: regions from a map, with a gradient of 1 for the map."""

    @register_layer("Propose")
    class Propose(Layer):
        bottoms = tops = Exactly(1)

        def reshape(self, bottom, top):
            top[0].reshape(ROIS.shape)

        def forward(self, bottom, top):
            top[0].mutable_cpu_data()[...] = ROIS

        def backward(self, top, propagate_down, bottom):
            if propagate_down[0]:
                bottom[0].set_diff(1)

    yield
    unregister("Propose")


ROIS_AS_INPUT = """
layer { name: "regions" type: "Input" top: "rois" input_param { shape { dim: [3, 5] } } }
"""
PROPOSE = 'layer { name: "propose" type: "Propose" bottom: "map" top: "rois" }'


def pool(kind="ROIPooling", more=""):
    fields = {
        "ROIPooling": "roi_pooling_param { pooled_h: 2 pooled_w: 2 }",
        "PSROIPooling": "psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 1 }",
    }
    return (
        f'layer {{ name: "pool" type: "{kind}" bottom: "map" bottom: "rois" top: "bins" '
        f"{fields[kind]} {more} }}"
    )


def gradients(net):
    """Of the parameters, after a pass."""
    rng = np.random.default_rng(0)
    net.blobs["x"].data[...] = rng.normal(size=net.blobs["x"].shape)
    net.clear_param_diffs()
    net.forward_backward()
    return [np.array(blob.diff) for blob in net.learnable_params]


# -- asked for by nobody -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ROIPooling", "PSROIPooling"])
def test_no_gradient_flows_to_regions_that_come_from_trained_layers(kind, propose, backend):
    text = INPUT + CONV + PROPOSE + pool(kind) + sum_of("bins")
    fixed = INPUT + CONV + ROIS_AS_INPUT + pool(kind) + sum_of("bins")
    net, other = build(text, backend), build(fixed, backend)
    other.blobs["rois"].data[...] = ROIS

    for got, want in zip(gradients(net), gradients(other), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.any()
    assert not net.blobs["rois"].diff.any()


@pytest.mark.parametrize("keep", [None, ["rois"]])
def test_other_readers_of_the_regions_pass_their_gradient_on(keep, propose, backend):
    reader = """
    layer { name: "ip" type: "InnerProduct" bottom: "rois" top: "y"
      inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }
    """
    text = INPUT + CONV + PROPOSE + pool() + reader + sum_of("bins", "y")
    net = build(text, backend, keep_blobs=keep)

    first = gradients(net)
    second = gradients(net)

    weight = net.params["ip"][0].data
    want = np.broadcast_to(weight.sum(axis=0), ROIS.shape)
    np.testing.assert_allclose(net.blobs["rois"].diff, want, rtol=1e-6)
    for got, again in zip(first, second, strict=True):
        np.testing.assert_array_equal(got, again)


def test_an_end_to_end_detector_trains(propose, backend):
    """As in Faster R-CNN: targets and weights of the loss come from a layer above trained ones."""
    text = f"""
    {INPUT} {CONV} {PROPOSE} {pool()}
    layer {{ name: "flat" type: "InnerProduct" bottom: "bins" top: "boxes"
      inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "SmoothL1Loss" bottom: "boxes" bottom: "rois" bottom: "rois"
      bottom: "rois" top: "loss" }}
    """
    param = parse_text('base_lr: 1e-4 lr_policy: "fixed"', SolverParameter)
    param.net_param.CopyFrom(parse_text(text, NetParameter))
    solver = Solver(param, device=backend, seed=1)
    solver.net.blobs["x"].data[...] = np.random.default_rng(0).normal(size=(1, 2, 6, 6))
    before = [np.array(blob.data) for blob in solver.net.learnable_params]

    solver.step(2)

    for blob, was in zip(solver.net.learnable_params, before, strict=True):
        assert (blob.data != was).any()


def test_no_gradient_flows_to_the_mask_of_a_pooling(backend):
    text = f"""
    {INPUT} {CONV}
    layer {{ name: "down" type: "Pooling" bottom: "map" top: "small" top: "mask"
      pooling_param {{ kernel_size: 2 stride: 2 }} }}
    layer {{ name: "up" type: "Upsample" bottom: "small" bottom: "mask" top: "large"
      upsample_param {{ scale: 2 }} }}
    {sum_of("large")}
    """
    net = build(text, backend)

    assert gradients(net)[0].any()
    assert not net.blobs["mask"].diff.any()


def test_words_that_a_trained_layer_chooses_get_no_gradient(backend):
    text = f"""
    {INPUT} {CONV}
    layer {{ name: "choose" type: "ArgMax" bottom: "map" top: "word" argmax_param {{ axis: 1 }} }}
    layer {{ name: "embed" type: "Embed" bottom: "word" top: "y"
      embed_param {{ num_output: 3 input_dim: 4 weight_filler {{ type: "gaussian" }} }} }}
    {sum_of("y")}
    """
    weight, _, table, _ = gradients(build(text, backend))

    assert not weight.any()
    assert table.any()


def test_labels_that_a_trained_layer_chooses_get_no_gradient(backend):
    text = f"""
    {INPUT} {CONV}
    layer {{ name: "choose" type: "ArgMax" bottom: "map" top: "label" argmax_param {{ axis: 1 }} }}
    layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "map" bottom: "label" top: "loss" }}
    """
    net = build(text, backend)

    assert gradients(net)[0].any()
    assert net.structure.needs.bottoms[-1] == [True, False]


# -- asked for by force_backward ---------------------------------------------------------------


def test_force_backward_leaves_regions_out(propose):
    text = "force_backward: true " + INPUT + CONV + PROPOSE + pool() + sum_of("bins")
    net = build(text)

    gradients(net)

    assert net.blobs["x"].diff.any()
    assert not net.blobs["rois"].diff.any()


# -- asked for by propagate_down ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ROIPooling", "PSROIPooling"])
def test_a_gradient_of_regions_is_asked_for_in_vain(kind, propose, backend):
    text = INPUT + CONV + PROPOSE + pool(kind, "propagate_down: [true, true]") + sum_of("bins")
    net = build(text, backend)

    assert gradients(net)[0].any()
    assert not net.blobs["rois"].diff.any()
    assert net.structure.needs.bottoms[net.layer_number("pool")] == [True, False]


@pytest.mark.parametrize(
    ("layer", "bottom"),
    [
        ('type: "Embed" embed_param { num_output: 2 input_dim: 3 }', "0, 'a'"),
        ('type: "BatchReindex" bottom: "b"', "1, 'b'"),
        ('type: "Filter" bottom: "b"', "1, 'b'"),
        ('type: "EuclideanLoss" bottom: "b"', None),
        ('type: "HingeLoss" bottom: "b"', "1, 'b'"),
    ],
    ids=lambda value: value and value.split()[1],
)
def test_a_gradient_that_there_is_not_is_refused_while_the_net_is_built(layer, bottom):
    flags = "propagate_down: true " * (1 + layer.count("bottom"))
    text = f"""
    layer {{ name: "in" type: "Input" top: "a" top: "b"
      input_param {{ shape {{ dim: 4 }} shape {{ dim: 4 }} }} }}
    layer {{ name: "one" bottom: "a" top: "y" {layer} {flags} }}
    """
    if bottom is None:
        assert build(text).has_layer("one")
        return

    with expect_error(NetError, place="layer 'one'", mentions=f"bottom {bottom}"):
        build(text)


def test_where_a_gradient_ends_is_logged(caplog):
    target = CONV.replace('"conv"', '"teacher"').replace('top: "map"', 'top: "target"')
    loss = 'layer { name: "l" type: "SigmoidCrossEntropyLoss" bottom: "map" bottom: "target" }'

    with caplog.at_level("INFO", logger="demitasse"):
        build(INPUT + CONV + target + loss).close()

    said = [text for text in caplog.messages if "layer 'l' (SigmoidCrossEntropyLoss)" in text]
    assert len(said) == 1
    assert "'target'" in said[0]


def test_parameters_without_a_gradient_are_refused():
    @register_layer("Forgetful")
    class Forgetful(Layer):
        bottoms = tops = Exactly(1)

        def setup(self, bottom, top):
            self.scale = self.add_param((1,))

        def reshape(self, bottom, top):
            top[0].reshape_like(bottom[0])

        def forward(self, bottom, top):
            top[0].write(bottom[0].read() * self.scale.read())

    layer = 'layer { name: "f" type: "Forgetful" bottom: "x" top: "y" %s }'
    try:
        frozen = build(INPUT + layer % "param { lr_mult: 0 }" + sum_of("y"))
        net = build(INPUT + layer % "" + sum_of("y"))
    finally:
        unregister("Forgetful")

    frozen.forward_backward()
    with expect_error(NetError, ErrorCode.NO_GRADIENT, type="Forgetful"):
        net.forward_backward()
