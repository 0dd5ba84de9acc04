"""LSTM and RNN in kernels against the portable layers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowered import WIDTHS, layer, tuned

from demitasse import Net
from demitasse.backends.cpu import slow_reason
from demitasse.backends.kernels.language.call_recorder import CallRecording
from demitasse.io.proto import NetParameter, parse_text

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

STATES = {"LSTM": 2, "RNN": 1}
FILLERS = "".join(
    f'{name}_filler {{ type: "uniform" min: -0.4 max: 0.4 }} ' for name in ("weight", "bias")
)


def text(kind, t, n, x, h, static=0, exposed=False, more="", behind="", gradients=True):
    shapes = {"x": (t, n, *x), "cont": (t, n)}
    bottoms, tops = ["x", "cont"], ["y"]
    if static:
        shapes["static"] = (n, static)
        bottoms.append("static")
    for i in range(STATES[kind] if exposed else 0):
        shapes[f"from{i}"] = (1, n, h)
        bottoms.append(f"from{i}")
        tops.append(f"to{i}")
    inputs = [
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        + " ".join(f"dim: {d}" for d in shape)
        + " } } }"
        for name, shape in shapes.items()
    ]
    fields = (
        f"recurrent_param {{ num_output: {h} expose_hidden: {str(exposed).lower()} {FILLERS} }}"
    )
    down = {"x", "static"} if gradients else set()
    force = " ".join(f"propagate_down: {str(b in down).lower()}" for b in bottoms)
    return "\n".join(
        [
            "force_backward: true" if gradients else "",
            *inputs,
            layer("cells", kind, " ".join(bottoms), " ".join(tops), f"{fields} {force} {more}"),
            behind,
        ]
    )


def build(source, phase="TRAIN", **options):
    return Net(parse_text(source, NetParameter), phase, device="cpu", seed=2, **options)


def run(net, passes=2):
    """Several passes: states are carried on, gradients of parameters are added up."""
    rng, out = np.random.default_rng(3), {}
    net.clear_param_diffs()
    for number in range(passes):
        for name in net.inputs:
            shape = net.blobs[name].shape
            begins = rng.random(shape) < 0.7
            net.blobs[name].data[...] = begins if name == "cont" else rng.normal(size=shape)
        net.forward()
        out |= {f"{name} {number}": np.array(b.data) for name, b in net.blobs.items()}
        for name in net.outputs:
            net.blobs[name].diff[...] = rng.normal(size=net.blobs[name].shape)
        net.backward()
        for name in ("x", "static"):
            if name in net.blobs:
                out[f"d {name} {number}"] = np.array(net.blobs[name].diff)
    blobs = net.params["cells"]
    return out | {f"d {i}": np.array(blob.diff) for i, blob in enumerate(blobs)}


def expect_same(source):
    planned, portable = build(source), build(source, optimize=False)

    got, want = run(planned), run(portable)

    # what cancels out in the sum of one bias is as large as in the others
    learned = max(np.abs(want[f"d {i}"]).max() for i in range(len(planned.params["cells"])))
    for key, value in want.items():
        parameter = key.removeprefix("d ").isdigit()
        scale = max(1e-3, learned if parameter else np.abs(value).max())
        assert np.abs(got[key] - value).max() <= 2e-5 * scale, key
    assert "cpu" in type(step_of(planned)).__module__
    return planned


def step_of(net):
    return net.plan.steps()[net.layer_names.index("cells")]


@given(
    kind=st.sampled_from(sorted(STATES)),
    t=st.integers(1, 5),
    n=st.sampled_from([1, 2, 5, 9]),
    x=st.sampled_from([(1,), (7,), (3, 2), (33,)]),
    h=st.integers(1, 20),
    static=st.sampled_from([0, 1, 6]),
    exposed=st.booleans(),
)
def test_sequences_are_the_portable_ones(kind, t, n, x, h, static, exposed):
    expect_same(text(kind, t, n, x, h, static, exposed))


WIDTH = pytest.mark.parametrize("width", WIDTHS)


def passes(net, count=6):
    """What passes without gradients compute, all with the same input but for cont."""
    rng, found = np.random.default_rng(4), []
    for _ in range(count):
        for name in net.inputs:
            shape = net.blobs[name].shape
            begins = rng.random(shape) < 0.7
            net.blobs[name].data[...] = begins if name == "cont" else rng.normal(size=shape)
        net.forward()
        found.append([np.array(net.blobs[name].data) for name in net.outputs])
    return found


@WIDTH
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("static", [0, 6])
@pytest.mark.parametrize("exposed", [False, True])
def test_passes_without_gradients_are_calls_that_are_made_again(
    exposed, static, kind, width, monkeypatch
):
    source = text(kind, 4, 3, (5,), 21, static, exposed, gradients=False)
    played, play = [], CallRecording.play
    monkeypatch.setattr(CallRecording, "play", lambda notes: (played.append(notes), play(notes)))
    want = passes(build(source, "TEST", optimize=False))

    with tuned(width=width):
        net = build(source, "TEST")
        got = passes(net)

    assert "llvm" in step_of(net).code
    assert "numpy" not in step_of(net).code
    assert len(played) == 3
    for ones, others in zip(got, want, strict=True):
        for one, other in zip(ones, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@WIDTH
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("h", [5, 40])
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_learn_by_kernels(threads, h, kind, width):
    with tuned(width=width, threads=threads):
        net = expect_same(text(kind, 4, 7, (5,), h, 3))

    assert "numpy" not in step_of(net).code
    assert "llvm" in step_of(net).backward_code


@WIDTH
def test_without_gradients_the_weight_lies_in_memory_as_it_is_read_alone(width):
    with tuned(width=width):
        net = build(text("LSTM", 4, 3, (5,), 32, gradients=False), "TEST")
        passes(net)

    weight = net.params["cells"][2]
    assert weight.data_memory.allocated == weight.data_memory.nbytes
    assert weight.data.shape == (4 * 32, 32)


@WIDTH
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_goes_where_portable_code_sends_it(value, kind, width):
    def of(net):
        found = passes(net, 2)
        net.blobs["x"].data[1, 1, 2] = value
        net.forward()
        found.append([np.array(net.blobs[name].data) for name in net.outputs])
        return found + passes(net, 2)  # what was lost is carried on

    source = text(kind, 4, 3, (5,), 19, gradients=False)
    want = of(build(source, "TEST", optimize=False))

    with tuned(width=width):
        got = of(build(source, "TEST"))

    assert np.isnan(want).any() == np.isnan(value)
    for ones, others in zip(got, want, strict=True):
        np.testing.assert_allclose(ones, others, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(
    "more",
    [
        "param { lr_mult: 0 }",
        "param {} param { lr_mult: 0 }",
        "param {} param {} param { lr_mult: 0 }",
    ],
    ids=["of x", "bias", "of the hidden state"],
)
def test_parameters_that_are_not_learned(kind, more):
    source = text(kind, 3, 2, (4,), 5, more=more)
    planned, portable = build(source), build(source, optimize=False)

    got, want = run(planned), run(portable)

    for key in (key for key in want if key[0] == "d"):
        np.testing.assert_allclose(got[key], want[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("kind", STATES)
def test_the_output_may_be_overwritten(kind):
    expect_same(text(kind, 3, 2, (4,), 16, behind=layer("relu", "ReLU", "y", "y")))


@pytest.mark.parametrize("kind", STATES)
def test_states_go_on_where_the_number_of_sequences_stays(kind):
    """What is carried belongs to the layer, not to the way it runs."""
    source = text(kind, 2, 3, (4,), 5)
    whole, portable = build(source), build(source, optimize=False)
    rng = np.random.default_rng(0)

    for number in range(4):
        values = rng.normal(size=(2, 3, 4))
        for net in (whole, portable):
            net.blobs["cont"].data[...] = number > 0
            net.blobs["x"].data[...] = values
            net.forward()
        np.testing.assert_allclose(
            whole.blobs["y"].data, portable.blobs["y"].data, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("exposed", [False, True])
def test_fewer_sequences_lie_in_memory_for_more(exposed, kind):
    source = text(kind, 3, 5, (4,), 6, 3, exposed, gradients=False)
    planned, portable = build(source, "TEST"), build(source, "TEST", optimize=False)

    def of(net):
        found = passes(net, 4)
        for name in net.inputs:
            shape = list(net.blobs[name].shape)
            shape[0 if name == "static" else 1] = 2
            net.blobs[name].reshape(*shape)
        return found + passes(net, 4)

    for ones, others in zip(of(planned), of(portable), strict=True):
        for one, other in zip(ones, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert "cpu" in type(step_of(planned)).__module__


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("kind", STATES)
def test_a_changed_weight_is_packed_anew(kind, phase):
    source = text(kind, 3, 2, (4,), 5, gradients=phase == "TRAIN")
    planned, portable = build(source, phase), build(source, phase, optimize=False)
    passes(planned), passes(portable)

    for net in (planned, portable):
        for blob in net.params["cells"]:
            blob.data[...] *= 0.5
        net.forward()

    np.testing.assert_allclose(
        planned.blobs["y"].data, portable.blobs["y"].data, rtol=1e-4, atol=1e-6
    )
