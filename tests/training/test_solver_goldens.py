"""The recorded solvers: every step's weights and loss, from the start and from Caffe's snapshot."""

import pytest
from goldens import golden_solvers


@pytest.mark.parametrize("case", golden_solvers(), ids=str)
def test_solver_matches_caffe(case, backend, tmp_path, monkeypatch):
    if case.name == "hdf5_snapshot":
        pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    solver = case.solver(tmp_path, device=backend)

    got = case.run(solver)

    case.check(got)
