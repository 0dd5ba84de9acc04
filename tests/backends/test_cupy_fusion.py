"""Operations that run as one with the GPU's kernels, on the host and on a GPU."""

import numpy as np
import pytest
from cuda_host import HostCudaBackend, cuda_at, host_cuda

from demitasse import Net
from demitasse.backends.cupy import sums as parts
from demitasse.backends.step import Declined
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import compare

RNG = np.random.default_rng(0)

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { %s } } }'
BEFORE = 'layer { name: "before" type: "Scale" bottom: "x" top: "y" }'
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param { %s } }'
SCALE = 'layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { %s } %s }'
RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" relu_param { negative_slope: %s } }'
OTHER = 'layer { name: "other" type: "%s" bottom: "y" top: "y" }'
AFTER = 'layer { name: "after" type: "Sigmoid" bottom: "y" top: "z" }'

CHAINS = {
    "kernel + Scale + ReLU": (SCALE % ("bias_term: true", ""), RELU % 0),
    "kernel + Scale": (SCALE % ("bias_term: true", ""),),
    "kernel + ReLU": (RELU % 0.25,),
}


def net_of(*layers: str, shape=(3, 2, 4, 4), phase="TRAIN", dtype="float64") -> Net:
    """A net whose parameters and input are random, all gradients wanted."""
    dims = " ".join(f"dim: {n}" for n in shape)
    text = "\n".join(["force_backward: true", INPUT % dims, *layers])
    net = Net(parse_text(text, NetParameter), phase, dtype=dtype, device="readonly", seed=1)
    for blob in net.structure.blob_list:
        blob.data[...] = RNG.normal(size=blob.shape)
        blob.diff[...] = RNG.normal(size=blob.shape)
    for name, blobs in net.params.items():
        for blob in blobs:
            values = RNG.normal(size=blob.shape)
            blob.data[...] = abs(values) + 0.5 if name == "norm" else values
    return net


def runs(net: Net, device) -> dict[str, str]:
    """What the named layers begin, where several run as one."""
    clone = net.clone(device)
    clone.forward()
    entries = zip(clone.layer_names, clone.plan.entries, strict=True)
    return {name: entry.group.step.code for name, entry in entries if entry.group is not None}


@pytest.fixture(params=[4096, 4], ids=["whole rows", "rows in parts"])
def least(request, monkeypatch):
    monkeypatch.setattr(parts, "LEAST", request.param)


@pytest.mark.parametrize("code", CHAINS)
@pytest.mark.parametrize("shape", [(3, 2, 4, 4), (4, 3, 3, 3), (6, 4)], ids=str)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("place", ["host", (2, 4), "cuda:0"], ids=str)
@pytest.mark.usefixtures("least")
def test_a_chain_computes_what_the_portable_code_does(code, shape, phase, place):
    device = cuda_at(place)
    net = net_of(BEFORE, NORM % "eps: 0.01", *CHAINS[code], AFTER, shape=shape, phase=phase)

    compare(net, ["readonly", device], backward=phase == "TRAIN").raise_if(1e-10)

    assert runs(net, device) == {"norm": code}


@pytest.mark.parametrize(
    "fields", [("", ""), ("bias_term: true", "param { lr_mult: 0 }"),
               ("bias_term: true", "param { lr_mult: 0 } param { lr_mult: 0 }")],
    ids=["no bias", "frozen scale", "frozen scale and bias"],
)  # fmt: skip
@pytest.mark.parametrize("stored", ["", "use_global_stats: true"])
@pytest.mark.parametrize("slope", [0, 0.5])
def test_what_is_learned_and_how_it_is_normalised(fields, stored, slope):
    net = net_of(BEFORE, NORM % stored, SCALE % fields, RELU % slope, AFTER)

    compare(net, ["readonly", host_cuda(1, 4)], backward=True).raise_if(1e-10)


def test_running_sums_and_gradients_are_added_to_once():
    net = net_of(BEFORE, NORM % "moving_average_fraction: 0.7", *CHAINS["kernel + Scale + ReLU"])
    clones = [net.clone("readonly"), net.clone(host_cuda())]

    for clone in clones:
        clone.blobs["x"].data[...] = net.blobs["x"].data
        for _ in range(3):
            clone.forward()
            clone.blobs["y"].diff[...] = 1
            clone.backward()

    for name in ("norm", "scale"):
        for one, other in zip(*(clone.params[name] for clone in clones), strict=True):
            np.testing.assert_allclose(other.data, one.data, rtol=1e-12)
            np.testing.assert_allclose(other.diff, one.diff, rtol=1e-9, atol=1e-9)


class Apart(HostCudaBackend):
    """Runs every operation by itself."""

    def fuse(self, chain, at, steps):
        raise Declined("apart")


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("code", CHAINS)
def test_a_chain_computes_what_its_parts_do_to_the_bit(code, phase):
    net = net_of(BEFORE, NORM % "", *CHAINS[code], AFTER, phase=phase, dtype="float32")
    apart = host_cuda()
    apart.backend = Apart()
    found = []

    for device in (host_cuda(), apart):
        clone = net.clone(device)
        clone.blobs["x"].data[...] = net.blobs["x"].data
        clone.forward()
        found.append(clone.blobs["z"].data.copy())

    assert runs(net, apart) == {}
    np.testing.assert_array_equal(*found)


def test_in_a_net_that_only_predicts_tops_may_differ():
    scale = SCALE.replace('top: "y"', 'top: "u"') % ("bias_term: true", "")
    relu = (RELU % 0).replace('"y"', '"u"')
    after = AFTER.replace('"y"', '"u"')
    text = "\n".join([INPUT % "dim: 3 dim: 2 dim: 4", BEFORE, NORM % "", scale, relu, after])
    nets = [
        Net(parse_text(text, NetParameter), "TEST", device=device, seed=1, keep_blobs="outputs")
        for device in ("readonly", host_cuda())
    ]

    for net in nets:
        net.blobs["x"].data[...] = np.linspace(-1, 1, 24).reshape(3, 2, 4)
        net.forward()

    codes = [entry.group.step.code for entry in nets[1].plan.entries if entry.group is not None]
    assert codes == ["kernel + Scale + ReLU"]
    portable, fused = (net.blobs["z"].data for net in nets)
    np.testing.assert_allclose(fused, portable, rtol=1e-5)


SUM = """
layer { name: "a" type: "Power" bottom: "x" top: "a" power_param { scale: 2 } }
layer { name: "b" type: "Power" bottom: "x" top: "b" power_param { shift: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "a" %s top: "y" eltwise_param { %s } }
"""


@pytest.mark.parametrize(
    "fields",
    [("", ""), ("", "coeff: 1 coeff: -1"), ('bottom: "b"', "coeff: 0.5 coeff: 2 coeff: -3")],
)
@pytest.mark.parametrize("slope", [0, 0.25])
@pytest.mark.parametrize("place", ["host", (2, 4), "cuda:0"], ids=str)
def test_a_sum_and_the_rectifier_after_it(fields, slope, place):
    device = cuda_at(place)
    net = net_of(SUM % fields, RELU % slope, AFTER, shape=(3, 7))

    compare(net, ["readonly", device], backward=True).raise_if(1e-10)

    assert runs(net, device) == {"sum": "kernel + ReLU"}


LOSS = 'layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "x" top: "loss" }'


@pytest.mark.parametrize("keep", [None, "outputs"], ids=["kept", "shared"])
@pytest.mark.parametrize("sum_of", ['"a" bottom: "b"', '"x" bottom: "a"'])
@pytest.mark.parametrize("slope", [0, 0.25])
def test_gradients_of_a_rectified_sum_are_those_of_its_parts_to_the_bit(keep, sum_of, slope):
    one = SUM.replace('"x" bottom: "a" %s', sum_of) % "coeff: 1 coeff: -3"
    text = "\n".join([INPUT % "dim: 3 dim: 7", one, RELU % slope, AFTER, LOSS])
    text = text.replace("Power", "Bias") if keep else "force_backward: true " + text
    apart = host_cuda()
    apart.backend = Apart()
    nets = [
        Net(parse_text(text, NetParameter), "TRAIN", device=device, seed=1, keep_blobs=keep)
        for device in (host_cuda(), apart)
    ]

    found = []
    for net in nets:
        net.blobs["x"].mutable_cpu_data()[...] = np.linspace(-1, 1, 21).reshape(3, 7)
        net.forward_backward()
        kept = [] if keep else net.blobs.values()
        blobs = [*kept, *net.structure.params_list]
        found.append([blob.cpu_diff().copy() for blob in blobs])

    assert "sum_gradients" in nets[0].device.backend.engine.launched
    assert found[0]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("readers", range(2, 10))
def test_gradients_of_many_readers_are_added_in_order(readers):
    layers = [
        f'layer {{ name: "{i}" type: "Power" bottom: "y" top: "{i}" }}' for i in range(readers)
    ]
    net = net_of(BEFORE, *layers, dtype="float32").clone(host_cuda())
    net.blobs["x"].mutable_cpu_data()[...] = 1
    net.forward()
    grads = RNG.normal(size=(readers, *net.blobs["x"].shape)).astype("float32")
    for index, grad in enumerate(grads):
        net.blobs[str(index)].mutable_cpu_diff()[...] = grad

    net.backward()

    total = grads[0]
    for grad in grads[1:]:
        total = total + grad
    np.testing.assert_array_equal(net.blobs["y"].cpu_diff(), total)


def test_a_sum_and_another_function_run_apart():
    clone = net_of(SUM % ("", ""), OTHER % "Sigmoid").clone(host_cuda())

    clone.forward()

    entry = clone.plan.entries[clone.layer_names.index("sum")]
    assert entry.group is None
    assert "sigmoid" in entry.why_not_fused
    assert "ReLU" in entry.why_not_fused


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        (
            (NORM.replace('top: "y"', 'top: "u"') % "", RELU.replace('"y"', '"u"') % 0),
            "not in place; the gradient of the last top is not that of the first",
        ),
        (
            (NORM % "", SCALE % ("axis: 0", "")),
            "a Scale of other axes; kernels fuse one that has a factor for each channel",
        ),
        (
            (NORM % "", OTHER % "Sigmoid"),
            "sigmoid there; kernels fuse BatchNorm, Scale, ReLU in this order",
        ),
        (
            (NORM % "", (OTHER % "ELU").replace(" }", " elu_param { alpha: -1 } }")),
            "elu runs portable code",
        ),
    ],
)  # fmt: skip
def test_the_reason_why_a_layer_runs_alone_is_kept(layers, why):
    clone = net_of(BEFORE, *layers).clone(host_cuda())

    clone.forward()

    entry = clone.plan.entries[clone.layer_names.index("norm")]
    assert entry.group is None
    assert entry.why_not_fused == why
