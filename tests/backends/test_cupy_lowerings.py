"""Steps of the cupy backend, on a GPU where there is one and, with the same sources, on the host.

Whatever a net computes with them, it computes with the layers' own code. Each operation by itself,
in one thread on the host, is held against it in test_steps_equal_portable.py; here it runs in
several threads, in pieces, and on values that are no numbers.
"""

import math

import numpy as np
import pytest
from cuda_host import cuda_at, host_cuda
from expect_error import expect_error
from goldens import golden_layers
from hypothesis import assume, given
from hypothesis import strategies as st

from demitasse import Net
from demitasse.backends import ops
from demitasse.backends.step import Declined, Operands
from demitasse.core.device import Device
from demitasse.errors import DataError, DemitasseError, ErrorCode, OutOfMemoryError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import transfers
from demitasse.plan.layout import LayoutAssignment
from demitasse.testing import compare

RNG = np.random.default_rng(0)

on_each = pytest.mark.parametrize("place", ["host", "cuda:0"])
with_many_threads = pytest.mark.parametrize("place", [(2, 4)], ids=str)


def net_of(layer: str, *shapes: tuple[int, ...], force: bool = True) -> Net:
    """A net of one layer from inputs x0, x1, ... to y, with ``force`` all gradients wanted."""
    inputs = "".join(
        f'layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ shape {{'
        + "".join(f" dim: {n}" for n in shape)
        + " } } }\n"
        for i, shape in enumerate(shapes)
    )
    bottoms = "".join(f' bottom: "x{i}"' for i in range(len(shapes)))
    tops = "" if "top:" in layer else ' top: "y"'
    head = "force_backward: true" if force else ""
    text = f'{inputs} {head} layer {{ name: "l" {layer} {bottoms}{tops} }}'
    net = Net(parse_text(text, NetParameter), "TRAIN", dtype="float64", device="readonly", seed=1)
    for blob in net.structure.blob_list:
        blob.data[...] = RNG.normal(size=blob.shape)
        blob.diff[...] = RNG.normal(size=blob.shape)
    for blob in net.learnable_params:
        blob.data[...] = RNG.normal(size=blob.shape)
    return net


def steps(net: Net) -> list[str]:
    """Names of the Steps that ran."""
    return [type(step).__name__ for step in net.plan.steps() if step is not None]


def check(net: Net, *expected: str, on: str | Device, rtol: float = 1e-10) -> None:
    """Hold a net on the GPU's kernels against the same net in portable code."""
    device = cuda_at(on) if isinstance(on, str) else on
    clone = net.clone(device)
    clone.forward()

    compare(net, ["readonly", device], backward=True).raise_if(rtol)

    assert steps(clone) == list(expected)


WINDOW = "num_output: 3 kernel_size: 3 pad: 1"


def crowded(most: int) -> Device:
    """Return a device without room for more scratch than so many elements."""
    device = host_cuda()
    engine = device.backend.engine
    scratch, engine.given = engine.scratch, []

    def limited(dtype: str, *counts: int) -> list[np.ndarray]:
        if sum(counts) > most:
            raise MemoryError("no room")
        engine.given.append(sum(counts))
        return scratch(dtype, *counts)

    engine.scratch = limited
    return device


@pytest.mark.parametrize("case", golden_layers(), ids=str)
def test_recorded_cases(case):
    net = case.net(device=host_cuda())

    case.run(net)

    case.check(net, rtol=1e-4, atol=1e-6)


@st.composite
def windows(draw, most_pad: int = 2, dilation: int = 3):
    """Kernel, stride, pad, dilation and size of two axes."""
    axes = []
    for _ in range(2):
        kernel = draw(st.integers(1, 4))
        pad = draw(st.integers(0, min(most_pad, kernel - 1)))
        spread = draw(st.integers(1, dilation))
        smallest = max(1, spread * (kernel - 1) + 1 - 2 * pad)
        size = draw(st.integers(smallest, smallest + 6))
        axes.append((kernel, draw(st.integers(1, 4)), pad, spread, size))
    return axes


def fields(axes, *names: str) -> str:
    values = {
        f"{name}_{side}": axis[i]
        for axis, side in zip(axes, "hw", strict=True)
        for i, name in enumerate(("kernel", "stride", "pad"))
        if name in names
    }
    return " ".join(f"{key}: {value}" for key, value in values.items())


class TestPooling:
    @on_each
    def test_what_is_not_a_number_is_never_the_largest(self, place):
        net = net_of('type: "Pooling" pooling_param { kernel_size: 2 }', (1, 1, 2, 4))
        net.blobs["x0"].data[...] = [
            [[[math.nan, 1, math.nan, math.nan], [0, 2, math.nan, math.nan]]]
        ]

        check(net, "MaxPoolStep", on=place)


STEPS = {"Convolution": "ConvStep", "Deconvolution": "DeconvStep"}


class TestConvolution:
    @on_each
    @pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
    @given(
        axes=windows(),
        group=st.integers(1, 3),
        samples=st.integers(0, 3),
        bias=st.booleans(),
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        chunk=st.sampled_from([1, 3000]),
    )
    def test_any_window_in_pieces(self, place, kind, axes, group, samples, bias, sizes, chunk):
        axes = [(kernel, stride, pad, axes[0][3], size) for kernel, stride, pad, _, size in axes]
        shape = (samples, group * sizes[0], axes[0][4], axes[1][4])
        layer = (
            f'type: "{kind}" convolution_param {{ num_output: {group * sizes[1]} group: {group} '
            f"{fields(axes, 'kernel', 'stride', 'pad')} dilation: {axes[0][3]} "
            f"bias_term: {str(bias).lower()} }}"
        )
        try:
            net = net_of(layer, shape)
        except DemitasseError:
            assume(False)
        device = cuda_at(place)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device.backend.engine, "column_budget", chunk)
            check(net, STEPS[kind], on=device)

    @on_each
    @pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
    @pytest.mark.parametrize(
        ("fields", "shape"),
        [
            ("kernel_size: 3 pad: 1 stride: 2", (2, 3, 9)),
            ("kernel_size: 3 kernel_size: 2 kernel_size: 1 stride: 2 pad: 1", (2, 2, 5, 6, 4)),
            ("kernel_size: 2 dilation: 2 group: 2", (2, 2, 5, 4, 3, 6)),
            ("kernel_size: 2 axis: 2", (2, 3, 2, 5, 5)),
            ("kernel_size: 1 axis: 0", (2, 3)),
            ("kernel_size: 1", (3, 4, 5, 5)),
            ("kernel_size: 1 group: 2", (3, 4, 5, 5)),
            ("kernel_size: 1 group: 2", (1, 4, 5, 5)),
            ("kernel_size: 1 axis: 1", (3, 4)),
        ],
        ids=str,
    )
    def test_other_axes_in_pieces(self, place, kind, fields, shape, monkeypatch):
        net = net_of(f'type: "{kind}" convolution_param {{ num_output: 4 {fields} }}', shape)
        device = cuda_at(place)
        monkeypatch.setattr(device.backend.engine, "column_budget", 1)

        check(net, STEPS[kind], on=device)

    def test_a_pointwise_convolution_lays_nothing_out(self):
        net = net_of(
            'type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 }', (2, 2, 4, 4)
        ).clone(host_cuda())

        net.forward()
        net.backward(-1)

        assert net.device.backend.engine.launched == ["add_bias", "channel_sums"]

    @pytest.mark.parametrize(
        ("samples", "channels", "side", "unfolds"),
        [(1, 9, 1, False), (2, 9, 2, False), (2, 99, 1, True)],
    )
    def test_a_weight_for_each_sample_is_summed_where_that_is_less_than_to_unfold(
        self, samples, channels, side, unfolds
    ):
        layer = 'type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 }'
        net = net_of(layer, (samples, channels, side, side)).clone(host_cuda())

        net.forward()
        net.backward(-1)

        assert ("im2col" in net.device.backend.engine.launched) is unfolds

    @pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
    def test_without_room_for_all_samples_it_takes_fewer_at_once(self, kind):
        net = net_of(f'type: "{kind}" convolution_param {{ {WINDOW} }}', (5, 2, 4, 4))
        sample = {"Convolution": (2 * 9 + 3) * 16, "Deconvolution": (3 * 9 + 2) * 16}[kind]
        device = crowded(most=2 * sample)

        check(net, STEPS[kind], on=device)

        assert set(device.backend.engine.given) == {2 * sample, sample}

    def test_without_room_for_one_sample_it_fails(self):
        net = net_of(f'type: "Convolution" convolution_param {{ {WINDOW} }}', (5, 2, 4, 4))
        net = net.clone(crowded(most=0))

        with expect_error(OutOfMemoryError, ErrorCode.OUT_OF_MEMORY):
            net.forward()

    @on_each
    def test_more_elements_than_32_bits_count(self, place, monkeypatch):
        monkeypatch.setattr("demitasse.backends.cupy.library.engine.WIDE", 4)
        convolution = (
            'type: "Convolution" convolution_param { num_output: 2 kernel_size: 2 pad: 1 }'
        )
        pooling = 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }'

        check(net_of(convolution, (2, 2, 4, 4)), "ConvStep", on=place)
        check(net_of(convolution, (2, 2, 4, 4, 3)), "ConvStep", on=place)
        check(net_of(pooling, (2, 2, 4, 4)), "MaxPoolStep", on=place)


@on_each
def test_rectifier_of_what_is_not_finite(place):
    net = net_of('type: "ReLU"', (1, 4))
    net.blobs["x0"].data[...] = [[math.nan, math.inf, -math.inf, -0.0]]

    check(net, "ActivationStep", on=place)


@pytest.mark.parametrize("place", ["host", "cuda:0", (2, 4)], ids=str)
class TestRegions:
    PLACES = np.array([[1, 0, 0, 40, 30], [0, 20, 10, 90, 95], [1, 60, 50, 10, 5], [0, 9, 9, 9, 9]])

    def net(self, kind, param, channels, size=(7, 9)):
        text = f'type: "{kind}" {param} propagate_down: [true, false]'
        net = net_of(text, (2, channels, *size), (4, 5))
        net.blobs["x1"].data[...] = self.PLACES
        return net

    @pytest.mark.parametrize("pooled", [(1, 1), (3, 2), (12, 5)])
    def test_maxima(self, place, pooled):
        high, wide = pooled
        param = f"roi_pooling_param {{ pooled_h: {high} pooled_w: {wide} spatial_scale: 0.1 }}"
        net = self.net("ROIPooling", param, 3)
        net.blobs["x0"].data[0] = np.round(net.blobs["x0"].data[0])  # equal values

        check(net, "RegionStep", on=cuda_at(place))

    @pytest.mark.parametrize("group", [1, 3])
    def test_means(self, place, group):
        param = f"psroi_pooling_param {{ output_dim: 2 group_size: {group} spatial_scale: 0.1 }}"

        check(self.net("PSROIPooling", param, 2 * group * group), "RegionStep", on=cuda_at(place))

    def test_nan_is_the_largest_value(self, place):
        param = "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.1 }"
        net = self.net("ROIPooling", param, 3)
        net.blobs["x0"].data[:, :, 1, 1:3] = math.nan
        net.blobs["x0"].data[:, :, 4] = -math.inf

        check(net, "RegionStep", on=cuda_at(place))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("top", ["y", "x0"])
@with_many_threads
def test_softmax(place, axis, top):
    net = net_of(f'type: "Softmax" top: "{top}" softmax_param {{ axis: {axis} }}', (2, 5, 3))

    check(net, "SoftmaxStep", on=cuda_at(place))


class TestSoftmaxLoss:
    @pytest.mark.parametrize("normalization", ["FULL", "VALID", "BATCH_SIZE", "NONE"])
    @pytest.mark.parametrize("ignore", ["", "ignore_label: 2", "ignore_label: -1"])
    @pytest.mark.parametrize(("shape", "axis"), [((6, 4), 1), ((2, 4, 3, 2), 1), ((2, 3, 4), -1)])
    @pytest.mark.parametrize("place", [(1, 4)], ids=str)
    def test_loss_and_gradient(self, place, normalization, ignore, shape, axis):
        net = self.net(shape, axis, f"normalization: {normalization} {ignore}")

        self.check(net, place)

    @on_each
    def test_every_label_ignored(self, place):
        net = self.net((3, 4), 1, "ignore_label: 1")
        net.blobs["x1"].data[...] = 1

        self.check(net, place)

    @on_each
    def test_a_label_that_is_no_class(self, place):
        net = self.net((3, 4), 1, "")
        net.blobs["x1"].data[...] = [0, 4, -1]
        copies = [net.clone("readonly"), net.clone(cuda_at(place))]

        for copy in copies:
            for name in net.inputs:
                copy.set_input(name, net.blobs[name].data)
            with expect_error(DataError, ErrorCode.OUT_OF_RANGE, image=1, got="4"):
                copy.forward()

        assert all(np.isnan(copy.blobs["loss"].data) for copy in copies)
        portable, kernels = (copy.blobs["prob"].data for copy in copies)
        np.testing.assert_allclose(kernels, portable, rtol=1e-10)

    @staticmethod
    def net(shape, axis, fields):
        places = tuple(n for i, n in enumerate(shape) if i != axis % len(shape))
        loss = (
            f'type: "SoftmaxWithLoss" top: "loss" top: "prob" loss_weight: 0.5 loss_weight: 0 '
            f"softmax_param {{ axis: {axis} }} loss_param {{ {fields} }} propagate_down: true "
            f"propagate_down: false"
        )
        net = net_of(loss, shape, places)
        net.blobs["x1"].data[...] = RNG.integers(0, 4, places)
        return net

    @staticmethod
    def check(net, place):
        values = []
        for device in ("readonly", cuda_at(place)):
            clone = net.clone(device)
            for name in ("x0", "x1"):
                clone.blobs[name].data[...] = net.blobs[name].data
            clone.forward()
            clone.backward(-1)
            values.append(
                [clone.blobs[n].data.copy() for n in ("loss", "prob")] + [clone.blobs["x0"].diff]
            )
        assert steps(clone) == ["SoftmaxLossStep"]
        for a, b in zip(*values, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-15)


class TestAccuracy:
    @pytest.mark.parametrize("fields", ["", "top_k: 2", "ignore_label: 1"])
    @pytest.mark.parametrize("most", [1024, 3])
    @pytest.mark.parametrize("place", ["host", (2, 4), "cuda:0"], ids=str)
    def test_scores_that_are_no_numbers_are_told(self, place, fields, most, monkeypatch):
        monkeypatch.setattr("demitasse.backends.cupy.steps.losses.MOST_PARTS", most)
        net = self.net(fields)
        net.blobs["x0"].data[1, 2, 0] = math.nan
        net.blobs["x1"].data[1, 0] = 2

        found = []
        for device in ("readonly", cuda_at(place)):
            clone = net.clone(device)
            for name in net.inputs:
                clone.set_input(name, net.blobs[name].data)
            clone.forward()
            found.append((float(clone.blobs["y"].data), clone.layers[-1].believable()))

        assert steps(clone) == ["AccuracyStep"]
        assert found[0] == found[1]
        assert not found[1][1]

    @staticmethod
    def net(fields):
        net = net_of(
            f'type: "Accuracy" accuracy_param {{ {fields} }}', (4, 5, 3), (4, 3), force=False
        )
        net.blobs["x1"].data[...] = RNG.integers(0, 5, (4, 3))
        return net


@with_many_threads
@pytest.mark.parametrize("top", ["y", "x0"])
@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (5, 4), (1, 2)])
class TestBatchNorm:
    def test_statistics_of_the_batch(self, place, top, shape):
        net = self.net(top, shape, "moving_average_fraction: 0.7 eps: 0.01")

        check(net, "NormStep", on=cuda_at(place))

    def test_stored_statistics(self, place, top, shape):
        net = self.net(top, shape, "use_global_stats: true")

        check(net, "NormStep", on=cuda_at(place))

    def test_running_sums(self, place, top, shape):
        net = self.net(top, shape, "")
        results = []
        for device in ("readonly", cuda_at(place)):
            clone = net.clone(device)
            clone.blobs["x0"].data[...] = net.blobs["x0"].data
            clone.forward()
            results.append([blob.data.copy() for blob in clone.layers[-1].blobs])

        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12)

    @staticmethod
    def net(top, shape, fields):
        net = net_of(f'type: "BatchNorm" top: "{top}" batch_norm_param {{ {fields} }}', shape)
        for blob in net.learnable_params:
            blob.data[...] = abs(RNG.normal(size=blob.shape)) + 0.5
        return net


@with_many_threads
@pytest.mark.parametrize("top", ["y", "x0"])
@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("axes", ["axis: 1", "axis: 0", "axis: 1 num_axes: 2", "axis: -1"])
def test_scale(place, top, bias, axes):
    layer = f'type: "Scale" top: "{top}" scale_param {{ bias_term: {bias} {axes} }}'

    check(net_of(layer, (2, 3, 4, 2)), "ScaleStep", on=cuda_at(place))


class TestDropout:
    FIELDS = 'type: "Dropout" dropout_param { dropout_ratio: 0.4 }'

    @pytest.mark.parametrize("place", ["host", "cuda:0", (2, 4)], ids=str)
    def test_each_pass_has_a_mask_of_its_own_as_in_portable_code(self, place):
        net, portable = net_of(self.FIELDS, (3, 7)), net_of(self.FIELDS, (3, 7))
        net.blobs["x0"].data[...] = portable.blobs["x0"].data
        net = net.clone(cuda_at(place))
        net.blobs["x0"].data[...] = portable.blobs["x0"].data

        for one in (net, portable):
            one.passes = 3
        results = []
        for _ in range(3):
            net.forward()
            portable.forward()
            results.append(net.blobs["y"].cpu_data().copy())

            np.testing.assert_array_equal(results[-1], portable.blobs["y"].cpu_data())
        assert steps(net) == ["DropoutStep"]
        assert (results[0] != results[1]).any()
        assert (results[1] != results[2]).any()

    def test_several_ranks_run_its_own_code(self):
        param = parse_text(
            'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 } } }'
            f'layer {{ name: "l" {self.FIELDS} bottom: "x" top: "y" }}',
            NetParameter,
        )
        net = Net(param, "TRAIN", device=host_cuda(), world_size=2)

        net.forward()

        assert last(net).why.startswith("several ranks")


def last(net: Net):
    """What the plan of a net on the GPU's kernels has for its last layer."""
    clone = net.clone(host_cuda())
    clone.forward()
    return clone.plan.entries[-1]


@pytest.mark.parametrize(
    ("layer", "shapes", "why"),
    [
        (
            '"Threshold"',
            [(2, 3)],
            "threshold; there are kernels for abs, bnll, clip, elu, exp, gelu, hard_swish, log, "
            "power, relu, sigmoid, swish, tanh",
        ),
        (
            '"ELU" elu_param { alpha: -1 }',
            [(2, 3)],
            "alpha -1; the gradient is known from the result for 0 and more",
        ),
        (
            '"Accuracy" top: "all" top: "each"',
            [(2, 3), (2,)],
            "a second top, the accuracy of each class; the kernel computes that of all",
        ),
        (
            '"Eltwise" eltwise_param { operation: MAX }',
            [(2, 3), (2, 3)],
            "MAX; there are kernels for SUM",
        ),
        (
            '"Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }',
            [(1, 1, 4, 4)],
            "STOCHASTIC; there are kernels for MAX and AVE",
        ),
        (
            '"Pooling" pooling_param { kernel_size: 2 }',
            [(1, 1, 2, 4, 4, 4)],
            "4 spatial axes; kernels pool over 3 at most",
        ),
        (
            '"Scale"',
            [(2, 3), (3,)],
            "a scale from a second bottom; the kernel takes a learned one",
        ),
    ],
)
def test_the_reason_why_a_layer_runs_its_own_code_is_kept(layer, shapes, why):
    entry = last(net_of(f"type: {layer}", *shapes))

    assert entry.step is None
    assert entry.why == why


def test_a_loss_of_labels_that_a_layer_makes_runs_in_its_step():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 } } }
    layer { name: "learned" type: "Scale" bottom: "t" top: "u" scale_param { axis: 0 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "u" }
    """
    net = Net(parse_text(text, NetParameter), "TRAIN", device="readonly")

    assert type(last(net).step).__name__ == "SoftmaxLossStep"


def test_the_dtypes_of_the_kernels_are_named():
    nothing = Operands(
        (), (), (), print, (), (), "TEST", False, print, print, layouts=LayoutAssignment()
    )
    backend = host_cuda().backend

    with expect_error(Declined, mentions=["float16", "float32", "float64"]):
        backend.lower(ops.Activation("float16", "relu", 3), nothing)


@pytest.mark.parametrize(
    ("layer", "forward", "backward"),
    [
        ('"ReLU"', "kernel", "kernel"),
        ('"InnerProduct" inner_product_param { num_output: 2 }', "cuBLAS", "cuBLAS"),
        ('"Split" top: "y0" top: "y1"', "shared", "kernel"),
        (
            '"Convolution" convolution_param { num_output: 2 kernel_size: 2 }',
            "im2col + cuBLAS",
            "im2col + cuBLAS",
        ),
        (
            '"Deconvolution" convolution_param { num_output: 2 kernel_size: 2 }',
            "cuBLAS + col2im",
            "im2col + cuBLAS",
        ),
        (
            '"Convolution" convolution_param { num_output: 2 kernel_size: 1 }',
            "cuBLAS",
            "cuBLAS",
        ),
        (
            '"Convolution" convolution_param { num_output: 2 kernel_size: 1 } '
            "param { lr_mult: 0 } param { lr_mult: 0 }",
            "cuBLAS",
            "cuBLAS",
        ),
    ],
)
def test_what_runs_is_named(layer, forward, backward):
    step = last(net_of(f"type: {layer}", (2, 2, 3, 3), force=False)).step

    assert (step.code, step.backward_code) == (forward, backward)


LENET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 1 dim: 8 dim: 8 } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "norm" type: "LRN" bottom: "pool" top: "norm" lrn_param { local_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }
layer { name: "ip" type: "InnerProduct" bottom: "norm" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "t" top: "loss" }
"""


class TestNet:
    @pytest.fixture(params=["host", "cuda:0"])
    def net(self, request):
        device = cuda_at(request.param)
        net = Net(parse_text(LENET, NetParameter), "TRAIN", device=device, seed=3)
        net.blobs["x"].mutable_cpu_data()[...] = RNG.normal(size=(2, 1, 8, 8))
        net.blobs["t"].mutable_cpu_data()[...] = [1, 3]
        return net

    def test_many_threads_compute_what_one_does(self, net):
        compare(net, [host_cuda(), host_cuda(2, 4), net.device]).raise_if(2e-6)

    def test_nothing_but_inputs_and_loss_is_moved(self, net):
        net.forward()
        net.backward(-1)
        transfers.reset()

        net.blobs["x"].mutable_cpu_data()[...] += 1
        net.forward()
        net.backward(-1)

        assert (transfers.to_device, transfers.to_host) == (1, 1)

    def test_stale_sides_are_not_read(self, net):
        from demitasse.core.config import settings

        with settings.override(debug_fill_stale=True):
            poisoned = net.clone()
            for name in ("x", "t"):
                poisoned.blobs[name].mutable_cpu_data()[...] = net.blobs[name].cpu_data()
            poisoned.forward()
            poisoned.backward(-1)
        net.forward()
        net.backward(-1)

        for a, b in zip(net.learnable_params, poisoned.learnable_params, strict=True):
            np.testing.assert_array_equal(a.cpu_diff(), b.cpu_diff())
