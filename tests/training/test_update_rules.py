"""Updates against plain loops in double precision, on every array library, and the fast ones."""

import math
from dataclasses import replace

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.backends.numpy import updates as numpy_updates
from demitasse.backends.updates import Piece, Update
from demitasse.core.device import Device
from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter, parse_text
from demitasse.memory import SyncedMemory
from demitasse.training import update_rules
from demitasse.training.update_rules import RULES, check_update, numbers

KINDS = list(RULES)
FAST = [kind for kind in KINDS if not RULES[kind].trusts]


def update(kind: str, **values: float) -> Update:
    momentum = 0.0 if kind in {"AdaGrad", "RMSProp"} else 0.9
    base = Update(
        kind, rate=0.05, decay=0.02, momentum=momentum, decay2=0.95, delta=1e-3, correction=0.8
    )
    return replace(base, **values)


def arrays(kind: str, size: int, dtype: str = "float64") -> list[np.ndarray]:
    """Weights, gradient and history: none of them special."""
    rng = np.random.default_rng(len(kind) + size)
    weights, diff = rng.normal(size=(2, size))
    history = np.abs(rng.normal(size=(RULES[kind].formula.histories, size)))
    return [np.array(a, dtype) for a in (weights, diff, *history)]


def by_hand(u: Update, w: float, g: float, h: float, k: float) -> tuple[float, float, float]:
    """One element: the value subtracted and the new histories."""
    g *= float(u.scale)
    if u.kind not in {"AdamW", "LAMB"}:
        g += u.decay * (math.copysign(1, w) if u.l1 else w)
    m, r = u.momentum, u.rate
    if u.kind in {"SGD", "LARS"}:
        h = m * h + r * g
        return h, h, k
    if u.kind == "Nesterov":
        new = m * h + r * g
        return new + m * (new - h), new, k
    if u.kind == "AdaGrad":
        h += g**2
        return r * g / (h**0.5 + u.delta), h, k
    if u.kind == "RMSProp":
        h = u.decay2 * h + (1 - u.decay2) * g**2
        return r * g / (h**0.5 + u.delta), h, k
    if u.kind == "AdaDelta":
        h = m * h + (1 - m) * g**2
        v = g * ((k + u.delta) / (h + u.delta)) ** 0.5
        return r * v, h, m * k + (1 - m) * v**2
    h = m * h + (1 - m) * g
    k = u.decay2 * k + (1 - u.decay2) * g**2
    value = r * u.correction * h / (k**0.5 + u.delta)
    return value + (r * u.decay * w if u.kind in {"AdamW", "LAMB"} else 0), h, k


def expected(u: Update, given: list[np.ndarray]) -> list[np.ndarray]:
    out = [np.array(a, np.float64) for a in given]
    for i in range(len(out[0])):
        w, g, h, *rest = (float(a[i]) for a in out)
        value, h, k = by_hand(u, w, g, h, rest[0] if rest else 0.0)
        for array, new in zip(out, (w - value, value, h, k), strict=False):
            array[i] = new
    return out


def run(u: Update, given: list[np.ndarray], device: str) -> list[np.ndarray]:
    """Make one update on a device, as a solver does; return weights, diff, history."""
    there = Device(device)
    memories = [SyncedMemory(a.size, a.dtype.name, there) for a in given]
    for memory, array in zip(memories, given, strict=True):
        memory.mutable_cpu_data()[...] = array
    backend = there.backend
    with backend.enter():
        data, diff, *history = [memory.mutable_gpu_data() for memory in memories]
        piece = Piece(u, data, diff, history)
        kernels = backend.updates
        if kernels is None or u.kind not in FAST:
            update_rules.apply(backend.xp, piece)
        else:
            kernels.apply([piece])
        return [memory.cpu_data() for memory in memories]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_is_the_formula(kind, dtype, backend):
    u, given = update(kind, scale=0.5), arrays(kind, 37, dtype)

    got = run(u, given, backend)

    for array, want in zip(got, expected(u, given), strict=True):
        assert array.dtype == dtype
        np.testing.assert_allclose(array, want, rtol=2e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if RULES[kind].takes_l1])
def test_l1_decay_is_the_sign(kind, backend):
    u, given = update(kind, l1=True), arrays(kind, 20)

    got = run(u, given, backend)

    for array, want in zip(got, expected(u, given), strict=True):
        np.testing.assert_allclose(array, want, rtol=1e-12)


def length(values):
    return math.sqrt(sum(float(value) ** 2 for value in values))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lars_has_a_rate_by_the_norms_of_weights_and_gradient(dtype, backend):
    u = update("LARS", scale=0.5, trust=0.01)
    w, g, h = arrays("LARS", 37, dtype)

    got, change, history = run(u, [w, g, h], backend)

    ratio = 0.01 * length(w) / (0.5 * length(g) + u.decay * length(w))
    want = [
        u.momentum * h[i] + u.rate * ratio * (0.5 * float(g[i]) + u.decay * float(w[i]))
        for i in range(37)
    ]
    rtol = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(change, want, rtol=rtol)
    np.testing.assert_allclose(history, want, rtol=rtol)
    np.testing.assert_allclose(got, w - np.array(want), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lamb_steps_as_far_as_the_weights_are_long(dtype, backend):
    u, given = update("LAMB", trust=1.0), arrays("LAMB", 37, dtype)

    got, change, *_ = run(u, given, backend)

    _, plain, *_ = expected(u, given)  # with the common rate
    want = plain * length(given[0]) / (length(plain) / u.rate)
    rtol = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(change, want, rtol=rtol)
    np.testing.assert_allclose(length(change), u.rate * length(given[0]), rtol=rtol)
    np.testing.assert_allclose(got, given[0] - want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
def test_weights_of_zero_have_the_common_rate(kind, backend):
    w, g, *history = arrays(kind, 9)
    given = [np.zeros_like(w), g, *history]

    got = run(update(kind, trust=1.0), given, backend)

    for array, want in zip(got, expected(update(kind), given), strict=True):
        np.testing.assert_allclose(array, want, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_comes_of_nothing(kind, backend):
    """Padding and weights without a gradient stay zero: no 0 / 0."""
    given = [np.zeros(5) for _ in range(2 + RULES[kind].formula.histories)]

    got = run(update(kind), given, backend)

    assert not np.any(got)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("changes", [{}, {"decay": 0.0}, {"l1": True}, {"scale": 0.25}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fast_updates_are_the_portable_ones_bit_for_bit(kind, changes, dtype):
    u = update(kind, **changes)
    sizes = [1, 1000, numpy_updates.BLOCK, 2 * numpy_updates.BLOCK + 17]
    given = [arrays(kind, size, dtype) for size in sizes]
    fast = [Piece(u, w.copy(), g.copy(), [a.copy() for a in h]) for w, g, *h in given]

    numpy_updates.apply(fast)

    for piece, (w, g, *h) in zip(fast, given, strict=True):
        update_rules.apply(np, Piece(u, w, g, h))
        for got, want in zip((piece.data, piece.diff, *piece.history), (w, g, *h), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("block", [1, 64, 1000])
def test_blocks_change_nothing(block, monkeypatch):
    monkeypatch.setattr(numpy_updates, "BLOCK", block)
    u = update("Adam")
    given = [arrays("Adam", size) for size in (3, 1000, 64, 129, 1)]
    pieces = [Piece(u, w.copy(), g.copy(), [a.copy() for a in h]) for w, g, *h in given]

    numpy_updates.apply(pieces)

    for piece, (w, g, *h) in zip(pieces, given, strict=True):
        update_rules.apply(np, Piece(u, w, g, h))
        np.testing.assert_array_equal(piece.data, w)


def test_sum_of_squares(backend):
    library = Device(backend).backend
    given = [np.full(5, 2.0), np.arange(3.0)]
    diffs = [library.asarray(a) for a in given]
    kernels = library.updates

    with library.device_scope():
        total = float(kernels.sumsq(diffs) if kernels else update_rules.sumsq(library.xp, diffs))

    assert total == 25.0


@pytest.mark.parametrize(("norm", "want"), [(0.0, 1.0), (2.0, 1.0), (8.0, 0.5), (math.nan, 1.0)])
def test_clip_scale_on_the_device(norm, want, backend):
    library = Device(backend).backend
    total = library.asarray(np.array(norm**2))

    with library.device_scope():
        got = float(update_rules.clip_scale(library.xp, total, 4.0))

    assert got == want


def test_adam_corrects_its_first_steps():
    fields = parse_text("momentum: 0.5 momentum2: 0.75", SolverParameter)

    first, later = (numbers(fields, RULES["Adam"], 0.1, n) for n in range(2))

    assert first.correction == pytest.approx(math.sqrt(0.25) / 0.5)
    assert later.correction == pytest.approx(math.sqrt(1 - 0.75**2) / (1 - 0.5**2))


@pytest.mark.parametrize(
    ("kind", "text", "code", "field", "mentions"),
    [
        ("AdaGrad", "momentum: 0.9", ErrorCode.UNSUPPORTED, "momentum", []),
        ("RMSProp", "momentum: 0.9", ErrorCode.UNSUPPORTED, "momentum", []),
        ("RMSProp", "rms_decay: 1", ErrorCode.OUT_OF_RANGE, "rms_decay", "1"),
        ("AdaDelta", "momentum: 1.5", ErrorCode.OUT_OF_RANGE, "momentum", "1.5"),
        ("Adam", "momentum: 1", ErrorCode.OUT_OF_RANGE, "momentum", "1"),
        ("Adam", "momentum2: -0.5", ErrorCode.OUT_OF_RANGE, "momentum2", "-0.5"),
        ("AdamW", "momentum2: 1", ErrorCode.OUT_OF_RANGE, "momentum2", "1"),
        ("LARS", "trust_coefficient: 0", ErrorCode.OUT_OF_RANGE, "trust_coefficient", "0"),
        (
            "LARS",
            "weight_decay: 1 regularization_type: 'L1'",
            ErrorCode.UNKNOWN,
            "regularization_type",
            ["L2", "'L1'"],
        ),
        ("LAMB", "momentum: 1", ErrorCode.OUT_OF_RANGE, "momentum", "1"),
        (
            "SGD",
            "weight_decay: 1 regularization_type: 'L3'",
            ErrorCode.UNKNOWN,
            "regularization_type",
            ["L2 or L1", "'L3'"],
        ),
        (
            "AdamW",
            "weight_decay: 1 regularization_type: 'L1'",
            ErrorCode.UNKNOWN,
            "regularization_type",
            ["L2", "'L1'"],
        ),
    ],
)
def test_refusal_names_the_field(kind, text, code, field, mentions):
    with expect_error(ConfigError, code, mentions=[kind, *mentions], field=field):
        check_update(parse_text(text, SolverParameter), RULES[kind])


def test_regularization_type_does_not_matter_without_decay():
    check_update(parse_text("regularization_type: 'L3'", SolverParameter), RULES["SGD"])
