"""The largest batch that fits: the search, and nets that are really run."""

import pytest
from expect_error import expect_error
from needs import needs
from wide_net import NET

import demitasse as dm
from demitasse.benchmark import largest
from demitasse.benchmark.largest import Trial, TrialResult
from demitasse.core import device as devices
from demitasse.core.device import Device
from demitasse.core.host import HostMemory
from demitasse.errors import ErrorCode
from demitasse.io.proto import NetParameter
from demitasse.net.memory_usage import MemoryUse

MIB = 1 << 20

on_linux = needs("limits of memory")


class Fake(Trial):
    """A trial of a net whose memory is a function of the batch; notes what is tried."""

    def __init__(self, needs, temporary=lambda batch: 0):
        super().__init__(NetParameter(), ("data",), "TRAIN", "numpy", "outputs")
        object.__setattr__(self, "needs", needs)
        object.__setattr__(self, "temporary", temporary)
        object.__setattr__(self, "tried", [])

    def run(self, batches, limit):
        answers = []
        for batch in batches:
            self.tried.append(batch)
            use = MemoryUse(parameters=100, blobs=self.needs(batch))
            peak = use.total + self.temporary(batch)
            if peak > limit:
                return [*answers, TrialResult(batch, lacks="no memory")]
            answers.append(TrialResult(batch, "", use, peak))
        return answers


def searched(trial, limit, *, max_batch=65536, free=None):
    search = largest._Search(
        trial, limit, limit if free is None else free, max_batch, lambda b: None
    )
    line = search.line()
    search.around(min(max_batch, line.batch_within(limit)))
    return search


class TestSearch:
    @pytest.mark.parametrize("limit", [500, 4000, 100_000, 600_000])
    def test_what_grows_along_a_line_is_found_at_once(self, limit):
        trial = Fake(lambda batch: 10 * batch)

        search = searched(trial, limit)

        best = (limit - 100) // 10
        assert best - best // 16 <= search.fits.batch <= best
        assert search.refused is None or search.refused > best
        assert len(trial.tried) < 12

    @pytest.mark.parametrize("factor", [0.2, 1, 5])
    def test_temporary_arrays_make_it_smaller(self, factor):
        trial = Fake(lambda batch: 10 * batch, lambda batch: int(factor * 10 * batch))

        search = searched(trial, 100_000)

        best = 99_900 / (10 * (1 + factor))
        assert 0.93 * best <= search.fits.batch <= best
        assert search.fits.batch < search.refused
        assert search.why == "no memory"

    def test_code_that_takes_less_from_some_batch_on_makes_it_larger(self):
        trial = Fake(lambda batch: 10 * batch if batch < 100 else 3 * batch)

        search = searched(trial, 30_000)

        assert 9300 <= search.fits.batch <= 29_900 // 3

    def test_a_small_limit(self):
        trial = Fake(lambda batch: 100 * batch)

        search = searched(trial, 450)

        assert (search.fits.batch, search.refused) == (3, 4)

    def test_not_even_one(self):
        with expect_error(dm.OutOfMemoryError, ErrorCode.OUT_OF_MEMORY, mentions=["2", "150"]):
            searched(Fake(lambda batch: 100 * batch), 150)

    def test_it_ends_at_the_largest_that_is_looked_for(self):
        search = searched(Fake(lambda batch: batch), 1 << 30, max_batch=1000)

        assert (search.fits.batch, search.refused) == (1000, None)

    def test_more_than_is_free_is_never_given(self):
        trial = Fake(lambda batch: 10 * batch)

        search = searched(trial, 100_000, free=50_000)

        assert search.fits.use.total <= 50_000

    def test_where_nobody_knows_what_is_free_nothing_large_is_run(self):
        search = largest._Search(Fake(lambda batch: batch), 500, None, 65536, lambda batch: None)

        assert search.line().batch_within(500) == 400
        assert not search.may_try(MemoryUse(blobs=1))


class TestNets:
    @pytest.fixture
    def net(self, tmp_path):
        path = tmp_path / "wide.prototxt"
        path.write_text(NET)
        return path

    def test_what_is_computed_without_a_run(self, net):
        found = dm.largest_batch(net, device="numpy", phase="test", limit="8MiB", confirm=False)

        assert not found.confirmed
        assert found.batch == found.computed > 100
        assert 0.9 * 8 * MIB < found.use.total <= 8 * MIB
        assert found.use.parameters == 4 * (4096 + 1) * 16
        assert found.use.parameter_gradients == found.use.history == 0

    @on_linux
    def test_what_fits_is_run_and_more_does_not(self, net):
        found = dm.largest_batch(net, device="numpy", limit="32MiB", solver="adam")

        assert found.confirmed
        assert found.batch < found.refused <= 1.1 * found.batch + 1
        assert found.use.history == pytest.approx(2 * found.use.parameters, rel=0.01)
        assert found.use.parameter_gradients > 0
        assert found.use.total < 40 * MIB
        assert "no memory left" in found.why

    def test_the_data_of_a_net_with_a_solver_prototxt(self, net, tmp_path):
        (tmp_path / "solver.prototxt").write_text('net: "wide.prototxt" type: "Nesterov"')

        found = dm.largest_batch(
            net, device="numpy", limit="32MiB", solver=tmp_path / "solver.prototxt", confirm=False
        )

        assert found.solver == "Nesterov"
        assert found.use.history == pytest.approx(found.use.parameters, rel=0.01)

    def test_a_net_that_takes_one_batch_only_is_refused_for_its_own_reason(self, net):
        fixed = 'layer { name: "r" type: "Reshape" bottom: "ip" top: "r" reshape_param { shape {'
        net.write_text(f"{NET}{fixed} dim: 4 dim: 16 }} }} }}")

        with expect_error(dm.DemitasseError, mentions="'r'"):
            dm.largest_batch(net, device="numpy", limit="8MiB", confirm=False)


class TestWhatCannotBe:
    def test_a_limit_that_is_none(self):
        with expect_error(dm.ConfigError, ErrorCode.INVALID, field="limit", mentions="'much'"):
            largest._limits(Device("numpy"), "much")

    def test_a_solver_in_phase_test(self, tmp_path):
        path = tmp_path / "wide.prototxt"
        path.write_text(NET)

        with expect_error(dm.ConfigError, ErrorCode.CONFLICT, field="phase", got="TEST"):
            dm.largest_batch(path, device="numpy", phase="test", solver="SGD")

    def test_where_nobody_knows_what_is_free_a_limit_is_asked_for(self, monkeypatch):
        monkeypatch.setattr(devices, "host_memory", lambda: HostMemory(8 << 30, None, None))

        with expect_error(dm.ConfigError, ErrorCode.UNAVAILABLE, field="limit"):
            largest._limits(Device("numpy"), None)
