"""Net: construction, passes, live blobs, weights in and out, devices."""

import gc

import numpy as np
import pytest
from expect_error import expect_error, expect_warning

from demitasse import Net, NetSpec, settings
from demitasse.errors import (
    ConfigError,
    DemitasseError,
    ErrorCode,
    NetError,
    PrototxtError,
    ShapeError,
    WeightsError,
)
from demitasse.io.proto import NetParameter, parse_text
from demitasse.layers import Layer, layer_class, register_layer, unregister
from demitasse.layers.base import Exactly
from demitasse.layers.user_layer import UserLayer
from demitasse.memory import transfers

SMALL = """
name: "small"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 4 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "h"
        inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "h" top: "h" }
layer { name: "drop" type: "Dropout" bottom: "h" top: "h" }
layer { name: "ip2" type: "InnerProduct" bottom: "h" top: "y"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "y" top: "prob" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def small(phase="TRAIN", text=SMALL, **options) -> Net:
    options = {"device": "numpy", "seed": 3} | options
    net = Net(parse_text(text, NetParameter), phase, **options)
    rng = np.random.default_rng(0)
    net.blobs["x"].data[...] = rng.standard_normal((4, 6))
    net.blobs["t"].data[...] = [0, 1, 2, 1]
    return net


def gradients(net: Net) -> dict[str, np.ndarray]:
    return {
        f"{k}{i}": b.diff.copy() for k, blobs in net.params.items() for i, b in enumerate(blobs)
    }


# -- construction ------------------------------------------------------------------------------


def test_the_name_of_a_file_may_have_a_brace(tmp_path):
    path = tmp_path / "{small}.prototxt"
    path.write_text(SMALL)

    assert Net(str(path), "TRAIN", device="numpy").name == "small"


def test_a_net_knows_its_parts():
    net = small()

    assert net.inputs == ["x", "t"]
    assert net.outputs == ["loss", "prob"]
    assert net.layer_names[:3] == ["x", "t", "ip1"]
    assert [p.shape for p in net.params["ip1"]] == [(5, 6), (5,)]
    assert net.layer_by_name("relu").type == "ReLU"
    assert net.layer_number(-1) == len(net.layers) - 1
    assert net.has_blob("prob")
    assert not net.has_layer("prob2")
    assert net.structure.blob_loss_weights[net.blob_names.index("loss")] == 1
    assert [record.owner for record in net.structure.param_records] == [None] * 4


@pytest.mark.parametrize("call", ["blob_by_name", "layer_by_name"])
def test_a_name_that_is_not_there_lists_those_that_are(call):
    with expect_error(NetError, ErrorCode.UNKNOWN, mentions=["nobody", "x, t"]):
        getattr(small(), call)("nobody")


def test_blobs_and_parameters_are_written_to_and_not_replaced():
    net = small()
    blob = net.blobs["x"]

    with expect_error(TypeError, mentions=["net.blobs['x']", ".data[...]"]):
        net.blobs["x"] = np.ones((4, 6))
    with expect_error(TypeError, mentions=["net.params['ip1']", ".data[...]"]):
        net.params["ip1"] = []
    with expect_error(TypeError, mentions="net.blobs['x']"):
        del net.blobs["x"]
    with expect_error(TypeError, mentions="tuple"):
        net.params["ip1"][0] = blob

    blob.data[...] = 5
    assert net.blobs["x"] is net.blob_by_name("x") is blob
    assert (net.blobs["x"].data == 5).all()
    assert list(net.blobs) == net.blob_names
    assert dict(net.params).keys() == {"ip1", "ip2"}


def test_stages_are_a_list():
    with expect_error(ConfigError, ErrorCode.INVALID, field="stages", mentions="['deploy']"):
        small("TEST", stages="deploy")


def test_the_phase_given_wins_over_the_file_and_stages_add_up():
    text = 'state { phase: TEST stage: "a" }' + SMALL.replace(
        'type: "Dropout"', 'type: "Dropout" include { stage: "a" stage: "b" phase: TRAIN }'
    )

    from_file = Net(parse_text(text, NetParameter), device="numpy")
    given = small("TRAIN", text, stages=["b"])

    assert (from_file.phase, given.phase) == ("TEST", "TRAIN")
    assert not from_file.has_layer("drop")
    assert given.has_layer("drop")


def test_what_is_no_net_is_refused():
    for wrong in (NetSpec(), {"layer": []}):
        with expect_error(PrototxtError, ErrorCode.INVALID, mentions="to_proto"):
            Net(wrong)


def test_unknown_types_are_all_named_with_what_is_near():
    text = SMALL.replace('"ReLU"', '"Relu"').replace('"Dropout"', '"Dropuot"')

    with expect_error(NetError, mentions=["ReLU", "Dropout"]):
        small(text=text)


def test_of_an_unknown_type_only_what_is_near_is_shown():
    names = ["'Nonesuch'", "demitasse.layers.layer_types()"]
    with expect_error(NetError, mentions=names) as caught:
        small(text=SMALL.replace('"ReLU"', '"Nonesuch"'))

    assert "Convolution" not in str(caught.value)


def test_an_error_names_layer_and_line(tmp_path):
    file = tmp_path / "wrong.prototxt"
    file.write_text(SMALL.replace("num_output: 5", "num_output: 0"))

    names = ["inner_product_param.num_output", f"[{file}:5]"]
    with expect_error(ConfigError, place="layer 'ip1' (InnerProduct)", mentions=names):
        Net(file, "TEST", device="numpy")


@pytest.mark.parametrize(
    ("options", "known"),
    [({"phase": "PREDICT"}, ["TRAIN", "TEST"]), ({"dtype": "float8"}, ["float32", "bfloat16"])],
)
def test_arguments_are_checked(options, known):
    [(field, got)] = options.items()
    with expect_error(ConfigError, ErrorCode.UNKNOWN, mentions=known, field=field, got=got):
        small(**options)


# -- passes ------------------------------------------------------------------------------------


def test_backward_agrees_with_differences_of_the_loss(backend):
    net = small(device=backend, dtype="float64")
    net.forward()
    net.backward()
    analytic = gradients(net)["ip10"]
    weight, step = net.params["ip1"][0], 1e-5

    numeric = np.zeros_like(analytic)
    for index in np.ndindex(*weight.shape):
        for sign in (1, -1):
            weight.data[index] += sign * step
            net.passes = 0  # the same dropout mask again
            numeric[index] += sign * net.forward() / (2 * step)
            weight.data[index] -= sign * step

    np.testing.assert_allclose(analytic, numeric, rtol=1e-6, atol=1e-8)


CUT = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 8 } } }
layer { name: "cut" type: "Slice" bottom: "x" top: "a" top: "b"
        loss_weight: %s loss_weight: 10 }
%s
"""
READER = 'layer { name: "reader" type: "Power" bottom: "a" top: "c" }'
CARRIER = 'layer { name: "carrier" type: "Power" bottom: "a" top: "d" loss_weight: 1 }'


@pytest.mark.parametrize(
    ("weight", "more", "loss", "warned"),
    [
        (1, "", 44, False),
        (1, READER, 4, True),  # Caffe's number
        (0, READER + CARRIER, 44, False),
    ],
)
def test_the_weight_of_a_top_that_is_read_moves_with_a_warning(weight, more, loss, warned, caplog):
    net = Net(parse_text(CUT % (weight, more), NetParameter), "TRAIN", device="numpy")
    net.blobs["x"].data[...] = 1

    assert net.forward() == loss
    assert net.forward() == loss
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == warned
    assert all("layer 'cut' (Slice)" in text and "'a'" in text for text in said)


def test_parameter_gradients_add_up_until_they_are_cleared(backend):
    net = small("TEST", device=backend)
    net.forward_backward()
    once = gradients(net)
    net.forward_backward()
    twice = gradients(net)
    net.clear_param_diffs()
    none = gradients(net)

    for name, gradient in once.items():
        np.testing.assert_allclose(twice[name], 2 * gradient, rtol=1e-6)
        assert not none[name].any()


def test_a_pass_in_parts_equals_a_pass_in_one(backend):
    whole, parts = small("TEST", device=backend), small("TEST", device=backend)

    loss = whole.forward()
    parts.forward(end="relu")
    rest = parts.forward(start="drop")
    whole.backward()
    parts.backward(end="ip2")
    parts.backward(start=parts.layer_number("ip2") - 1)

    assert rest == loss
    for name, gradient in gradients(whole).items():
        np.testing.assert_array_equal(gradients(parts)[name], gradient)


def test_writing_into_a_blob_and_going_on_from_there_takes_effect(backend):
    net = small("TEST", device=backend)
    net.forward()

    net.blobs["y"].data[...] = [[9, 0, 0]] * 4  # a Split and two readers come after it
    net.forward(start="ip2")
    from_ip2 = net.blobs["prob"].data.copy()
    net.blobs["y"].data[...] = [[9, 0, 0]] * 4
    net.forward(start=net.layer_number("ip2") + 1)

    assert (net.blobs["prob"].data.argmax(axis=1) == 0).all()
    assert not np.array_equal(from_ip2, net.blobs["prob"].data)


def test_held_views_and_slices_stay_live(backend):
    net = small("TEST", device=backend)
    prob, weight = net.blobs["prob"].data[1:], net.params["ip2"][0].data[0]
    net.forward()
    before = prob.copy()

    weight[...] += 1.0
    net.forward()

    assert not np.array_equal(before, prob)
    np.testing.assert_array_equal(prob, net.blobs["prob"].cpu_data()[1:])


def test_a_blob_reshaped_by_its_user_is_honoured(backend):
    net = small("TEST", device=backend)
    net.forward()

    net.blobs["x"].reshape(7, 6)
    net.blobs["t"].reshape(7)
    net.blobs["x"].data[...] = 1
    net.blobs["t"].data[...] = 0
    net.forward()

    assert net.blobs["prob"].shape == (7, 3)


def test_predict_takes_any_batch_and_gives_numpy(backend):
    text = SMALL[: SMALL.index('layer { name: "loss"')].replace(
        'layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 4 } } }', ""
    )
    net = Net(parse_text(text, NetParameter), "TEST", device=backend, seed=1)
    items = np.random.default_rng(1).standard_normal((11, 6)).astype(np.float32)

    whole = net.predict({"x": items})["prob"]
    parts = net.predict(items, batch_size=4)["prob"]

    assert whole.shape == (11, 3)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    with expect_error(NetError, ErrorCode.UNKNOWN, mentions="'small'", got=["z"]):
        net.predict({"z": items})


def test_no_array_moves_between_input_and_loss():
    net = small(device="strict:device1")
    net.forward_backward()
    net.clear_param_diffs()
    transfers.reset()

    for name in ("x", "t"):
        net.blobs[name].mutable_cpu_data()
    net.forward()
    net.backward()

    assert transfers.to_device == 2  # the inputs
    assert transfers.to_host == 1  # the loss
    assert transfers.bytes_to_host == 4


def test_results_do_not_depend_on_what_lies_on_stale_sides(backend):
    with settings.override(debug_fill_stale=True):
        poisoned = small(device=backend)
    clean = small(device=backend)

    for net in (poisoned, clean):
        net.forward_backward()
        net.to("numpy" if backend != "numpy" else "strict:device1").forward_backward()

    for name, gradient in gradients(clean).items():
        np.testing.assert_allclose(gradients(poisoned)[name], gradient, rtol=1e-6)


def test_callbacks_see_every_layer_in_order():
    net, seen = small(), []
    net.before_forward.append(lambda i: seen.append(("before", i)))
    net.after_forward.append(lambda i: seen.append(("after", i)))
    net.after_backward.append(lambda i: seen.append(("back", i)))

    net.forward_backward()

    count = len(net.layers)
    forward = [(word, i) for i in range(count) for word in ("before", "after")]
    assert seen == forward + [("back", i) for i in reversed(range(count))]


def test_random_layers_draw_anew_in_every_training_pass_and_alike_on_every_device(backend):
    here, there = small(device=backend), small(device="numpy")
    masks = []

    for _ in range(2):
        here.forward()
        there.forward()
        masks.append(here.blobs["h"].data.copy())
        np.testing.assert_array_equal(masks[-1] != 0, there.blobs["h"].data != 0)

    assert here.passes == 2
    assert not np.array_equal(masks[0] != 0, masks[1] != 0)


# -- devices -----------------------------------------------------------------------------------


def test_a_net_moves_and_its_blobs_follow(backend):
    net = small("TEST", device="numpy")
    net.forward_backward()
    expected, before = net.blobs["prob"].data.copy(), gradients(net)

    net.to(backend)
    held = net.blobs["prob"].data.copy()
    net.forward_backward()

    assert str(net.device) == backend
    np.testing.assert_array_equal(held, expected)
    np.testing.assert_allclose(net.blobs["prob"].data, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients(net)["ip10"], 2 * before["ip10"], rtol=1e-4, atol=1e-6)


def test_plan_and_portable_code_agree(backend):
    fast, portable = small(device=backend), small(device=backend, optimize=False)

    losses = [(fast.forward_backward(), portable.forward_backward()) for _ in range(3)]

    assert all(step is None for step in portable.plan.steps())
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-5)
    for name, gradient in gradients(portable).items():
        np.testing.assert_allclose(gradients(fast)[name], gradient, rtol=1e-4, atol=1e-6)


# -- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("save", ["save", "save_hdf5"])
def test_weights_come_back_from_a_file(tmp_path, backend, save):
    if save == "save_hdf5":
        pytest.importorskip("h5py", reason="HDF5 files need h5py")
    source, target = small(device=backend), small(device=backend, seed=9)
    file = tmp_path / "weights"

    getattr(source, save)(file)
    report = target.load(file)

    assert (sorted(report.loaded), report.ignored, report.missing) == (["ip1", "ip2"], [], [])
    for layer, blobs in source.params.items():
        for mine, theirs in zip(target.params[layer], blobs, strict=True):
            np.testing.assert_array_equal(mine.data, theirs.data)


def test_the_report_says_what_did_not_meet():
    source = small(text=SMALL.replace('"ip2"', '"ip3"')).to_proto()

    report = small().load(source)

    assert (report.loaded, report.ignored, report.missing) == (["ip1"], ["ip3"], ["ip2"])


def test_weights_of_another_net_are_warned_about(tmp_path):
    text = """
        name: "NAME" input: "x" input_shape { dim: 1 dim: 2 }
        layer { name: "NAME" type: "InnerProduct" bottom: "x" top: "y"
                inner_product_param { num_output: 1 } }
    """
    file = tmp_path / "a.caffemodel"
    Net(text.replace("NAME", "a"), "TEST", device="numpy").save(file)

    with pytest.warns(RuntimeWarning, match=r"a\.caffemodel.* 'b'") as warned:
        Net(text.replace("NAME", "b"), "TEST", weights=file, device="numpy")

    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("text", "error", "names"),
    [
        (SMALL.replace("num_output: 3", "num_output: 4"), ShapeError, ["4 5 (20)", "3 5 (15)"]),
        (
            SMALL.replace("num_output: 3", "num_output: 3 bias_term: false"),
            WeightsError,
            ["'ip2'", "2", "1"],
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(text, error, names):
    net = small()
    before = [b.data.copy() for b in net.structure.params_list]

    with expect_error(error, mentions=names):
        net.load(small(text=text, seed=8).to_proto())

    for blob, values in zip(net.structure.params_list, before, strict=True):
        np.testing.assert_array_equal(blob.data, values)


def test_a_file_that_is_no_caffemodel_is_refused(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"\x0a\xff\xff\xff\xff\x0fnot a caffemodel")

    with expect_error(WeightsError, mentions=str(file)):
        small().load(file)
    with pytest.raises(DemitasseError):
        small().load(tmp_path / "nothing")


def test_nets_can_share_their_weights():
    one, two = small(), small("TEST", seed=8)

    two.share_trained_layers_with(one)
    one.params["ip1"][0].data[...] = 5

    assert (two.params["ip1"][0].data == 5).all()


@pytest.mark.parametrize(
    ("fields", "kind", "mentions"),
    [("num_output: 9", ShapeError, "9"), ("num_output: 2 bias_term: false", NetError, "1")],
)
def test_weights_that_do_not_fit_are_not_shared(fields, kind, mentions):
    text = """
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 4 }} }} }}
    layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ {} }} }}
    """
    one, two = (Net(parse_text(text.format(p), NetParameter)) for p in ("num_output: 2", fields))

    with expect_error(kind, layer="ip", mentions=["layer 'ip'", mentions]) as caught:
        two.share_trained_layers_with(one)

    assert '"' not in str(caught.value)


def test_parameters_of_one_name_are_one(backend):
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } }
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
            inner_product_param { num_output: 4 bias_term: false
                                  weight_filler { type: "xavier" } } }
    layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" }
            inner_product_param { num_output: 4 bias_term: false } }
    force_backward: true
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", device=backend, seed=2)
    weight = net.params["a"][0]
    net.blobs["x"].data[...] = 1
    net.forward()
    net.blobs["b"].diff[...] = 1
    net.backward()
    own = weight.diff.copy()

    net.update()

    assert len(net.learnable_params) == 1
    assert net.params["b"][0].data_memory is weight.data_memory
    assert own.any()
    np.testing.assert_array_equal(net.params["b"][0].diff, own)


# -- lowered steps and errors inside a pass ----------------------------------------------------


def test_what_one_pass_saved_is_refused_by_another():
    net = small()
    layer = net.layer_by_name("drop")
    net.forward()
    layer.pass_id += 1  # as if another path had run the forward

    with expect_error(NetError, place="layer 'drop' (Dropout)", mentions="'mask'"):
        net.backward()


def test_an_error_inside_a_pass_names_the_layer():
    @register_layer("Complains")
    class Complains(Layer):
        bottoms = tops = Exactly(1)

        def reshape(self, bottom, top):
            top[0].reshape_like(bottom[0])

        def forward(self, bottom, top):
            raise ShapeError("too long")

    try:
        net = small(text=SMALL.replace('"ReLU"', '"Complains"'))
        with expect_error(ShapeError, place="layer 'relu' (Complains)", mentions="too long"):
            net.forward()
    finally:
        unregister("Complains")


def test_a_layer_defined_again_replaces_the_first():
    def define(factor):  # as a cell of a notebook that runs again
        @register_layer("Times")
        class Times(Layer):
            bottoms = tops = Exactly(1)

            def reshape(self, bottom, top):
                top[0].reshape_like(bottom[0])

            def forward(self, bottom, top):
                top[0].write(bottom[0].read() * factor)

    text = SMALL.replace('"ReLU"', '"Times"')
    try:
        for factor in (2, 3):
            define(factor)
            net = small("TEST", text)
            net.forward(end="ip1")
            before = net.blobs["h"].data.copy()
            net.forward(start="relu", end="relu")
            np.testing.assert_array_equal(net.blobs["h"].data, before * factor)
        for name in ("Times", "ReLU"):
            with expect_error(NetError, ErrorCode.DUPLICATE, type=name):
                register_layer(name)(type("Other", (Layer,), {}))
    finally:
        unregister("Times")


def test_what_is_no_type_of_layers_is_not_registered():
    class Mine(Layer):
        pass

    for names in ((), (Mine,)):  # the second is a decorator without parentheses
        with expect_error(NetError, ErrorCode.INVALID, field="names"):
            register_layer(*names)
    for kind in (UserLayer, dict):
        with expect_error(NetError, ErrorCode.INVALID, field="creator"):
            register_layer("Mine")(kind)


@pytest.mark.parametrize("method", ["reshape", "forward"])
def test_a_method_that_a_layer_lacks_is_named(method):
    others = {"reshape", "forward"} - {method}
    kind = type("Lacking", (Layer,), {name: lambda *arguments: None for name in others})
    register_layer("Lacking")(kind)
    try:
        with expect_error(NotImplementedError, mentions=["Lacking", f"{method}(self"]):
            small(text=SMALL.replace('"ReLU"', '"Lacking"')).forward()
    finally:
        unregister("Lacking")


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_overridden_passes_of_a_built_in_type_run(device):
    class Doubled(layer_class("InnerProduct")):
        def forward(self, bottom, top):
            super().forward(bottom, top)
            top[0].write(2 * top[0].read())

    class Stopped:
        def backward(self, top, propagate_down, bottom):
            bottom[0].set_diff(0)

    class StoppedProduct(Stopped, layer_class("InnerProduct")):
        pass

    plain = small(device=device)
    plain.forward_backward()
    types = {"Doubled": Doubled, "StoppedProduct": StoppedProduct}
    try:
        for name, kind in types.items():
            register_layer(name)(kind)
        net = small(text=SMALL.replace('"InnerProduct"', '"Doubled"', 1), device=device)
        net.forward()
        stopped = small(text='"StoppedProduct"'.join(SMALL.rsplit('"InnerProduct"', 1)),
                        device=device)  # fmt: skip
        stopped.forward_backward()
    finally:
        for name in types:
            unregister(name)

    np.testing.assert_allclose(net.blobs["h"].data, 2 * plain.blobs["h"].data, rtol=1e-5)
    np.testing.assert_array_equal(stopped.blobs["prob"].data, plain.blobs["prob"].data)
    assert np.any(plain.params["ip1"][0].diff)
    assert not np.any(stopped.params["ip1"][0].diff)


@pytest.mark.parametrize("name", ["Flatten", "Concat", "Slice"])
def test_overridden_passes_of_a_type_that_shares_memory_run(name):
    class Counted(layer_class(name)):
        def forward(self, bottom, top):
            super().forward(bottom, top)
            passes.append(self.name)

    passes = []
    counted = 'layer { name: "counted" type: "Counted" bottom: "h" top: "counted" }'
    product = 'layer { name: "ip2" type: "InnerProduct" bottom: '
    text = SMALL.replace(f'{product}"h"', f'{counted}{product}"counted"')
    try:
        register_layer("Counted")(Counted)
        net = small(text=text, device="cpu")
        for _ in range(8):
            net.forward()
    finally:
        unregister("Counted")

    assert passes == ["counted"] * 8


def test_a_dropped_net_frees_its_memory():
    import weakref

    net = small()
    net.forward_backward()
    memory = weakref.ref(net.structure.params_list[0].data_memory)

    del net
    gc.collect()

    assert memory() is None


@pytest.mark.parametrize(("old", "new"), [("turn", "lock"), ("remember", "savepoint")])
def test_old_names_work_and_warn_once(monkeypatch, old, new):
    monkeypatch.setattr("demitasse.core.deprecated._warned", set())
    net = small()

    with expect_warning(DeprecationWarning, mentions=[f"Net.{old}", f"Net.{new}"]):
        found = getattr(net, old)

    assert found == getattr(net, new)
    assert getattr(net, old) == found


def test_old_names_of_arguments_work_and_warn_once(monkeypatch):
    monkeypatch.setattr("demitasse.core.deprecated._warned", set())

    with expect_warning(DeprecationWarning, mentions=["lowered", "optimize"]):
        net = small(lowered=False)
    with expect_warning(DeprecationWarning, mentions=["keep", "keep_blobs"]):
        small(keep="outputs")
    with expect_warning(DeprecationWarning, mentions=["batch", "batch_size"]):
        found = net.predict({"x": np.ones((2, 6)), "t": np.ones(2)}, batch=1)

    assert net.plan.optimize is False
    assert found
    with expect_error(TypeError, mentions=["keep", "keep_blobs"]):
        small(keep="outputs", keep_blobs="outputs")
