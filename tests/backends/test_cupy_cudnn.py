"""Convolutions by cuDNN: our code over a stand-in for its frontend, which computes on the host.

What the real one is asked is held against it in test_cudnn_wheel.py.
"""

import threading
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from cuda_host import host_cuda
from cudnn_devices import CudnnEngine, gpu_with_cudnn, installed, with_cudnn
from cudnn_standin import FAST, FUSED, LARGE, STEADY, UNSTEADY, Frontend
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st
from needs import needs
from step_cases import convolutions
from steps import Way, expect_portable

from demitasse import Net
from demitasse.backends.cupy import correlation
from demitasse.backends.cupy.library import cudnn_library
from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.cudnn import Choice
from demitasse.backends.cupy.library.cudnn_library import status
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.kernel_cache import folder
from demitasse.backends.step import Declined
from demitasse.backends.windows import ConvGeometry, Window
from demitasse.core.config import settings
from demitasse.errors import DeviceError, ErrorCode
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.usefixtures("own_folder")

ALL, NONE = (True,) * 8, ()

CONVOLUTION = Convolution(
    "maps", ConvGeometry(2, 1, 3, 4, (6, 5), (4, 3), Window((3, 3), (1, 1), (0, 0), (1, 1))),
    "float32",
)  # fmt: skip


@pytest.fixture
def device(frontend):
    return with_cudnn()


def net_of(*layers: str, device, shape=(2, 3, 6, 5), phase="TRAIN", force=True, storage="float"):
    dims = "".join(f" dim: {n}" for n in shape)
    text = (
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }} '
        f"force_backward: {str(force).lower()}"
    )
    for number, layer in enumerate(layers):
        text += f' layer {{ name: "l{number}" {layer} }}'
    net = Net(parse_text(text, NetParameter), phase, device=device, seed=1, storage=storage)
    fill(net)
    return net


def fill(net):
    rng = np.random.default_rng(5)
    for blob in (net.blobs["x"], *net.learnable_params):
        blob.data[...] = rng.normal(size=blob.shape)


def conv(top="y", bottom="x", fields="kernel_size: 3"):
    return (
        f'type: "Convolution" bottom: "{bottom}" top: "{top}" '
        f"convolution_param {{ num_output: 4 {fields} }}"
    )


def results(net):
    """Everything that a pass forward and backward computes."""
    net.forward()
    top = list(net.blobs.values())[-1]
    top.diff[...] = np.random.default_rng(6).normal(size=top.shape)
    net.clear_param_diffs()
    net.backward()
    diffs = (blob.cpu_diff() for blob in (net.blobs["x"], *net.learnable_params))
    found = [top.cpu_data(), *diffs]
    return [np.array(one) for one in found]


def expect_equal(net, other, rtol=1e-5):
    for got, want in zip(results(net), results(other), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def engines(frontend):
    """What ran, and by which engine."""
    return [(kind, engine) for kind, engine, _ in frontend.executed]


class TestResults:
    @pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
    @given(
        data=st.data(),
        dtype=st.sampled_from(["float32", "float64"]),
        wanted=st.sampled_from([(ALL, ALL), (NONE, ALL), (ALL, NONE), (NONE, NONE)]),
    )
    def test_they_are_those_of_the_portable_code(self, kind, data, dtype, wanted):
        case = data.draw(convolutions(kind, axes=(1, 2, 3), batches=(1, 3)))
        always = patch.object(correlation, "best_as_products", return_value=False)
        with installed(Frontend()) as frontend, always:
            one = expect_portable(case, Way(dtype, False, *wanted), with_cudnn())

        assert one.entry.step.code.startswith("cuDNN:"), one.entry.why
        assert {engine for _, engine in engines(frontend)} == {STEADY.engine}

    def test_they_are_those_of_our_own_kernels(self, device):
        layers = (conv("y", fields="kernel_size: 3 pad: 1"), conv("z", "y"))

        expect_equal(net_of(*layers, device=device), net_of(*layers, device=host_cuda()))

    def test_float32_is_not_rounded_unless_it_may_be(self, frontend, device):
        strict = results(net_of(conv(), device=device))
        with settings.override(tf32=True):
            rounded = results(net_of(conv(), device=with_cudnn()))

        assert {engine for _, engine in engines(frontend)[:3]} == {STEADY.engine}
        assert engines(frontend)[3:] == [
            ("fused", FUSED.engine), ("weight", FAST.engine), ("image", FAST.engine),
        ]  # fmt: skip
        for one, other in zip(strict[:3], rounded[:3], strict=True):
            assert 1e-5 < np.abs(one - other).max() / np.abs(one).max() < 5e-3

    def test_a_deconvolution_adds_its_bias_forward_alone(self, frontend, device):
        layer = conv().replace("Convolution", "Deconvolution")
        with settings.override(tf32=True):  # a plan with a bias is recommended then
            expect_equal(net_of(layer, device=device), net_of(layer, device=host_cuda()), 5e-3)

        assert "fused" not in dict(engines(frontend))

    @pytest.mark.parametrize("kind", ["half", "bfloat16"])
    def test_values_in_16_bits_are_added_up_in_float32(self, frontend, device, kind):
        layers = (conv("y", fields="kernel_size: 3 pad: 1"), conv("z", "y"))

        tops = []
        for place in (device, host_cuda()):
            net = net_of(*layers, device=place, phase="TEST", storage=kind)
            net.forward()
            tops.append(net.blobs["z"].cpu_data())

        unit = {"half": 2.0**-11, "bfloat16": 2.0**-8}[kind]
        np.testing.assert_allclose(*tops, rtol=0, atol=4 * unit * np.abs(tops[1]).max())
        assert {engine for _, engine in engines(frontend)} <= {FAST.engine, FUSED.engine}

    def test_results_are_the_same_in_every_run_unless_they_need_not_be(self, frontend, device):
        with settings.override(deterministic=False):
            results(net_of(conv(), device=device))

        assert [engine for _, engine in engines(frontend)] == [
            STEADY.engine, UNSTEADY.engine, UNSTEADY.engine,
        ]  # fmt: skip

    def test_gradients_of_parameters_are_added_up(self, device):
        net = net_of(conv(), device=device)
        once = results(net)

        net.backward()

        np.testing.assert_allclose(net.learnable_params[0].cpu_diff(), 2 * once[2], rtol=1e-6)

    def test_a_net_that_changes_its_shape_and_back_computes_what_it_did(self, frontend, device):
        net = net_of(conv(), device=device)
        before = results(net)

        for shape in ((1, 3, 9, 4), (2, 3, 6, 5)):
            net.blobs["x"].reshape(*shape)
            fill(net)
            other = net_of(conv(), device=host_cuda(), shape=shape)
            expect_equal(net, other)

        np.testing.assert_array_equal(results(net)[0], before[0])
        assert len(frontend.asked) == 2 * 4  # the first shape's Steps were still prepared


class TestBias:
    def test_it_is_added_by_the_plan_that_heuristics_recommend(self, frontend):
        with settings.override(tf32=True):
            results(net_of(conv(), device=with_cudnn()))

        assert engines(frontend)[0] == ("fused", FUSED.engine)

    def test_it_is_added_by_our_kernel_where_such_a_plan_merely_works(self, frontend, device):
        results(net_of(conv(), device=device))

        assert engines(frontend)[0] == ("maps", STEADY.engine)
        assert "add_bias" in device.backend.engine.launched


class TestFallback:
    @staticmethod
    def why(device, layer=None, **options):
        """Why our own kernels run instead."""
        net = net_of(layer or conv(), device=device, **options)
        net.forward()
        entry = net.plan.entries[-1]
        assert entry.step.code in {"im2col + cuBLAS", "cuBLAS"}
        return entry.why

    def test_no_plan(self, frontend, device):
        frontend.plans = {kind: [FAST] for kind in frontend.plans}

        assert self.why(device) == (
            "no plan of cuDNN's without TF32, the same bits in every run and with a workspace of "
            "at most 536870912 bytes"
        )

    def test_a_refusal(self, frontend, device):
        frontend.plans = {kind: [] for kind in frontend.plans}

        assert self.why(device) == (
            "cuDNN has no plan for it (no engine proposed a plan for this graph)"
        )

    def test_a_product_that_is_not_needed_is_not_asked_for(self, frontend, device):
        frontend.plans["weight"] = []
        frozen = "param { lr_mult: 0 } param { lr_mult: 0 }"

        net = net_of(conv() + frozen, device=device, force=False)
        net.forward()

        assert net.plan.entries[-1].why == ""

    def test_plans_that_cannot_be_built_are_passed_over(self, frontend, device):
        frontend.broken.add(STEADY.engine)

        net = net_of(conv(), device=device)
        net.forward()

        assert net.plan.entries[-1].step.code == "cuDNN:0"

    def test_many_axes(self, device):
        layer = conv(fields="kernel_size: 2")

        why = self.why(device, layer, shape=(2, 3, 3, 3, 3, 3))

        assert "4" in why
        assert "cuDNN" in why

    def test_no_elements(self, device):
        assert "cuDNN" in self.why(device, shape=(0, 3, 6, 5))

    def test_a_window_that_sticks_out_of_the_image(self, device):
        why = self.why(device, conv(fields="kernel_size: 3 stride: 2"), shape=(1, 3, 2, 2))

        assert "is_valid_spatial_dim" in why

    @pytest.mark.parametrize("lacking", ["maps", "image", "weight"])
    def test_a_product_without_a_plan_runs_by_our_own_kernels(self, lacking, frontend, device):
        frontend.plans[lacking] = []
        net = net_of(conv(), device=device)

        expect_equal(net, net_of(conv(), device=host_cuda()))
        assert {kind for kind, _ in engines(frontend)} == {"maps", "image", "weight"} - {lacking}
        step = net.plan.entries[-1].step
        assert ("cuBLAS" in step.code, "cuBLAS" in step.backward_code) == (
            lacking == "maps", lacking != "maps",
        )  # fmt: skip

    def test_pointwise_products_are_our_own(self, frontend, device):
        layer = conv(fields="kernel_size: 1")
        with settings.override(tf32=True):  # cuDNN is fast at the weight's gradient then
            rounded = net_of(layer, device=with_cudnn())
            results(rounded)
        assert engines(frontend) == [("weight", FAST.engine)]

        expect_equal(net_of(layer, device=device), net_of(layer, device=host_cuda()), 0)
        assert len(engines(frontend)) == 1

    def test_no_frontend(self, monkeypatch):
        def missing(name):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

        monkeypatch.setattr(cudnn_library, "import_module", missing)
        status.cache_clear()

        with expect_error(Declined, mentions="demitasse[cudnn13]"):
            CudnnEngine()
        status.cache_clear()

    def test_no_library(self, frontend, monkeypatch):
        def missing():
            raise RuntimeError("Unable to find symbol cudnnGetVersion\nand more")

        monkeypatch.setattr(frontend, "backend_version", missing)

        with expect_error(Declined, mentions="cudnnGetVersion"):
            CudnnEngine()
        assert not status().loaded

    def test_a_gpu_it_does_not_know(self, frontend, monkeypatch):
        def refuse(number):
            raise RuntimeError("CUDNN_STATUS_ARCH_MISMATCH")

        monkeypatch.setattr(frontend, "create_device_properties", refuse)

        with expect_error(Declined, mentions="CUDNN_STATUS_ARCH_MISMATCH"):
            CudnnEngine()

    def test_the_setting(self):
        engine = object.__new__(Engine)

        with settings.override(cudnn=False), expect_error(Declined, mentions="cudnn"):
            engine.prepare_convolution(CONVOLUTION)


def test_what_is_there_is_told(frontend):
    found = status()

    assert (found.loaded, found.version, found.frontend) == (True, "9.28.1", "1.32.0")


class TestPasses:
    def test_they_allocate_nothing_and_share_one_workspace(self, frontend, device, monkeypatch):
        engine = device.backend.engine
        net = net_of(conv("y"), conv("z", "y", "kernel_size: 2"), device=device)
        results(net)

        def refuse(*arguments):
            raise AssertionError("memory is allocated in a pass")

        for name in ("empty", "asarray"):
            monkeypatch.setattr(engine, name, refuse)
        monkeypatch.setattr(frontend, "create_handle", refuse)
        monkeypatch.setattr(frontend, "pygraph", refuse)
        memory = engine._scratch
        results(net)

        assert engine._scratch is memory

    def test_the_workspace_is_there_before_the_first_pass(self, frontend, device):
        engine, grown = device.backend.engine, 1 << 20
        frontend.plans["weight"] = [replace(STEADY, workspace=grown)]
        net = net_of(conv(), device=device)

        net.forward()

        assert engine._scratch.size > grown

    def test_they_run_on_the_stream_that_is_current(self, frontend, device):
        net = net_of(conv(), device=device)
        streams = []
        for stream in (0, 64, 128):
            device.backend.engine.current = stream
            results(net)
            streams.append(frontend.executed[-1][2].stream)

        assert streams == [0, 64, 128]

    def test_every_thread_has_a_handle_which_it_leaves_to_the_next(self, frontend, device):
        net = net_of(conv(), device=device)
        results(net)
        mine, others = frontend.executed[-1][2], []

        for _ in range(2):
            thread = threading.Thread(target=results, args=(net,))
            thread.start()
            thread.join()
            others.append(frontend.executed[-1][2])

        assert others[0] is not mine
        assert others[1] is others[0]

    def test_every_step_has_a_graph_of_its_own(self, frontend, device):
        made, pygraph = [], frontend.pygraph
        frontend.pygraph = lambda **options: made.append(pygraph(**options)) or made[-1]
        cudnn = device.backend.engine.cudnn

        one, other = cudnn.prepare(CONVOLUTION), cudnn.prepare(CONVOLUTION)

        assert one.graph is not other.graph

    def test_what_fails_is_an_error_of_the_device(self, frontend, device):
        net = net_of(conv(), device=device)
        net.forward()
        frontend.failing = True

        with expect_error(
            DeviceError,
            ErrorCode.FAILED,
            library="cuDNN",
            mentions="CUDNN_STATUS_EXECUTION_FAILED",
        ):
            net.forward()


class TestKeptPlans:
    @staticmethod
    def kept():
        [file] = folder().glob("cudnn-*.json")
        return file

    @staticmethod
    def prepared(convolution=CONVOLUTION, **options):
        """What a new process prepares, and what it asks cuDNN's heuristics for."""
        with installed(Frontend(**options)) as frontend:
            one = CudnnEngine().cudnn.prepare(convolution)
        return one.code, frontend.asked

    def test_they_are_found_again(self):
        assert self.prepared() == ("cuDNN:1", ["maps"])
        assert self.prepared() == ("cuDNN:1", [])

    def test_a_plan_with_a_knob_that_has_no_name_is_found_by_its_own(self):
        convolution = replace(CONVOLUTION, result="weight")

        with settings.override(deterministic=False):
            assert self.prepared(convolution) == ("cuDNN:7", ["weight"])
            assert self.prepared(convolution) == ("cuDNN:7", ["weight"])

    def test_a_process_asks_once(self, frontend, device):
        for _ in range(2):
            device.backend.engine.cudnn.prepare(CONVOLUTION)

        assert frontend.asked == ["maps"]

    @pytest.mark.parametrize(
        "other",
        [
            {"version": 92900},
            {"gpu": "NVIDIA B200"},
            {"convolution": replace(CONVOLUTION, dtype="float64")},
            {"convolution": replace(CONVOLUTION, result="image")},
            {"convolution": replace(CONVOLUTION, geometry=replace(CONVOLUTION.geometry, n=3))},
        ],
        ids=["version", "GPU", "dtype", "product", "shape"],
    )
    def test_another_key_has_another_plan(self, other):
        self.prepared()

        assert self.prepared(**other)[1] != []

    @pytest.mark.parametrize("setting", ["tf32", "deterministic", "cudnn_autotune"])
    def test_another_setting_has_another_plan(self, setting):
        self.prepared()

        changed = {setting: settings.get(setting) in (False, "off")}
        with settings.override(**changed), installed(Frontend()) as frontend:
            engine = CudnnEngine()
            engine.times = [3.0, 2.0, 1.0]
            engine.cudnn.prepare(CONVOLUTION)

        assert frontend.asked == ["maps"]

    def test_a_damaged_file_is_written_anew(self):
        self.prepared()
        file = self.kept()
        whole = file.read_bytes()
        file.write_bytes(whole[:-3])

        assert self.prepared() == ("cuDNN:1", ["maps"])
        assert file.read_bytes() == whole

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"{",
            b"[" * 100_000,
            b'{"engine": 1, "knobs": {}}',
            b'{"name": 7, "engine": 1, "knobs": {}}',
            b'{"name": "a", "engine": true, "knobs": {}}',
            b'{"name": "a", "engine": 1e400, "knobs": {}}',
            b'{"name": "a", "engine": 1, "knobs": {"SPLIT_K": "2"}}',
            b'{"name": "a", "engine": 1, "knobs": [2]}',
        ],
        ids=lambda text: text[:40].decode(),
    )
    def test_what_is_no_choice_is_ignored(self, text):
        assert Choice.read(text) is None

    @pytest.mark.parametrize(
        "choice",
        [
            Choice("eng999", 999, {}),
            Choice("eng1_k3=4", 1, {"SPLIT_K": 4}),
            Choice("eng1_k3=2", 1, {"NO_KNOB": 2}),
            Choice("eng1", 1, {"SPLIT_K": 2}),
            Choice("eng5", 5, None),
            Choice(FAST.name, FAST.engine, {"TILE_SIZE": 5}),
            Choice(LARGE.name, LARGE.engine, {}),
        ],
        ids=[
            "no engine", "no value", "no knob", "another name", "no plan of that name",
            "rounds to TF32", "too much workspace",
        ],
    )  # fmt: skip
    def test_a_choice_that_breaks_the_rules_is_made_anew(self, choice, monkeypatch):
        with monkeypatch.context() as patch:
            text = Choice.text(choice)
            patch.setattr(Choice, "text", lambda self: text)
            self.prepared()

        code, asked = self.prepared()
        assert code == "cuDNN:1"
        assert asked
        assert self.prepared() == ("cuDNN:1", [])

    @needs("modes")
    def test_nothing_is_kept_where_others_could_write(self):
        self.prepared()
        folder().chmod(0o777)

        assert self.prepared() == ("cuDNN:1", ["maps"])


class TestAutotune:
    def test_the_fastest_plan_is_taken_and_found_again(self, frontend, device):
        frontend.plans["maps"] = [STEADY, replace(FAST, notes=frozenset()), UNSTEADY]
        engine = device.backend.engine
        engine.times = [2.0, 1.0]

        with settings.override(cudnn_autotune=True):
            first = engine.cudnn.prepare(CONVOLUTION)
            second = engine.cudnn.prepare(CONVOLUTION)

        assert first.code == second.code == f"cuDNN:{FAST.engine}"
        assert engines(frontend) == [("maps", STEADY.engine), ("maps", FAST.engine)]

    def test_our_own_kernels_are_timed_too_and_the_result_is_kept(self, frontend, device):
        frontend.plans["maps"] = [STEADY]
        engine, timed = device.backend.engine, []
        engine.times = [2.0, 1.0, 3.0, 4.0]

        def rival(image, weight, maps):
            timed.append((image.shape, weight.shape, maps.shape))

        with settings.override(cudnn_autotune=True):
            for one in (engine, CudnnEngine()):
                with expect_error(Declined):
                    one.cudnn.prepare(CONVOLUTION, rival)
            assert engine.cudnn.prepare(replace(CONVOLUTION, dtype="float64"), rival)

        shapes = tuple(CONVOLUTION.shapes.values())
        assert timed == [shapes, shapes]


class TestOnAGpu:
    """The engine of GPUs, over the stand-in for cupy: lazy queues, streams, capture."""

    @pytest.fixture
    def gpu(self, frontend):
        with gpu_with_cudnn(frontend) as device:
            yield device

    def test_results_are_those_of_our_own_kernels(self, frontend, gpu):
        net = net_of(conv("y"), conv("z", "y", "kernel_size: 2"), device=gpu)
        other = net_of(conv("y"), conv("z", "y", "kernel_size: 2"), device=host_cuda())

        expect_equal(net, other)
        assert net.plan.entries[1].step.code == "cuDNN:1"

    def test_plans_are_timed(self, gpu):
        with settings.override(cudnn_autotune=True):
            net = net_of(conv(), device=gpu)
            expect_equal(net, net_of(conv(), device=host_cuda()))

    def test_a_recorded_step_computes_on_what_is_there_when_it_is_launched(self, frontend, gpu):
        import cupy

        net = net_of(conv(), device=gpu)
        with gpu.backend.enter(), cupy.cuda.Stream(non_blocking=True) as stream:
            first = results(net)
            net.blobs["x"].gpu_data(), net.blobs["y"].gpu_diff()  # uploads are not recorded

            stream.begin_capture()
            net.plan.forward(1, 1)
            net.plan.backward(1, 1)
            graph = stream.end_capture()
            ran = len(frontend.executed)
            net.blobs["x"].mutable_gpu_data()[...] *= 2
            graph.launch(stream)
            stream.synchronize()

        assert len(frontend.executed) == ran
        assert {handle.stream for *_, handle in frontend.executed} == {stream.ptr}
        y, weight = net.blobs["y"], net.learnable_params[0]
        bias = net.learnable_params[1].cpu_data()[:, None, None]
        np.testing.assert_allclose(y.cpu_data() - bias, 2 * (first[0] - bias), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(weight.cpu_diff(), 3 * first[2], rtol=1e-5)


RELU = 'type: "ReLU" bottom: "y" top: "y"'


class TestReLU:
    @pytest.fixture(autouse=True)
    def rounded(self):
        """In float32 proper cuDNN recommends no plan with a ReLU."""
        with settings.override(tf32=True):
            yield

    @staticmethod
    def entry(net):
        net.forward()
        return net.plan.entries[1]

    def test_it_stays_by_itself_since_nan_might_be_lost(self, device):
        found = self.entry(net_of(conv(), RELU, device=device))

        assert found.group is None
        assert "cudnn_relu" in found.why_not_fused

    def test_it_runs_with_the_convolution_where_that_is_allowed(self, frontend, device):
        with settings.override(cudnn_relu=True):
            net = net_of(conv(), RELU, device=device)
            found = self.entry(net)
            got = results(net)

        assert found.group.step.code == f"cuDNN:{FUSED.engine} + ReLU"
        assert "relu" not in device.backend.engine.launched
        for one, other in zip(got, results(net_of(conv(), RELU, device=host_cuda())), strict=True):
            np.testing.assert_allclose(one, other, atol=5e-3 * np.abs(other).max())

    @pytest.mark.parametrize(
        ("relu", "phase", "together"),
        [
            ('type: "ReLU" bottom: "y" top: "z"', "TRAIN", False),
            (RELU + " relu_param { negative_slope: 0.1 }", "TRAIN", False),
            ('type: "TanH" bottom: "y" top: "y"', "TRAIN", False),
            (RELU, "TEST", True),
        ],
    )
    def test_when_it_does(self, device, relu, phase, together):
        with settings.override(cudnn_relu=True):
            found = self.entry(net_of(conv(), relu, device=device, phase=phase))

        assert (found.group is not None) is together

    def test_without_a_bias_cudnn_has_none(self, device):
        with settings.override(cudnn_relu=True):
            layer = conv(fields="kernel_size: 3 bias_term: false")
            found = self.entry(net_of(layer, RELU, device=device))

        assert found.group is None
        assert "ReLU" in found.why_not_fused
        assert "cudnn_relu" not in found.why_not_fused
