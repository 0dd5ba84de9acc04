"""Values that are kept in 16 bits and computed with in float32.

What is expected follows from the formats alone: to keep a number costs at most ``UNIT`` of it, and
a Step keeps what it computes up to three times, the last time as its top.
"""

import numpy as np
import pytest
from cuda_host import cuda_at, need_compiler
from expect_error import expect_error
from narrow_values import CASES_OF, LEAST, UNIT, kept
from replays import played_from_now_on

from demitasse import Net
from demitasse.backends.storage import ARRAYS, narrowed, widen_into
from demitasse.core.config import settings
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import make_layer

TIMES = 3


@pytest.fixture(params=UNIT)
def kind(request):
    return request.param


@pytest.fixture(params=["host", "cuda:0"])
def place(request):
    """The kernels, run at once by numpy's side or queued on a GPU."""
    return cuda_at(request.param)


# -- the formats -------------------------------------------------------------------------------


def test_every_half_is_itself():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)

    again = narrowed(every.astype(np.float32), "half")

    np.testing.assert_array_equal(again, every)


def test_every_bfloat16_is_itself():
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(every.shape, np.float32)
    widen_into(every, "bfloat16", wide)

    again = narrowed(wide, "bfloat16")

    numbers = ~np.isnan(wide)
    np.testing.assert_array_equal(again[numbers], every[numbers])
    np.testing.assert_array_equal(again[~numbers] | 0x40, every[~numbers] | 0x40)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 + 2.0**-8, 1.0),  # ties go to the even number
        (1 + 3 * 2.0**-8, 1 + 2.0**-6),
        (1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-7),
        (3.4e38, np.inf),
        (-3.4e38, -np.inf),
        (1e-40, 2.0**-133 * round(1e-40 / 2.0**-133)),
    ],
)
def test_bfloat16_is_rounded_to_the_nearest(value, expected):
    assert kept(value, "bfloat16") == np.float32(expected)


@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_a_device_rounds_as_the_host_does(place, kind, count):
    values = np.random.default_rng(1).normal(size=count).astype(np.float32)
    values *= np.float32(10.0) ** np.random.default_rng(2).integers(-9, 9, count)
    values[:1] = [np.nan]
    backend = place.backend

    with backend.enter():
        narrow = backend.narrow(backend.asarray(values), kind)
        wide = backend.to_host(backend.widen(narrow, kind))

    np.testing.assert_array_equal(wide, kept(values, kind))
    assert backend.to_host(narrow).dtype == ARRAYS[kind]


# -- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, cases in CASES_OF.items() if cases])
def test_a_layer_is_off_by_the_rounding_of_what_it_keeps(name, kind):
    device = cuda_at("cuda:0")
    for case in CASES_OF[name]:
        bottoms = [kept(one, kind) for one in case.bottoms]
        made = [
            make_layer(case.text, bottoms, phase="TEST", device=device, dtype="float32",
                       storage=storage)
            for storage in ("float", kind)
        ]  # fmt: skip
        for one in made:
            for blob in one.params:
                blob.mutable_cpu_data()[...] = kept(blob.cpu_data(), kind)

        plain, narrow = ([np.copy(top) for top in one.forward()] for one in made)

        largest = max((np.abs(a).max(initial=0) for a in (*bottoms, *plain)), default=0.0)
        most = TIMES * (UNIT[kind] * float(largest) + LEAST[kind])
        for a, b in zip(plain, narrow, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=most, err_msg=str(case))


@pytest.mark.parametrize("name", [
    name for name, cases in CASES_OF.items()
    if cases and cases[0].bottoms and name not in {"DetectionEvaluate", "Embed"}  # refused there
])  # fmt: skip
def test_what_is_no_finite_number_goes_through_a_layer_as_in_float(name, kind):
    """Neither more nor less of it comes out."""
    device, rng = cuda_at("cuda:0"), np.random.default_rng(4)
    for case in CASES_OF[name]:
        bottoms = [kept(one, kind) for one in case.bottoms]
        if bottoms[0].size > 3:
            bottoms[0].reshape(-1)[rng.permutation(bottoms[0].size)[:3]] = [np.nan, np.inf, -np.inf]
        made = [
            make_layer(case.text, bottoms, phase="TEST", device=device, dtype="float32",
                       storage=storage)
            for storage in ("float", kind)
        ]  # fmt: skip

        plain, narrow = ([np.copy(top) for top in one.forward()] for one in made)

        for a, b in zip(plain, narrow, strict=True):
            for question in (np.isnan, np.isposinf, np.isneginf):
                np.testing.assert_array_equal(question(b), question(a), err_msg=str(case))


# -- nets --------------------------------------------------------------------------------------

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param {
  shape { dim: 4 dim: 3 dim: 20 dim: 20 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 16 kernel_size: 3 weight_filler { type: "xavier" }
  bias_filler { type: "constant" value: 0.1 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param {
  kernel_size: 2 stride: 2 } }
layer { name: "one" type: "Convolution" bottom: "pool" top: "one" convolution_param {
  num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "pool" bottom: "one" top: "sum" }
layer { name: "both" type: "Concat" bottom: "sum" bottom: "one" top: "both" }
layer { name: "drop" type: "Dropout" bottom: "both" top: "both" }
layer { name: "ip" type: "InnerProduct" bottom: "both" top: "ip" inner_product_param {
  num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


def made(device, storage, text=NET, **options):
    net = Net(
        parse_text(text, NetParameter), "TEST", device=device, seed=3, storage=storage, **options
    )
    for name, blobs in net.params.items():
        if name == "bn":
            for blob, value in zip(blobs, (0.25, 2.0, 1.0), strict=True):
                blob.mutable_cpu_data()[...] = value
    return net


def images(net):
    shape = net.blobs["data"].shape
    net.set_input("data", np.random.default_rng(5).normal(size=shape).astype(np.float32))
    return net


def test_a_net_comes_to_the_same_answers(place, kind):
    plain, narrow = (images(made(place, storage)) for storage in ("float", kind))

    for net in (plain, narrow):
        net.forward()

    want, got = (net.blobs["prob"].cpu_data() for net in (plain, narrow))
    np.testing.assert_array_equal(got.argmax(axis=1), want.argmax(axis=1))
    np.testing.assert_allclose(got, want, atol=32 * UNIT[kind])
    assert {blob.data_memory.storage for blob in plain.blobs.values()} == {"float"}
    assert {narrow.blobs[name].data_memory.storage for name in ("conv", "sum", "prob")} == {kind}


def test_blobs_and_weights_take_half_the_memory(kind):
    device = cuda_at("cuda:0")
    plain, narrow = (images(made(device, storage)) for storage in ("float", kind))
    for net in (plain, narrow):
        net.forward()

    def on_device(net):
        names = [name for name in net.blobs if name != "data"]
        memories = {net.blobs[name].data_memory.serial: net.blobs[name] for name in names}
        return sum(
            share.nbytes
            for blob in memories.values()
            for share in blob.data_memory.shares()
            if share.place == str(device)
        )

    weights = [net.params[name][0] for net in (plain, narrow) for name in ("conv", "one", "ip")]
    held = [sum(share.nbytes for share in blob.data_memory.shares() if share.place == str(device))
            for blob in weights]  # fmt: skip
    assert on_device(narrow) * 2 == on_device(plain)
    assert all(held[:3])
    assert held[3:] == [0, 0, 0]  # what there is on the device is the Steps'
    copies = sum(entry.held for entry in narrow.plan.entries)
    assert copies * 2 == sum(held[:3])


def test_what_runs_is_said(kind):
    net = images(made(cuda_at("cuda:0"), kind))
    net.forward()

    code = {entry.layer.name: entry.step.code for entry in net.plan.entries if entry.step}

    assert code["norm"] == f"kernel ({kind})"
    assert code["ip"] == f"cuBLAS ({kind})"


def test_passes_are_launched_as_one(kind, monkeypatch):
    net = images(made(cuda_at("cuda:0"), kind))
    for _ in range(3):
        net.forward()
    want = np.copy(net.blobs["prob"].cpu_data())
    played = played_from_now_on(monkeypatch)

    net.forward()

    assert len(played) == 1
    np.testing.assert_array_equal(net.blobs["prob"].cpu_data(), want)


def test_changed_weights_are_noticed(place, kind):
    net = images(made(place, kind))
    for _ in range(3):
        net.forward()

    net.params["ip"][0].mutable_cpu_data()[...] = 0
    net.forward()

    np.testing.assert_allclose(net.blobs["prob"].cpu_data(), 0.1, rtol=UNIT[kind])
    net.params["ip"][1].mutable_cpu_data()[:1] = 100.0
    net.forward()
    np.testing.assert_array_equal(net.blobs["prob"].cpu_data()[:, 0], 1)


def test_what_is_written_into_a_blob_counts(place, kind):
    net = made(place, kind)
    images(net).forward()

    net.blobs["both"].data[...] = 0
    net.forward(start="ip")

    np.testing.assert_allclose(net.blobs["prob"].cpu_data(), 0.1, rtol=UNIT[kind])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_finite_number_goes_through(place, kind, value):
    fields, bottoms = 'type: "Power" power_param { scale: 2 }', [np.full((1, 9), value)]
    layer = make_layer(fields, bottoms, phase="TEST", device=place, dtype="float32", storage=kind)

    [y] = layer.forward()

    np.testing.assert_array_equal(y, np.full((1, 9), value))


def test_what_is_too_large_for_half_becomes_infinite(place):
    layer = make_layer('type: "Power" power_param { scale: 1e5 }', [np.ones((1, 9))],
                       phase="TEST", device=place, dtype="float32", storage="half")  # fmt: skip

    [y] = layer.forward()

    np.testing.assert_array_equal(y, np.inf)


@pytest.mark.parametrize(("value", "told"), [(70000.0, True), (65504.0, False), (np.inf, False)])
def test_a_weight_that_is_too_large_for_half_is_warned_of_once(place, caplog, value, told):
    net = images(made(place, "half"))

    for _ in range(2):
        net.params["ip"][0].mutable_cpu_data()[0, :2] = -value
        net.forward()

    found = [one.getMessage() for one in caplog.records if "too large" in one.getMessage()]
    many = net.params["ip"][0].count
    message = (
        f"2 of {many} values of parameter 'ip[0]' are too large for storage 'half', and infinite "
        "in what is computed with them"
    )
    assert found == [message] * told


def test_bfloat16_has_the_range_of_float32(place, caplog):
    net = images(made(place, "bfloat16"))
    net.params["ip"][0].mutable_cpu_data()[0] = 70000.0

    net.forward()

    assert not caplog.records
    assert np.isfinite(net.blobs["ip"].cpu_data()).all()


def test_a_net_moves_to_the_host_and_back(kind):
    net = images(made(cuda_at("cuda:0"), kind))
    net.forward()
    want = np.copy(net.blobs["prob"].cpu_data())

    net.to("numpy")
    net.forward()

    np.testing.assert_allclose(net.blobs["prob"].cpu_data(), want, atol=32 * UNIT[kind])
    assert {blob.data_memory.storage for blob in net.blobs.values()} == {"float"}
    net.to("cuda:0")
    net.forward()
    np.testing.assert_array_equal(net.blobs["prob"].cpu_data(), want)


def test_other_nets_keep_the_weights_as_they_are(kind):
    device = cuda_at("cuda:0")
    plain, narrow = images(made(device, "float")), images(made(device, kind))
    narrow.share_trained_layers_with(plain)
    plain.forward()
    want = np.copy(plain.blobs["prob"].cpu_data())

    narrow.forward()
    plain.forward()

    np.testing.assert_array_equal(plain.blobs["prob"].cpu_data(), want)


def test_buffers_may_be_shared(kind):
    device = cuda_at("cuda:0")
    plain, few = (images(made(device, kind, keep_blobs=keep)) for keep in (None, "outputs"))

    for net in (plain, few):
        net.forward()

    np.testing.assert_array_equal(few.blobs["prob"].cpu_data(), plain.blobs["prob"].cpu_data())


# -- where there is none -----------------------------------------------------------------------


def test_the_setting_says_it_for_every_net(kind):
    with settings.override(gpu_storage_dtype=kind):
        net = images(Net(parse_text(NET, NetParameter), "TEST", device=cuda_at("cuda:0")))
    net.forward()

    assert net.blobs["prob"].data_memory.storage == kind


def test_there_is_no_backward_pass(kind):
    net = images(made(cuda_at("cuda:0"), kind))
    net.forward()

    with expect_error(NetError, ErrorCode.UNSUPPORTED, field="storage", got=kind):
        net.backward()


@pytest.mark.parametrize(
    ("device", "storage", "code", "mentions"),
    [
        ("strict:device1", "half", ErrorCode.UNSUPPORTED, "strict:device1"),
        ("numpy", "bfloat16", ErrorCode.UNSUPPORTED, "numpy"),
        ("numpy", "int8", ErrorCode.UNKNOWN, ["float", "half", "bfloat16"]),
    ],
)
def test_devices_without_it_say_so(device, storage, code, mentions):
    with expect_error(ConfigError, code, field="storage", got=storage, mentions=mentions):
        Net(parse_text(NET, NetParameter), "TEST", device=device, storage=storage)


def test_double_precision_is_refused():
    need_compiler()
    device = cuda_at("cuda:0")

    with expect_error(ConfigError, ErrorCode.CONFLICT, field="storage", dtype="float64"):
        Net(parse_text(NET, NetParameter), "TEST", device=device, dtype="float64", storage="half")
