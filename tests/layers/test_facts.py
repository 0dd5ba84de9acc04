"""The facts about every layer type are held to what the layers do."""

from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from example_nets import example_net
from layer_examples import EXAMPLES

from demitasse import Net
from demitasse.io.proto import LayerParameter, parse_text
from demitasse.layers import layer_class, register_layer, unregister
from demitasse.layers.base import Exactly, Layer
from demitasse.layers.metadata import ALWAYS, IN_PLACE, METADATA, LayerMetadata, layer_metadata
from demitasse.testing import make_layer
from demitasse.testing.conformance.file_cases import FILES
from demitasse.testing.layer_cases import (
    CASES,
    CLASSES,
    FLAT,
    OTHER_CASES,
    RNG,
    ROWS,
    SCORES,
    LayerCase,
)

SOME = [
    LayerCase("SoftmaxWithLoss", 100, 'top: "loss" top: "prob"', (SCORES, CLASSES)),
    LayerCase("SPP", 100, "spp_param { pyramid_height: 1 pool: STOCHASTIC }", (abs(FLAT[None]),),
              phase="TEST"),
    LayerCase("BN", 100, "bn_param { slope_filler { value: 2 } }", (FLAT,), phase="TEST"),
    LayerCase("BN", 101, 'bottom: "x" top: "x" bn_param { slope_filler { value: 2 } }', (FLAT,),
              phase="TEST"),
    LayerCase("BN", 102, "bn_param { frozen: true }", (FLAT,), phase="TEST"),
    LayerCase("BatchNorm", 100, "", (FLAT,), phase="TEST"),
    LayerCase("ReLU6", 100, 'bottom: "x" top: "x" relu6_param { negative_slope: -1 }', (ROWS,)),
    LayerCase("Power", 100, 'bottom: "x" top: "x" power_param { scale: 2 }', (ROWS,)),
    LayerCase("Flatten", 100, "", (FLAT,)),
    LayerCase("Reshape", 100, "reshape_param { shape { dim: -1 } }", (FLAT,)),
]  # fmt: skip
"""Options that change what backward reads, and have no case of their own."""

WITH_GRADIENT = [case for cases in CASES.values() for case in cases] + SOME
EVERY_CASE = WITH_GRADIENT + [case for cases in OTHER_CASES.values() for case in cases]


def of_each_type(cases):
    """Make of a test of one case a test of each type, which runs through the cases of it."""
    types = defaultdict(list)
    for case in cases:
        types[case.type].append(case)

    def decorate(check):
        @pytest.mark.parametrize("its", types.values(), ids=types)
        def test(its):
            for case in its:
                try:
                    check(case)
                except Exception as error:
                    error.add_note(f"case {case}")
                    raise

        test.__name__ = check.__name__
        return test

    return decorate


def named(case):
    """The message of a case, with a name for each bottom, as a net has it."""
    param = parse_text(case.text, LayerParameter)
    if not param.bottom:
        param.bottom.extend(f"bottom{i}" for i in range(len(case.bottoms)))
    param.name = "layer"
    return param


def made(case):
    one = make_layer(named(case), case.bottoms, phase=case.phase, device="numpy", optimize=False)
    for _ in range(case.passes):
        one.forward()
    if not one.layer.param.top:
        one.layer.param.top.extend(blob.name for blob in one.top)
    return one


# -- what backward reads -----------------------------------------------------------------------


def gradients(one, case, spoil=lambda: None):
    """All gradients after a forward pass, with something done in between."""
    random = np.random.default_rng(3)
    one.forward(*case.bottoms)
    if not any(one.layer.loss_weights):
        for blob in one.top:
            blob.diff[...] = random.normal(size=blob.shape)
    for blob in one.params:
        blob.diff[...] = 0
    spoil()
    found = [diff for diff in one.backward() if diff is not None]
    return [*found, *(np.array(blob.diff) for blob in one.params)]


def moved(values):
    return np.roll(values.reshape(-1), 1).reshape(values.shape)


def turned(values):
    return values.reshape(-1)[::-1].reshape(values.shape)


def other(values):
    return 0.7 - 3 * values


def apart(values):
    """Other values, above 0 where they were."""
    return np.where(values > 0, 3 * values + 1, values - 1)


def changes(one, case, blobs, *ways):
    """Whether the gradients change when blobs are overwritten before backward."""

    def overwrite(way):
        for blob, values in zip(blobs, [np.array(way(blob.data)) for blob in blobs], strict=True):
            blob.data[...] = values

    for way in ways:
        kept = [np.array(blob.data) for blob in one.params]
        want = gradients(one, case)
        got = gradients(one, case, partial(overwrite, way))
        for blob, values in zip(one.params, kept, strict=True):
            blob.data[...] = values
        if not all(map(partial(np.array_equal, equal_nan=True), want, got)):
            return True
    return False


def changes_without_gradient(one, case):
    """Whether the gradients change when tops are overwritten where their own gradient is 0."""

    def overwrite(factor):
        random = np.random.default_rng(4)
        for blob in one.top:
            some = random.random(blob.shape) < 0.5
            blob.diff[some] = 0
            blob.data[some] *= factor

    want, got = (gradients(one, case, partial(overwrite, factor)) for factor in (1, -3))
    return not all(map(np.array_equal, want, got))


@of_each_type(WITH_GRADIENT)
def test_backward_reads_what_the_facts_say(case):
    one = made(case)
    below = [blob for blob in one.bottom if blob not in one.top]

    found = set()
    if changes(one, case, below, moved, turned):
        found.add("bottoms")
    read = [changes(one, case, [blob], moved, turned, other) for blob in one.top]
    if all(read):
        if not changes(one, case, one.top, apart):
            found.add("signs")
        else:
            found.add("tops" if changes_without_gradient(one, case) else "tops with gradient")
    elif any(read):
        found.add(("first top", "second top")[read.index(True)])
    if changes(one, case, one.params, other):
        found.add("params")

    assert found == layer_metadata(case.type).reads_in_backward(one.layer.param, case.phase)


# -- parameters --------------------------------------------------------------------------------


@of_each_type([case for case in EVERY_CASE if layer_metadata(case.type).known])
def test_parameters_are_as_many_as_the_facts_say_and_filled_as_they_say(case):
    param = named(case)
    said = layer_metadata(case.type).params_of(param, case.phase)
    for number, one in enumerate(said):
        if one.filler:
            message, _, name = one.filler.partition(".")
            filler = getattr(getattr(param, message), name)
            filler.Clear()
            filler.value = number + 0.5

    layer = make_layer(param, case.bottoms, phase=case.phase, device="numpy")

    assert len(layer.params) == len(said)
    for blob, one in zip(layer.params, said, strict=True):
        if one.filler:
            message, _, name = one.filler.partition(".")
            np.testing.assert_allclose(blob.data, getattr(getattr(param, message), name).value)
        else:
            assert set(np.unique(blob.data)) <= {0.0, 1.0}


@of_each_type(WITH_GRADIENT)
def test_averages_are_not_learned_and_all_else_is(case):
    one = made(case)
    said = layer_metadata(case.type).params_of(one.layer.param, case.phase)
    if not said:
        return

    gradients(one, case)

    specs = list(one.layer.param.param)
    for index, param in enumerate(said):
        rate = specs[index].lr_mult if index < len(specs) else 1.0
        assert (param.role == "average") == (rate == 0)
        assert param.role != "average" or not one.params[index].diff.any()


# -- shapes, memory, kinds of bottoms ----------------------------------------------------------


MORE_AXES = {"MVN": "its top always has four axes, as those of its cases have"}


@pytest.mark.parametrize("name", sorted({case.type for case in EVERY_CASE}))
def test_tops_have_the_shape_of_the_bottom_where_the_facts_say_so(name):
    ones = [made(case) for case in EVERY_CASE if case.type == name and case.bottoms]
    for one in ones:
        one.forward()

    same = bool(ones) and all(one.top and one.top[0].shape == one.bottom[0].shape for one in ones)

    assert layer_metadata(name).same_shape == same or name in MORE_AXES


@of_each_type(EVERY_CASE)
def test_memory_is_shared_where_the_facts_say_so(case):
    one = made(case)
    one.forward()
    if not one.bottom or not one.top or one.top[0] is one.bottom[0]:
        return

    shared = np.shares_memory(one.top[0].data, one.bottom[0].data)

    assert shared == layer_metadata(case.type).shares.is_met(one.layer.param, case.phase)


@of_each_type(EVERY_CASE)
def test_bottoms_that_are_no_values_have_no_gradient(case):
    one = made(case)

    kinds = list(layer_metadata(case.type).kinds_of_bottoms(len(one.bottom)))

    for index, kind in enumerate(kinds):
        if kind is not None:
            assert (
                not one.layer.allow_force_backward(index)
                or layer_metadata(case.type).gradient == "none"
            )


SIGNED = [name for name, facts in METADATA.items() if facts.preserves_sign.text != "never"]


@of_each_type([case for case in WITH_GRADIENT if case.type in SIGNED])
def test_signs_are_kept_where_the_facts_say_so(case):
    one = made(case)
    [x], [y] = case.bottoms, one.forward(*case.bottoms)
    [dx] = one.backward(np.ones_like(y))

    kept = ((y > 0) == (x > 0)) | ((x > 0) & (dx == 0))

    if layer_metadata(case.type).preserves_sign.is_met(one.layer.param, case.phase):
        assert kept.all()


STOPS = [name for name, facts in METADATA.items() if facts.stops_gradient.text != "never"]


@of_each_type([case for case in WITH_GRADIENT if case.type in STOPS])
def test_values_that_change_get_no_gradient_where_the_facts_say_so(case):
    one = made(case)
    [x], [y] = case.bottoms, one.forward(*case.bottoms)
    [dx] = one.backward(np.ones_like(y))

    if layer_metadata(case.type).stops_gradient.is_met(one.layer.param, case.phase):
        assert not dx[x != y].any()


@pytest.mark.parametrize("name", sorted(METADATA))
def test_a_loss_counts_and_a_source_has_no_bottoms(name):
    facts, kind = METADATA[name], layer_class(name)

    if isinstance(kind, type):
        assert facts.is_loss == kind.auto_tops  # type: ignore[attr-defined]
    assert facts.records <= (facts.gradient == "source" or not facts.known)


@pytest.mark.parametrize(
    "name", [n for n, facts in METADATA.items() if "Softmax" in facts.contains]
)
def test_a_loss_with_a_softmax_does_not_mind_what_all_scores_share(name):
    bottoms = [SCORES, CLASSES, abs(RNG.normal(size=(4, 4)))]
    bottoms = bottoms[: 3 if name == "InfogainLoss" else 2]

    one = make_layer(f'type: "{name}"', bottoms, device="numpy")
    [plain] = one.forward()
    [shifted] = one.forward(SCORES + 5, *bottoms[1:])

    np.testing.assert_allclose(plain, shifted)


# -- examples ----------------------------------------------------------------------------------

HALVES = """
import caffe

class Halves(caffe.Layer):
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top): top[0].data[...] = bottom[0].data / 2
    def backward(self, top, propagate_down, bottom): bottom[0].diff[...] = top[0].diff / 2
"""


def test_every_type_has_an_example():
    assert EXAMPLES.keys() == METADATA.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example, facts = EXAMPLES[name], METADATA[name]
    tried = FILES.get(name)
    if tried is not None:
        for library in tried.needs:
            pytest.importorskip(library)
        tried.write()
    Path("my_layers.py").write_text(HALVES)
    param = example_net(name)
    assert name in {layer.type for layer in param.layer}

    with Net(param, device="numpy", base_dir=tmp_path) as net:
        if tried is not None and tried.prepare is not None:
            [layer] = [layer.name for layer in net.layers]
            tried.prepare(Renamed(net, layer))
        for blob in example.inputs:
            net.blobs[blob].data[...] = values_of(net, blob)
        net.forward()
        if facts.gradient == "gradient":
            for blob in net.outputs:
                net.blobs[blob].diff[...] = 1
            net.backward()
            reached = [net.blobs[blob] for blob in example.inputs if net.blobs[blob].diff.any()]
            assert reached or any(blob.diff.any() for blob in net.learnable_params)
        tops = [blob for blob in net.blobs.values() if blob.count]
        assert all(np.isfinite(blob.data).all() for blob in tops)


class Renamed:
    """A net whose one layer answers to the name that the preparation asks for."""

    def __init__(self, net, name):
        self.net, self.name = net, name

    def layer_by_name(self, name):
        return self.net.layer_by_name(self.name)


def values_of(net, blob):
    """Noise, or whole numbers where a layer reads labels, indices and the like."""
    shape, random = net.blobs[blob].shape, np.random.default_rng(list(blob.encode()))
    kinds = [
        kind
        for layer in net.layers
        for name, kind in zip(
            layer.param.bottom, layer_metadata(layer.type).kinds_of_bottoms(9), strict=False
        )
        if name == blob or name.startswith(f"{blob}_{blob}_split")
    ]
    if blob == "regions":
        return np.tile([0.0, 0, 0, 20, 24], (shape[0], 1))
    if blob == "priors":
        return np.resize([0.1, 0.2, 0.5, 0.7], shape)
    if blob == "objects":
        return np.resize([0, 1, 0, 0.1, 0.2, 0.5, 0.8, 0], shape)
    if blob == "detections":
        return np.resize([0, 1, 0.9, 0.1, 0.2, 0.5, 0.8], shape)
    return random.integers(0, 2, shape) if any(kinds) else random.normal(size=shape)


# -- types of users ----------------------------------------------------------------------------


class Doubles(Layer):
    """What a user might write."""

    bottoms = tops = Exactly(1)


def test_a_user_may_say_what_is_so_of_a_type_of_his():
    facts = LayerMetadata(
        same_shape=True, preserves_sign=ALWAYS, backward_inputs={"tops": IN_PLACE}
    )

    register_layer("Doubles", metadata=facts)(Doubles)
    said = layer_metadata("Doubles")
    unregister("Doubles")

    assert said is facts
    assert not layer_metadata("Doubles").known


def test_of_a_type_that_nobody_described_little_is_known():
    facts = layer_metadata("MineLoss")

    assert (facts.known, facts.is_loss, facts.backward_inputs, facts.params) == (
        False,
        True,
        {},
        (),
    )
    assert not layer_metadata("Mine").is_loss
