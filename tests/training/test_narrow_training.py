"""Training with values in 16 bits: gradients, float32 weights, and the loss scale of float16."""

import math

import numpy as np
import pytest
from cuda_host import cuda_at
from expect_error import expect_error
from narrow_values import LEAST, UNIT, kept
from replays import played_from_now_on

from demitasse import Net, Solver
from demitasse.core.config import settings
from demitasse.errors import ConfigError, ErrorCode, SnapshotError
from demitasse.io.proto import NetParameter, SolverState, parse_text
from demitasse.testing import make_layer
from demitasse.testing.layer_cases import CASES

TIMES = 3
"""How often a value of a layer's passes is rounded, at most."""

DTYPES = {"half": "float16", "bfloat16": "bfloat16"}

NET = """
name: "small"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
  num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" }
layer { name: "one" type: "Convolution" bottom: "norm" top: "one" convolution_param {
  num_output: 8 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "norm" bottom: "one" top: "sum" }
layer { name: "after" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "both" type: "Concat" bottom: "sum" bottom: "one" top: "both" }
layer { name: "turn" type: "Permute" bottom: "both" top: "turn" permute_param {
  order: 0 order: 2 order: 3 order: 1 } }
layer { name: "pool" type: "Pooling" bottom: "turn" top: "pool" pooling_param {
  kernel_size: 2 stride: 2 } }
layer { name: "flat" type: "Flatten" bottom: "pool" top: "flat" }
layer { name: "drop" type: "Dropout" bottom: "flat" top: "flat" }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "other" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "other"
  loss_weight: 0.5 }
"""
PORTABLE = NET.replace(
    'layer { name: "turn"',
    'layer { name: "prelu" type: "PReLU" bottom: "both" top: "both" }\nlayer { name: "turn"',
)
"""With a layer in place that has no kernels."""

WITH_TEST = NET.replace('type: "Dropout"', 'type: "Dropout" include { phase: TRAIN }').replace(
    'filler { type: "gaussian" }', 'filler { type: "constant" value: 0.5 }'
)

FIELDS = 'base_lr: 0.01 lr_policy: "fixed" random_seed: 1 '
TYPES = ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "AdamW", "LARS", "LAMB"]
WITHOUT_MOMENTUM = {"AdaGrad", "RMSProp"}


@pytest.fixture(params=["half", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
def kind(request):
    """The storage; float16 has a loss scale besides, which bfloat16 does not need."""
    return request.param


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes a solver on a GPU."""
    monkeypatch.chdir(tmp_path)
    device = cuda_at("cuda:0")

    def make(kind, fields="", net=NET, **options):
        (tmp_path / "net.prototxt").write_text(net)
        path = tmp_path / "solver.prototxt"
        path.write_text(f'net: "net.prototxt" {FIELDS} {fields}')
        return Solver(path, device=device, dtype=DTYPES.get(kind, "float32"), **options)

    return make


def state(solver):
    arrays = [blob.cpu_data().copy() for blob in solver.net.structure.params_list]
    arrays += [memory.cpu_data().copy() for memory in solver.history.memories]
    return [*arrays, np.array([solver.iter, solver.smoothed_loss, solver.loss_scale or 0])]


def expect_same(one, other):
    for a, b in zip(state(one), state(other), strict=True):
        np.testing.assert_array_equal(a, b)


# -- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", UNIT)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_layer_are_off_by_the_rounding_of_what_is_stored(name, kind):
    device, rng = cuda_at("cuda:0"), np.random.default_rng(3)
    for case in (one for one in CASES[name] if one.phase == "TRAIN"):
        bottoms = [kept(one, kind) for one in case.bottoms]
        made = [
            make_layer(case.text, bottoms, device=device, dtype="float32", storage=storage)
            for storage in ("float", kind)
        ]
        for one in made:
            for blob in one.params:
                blob.mutable_cpu_data()[...] = kept(blob.cpu_data(), kind)
        tops, _ = (one.forward() for one in made)
        diffs = [kept(rng.normal(size=top.shape), kind) for top in tops]
        given = () if any(made[0].layer.loss_weights) else diffs

        plain, narrow = (
            [*(x for x in one.backward(*given) if x is not None), *(b.diff for b in one.params)]
            for one in made
        )

        largest = max(np.abs(x).max(initial=1.0) for x in (*bottoms, *tops, *diffs, *plain))
        most = TIMES * (UNIT[kind] * float(largest) + LEAST[kind])
        for a, b in zip(plain, narrow, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=most, err_msg=str(case))


LARGE = [
    'type: "Convolution" convolution_param { num_output: 3 kernel_size: 1 %s }',
    'type: "Convolution" convolution_param { num_output: 2 kernel_size: 3 %s }',
    'type: "Scale" scale_param { bias_term: true }',
    'type: "BatchNorm"',
]


@pytest.mark.parametrize("shape", [(3, 2, 44, 66), (3, 2, 66, 62), (5, 1, 61, 67)])
@pytest.mark.parametrize("text", LARGE)
def test_sums_of_several_blocks(kind, text, shape):
    """Parts of a row begin with a whole pack; a pack has eight values of 16 bits."""
    device, rng = cuda_at("cuda:0"), np.random.default_rng(3)
    x = kept(rng.normal(size=shape) + 2, kind)
    text = text.replace("%s", 'weight_filler { type: "constant" value: 0.5 }')
    results, learned = [], []
    for storage in ("float", kind):
        one = make_layer(text, [x], device=device, dtype="float32", storage=storage)
        [top] = one.forward()
        [dx] = one.backward(kept(np.random.default_rng(4).normal(size=top.shape) + 0.5, kind))
        results.append([dx, *(b.diff for b in one.params)])
        learned.append([b.cpu_data() for b in one.params])

    for a, b in zip(*learned, strict=True):  # BatchNorm's averages are sums in float32
        np.testing.assert_allclose(b, a, rtol=1e-5)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, atol=8 * UNIT[kind] * np.abs(a).max(initial=1e-3))


NORM = """
force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape {
  dim: 4 dim: 8 dim: 40 dim: 40 } } }
layer { name: "copy" type: "Power" bottom: "data" top: "y" }
layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param {
  use_global_stats: true } }
layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true
  filler { type: "constant" value: 1.0 } bias_filler { type: "constant" value: 0.3 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
"""


def test_a_rectifier_after_a_norm_has_the_same_sign_in_both_passes(kind):
    net = Net(parse_text(NORM, NetParameter), "TRAIN", device=cuda_at("cuda:0"), storage=kind)
    x = np.random.default_rng(1).normal(size=net.blobs["data"].shape)
    net.set_input("data", x.astype(np.float32))
    for blob, value in zip(net.params["bn"], (0.1, 2.0, 1.0), strict=True):
        blob.mutable_cpu_data()[...] = value

    net.forward()
    active = net.blobs["y"].cpu_data() > 0
    net.blobs["y"].mutable_cpu_diff()[...] = 1
    net.backward()

    assert "ReLU" in net.plan.entries[2].forward_step.code
    np.testing.assert_array_equal(net.blobs["data"].cpu_diff() != 0, active)


def test_gradients_of_blobs_have_16_bits_and_those_of_weights_32(make, kind):
    solver = make(kind)
    solver.step(1)

    net = solver.net
    assert {net.blobs[name].diff_memory.storage for name in ("conv", "sum", "pool")} == {kind}
    assert {net.blobs[name].data_memory.storage for name in ("conv", "sum", "pool")} == {kind}
    assert {blob.diff_memory.storage for blob in net.learnable_params} == {"float"}
    assert net.blobs["label"].data_memory.storage == "float"
    assert (net.dtype, net.storage) == ("float32", kind)


@pytest.mark.parametrize("kind", UNIT)
@pytest.mark.parametrize("net", [NET, PORTABLE], ids=["kernels", "portable"])
def test_gradients_of_a_net_are_near_those_of_float32(make, kind, net):
    plain, narrow = make("float", net=net), make(kind, net=net)
    for solver in (plain, narrow):
        solver.net.clear_param_diffs()
        solver.net.forward_backward()

    want, got = (
        np.concatenate([blob.cpu_diff().reshape(-1) for blob in solver.net.learnable_params])
        for solver in (plain, narrow)
    )
    got /= narrow.loss_scale or 1.0
    assert np.linalg.norm(got - want) <= 24 * UNIT[kind] * np.linalg.norm(want)


@pytest.mark.parametrize("exponent", [20, 40])
def test_small_gradients_are_kept_by_the_loss_scale(make, exponent):
    """Without it they are below the smallest number of float16."""
    net = NET.replace("loss_weight: 0.5", "loss_weight: 0").replace(
        'type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"',
        f'type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" loss_weight: '
        f"{2.0**-exponent!r}",
    )
    solver = make("half", net=net)
    solver.loss_scale = 2.0**exponent
    solver.net.clear_param_diffs()
    solver.net.forward_backward()

    largest = max(np.abs(blob.cpu_diff()).max() for blob in solver.net.learnable_params)
    assert largest > 1e-3
    np.testing.assert_array_equal(solver.net.blobs["loss"].cpu_diff(), 2.0**-exponent)


# -- runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
def test_recorded_iterations_have_the_bits_of_queued_ones(make, kind, type_, monkeypatch):
    played = played_from_now_on(monkeypatch)
    fields = f"weight_decay: 0.01 momentum: {0 if type_ in WITHOUT_MOMENTUM else 0.9}"

    recorded = make(kind, fields, type=type_)
    recorded.step(6)
    with settings.override(cuda_graphs="off"):
        queued = make(kind, fields, type=type_)
        queued.step(6)

    assert len(played) == (0 if type_ in {"LARS", "LAMB"} else 4)
    expect_same(recorded, queued)


@pytest.mark.parametrize("fields", ["iter_size: 2", "clip_gradients: 0.1", "iter_size: 3 "
                                    "clip_gradients: 0.05"])  # fmt: skip
def test_batches_of_an_update_and_clipping(make, kind, fields):
    plain, recorded = make("float", fields), make(kind, fields)
    for solver in (plain, recorded):
        solver.step(5)
    with settings.override(cuda_graphs="off"):
        queued = make(kind, fields)
        queued.step(5)

    expect_same(recorded, queued)
    for a, b in zip(plain.net.learnable_params, recorded.net.learnable_params, strict=True):
        moved = np.abs(a.cpu_data()).max() + 0.01
        np.testing.assert_allclose(b.cpu_data(), a.cpu_data(), atol=16 * UNIT[kind] * moved)


@pytest.mark.parametrize("kind", UNIT)
def test_loss_falls_as_in_float32(make, kind):
    losses = []
    for storage in ("float", kind):
        solver = make(storage, "average_loss: 5")
        solver.step(30)
        losses.append(solver.smoothed_loss)

    assert losses[0] < 0.2
    assert losses[1] == pytest.approx(losses[0], abs=0.1)


def test_digits_are_recognised(kind, tmp_path):
    pytest.importorskip("sklearn", reason="the example's digits come from scikit-learn")
    from demitasse.examples import digits

    device = cuda_at("cuda:0")
    digits.prepare(tmp_path)
    solver = Solver(tmp_path / "solver.prototxt", device=device, dtype=DTYPES[kind])
    solver.param.max_iter = 80
    solver.param.ClearField("test_interval")
    solver.step(80)

    assert solver.test()["accuracy"] > 0.93


def test_the_scale_is_displayed_and_logged(make, caplog):
    solver, logged = make("half", "display: 2"), {}

    class Scalars:
        def scalars(self, iteration, values):
            logged.update(dict.fromkeys(values, iteration))

        def event(self, iteration, kind, facts): ...

        def close(self): ...

    solver.loggers.append(Scalars())
    with caplog.at_level("INFO"):
        solver.step(3)

    assert "Loss scale = 65536" in caplog.text
    assert logged["loss_scale"] == 2


@pytest.mark.parametrize("optimize", [True, False])
def test_portable_code_trains_too(make, optimize):
    solver = make("half", optimize=optimize)
    solver.step(4)

    assert math.isfinite(solver.smoothed_loss)


def test_weights_move_less_than_16_bits_can_tell(make, kind):
    solver = make(kind)
    solver.param.base_lr = 1e-6
    weight = solver.net.params["ip"][0]
    before = weight.cpu_data().copy()
    solver.step(3)

    moved = np.abs(weight.cpu_data() - before)
    assert 0 < moved.max() < UNIT[kind] * np.abs(before).max()


@pytest.mark.parametrize("word", ["dtype", "storage"])
def test_the_setting_and_the_dtype_ask_for_the_same(make, word, kind):
    asked = make(kind)
    with settings.override(gpu_storage_dtype=kind):
        solver = make("float") if word == "storage" else asked
    for one in {id(s): s for s in (asked, solver)}.values():
        one.step(3)

    expect_same(solver, asked)


def test_weights_that_the_host_writes_are_rounded_again(make, kind, monkeypatch):
    def run():
        solver = make(kind)
        for step in range(6):
            solver.step(1)
            weight = solver.net.params["one"][0]
            if step == 3:
                weight.mutable_cpu_data()[...] *= 1.5
            if step == 4:
                weight.data[...] -= 0.25
        return solver

    played = played_from_now_on(monkeypatch)
    recorded = run()
    assert len(played) >= 3
    with settings.override(cuda_graphs="off"):
        expect_same(recorded, run())


def test_shared_gradient_buffers_change_no_bit(make, kind):
    whole, few = make(kind), make(kind, keep_blobs="outputs")
    for solver in (whole, few):
        solver.step(5)

    expect_same(few, whole)


def test_tests_between_iterations_use_the_present_weights(make, kind, tmp_path):
    solver = make(kind, "test_iter: 3 test_interval: 100", net=WITH_TEST)
    for _ in range(4):
        solver.step(2)
        got = solver.test()["loss"]
        fresh = solver.test_nets[0].clone()
        for mine, theirs in zip(fresh.params.values(), solver.net.params.values(), strict=True):
            for one, other in zip(mine, theirs, strict=True):
                one.mutable_cpu_data()[...] = other.cpu_data()
        fresh.forward()
        assert got == fresh.blobs["loss"].cpu_data()


@pytest.mark.parametrize("host", ["numpy", "cpu"])
def test_a_net_moves_between_devices(make, kind, host):
    moved, stayed = make(kind), make("float")
    for solver in (moved, stayed):
        solver.step(2)
    for a, b in zip(moved.net.learnable_params, stayed.net.learnable_params, strict=True):
        b.mutable_cpu_data()[...] = a.cpu_data()
    for a, b in zip(moved.history.memories, stayed.history.memories, strict=True):
        b.mutable_cpu_data()[...] = a.cpu_data()
    for solver in (moved, stayed):
        solver.net.to(host)
        solver.step(1)

    assert moved.net.storage == "float"
    for a, b in zip(moved.net.learnable_params, stayed.net.learnable_params, strict=True):
        np.testing.assert_array_equal(a.cpu_data(), b.cpu_data())
    moved.net.to("cuda:1")
    moved.step(4)
    assert moved.net.blobs["conv"].diff_memory.storage == kind
    assert moved.loss_scale == (65536 if kind == "half" else None)


def test_layers_can_be_observed_and_verified(make, kind, caplog):
    solver = make(kind, "debug_info: true display: 1")
    solver.net.verify = 64 * UNIT[kind]
    with caplog.at_level("INFO"):
        solver.step(3)

    assert "[Backward] Layer conv" in caplog.text


# -- the loss scale ----------------------------------------------------------------------------


def test_only_float16_has_a_loss_scale(make):
    assert make("half").loss_scale == 65536
    assert make("bfloat16").loss_scale is None
    assert make("float").loss_scale is None


@pytest.mark.parametrize("graphs", ["auto", "off"])
@pytest.mark.parametrize("fields", ["", "iter_size: 2", "clip_gradients: 1.0"])
def test_an_overflow_skips_the_update_and_halves_the_scale(make, graphs, fields):
    with settings.override(cuda_graphs=graphs):
        solver = make("half", fields)
        solver.step(4)
        before = state(solver)[:-1]
        solver.loss_scale = 2.0**40
        solver.step(1)
        skipped = state(solver)[:-1]
        scale = solver.loss_scale
        solver.loss_scale = 1024.0
        solver.step(1)

    assert scale == 2.0**39
    assert solver.iter == 6
    averages = list(map(id, solver.net.params["bn"]))  # of forward passes
    names = [id(blob) for blob in solver.net.structure.params_list]
    same = [np.array_equal(a, b) for a, b in zip(before, skipped, strict=True)]
    assert [one for one, name in zip(same, names, strict=False) if name not in averages] == [
        True for name in names if name not in averages
    ]
    assert all(same[len(names) :])
    assert not np.array_equal(skipped[-1], state(solver)[-2])
    assert solver.loss_scale == 1024


def test_the_scale_falls_until_gradients_are_finite(make):
    solver = make("half")
    solver.loss_scale = 2.0**60
    solver.step(60)

    assert 1 <= solver.loss_scale < 2.0**40
    assert math.isfinite(solver.smoothed_loss)


def test_the_scale_doubles_after_an_interval_without_overflow(make, monkeypatch):
    monkeypatch.setattr("demitasse.training.updater.GROWTH_INTERVAL", 3.0)
    solver = make("half")
    solver.loss_scale = 8.0
    scales = []
    for _ in range(7):
        solver.step(1)
        scales.append(solver.loss_scale)

    assert scales == [8, 8, 16, 16, 16, 32, 32]


@pytest.mark.parametrize("scale", [2.0**127, 2.0**-126])
def test_the_scale_stays_a_finite_positive_number(make, monkeypatch, scale):
    monkeypatch.setattr("demitasse.training.updater.GROWTH_INTERVAL", 1.0)
    solver = make("half")
    solver.loss_scale = scale
    solver.step(2)

    assert 0 < solver.loss_scale < math.inf


def test_a_loss_that_is_not_finite_changes_nothing(make):
    solver = make("half")
    solver.step(3)
    solver.net.params["ip"][0].mutable_cpu_data()[0, 0] = 1e6  # infinite in float16
    params = [*solver.net.params["conv"], *solver.net.params["ip"]]
    before = [blob.cpu_data().copy() for blob in params]
    solver.step(1)

    assert solver.loss_scale == 32768
    for a, blob in zip(before, params, strict=True):
        np.testing.assert_array_equal(blob.cpu_data(), a)


@pytest.mark.parametrize("hdf5", [False, True], ids=["binary", "HDF5"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(make, kind, hdf5, tmp_path):
    fields = f'snapshot_prefix: "{tmp_path.as_posix()}/s"' + " snapshot_format: HDF5" * hdf5
    whole = make(kind, fields)
    if kind == "half":
        whole.loss_scale = 512.0
    whole.step(3)
    file = whole.snapshot()[1]
    whole.step(3)

    resumed = make(kind, fields)
    resumed.restore(file, exact=True)
    resumed.step(3)

    expect_same(resumed, whole)
    for net in (whole.net, resumed.net):
        assert net.storage == kind


def test_the_state_of_a_run_in_memory_has_the_scale(make):
    one, other = make("half"), make("half")
    one.loss_scale = 512.0
    one.step(2)

    other.load_state_dict(one.state_dict())

    assert other.loss_scale == 512


def test_states_without_a_scale_start_it_anew(make, tmp_path):
    plain = make("float", f'snapshot_prefix: "{tmp_path.as_posix()}/s"')
    plain.step(1)
    file = plain.snapshot()[1]

    solver = make("half")
    solver.loss_scale = 512.0
    solver.restore(file)

    assert solver.loss_scale == 65536
    assert solver.iter == 1


@pytest.mark.parametrize("values", [(0.0, 1.0), (math.nan, 0.0), (1.0,), (1.0, -1.0)])
def test_an_impossible_scale_is_refused(make, tmp_path, values):
    solver = make("half", f'snapshot_prefix: "{tmp_path.as_posix()}/s"')
    solver.step(1)
    file = solver.snapshot()[1]
    message = SolverState.FromString(file.read_bytes())
    message.resume.loss_scale[:] = values
    file.write_bytes(message.SerializeToString())

    with expect_error(SnapshotError, ErrorCode.CORRUPT):
        make("half").restore(file)


# -- other words -------------------------------------------------------------------------------


def test_a_clone_stores_values_as_the_net_does(make, kind):
    net = make(kind).net

    assert net.clone().storage == kind
    assert [net.clone(device).storage for device in ("numpy", "cpu")] == ["float", "float"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_hosts_refuse_16_bits(dtype, device):
    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, field="storage"):
        Net(parse_text(NET, NetParameter), "TRAIN", device=device, dtype=dtype)


def test_two_words_that_differ_are_refused():
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="dtype"):
        Net(parse_text(NET, NetParameter), "TRAIN", device=cuda_at("cuda:0"), dtype="float16",
            storage="bfloat16")  # fmt: skip
