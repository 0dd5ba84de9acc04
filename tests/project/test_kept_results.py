"""``-p kept_results``: a run of tests that continues where the last run ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
TESTS = """
import os
import pytest

def test_passes(): pass

@pytest.mark.skip
def test_is_skipped(): pass

def test_fails_at_first(): assert "MENDED" in os.environ
"""


@pytest.fixture
def run(tmp_path):
    """Run the tests with some options; return exit code and output."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    kept = tmp_path / "results/some.jsonl"

    def call(*options, **given):
        outer = {name: one for name, one in os.environ.items() if not name.startswith("PYTEST_")}
        env = {**outer, "PYTHONPATH": str(SUPPORT), "KEPT_RESULTS": str(kept),
               "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **given}  # fmt: skip
        plugins = "-p", "xdist.plugin", "-p", "kept_results"  # others take seconds to import
        command = [sys.executable, "-m", "pytest", "-q", *plugins, *options]
        done = subprocess.run(
            command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True
        )
        return done.returncode, done.stdout

    call.kept = kept
    return call


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_has_passed_is_left_out_of_the_next_run(processes, run):
    first, _ = run("-n", processes)
    second, output = run("-n", processes, MENDED="1")
    third, last = run("-n", processes)

    assert (first, second, third) == (1, 0, 0)
    assert "1 passed" in output.splitlines()[-1]
    assert "all runs of some: 2 passed, 1 skipped" in output
    assert "all runs of some: 2 passed, 1 skipped" in last


def test_a_line_that_was_cut_off_is_no_result(run):
    run(MENDED="1")
    run.kept.write_text(run.kept.read_text()[:-9])  # of the last test

    code, output = run(MENDED="1")

    assert code == 0
    assert "1 passed" in output.splitlines()[-1]
    assert "all runs of some: 2 passed, 1 skipped" in output
