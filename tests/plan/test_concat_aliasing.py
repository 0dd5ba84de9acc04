"""Bottoms of a Concat that lie in its top: the same values, and nothing copied."""

import math
from dataclasses import replace

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends.arrays import ChannelSlice, address
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.engine import engine
from demitasse.backends.cpu.layout import channel_blocks, part
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import SyncedMemory
from demitasse.memory.arena import Arena, Assignment, Slot
from demitasse.plan import Plan

KERNELS = pytest.mark.skipif(
    bool(slow_reason()),
    reason="nothing is joined in place without kernels",
)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # minimal filtering rounds otherwise


@pytest.fixture
def always(monkeypatch):
    """Let our kernels run wherever they can."""
    if not slow_reason():
        tuning = replace(engine().tuning, always=frozenset(("winograd", "igemm")))
        monkeypatch.setattr(engine(), "tuning", tuning)


@pytest.fixture(params=["as they pay", "always"])
def own_kernels(request):
    """Let our kernels run where they pay, or wherever they can."""
    if request.param == "always":
        request.getfixturevalue("always")


def given(channels=16, size=12, batch=2):
    dims = " ".join(f"dim: {dim}" for dim in (batch, channels, size, size))
    return f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}\n'


def layer(kind, bottoms, top, fields="", name=""):
    reads = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name or top}" type: "{kind}" {reads} top: "{top}" {fields} }}\n'


def conv(bottom, top, maps, kernel=3):
    filler = 'weight_filler { type: "msra" } bias_filler { type: "gaussian" std: 0.1 }'
    fields = f"num_output: {maps} kernel_size: {kernel} pad: {kernel // 2} {filler}"
    return layer("Convolution", bottom, top, f"convolution_param {{ {fields} }}")


def relu(blob, name=""):
    return layer("ReLU", blob, blob, name=name or f"{blob}_relu")


def fire(bottom, top, maps):
    return (
        conv(bottom, f"{top}_in", 16, 1) + relu(f"{top}_in")
        + conv(f"{top}_in", f"{top}_1", maps, 1) + relu(f"{top}_1")
        + conv(f"{top}_in", f"{top}_3", maps) + relu(f"{top}_3")
        + layer("Concat", f"{top}_1 {top}_3", top)
    )  # fmt: skip


def dense(bottom, top, growth=32):
    normed = f"{top}_norm"
    return (
        layer("BatchNorm", bottom, normed, name=f"{top}_bn")
        + layer("Scale", normed, normed, "scale_param { bias_term: true }", name=f"{top}_scale")
        + relu(normed)
        + conv(normed, f"{top}_in", 64, 1)
        + conv(f"{top}_in", f"{top}_new", growth)
        + layer("Concat", f"{bottom} {top}_new", top)
    )


def concat(bottoms, top, axis=1):
    return layer("Concat", bottoms, top, f"concat_param {{ axis: {axis} }}")


def pool(bottom, top, fields="kernel_size: 2"):
    return layer("Pooling", bottom, top, f"pooling_param {{ {fields} }}")


TWO = conv("x", "a", 32) + conv("x", "b", 48)
EQUAL = conv("x", "a", 32) + conv("x", "b", 32)
JOIN = concat("a b", "y")
END = conv("y", "end", 16, 1)

NETS = {
    "two fires": fire("x", "f", 32) + fire("f", "y", 64) + END,
    "a chain": dense("x", "d1") + dense("d1", "d2") + dense("d2", "y") + END,
    "a chain of pooled images": pool("x", "p") + dense("p", "d1") + dense("d1", "y") + END,
    "nested": TWO + concat("a b", "ab") + conv("x", "c", 32) + conv("x", "d", 32, 1)
    + concat("c ab d", "y") + END,
    "a blob with itself": conv("x", "a", 32) + concat("a a", "y") + END,
    "a bottom that is pooled too": TWO + JOIN + pool("a", "p") + END,
    "a bottom in two tops": TWO + conv("x", "c", 32) + JOIN + concat("c a", "z")
    + END + conv("z", "z_end", 16),
    "the input": conv("x", "a", 32) + concat("x a", "y") + END,
    "rows": EQUAL + concat("a b", "y", axis=2) + END,
    "joined rows that are joined": EQUAL + concat("a b", "ab", axis=2)
    + pool("x", "p", "kernel_size: 1 stride: 1") + concat("p x", "px", axis=2)
    + concat("px ab", "y") + END,
    "images": EQUAL + concat("a b", "y", axis=0) + END,
    "rows of a bottom too": EQUAL + JOIN + concat("a b", "z", axis=2) + END
    + conv("z", "z_end", 16),
    "one of two is rectified": TWO + relu("b") + JOIN + END,
    "normalised after the convolutions": TWO + "".join(
        layer("BatchNorm", blob, blob, name=f"{blob}_bn")
        + layer("Scale", blob, blob, "scale_param { bias_term: true }", name=f"{blob}_scale")
        + relu(blob) for blob in "ab"
    ) + conv("x", "c", 32, 1) + layer("BatchNorm", "c", "c", name="c_bn") + relu("c")
    + concat("c a b", "y") + END,
    "few channels": conv("x", "a", 5) + conv("x", "b", 20) + conv("x", "c", 40, 1)
    + concat("a b c", "y") + END,
    "a top that changes before a bottom is read": TWO + JOIN + relu("y")
    + layer("BatchNorm", "a", "n") + concat("n y", "z") + conv("z", "end", 16),
    "an outer top that changes before an inner bottom is read": TWO + concat("a b", "ab")
    + conv("x", "c", 32) + concat("c ab", "y") + relu("y")
    + layer("BatchNorm", "a", "n") + concat("n y", "z") + conv("z", "end", 16),
    "a bottom that portable code changes": TWO + layer("PReLU", "b", "b", name="b_prelu") + JOIN
    + END,
    "a bottom that is normalised alone": TWO + JOIN + layer("BatchNorm", "a", "n")
    + pool("n", "p") + END,
    "flattened": TWO + layer("Flatten", "a", "fa") + layer("Flatten", "b", "fb")
    + concat("fa fb", "y"),
    "a sum that is joined": EQUAL + layer("Eltwise", "a b", "s") + conv("x", "c", 32)
    + concat("s c", "y") + END,
    "one pixel": pool("x", "p", "pool: AVE global_pooling: true") + conv("p", "a", 32, 1)
    + conv("p", "b", 32) + JOIN + END,
    "a top that nobody reads": TWO + JOIN,
}  # fmt: skip


def made(text, *, keep="outputs", batch=2, **options):
    message = parse_text(given(batch=batch) + text, NetParameter)
    net = Net(message, "TEST", device="cpu", seed=3, keep_blobs=keep, **options)
    rng = np.random.default_rng(5)
    for one in net.layers:
        if one.type == "BatchNorm":
            for blob in one.blobs:
                blob.mutable_cpu_data()[...] = rng.uniform(0.5, 1.5, blob.shape)
    return net


def outputs(net, seed):
    blob = net.blobs["x"]
    blob.mutable_cpu_data()[...] = np.random.default_rng(seed).normal(size=blob.shape)
    net.forward()
    return {name: net.blobs[name].cpu_data().copy() for name in net.outputs}


def check_equal(net, other, seeds=range(5)):
    """Compare passes over new inputs: the first ones, and those whose calls were noted."""
    for seed in seeds:
        found, wanted = outputs(net, seed), outputs(other, seed)
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values, **TOLERANCE, err_msg=name)


def lies_in(net, bottom, top, channel):
    """Whether a bottom lies in the top, beginning with a channel."""
    there, whole = (net.blobs[name].data_memory.device_array for name in (bottom, top))
    return address(there) == address(whole) + 4 * channel


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.usefixtures("own_kernels")
def test_values_are_those_of_the_portable_plan(name, batch):
    net, portable = made(NETS[name], batch=batch), made(NETS[name], batch=batch, optimize=False)

    check_equal(net, portable)


@pytest.mark.parametrize("name", NETS)
def test_values_are_the_same_when_blobs_are_kept(name):
    check_equal(made(NETS[name]), made(NETS[name], keep=None))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("always")
def test_values_are_the_same_when_stale_memory_is_poisoned(name):
    portable = made(NETS[name], optimize=False)
    with settings.override(debug_fill_stale=True):
        net = made(NETS[name])

        check_equal(net, portable)
        net.before_forward.append(lambda index: None)
        check_equal(net, portable)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("always")
def test_values_are_the_same_layer_by_layer(name):
    net, portable = made(NETS[name]), made(NETS[name], optimize=False)
    net.before_forward.append(lambda index: None)

    check_equal(net, portable)


@pytest.mark.parametrize("name", ["two fires", "a chain"])
@pytest.mark.usefixtures("own_kernels")
def test_values_are_right_after_other_sizes(name):
    net, portable = made(NETS[name]), made(NETS[name], optimize=False)
    for batch, size in [(1, 12), (4, 20), (2, 9), (1, 12)]:
        for one in (net, portable):
            one.blobs["x"].reshape(batch, 16, size, size)

        check_equal(net, portable, range(4))


SHAPES = [(3, 16, 9, 9), (1, 16, 9, 9), (4, 16, 20, 20), (1, 16, 12, 7), (2, 16, 9, 9)]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("own_kernels")
def test_shapes_in_turn_stay_prepared(name, monkeypatch):
    net, portable = made(NETS[name]), made(NETS[name], optimize=False)
    rng, passes, forward = np.random.default_rng(0), [0], Plan.forward
    for one in (net, portable):
        one.blobs["x"].reshape(*SHAPES[2])

    def counting(self, start, end):
        passes[0] += self is net.execution.plan
        return forward(self, start, end)

    monkeypatch.setattr(Plan, "forward", counting)
    for turn in range(9):
        before = passes[0]
        for shape in SHAPES:
            x = rng.normal(size=shape).astype(np.float32)
            found, wanted = net.predict({"x": x}), portable.predict({"x": x})
            for blob, values in wanted.items():
                np.testing.assert_allclose(found[blob], values, **TOLERANCE, err_msg=f"{turn}")

    whole = not slow_reason()  # without kernels, numpy computes some of the layers
    if whole and net.device.backend.recorder is not None and "portable" not in name:
        assert passes[0] == before


@pytest.mark.parametrize("bottom", ["f_1", "f_3", "f", "y_3"])
def test_a_bottom_that_somebody_wants_is_kept(bottom):
    net, portable = (
        made(NETS["two fires"], keep=[bottom, "end"], optimize=lowered) for lowered in (True, False)
    )

    check_equal(net, portable)

    here, there = (one.blobs[bottom].cpu_data() for one in (net, portable))
    np.testing.assert_allclose(here, there, **TOLERANCE)


def test_new_weights_count_where_pixels_are_multiplied_into_the_top():
    net, portable = made(NETS["two fires"]), made(NETS["two fires"], optimize=False)
    check_equal(net, portable)
    for one in (net, portable):
        for blob in one.params["f_1"]:
            blob.mutable_cpu_data()[...] *= 2

    check_equal(net, portable)


FIRES = [("f_1", "f", 0), ("f_3", "f", 32), ("y_1", "y", 0), ("y_3", "y", 64)]
CHAIN = [("d1", "y", 0), ("d1_new", "y", 16), ("y_new", "y", 48)]


@KERNELS
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("kind", "places"), [("two fires", FIRES), ("a chain of pooled images", CHAIN)]
)
def test_what_is_joined_is_written_where_it_is_joined(kind, places):
    net = made(NETS[kind])

    outputs(net, 0)

    for blob, top, channel in places:
        assert lies_in(net, blob, top, channel)


@KERNELS
@pytest.mark.usefixtures("always")
def test_a_bottom_moves_when_the_top_gets_other_channels():
    other = given().replace('"x"', '"w"')
    net = made(other + conv("x", "a", 32) + concat("w a", "y") + pool("y", "end"))
    for channels in (16, 48):
        net.blobs["w"].reshape(2, channels, 12, 12)

        net.forward()

        assert lies_in(net, "a", "y", channels)


@pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
def test_a_top_in_another_layout_leaves_alone_what_lies_in_it():
    shape, half = (1, 32, 3, 3), (1, 16, 3, 3)
    channel_slice = ChannelSlice(shape, shape, 0)
    top, bottom = (SyncedMemory(math.prod(one), "float32", Device("cpu")) for one in (shape, half))
    arena, slot = Arena(), Slot()
    top.assign(Assignment(arena, slot, "top", channel_slice))
    bottom.assign(Assignment(arena, Slot(), "bottom", channel_slice.part(half, 16), slot))
    bottom.mutable_private_data(part(channel_slice.part(half, 16)))[...] = 1

    top.mutable_private_data(channel_blocks(shape, 16))[...] = 2

    assert np.all(bottom.device_array == 1)


@KERNELS
@pytest.mark.parametrize(
    ("name", "bottom"),
    [
        ("a bottom that is pooled too", "a"),
        ("a top that changes before a bottom is read", "a"),
        ("an outer top that changes before an inner bottom is read", "a"),
        ("rows", "a"),
        ("images", "a"),
        ("flattened", "a"),
    ],
)
def test_a_bottom_that_is_needed_elsewhere_lies_by_itself(name, bottom):
    net = made(NETS[name])

    net.forward()

    assert net.blobs[bottom].data_memory.concat_slot is None


def test_nothing_is_joined_where_all_blobs_are_kept():
    net = made(NETS["two fires"], keep=None)

    net.forward()

    assert all(blob.data_memory.concat_slot is None for blob in net.blobs.values())
