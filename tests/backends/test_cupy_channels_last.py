"""Blobs with channels last on a GPU: cuDNN's stand-in, over the host and over cupy's."""

from dataclasses import replace

import numpy as np
import pytest
import resnets
from cuda_host import HostEngine, cuda_at
from cudnn_devices import gpu_with_cudnn, with_cudnn
from expect_error import expect_error
from replays import played_from_now_on

from demitasse import Net
from demitasse.backends.cupy.layout import ChannelsLast, channels_last
from demitasse.backends.cupy.library.engine import Grid
from demitasse.backends.cupy.sums import ChannelSums, SplitReduction
from demitasse.core.config import settings
from demitasse.errors import ConfigError, DeviceError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import Head, transfers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def rounded():
    with settings.override(tf32="auto"):
        yield


@pytest.fixture
def gpu(frontend):
    with gpu_with_cudnn(frontend) as device:
        yield device


def layer(name, kind, bottom, top, fields=""):
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top}" {fields} }} '


def conv(name, bottom, number, kernel, fields=""):
    fields = f"num_output: {number} kernel_size: {kernel} {fields}"
    filler = 'weight_filler { type: "xavier" } bias_filler { type: "gaussian" std: 0.1 }'
    return layer(name, "Convolution", bottom, name, f"convolution_param {{ {fields} {filler} }}")


def pool(name, bottom, fields):
    return layer(name, "Pooling", bottom, name, f"pooling_param {{ {fields} }}")


def relu(name):
    return layer(f"{name}_relu", "ReLU", name, name)


def fc(name, bottom, number=5):
    fields = f'num_output: {number} weight_filler {{ type: "xavier" }}'
    return layer(name, "InnerProduct", bottom, name, f"inner_product_param {{ {fields} }}")


def given(*shape):
    dims = " ".join(f"dim: {n}" for n in shape)
    return (
        f'force_backward: true layer {{ name: "data" type: "Input" top: "data" '
        f"input_param {{ shape {{ {dims} }} }} }} "
    )


LENET = (
    given(3, 1, 14, 14)
    + conv("conv1", "data", 6, 5)
    + pool("pool1", "conv1", "kernel_size: 2 stride: 2")
    + conv("conv2", "pool1", 8, 3)
    + pool("pool2", "conv2", "kernel_size: 2 stride: 2 pool: AVE")
    + fc("ip1", "pool2")
    + relu("ip1")
    + fc("out", "ip1")
)
GOOGLENET = (
    given(2, 3, 13, 11)
    + conv("conv1", "data", 8, 3, "stride: 2")
    + relu("conv1")
    + layer("norm1", "LRN", "conv1", "norm1")
    + conv("one", "norm1", 4, 1)
    + conv("reduce", "norm1", 4, 1)
    + relu("reduce")
    + conv("three", "reduce", 8, 3, "pad: 1")
    + pool("pool", "norm1", "kernel_size: 3 stride: 1 pad: 1")
    + conv("proj", "pool", 3, 1)
    + layer("join", "Concat", "one three proj", "join")
    + conv("next", "join", 4, 3)
    + pool("mean", "next", "global_pooling: true pool: AVE")
    + fc("out", "mean")
)
RESIDUAL = "force_backward: true " + resnets.prototxt().replace(
    "inner_product_param {", 'inner_product_param { weight_filler { type: "xavier" }'
).replace("num_output: 10", "num_output: 5").replace('"fc"', '"out"')
UPWARDS = (
    given(2, 3, 6, 5)
    + conv("conv1", "data", 4, 3)
    + layer("scale", "Scale", "conv1", "conv1", "scale_param { bias_term: true }")
    + layer("drop", "Dropout", "conv1", "conv1")
    + layer("tanh", "TanH", "conv1", "tanh")
    + layer("up", "Deconvolution", "tanh", "up",
            "convolution_param { num_output: 3 kernel_size: 3 stride: 2 "
            'weight_filler { type: "xavier" } }')
    + conv("conv2", "up", 4, 3, "stride: 2")
    + fc("out", "conv2")
)  # fmt: skip
NETS = {"LeNet": LENET, "GoogLeNet": GOOGLENET, "residual": RESIDUAL, "upwards": UPWARDS}


def net_of(text, device, *, last, phase="TRAIN", storage="float", **options):
    """A net with the same weights and input every time."""
    with settings.override(channels_last=last):
        net = Net(parse_text(text, NetParameter), phase, device=device, seed=1, storage=storage,
                  **options)  # fmt: skip
        rng = np.random.default_rng(5)
        for blob in net.learnable_params:
            blob.cpu_data()
        for names in net.params.values():
            if len(names) == 3:  # running sums of a BatchNorm
                for blob in names:
                    blob.mutable_cpu_data()[...] = rng.uniform(1, 2, blob.shape)
        fill(net, rng)
        net.forward()  # prepares the Steps by the setting
    return net


def fill(net, rng):
    net.blobs["data"].mutable_cpu_data()[...] = rng.normal(size=net.blobs["data"].shape)


def step(net):
    net.clear_param_diffs()
    net.forward()
    rng = np.random.default_rng(6)
    net.blobs["out"].mutable_cpu_diff()[...] = rng.normal(size=net.blobs["out"].shape)
    net.backward()


def everything(net):
    """Data and gradients of all blobs and parameters."""
    data = {name: np.array(blob.cpu_data()) for name, blob in net.blobs.items()}
    diffs = {f"d {name}": np.array(blob.cpu_diff()) for name, blob in net.blobs.items()}
    params = {f"p {i}": np.array(blob.cpu_diff()) for i, blob in enumerate(net.learnable_params)}
    return data | diffs | params


def expect_near(got, want, allowed):
    assert got.keys() == want.keys()
    largest = max(np.abs(one).max() for name, one in want.items() if name.startswith("p "))
    for name, one in want.items():
        scale = largest if name.startswith("p ") else np.abs(one).max()
        np.testing.assert_allclose(got[name], one, atol=allowed * scale, rtol=0, err_msg=name)


def layouts(net):
    """The layouts of the blobs whose device side is newest."""
    return {name: blob.data_memory.layout for name, blob in net.blobs.items()}


def steps(net):
    return {
        one.layer.name: one.forward_step for one in net.plan.entries if one.forward_step is not None
    }


ALLOWED = {"float": 5e-3, "half": 2e-2, "bfloat16": 8e-2}


@pytest.mark.parametrize("storage", ALLOWED)
@pytest.mark.parametrize("name", NETS)
def test_training_is_that_in_c_order_but_for_rounding(frontend, name, storage):
    found = []
    for last in (False, True):
        net = net_of(NETS[name], with_cudnn(), last=last, storage=storage)
        step(net)
        found.append(everything(net))

    expect_near(found[1], found[0], ALLOWED[storage])


@pytest.mark.parametrize("name", NETS)
def test_it_computes_the_same_where_nothing_is_rounded(frontend, name):
    for kind, plans in frontend.plans.items():
        frontend.plans[kind] = [replace(plan, notes=frozenset()) for plan in plans]
    found = []
    for last in (False, True):
        net = net_of(NETS[name], with_cudnn(), last=last)
        step(net)
        found.append(everything(net))

    expect_near(found[1], found[0], 2e-5)


@pytest.mark.parametrize("name", NETS)
def test_inference_is_that_in_c_order_but_for_rounding(frontend, name):
    found = []
    for last in (False, True):
        net = net_of(NETS[name], with_cudnn(), last=last, phase="TEST")
        found.append(np.array(net.blobs["out"].cpu_data()))

    np.testing.assert_allclose(found[1], found[0], atol=5e-3 * np.abs(found[0]).max())


def test_layers_between_convolutions_keep_it(frontend):
    net = net_of(GOOGLENET, with_cudnn(), last=True)

    found = layouts(net)
    # LRN has no kernel for it, and pointwise convolutions follow; with one place it is C order
    apart = {"data", "norm1", "one", "reduce", "pool", "proj", "mean", "out"}
    kept = {name for name, one in found.items() if one is not None}
    assert kept == {"conv1", "three", "join", "next"}
    assert apart | kept == {name for name in found if "_split_" not in name}
    assert found["join"] is channels_last(net.blobs["join"].shape)
    assert steps(net)["join"].code == "kernel, channels last"
    assert steps(net)["three"].code.endswith(", channels last")
    assert "channels last" in steps(net)["three"].backward_code


def test_a_residual_block_converts_nothing(frontend):
    net = net_of(RESIDUAL, with_cudnn(), last=True)
    for _ in range(3):
        step(net)
    before = transfers.reorders

    step(net)

    # the first convolution reads the images twice, and writes their gradient, which nobody reads
    assert transfers.reorders - before == 2


def test_it_is_off_by_default(frontend):
    net = net_of(LENET, with_cudnn(), last=settings.get("channels_last"))

    assert set(layouts(net).values()) == {None}


def test_float32_without_tf32_stays_in_c_order(frontend):
    with settings.override(tf32="off"):
        net = net_of(LENET, with_cudnn(), last=True)

    assert set(layouts(net).values()) == {None}


def test_a_convolution_without_a_plan_stays_in_c_order(frontend):
    frontend.plans["weight"] = []
    net = net_of(LENET, with_cudnn(), last=True)

    assert set(layouts(net).values()) == {None}
    assert steps(net)["conv1"].code == f"cuDNN:{51}"


def test_depthwise_convolutions_follow_in_16_bits_alone(frontend):
    text = given(2, 4, 8, 8) + conv("a", "data", 8, 3) + conv("b", "a", 8, 3, "group: 8")
    text += conv("out", "b", 4, 1)
    codes = []
    for storage in ("float", "half"):
        net = net_of(text, with_cudnn(), last=True, storage=storage)
        codes.append({name: one.last for name, one in steps(net).items()})

    assert codes == [
        {"a": True, "b": False, "out": False}, {"a": True, "b": True, "out": True}
    ]  # fmt: skip


def test_a_fused_relu_writes_it(frontend):
    text = given(2, 3, 8, 8) + conv("a", "data", 4, 3) + relu("a") + conv("out", "a", 4, 3)
    found = []
    for last in (False, True):
        with settings.override(cudnn_relu=True):
            net = net_of(text, with_cudnn(), last=last)
            step(net)
        assert "+ ReLU" in steps(net)["a"].code
        found.append(everything(net))

    expect_near(found[1], found[0], 5e-3)


def test_other_values_of_the_setting_are_refused():
    with expect_error(ConfigError, mentions="channels_last"), settings.override(channels_last="x"):
        pass


class TestOthers:
    """Others read and write blobs in C order, whenever they want."""

    @pytest.fixture
    def pair(self, frontend):
        return [net_of(RESIDUAL, with_cudnn(), last=last) for last in (False, True)]

    @staticmethod
    def expect_same(pair, allowed=5e-3):
        found = [everything(net) for net in pair]
        expect_near(found[1], found[0], allowed)

    def test_a_blob_is_read_between_passes(self, pair):
        for net in pair:
            step(net)
            assert np.isfinite(net.blobs["res2a"].data).all()
            step(net)

        self.expect_same(pair)

    def test_a_live_view_is_brought_up_to_date(self, pair):
        views = [net.blobs["conv1"].data for net in pair]
        for net in pair:
            fill(net, np.random.default_rng(9))
            step(net)

        np.testing.assert_allclose(*views, atol=5e-3 * np.abs(views[0]).max())
        self.expect_same(pair)

    def test_the_host_writes_a_blob_in_the_middle(self, pair):
        rng = np.random.default_rng(8)
        for _ in range(3):
            values = rng.normal(size=pair[0].blobs["res2b"].shape)
            tops = []
            for net in pair:
                net.blobs["res2b"].mutable_cpu_data()[...] = values
                net.forward(start="res3a_1")
                tops.append(np.array(net.blobs["out"].cpu_data()))

            np.testing.assert_allclose(*tops, atol=5e-3 * np.abs(tops[0]).max())

    def test_a_layer_of_the_host_reads_it_and_its_gradient_is_read(self, frontend):
        text = given(2, 3, 8, 8) + conv("a", "data", 4, 3)
        text += layer("s", "Slice", "a", "b", 'top: "c"')
        text += layer("p", "Eltwise", "b c", "p", "eltwise_param { operation: MAX }")
        text += conv("out", "p", 4, 3)
        pair = [net_of(text, with_cudnn(), last=last) for last in (False, True)]
        for net in pair:
            step(net)

        self.expect_same(pair)

    def test_a_net_is_reshaped(self, pair):
        for net in pair:
            for shape in ((3, 3, 32, 32), (1, 3, 24, 40), (2, 3, 32, 32)):
                net.blobs["data"].reshape(*shape)
                with settings.override(channels_last=net is pair[1]):
                    net.reshape()
                    fill(net, np.random.default_rng(9))
                    step(net)

        assert layouts(pair[1])["conv1"] is not None
        self.expect_same(pair)

    def test_memory_is_counted_once(self, pair):
        sizes = [sum(b.data_memory.allocated for b in net.blobs.values()) for net in pair]

        assert sizes[0] == sizes[1]


class TestMemory:
    """The device side in a private layout."""

    SHAPE = (2, 3, 4, 5)

    @pytest.fixture(params=["host", "cuda:0"])
    def blob(self, request):
        from demitasse.blob import Blob

        blob = Blob(self.SHAPE, device=cuda_at(request.param))
        blob.mutable_cpu_data()[...] = np.arange(blob.count).reshape(self.SHAPE)
        return blob

    LAYOUT = channels_last(SHAPE)

    def expected(self):
        return np.moveaxis(np.arange(120.0).reshape(self.SHAPE), 1, -1).reshape(-1)

    def test_a_read_gives_a_copy(self, blob):
        memory = blob.data_memory
        array = memory.stored_data("float", self.LAYOUT)

        np.testing.assert_array_equal(blob.device.backend.to_host(array), self.expected())
        assert memory.layout is None
        assert memory.head is Head.SYNCED

    @pytest.mark.parametrize("storage", ["float", "half", "bfloat16"])
    def test_a_write_keeps_it_until_another_write(self, blob, storage):
        memory = blob.data_memory
        array = memory.stored_data(storage, self.LAYOUT)
        memory.mutable_stored_data(storage, self.LAYOUT)[...] = array

        assert memory.layout is self.LAYOUT
        np.testing.assert_array_equal(blob.cpu_data().reshape(-1), np.arange(120.0))
        assert memory.layout is self.LAYOUT
        np.testing.assert_array_equal(blob.device.backend.to_host(blob.read()).reshape(-1),
                                      np.arange(120.0))  # fmt: skip
        blob.mutable_gpu_data()[...] *= 2
        assert memory.layout is None
        np.testing.assert_array_equal(blob.cpu_data().reshape(-1), 2 * np.arange(120.0))

    def test_the_host_writes_c_order(self, blob):
        memory = blob.data_memory
        memory.mutable_stored_data("float", self.LAYOUT)[...] = 7
        blob.mutable_cpu_data()[...] = np.arange(120.0).reshape(self.SHAPE)

        np.testing.assert_array_equal(
            blob.device.backend.to_host(memory.stored_data("float", self.LAYOUT)), self.expected()
        )
        assert memory.layout is None

    def test_another_shape_reads_what_is_there(self, blob):
        memory = blob.data_memory
        array = memory.stored_data("float", self.LAYOUT)
        memory.mutable_stored_data("float", self.LAYOUT)[...] = array
        other = channels_last((2, 6, 2, 5))

        found = blob.device.backend.to_host(memory.stored_data("float", other))
        expected = np.moveaxis(np.arange(120.0).reshape(2, 6, 2, 5), 1, -1).reshape(-1)
        np.testing.assert_array_equal(found, expected)


def test_shapes_in_c_order_have_no_layout():
    shapes = [(), (3,), (3, 4), (3, 4, 1, 1), (3, 1, 5, 5), (0, 4, 5, 5)]

    assert [channels_last(shape) for shape in shapes] == [None] * len(shapes)
    assert channels_last((2, 3, 4)) == channels_last((2, 3, 4))
    assert isinstance(channels_last((2, 3, 4)), ChannelsLast)


GRIDS = [(1, 1), (3, 4), (2, 32), (1, 512)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shape", [(1, 1, 7), (2, 33, 40), (3, 64, 31), (1, 5, 70)])
@pytest.mark.parametrize("dtype", ["float32", "half", "float64"])
def test_matrices_are_transposed(grid, shape, dtype):
    engine = HostEngine(Grid(*grid))
    kind = np.uint16 if dtype == "half" else dtype
    x = np.random.default_rng(1).integers(0, 1 << 15, shape).astype(kind)
    y, want = np.full(x.size, 9, kind), x.swapaxes(1, 2).reshape(-1)

    engine.transposed("transposed", dtype, shape)(x, y)

    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("add", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "half"])
def test_gradients_of_weights_are_transposed_and_added(add, dtype):
    engine = HostEngine(Grid(2, 64))
    x = np.random.default_rng(1).normal(size=(3, 9, 40)).astype(np.float32)
    given = engine.narrow(x, dtype) if dtype == "half" else x
    wide = engine.widen(given, dtype).reshape(x.shape) if dtype == "half" else x
    y = np.ones(x.size, np.float32)

    engine.transposed("transposed_sum", dtype, x.shape, add)(given, y)

    np.testing.assert_array_equal(y, add + wide.swapaxes(1, 2).reshape(-1))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 64, 7), (3, 40, 50), (40, 20, 90), (2, 8, 1)])
@pytest.mark.parametrize("dtype", ["float32", "half", "float64"])
def test_channels_are_added_up(grid, shape, dtype):
    engine, rng = HostEngine(Grid(*grid)), np.random.default_rng(1)
    wide = "float32" if dtype == "half" else dtype
    x, dy = (rng.normal(size=(shape[0], shape[2], shape[1])).astype(wide) for _ in range(2))
    if dtype == "half":
        x, dy = (engine.narrow(one, dtype) for one in (x, dy))
    one, other = (np.full(shape[1], 3, wide) for _ in range(2))
    add = ChannelSums(engine, dtype, shape, along=True, last=True)

    add(dy, (one, False), x, (other, True))

    x, dy = (np.asarray(array, np.float64) for array in (x, dy))
    np.testing.assert_allclose(one, dy.sum((0, 1)), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(other, 3 + (x * dy).sum((0, 1)), rtol=1e-4, atol=1e-3)


def test_parts_cover_all_rows():
    for sizes in [(32, 64, 3136), (32, 2048, 49), (1, 3, 1), (7, 20, 30)]:
        for dtype in ("float32", "half"):
            cut = SplitReduction.of_channels(sizes, dtype, last=True)
            many = sizes[0] * sizes[2]

            assert (cut.count - 1) * cut.length < many <= cut.count * cut.length
            assert cut.total == sizes[1] * cut.count


class TestOnAGpu:
    @pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
    def test_blobs_that_are_not_kept_share_memory(self, gpu, phase):
        found = []
        for last in (False, True):
            net = net_of(RESIDUAL, gpu, last=last, phase=phase, keep_blobs="outputs")
            for number in range(4):
                fill(net, np.random.default_rng(number))
                (step if phase == "TRAIN" else Net.forward)(net)
            params = [np.array(blob.cpu_diff()) for blob in net.learnable_params]
            found.append([np.array(net.blobs["out"].cpu_data()), *params])

        most = max(np.abs(one).max() for one in found[0][1:])
        for scale, want, got in zip([None, *[most] * 99], *found, strict=False):
            allowed = 5e-3 * (scale or np.abs(want).max())
            np.testing.assert_allclose(got, want, rtol=0, atol=allowed)

    def test_results_are_those_in_c_order(self, gpu):
        found = []
        for last in (False, True):
            net = net_of(GOOGLENET, gpu, last=last)
            step(net)
            found.append(everything(net))

        expect_near(found[1], found[0], 5e-3)

    @pytest.mark.parametrize("name", ["LeNet", "residual"])
    def test_recorded_passes_are_those_queued_to_the_bit(self, gpu, name, monkeypatch):
        found = []
        for graphs in ("off", "auto"):
            played, seen = played_from_now_on(monkeypatch), []
            with settings.override(cuda_graphs=graphs):
                net, rng = net_of(NETS[name], gpu, last=True), np.random.default_rng(3)
                for number in range(8):
                    fill(net, rng)
                    step(net)
                    if number > 3:  # others read and write in between
                        seen.append(np.array(net.blobs["conv1"].cpu_data()))
                        net.blobs["conv1"].mutable_cpu_data()[...] = 5
                found.append([*seen, *everything(net).values()])
            assert bool(played) is (graphs == "auto")

        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_copies_in_the_middle_of_a_pass_are_refused(self, gpu):
        net = net_of(LENET, gpu, last=True)
        with settings.override(transfers="raise"):
            net.forward()  # nothing is copied
            view = net.blobs["conv1"].data
            with expect_error(DeviceError, mentions="conv1"):
                net.forward()
        del view
