"""What we ask of cuDNN, asked of the real one: it plans for a GPU that is only described.

`nox -s cudnn` installs it (500 MB); elsewhere these tests skip. Nothing is computed here: what the
graphs compute is tested over the stand-in, in test_cupy_cudnn.py.
"""

import inspect
import json
from dataclasses import replace
from importlib.util import find_spec

import cudnn_standin
import pytest
from cuda_driver import load_driver
from expect_error import expect_error
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import sizes, windows

from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.cudnn import Choice, Plans, Rules, graph_of
from demitasse.backends.cupy.library.cudnn_library import status
from demitasse.backends.step import Declined
from demitasse.backends.storage import ARRAYS
from demitasse.backends.windows import ConvGeometry, Window

pytestmark = [
    pytest.mark.skipif(find_spec("cudnn") is None, reason="no cuDNN: nox -s cudnn"),
    pytest.mark.usefixtures("own_folder"),
]

H200 = {
    "version": 92801, "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000,
    "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32, "cudaDeviceId": 0,
    "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
    "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0, "totalGlobalMem": 150_000_000_000,
    "l2CacheSize": 62914560, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
    "memoryBusWidth": 6144,
}  # fmt: skip
"""An H200 as cuDNN describes one; the clocks are those of the data sheet."""

OTHERS = {
    # compute capability, multiprocessors, threads of each, shared memory of a block, L2, GB, bus
    "T4": (750, 40, 1024, 65536, 4 << 20, 16, 256),
    "Jetson Orin": (870, 16, 1536, 167936, 4 << 20, 32, 256),
    "RTX 4090": (890, 128, 1536, 101376, 72 << 20, 24, 384),
    "H100": (900, 132, 2048, 232448, 50 << 20, 80, 5120),
    "B200": (1000, 148, 2048, 232448, 126 << 20, 180, 8192),
}
"""Other GPUs, by their data sheets."""


def described(name):
    """A GPU of ``OTHERS`` as cuDNN describes one."""
    version, units, threads, shared, cache, gigabytes, bus = OTHERS[name]
    changed = {
        "deviceName": name, "deviceVer": version, "multiProcessorCount": units,
        "maxThreadsPerSM": threads, "maxCtasPerSM": 16 if threads < 2048 else 32,
        "maxSharedMemoryPerBlockOptin": shared, "l2CacheSize": cache,
        "totalGlobalMem": gigabytes * 10**9, "memoryBusWidth": bus,
    }  # fmt: skip
    return H200 | changed


STRICT = Rules(tf32=False, deterministic=True, most_workspace=1 << 29, timed=False)
ROUNDED = replace(STRICT, tf32=True)


@pytest.fixture(scope="module")
def frontend():
    load_driver()
    import cudnn

    return cudnn


@pytest.fixture(scope="module")
def properties(frontend):
    return frontend.create_device_properties(json.dumps(H200))


@pytest.fixture
def plans(frontend, properties):
    return Plans(frontend, properties, clock=lambda graph, convolution: 0.0)


def geometry(n, channels, maps, spatial, kernel, stride=1, pad=0, dilation=1, group=1):
    axes = len(spatial)
    window = Window(*((number,) * axes for number in (kernel, stride, pad, dilation)))
    positions = window.convolved(spatial)
    return ConvGeometry(n, group, channels, maps, spatial, positions, window)


LAYERS = {
    "AlexNet's first": geometry(64, 3, 96, (227, 227), 11, stride=4),
    "AlexNet's second": geometry(64, 96, 256, (27, 27), 5, pad=2, group=2),
    "LeNet's second": geometry(64, 20, 50, (12, 12), 5),
    "ResNet's 3x3": geometry(64, 64, 64, (56, 56), 3, pad=1),
    "1x1": geometry(32, 256, 64, (28, 28), 1),
    "1x1 with a stride": geometry(32, 256, 64, (28, 28), 1, stride=2),
    "dilated": geometry(8, 64, 64, (28, 28), 3, pad=2, dilation=2),
    "depthwise": geometry(32, 64, 64, (28, 28), 3, pad=1, group=64),
    "a line": geometry(4, 8, 6, (40,), 5, pad=2),
    "a volume": geometry(2, 4, 6, (8, 9, 7), 3, pad=1),
    "one image": geometry(1, 3, 8, (32, 32), 3),
}

each_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
each_product = pytest.mark.parametrize("result", ["maps", "image", "weight"])


def test_it_loads(frontend):
    assert status().loaded, status().reason
    assert frontend.backend_version() >= 90800


def public(kind):
    """What a class of the stand-in has."""
    return [name for name in vars(kind) if not name.startswith("_")]


class TestContract:
    """Everything that the stand-in has, the real one has by the same name."""

    @pytest.mark.parametrize("name", ["__version__", *public(cudnn_standin.Frontend)])
    def test_the_module(self, frontend, name):
        assert hasattr(frontend, name)

    @pytest.mark.parametrize("name", ["data_type", "heur_mode", "numerical_note"])
    def test_members(self, frontend, name):
        members = [member.name for member in getattr(cudnn_standin.Frontend, name)]

        assert [one for one in members if not hasattr(getattr(frontend, name), one)] == []

    @pytest.mark.parametrize("name", public(cudnn_standin.Graph))
    def test_a_graph(self, frontend, name):
        self.same_arguments(getattr(cudnn_standin.Graph, name), getattr(frontend.pygraph, name))

    @pytest.mark.parametrize("name", public(cudnn_standin.Tensor))
    def test_a_tensor(self, frontend, name):
        if name.startswith("set_"):
            assert callable(getattr(frontend.Tensor, name))

    @pytest.mark.parametrize("name", ["create_handle", "set_stream"])
    def test_handles(self, frontend, name):
        self.same_arguments(getattr(cudnn_standin.Frontend(), name), getattr(frontend, name))

    @staticmethod
    def same_arguments(ours, real):
        names = inspect.signature(ours).parameters
        inspect.signature(real).bind(**dict.fromkeys(names))


class TestPlans:
    @each_layer
    @each_product
    @pytest.mark.parametrize("dtype", ["float32", "float64", "half", "bfloat16"])
    def test_there_is_one_in_full_precision_and_the_same_in_every_run(
        self, plans, layer, result, dtype
    ):
        rules = replace(STRICT, narrow=dtype in ARRAYS)

        graph, _ = plans.graph(Convolution(result, layer, dtype), rules)

        assert graph.get_workspace_size() <= STRICT.most_workspace

    @pytest.mark.parametrize("gpu", OTHERS)
    @each_layer
    @each_product
    @pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
    def test_other_gpus_have_one_too(self, frontend, gpu, layer, result, dtype):
        if (gpu, dtype) == ("T4", "bfloat16"):
            pytest.skip("it has no bfloat16")
        properties = frontend.create_device_properties(json.dumps(described(gpu)))
        plans = Plans(frontend, properties, clock=lambda graph, convolution: 0.0)
        rules = replace(STRICT, narrow=dtype in ARRAYS)

        graph, _ = plans.graph(Convolution(result, layer, dtype), rules)

        assert graph.get_workspace_size() <= STRICT.most_workspace

    @each_layer
    @each_product
    @pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
    def test_there_is_one_with_channels_last(self, plans, layer, result, dtype):
        rules = replace(ROUNDED, narrow=dtype in ARRAYS)

        graph, _ = plans.graph(Convolution(result, layer, dtype, last=True), rules)

        assert graph.get_workspace_size() <= STRICT.most_workspace

    @pytest.mark.parametrize("name", ["ResNet's 3x3", "1x1"])
    @each_product
    @pytest.mark.parametrize("dtype", ["float32", "half", "bfloat16"])
    def test_channels_last_needs_no_copies_in_the_workspace(self, plans, name, result, dtype):
        layer, rules = LAYERS[name], replace(ROUNDED, narrow=dtype in ARRAYS)
        sizes = []
        for last in (False, True):
            graph, _ = plans.graph(Convolution(result, layer, dtype, last=last), rules)
            sizes.append(graph.get_workspace_size())

        assert sizes[0] > 12_000_000  # those of images and maps
        assert sizes[1] < 1_000_000

    @each_layer
    @each_product
    def test_it_is_found_again(self, plans, frontend, monkeypatch, layer, result):
        convolution = Convolution(result, layer, "float32")
        _, choice = plans.graph(convolution, STRICT)
        plans._choices.clear()

        def refuse(self, heuristics):
            raise AssertionError(heuristics)

        if choice.knobs is not None:  # else cuDNN must be asked for all plans again
            monkeypatch.setattr(frontend.pygraph, "create_execution_plans", refuse)
        graph, again = plans.graph(convolution, STRICT)

        assert again == choice
        assert plans._rebuild(convolution, STRICT, choice) is not None
        assert graph.get_workspace_size() <= STRICT.most_workspace

    @given(data=st.data())
    @settings(max_examples=100, deadline=None)
    @each_product
    def test_any_window_is_described_as_cudnn_understands_it(
        self, frontend, properties, result, data
    ):
        axes = data.draw(windows((1, 2, 3)))
        window = Window(
            *(
                tuple(getattr(axis, name) for axis in axes)
                for name in ("kernel", "stride", "pad", "dilation")
            )
        )
        spatial, group = sizes(axes), data.draw(st.integers(1, 3))
        shape = ConvGeometry(
            2, group, 2 * group, 3 * group, spatial, window.convolved(spatial), window
        )

        last = data.draw(st.booleans())
        graph_of(frontend, Convolution(result, shape, "float32", last=last), properties)

    @pytest.mark.parametrize("field", ["positions", "spatial"])
    @each_product
    def test_a_shape_that_does_not_fit_is_refused(self, plans, result, field):
        layer = LAYERS["ResNet's 3x3"]
        wrong = replace(layer, **{field: (56, 55)})

        with expect_error(Declined, mentions="cuDNN"):
            plans.graph(Convolution(result, wrong, "float32"), STRICT)

    def test_rounding_takes_other_engines(self, plans):
        convolution = Convolution("maps", LAYERS["ResNet's 3x3"], "float32")

        _, strict = plans.graph(convolution, STRICT)
        _, rounded = plans.graph(convolution, ROUNDED)

        assert strict != rounded
        assert plans._rebuild(convolution, ROUNDED, rounded) is not None
        assert plans._rebuild(convolution, STRICT, rounded) is None

    @each_product
    def test_the_workspace_is_bounded(self, plans, result):
        convolution = Convolution(result, LAYERS["ResNet's 3x3"], "float32")

        graph, _ = plans.graph(convolution, replace(ROUNDED, most_workspace=4096))

        assert graph.get_workspace_size() <= 4096

    @pytest.mark.parametrize("relu", [False, True])
    def test_bias_and_relu_are_part_of_a_plan_that_may_round(self, plans, relu):
        convolution = Convolution("maps", LAYERS["ResNet's 3x3"], "float32", bias=True, relu=relu)

        plans.graph(convolution, ROUNDED)
        with expect_error(Declined, mentions="TF32"):
            plans.graph(convolution, STRICT)

    def test_a_relu_needs_a_bias(self, plans):
        convolution = Convolution("maps", LAYERS["ResNet's 3x3"], "float32", relu=True)

        with expect_error(Declined, mentions="cuDNN"):
            plans.graph(convolution, ROUNDED)

    @pytest.mark.parametrize(
        "choice",
        [
            Choice("eng9999", 9999, {}),
            Choice("eng-1", -1, {}),
            Choice("eng1", 1 << 80, {}),
            Choice("eng1_k5=99", 1, {"TILEK": 99}),
            Choice("eng1", 1, {"NO": 1}),
            Choice("eng0", 1, {}),
            Choice("eng9999", 9999, None),
        ],
        ids=lambda choice: choice.name,
    )
    def test_a_choice_that_is_none_of_its_own_is_ignored(self, plans, choice):
        convolution = Convolution("maps", LAYERS["LeNet's second"], "float32")

        assert plans._rebuild(convolution, STRICT, choice) is None

    def test_the_fastest_is_taken(self, frontend, properties):
        times = iter(range(100, 0, -1))
        plans = Plans(frontend, properties, clock=lambda graph, convolution: next(times))
        convolution = Convolution("maps", LAYERS["LeNet's second"], "float32")

        _, first = plans.graph(convolution, ROUNDED)
        _, fastest = plans.graph(convolution, replace(ROUNDED, timed=True))

        assert first != fastest
