"""Parameter updates by the GPU's kernel, run on the host, against the portable formulas."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_host import HostEngine, host_cuda
from goldens import golden_solvers

from demitasse.backends.cupy.library.engine import Grid
from demitasse.backends.cupy.updates import UNIT, Updates
from demitasse.backends.updates import Piece, Update
from demitasse.training import update_rules
from demitasse.training.update_rules import RULES

RNG = np.random.default_rng(0)
GRIDS = [Grid(1, 1), Grid(2, 4)]


def piece(update: Update, size: int, dtype: str) -> Piece:
    data, diff = RNG.normal(size=(2, size)).astype(dtype)
    history = [
        abs(RNG.normal(size=size)).astype(dtype)
        for _ in range(RULES[update.kind].formula.histories)
    ]
    return Piece(update, data, diff, history)


def copy_of(one: Piece) -> Piece:
    return Piece(one.update, one.data.copy(), one.diff.copy(), [h.copy() for h in one.history])


@pytest.mark.parametrize("kind", [kind for kind, rule in RULES.items() if not rule.trusts])
@pytest.mark.parametrize("scale", [1.0, 0.25, np.array(0.5)], ids=str)
@pytest.mark.parametrize("l1", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.02])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_all_parameters_in_one_launch(kind, scale, l1, decay, grid):
    engine = HostEngine(grid)
    first = Update(
        kind, rate=0.05, decay=decay, l1=l1, scale=scale, momentum=0.9, decay2=0.95, delta=1e-3,
        correction=0.8,
    )  # fmt: skip
    second = replace(first, rate=0.1, decay=2 * decay)
    pieces = [
        piece(first, 3, "float64"),
        piece(second, 0, "float64"),
        piece(second, UNIT + 5, "float64"),
    ]
    expected = [copy_of(p) for p in pieces]

    Updates(engine).apply(pieces)

    assert engine.launched == [kind.lower()]
    for got, want in zip(pieces, expected, strict=True):
        update_rules.apply(np, want)
        for a, b in zip(
            (got.data, got.diff, *got.history), (want.data, want.diff, *want.history), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_single_precision():
    update = Update("SGD", rate=0.1, decay=0.01, momentum=0.9)
    got = piece(update, 100, "float32")
    want = copy_of(got)

    Updates(HostEngine()).apply([got])
    update_rules.apply(np, want)

    np.testing.assert_allclose(got.data, want.data, rtol=1e-6)


def test_memory_that_comes_back_as_another_type():
    updates, memory = Updates(HostEngine()), np.empty((3, 100))
    for dtype in ("float32", "float64", "float32"):
        data, diff, history = (row.view(dtype)[:100] for row in memory)
        data[:], diff[:], history[:] = RNG.normal(size=(3, 100))
        got = Piece(Update("SGD", rate=0.1, decay=0.01, momentum=0.9), data, diff, [history])
        want = copy_of(got)

        updates.apply([got])
        update_rules.apply(np, want)

        np.testing.assert_allclose(got.data, want.data, rtol=1e-5)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("sizes", [[5], [3, 0, 2 * UNIT + 1], [0]], ids=str)
def test_sum_of_squares(grid, sizes):
    diffs = [RNG.normal(size=n) for n in sizes]

    total = Updates(HostEngine(grid)).sumsq(diffs)

    assert total.shape == ()
    np.testing.assert_allclose(total, update_rules.sumsq(np, diffs))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("total", [0.0, 3.9, 4.1, 1e30, np.inf, np.nan])
def test_what_keeps_a_norm_within_a_limit(grid, total):
    total = np.array(total, "float32")

    scale = Updates(HostEngine(grid)).clip_scale(total, 2.0)

    np.testing.assert_array_equal(scale, update_rules.clip_scale(np, total, 2.0))


def test_a_table_of_addresses_is_made_once():
    kernels, update = Updates(HostEngine()), Update("SGD", rate=0.1)
    one, other = piece(update, 4, "float64"), piece(update, 4, "float64")

    for _ in range(2):
        kernels.apply([one, other])

    assert len(kernels._known) == 1


def test_tables_of_several_solvers_that_clip_are_made_once():
    engine, update = HostEngine(), Update("SGD", rate=0.1)
    kernels = Updates(engine)
    nets = [[piece(update, 4, "float64"), piece(update, 5, "float64")] for _ in range(3)]
    made = []

    for _ in range(3):
        for pieces in nets:
            kernels.sumsq([one.diff for one in pieces])
            kernels.apply(pieces)
        made.append({key: id(table) for key, table in kernels._known.items()})

    assert len(made[0]) == 6
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("case", golden_solvers(), ids=str)
def test_recorded_solvers(case, tmp_path, monkeypatch):
    if case.name == "hdf5_snapshot":
        pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    solver = case.solver(tmp_path, device=host_cuda())

    got = case.run(solver)

    case.check(got)
