"""The first run on a GPU, rehearsed on the stand-in: sections that pass, hang, crash and fail."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from cuda_host import need_compiler
from cudnn_devices import gpu_with_cudnn, installed
from cudnn_standin import Frontend

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    """Run sections; return the exit code and the lines of the report."""
    need_compiler()
    report = tmp_path / "report.jsonl"

    def run(*names):
        only = [word for name in names for word in ("--only", name)]
        command = [sys.executable, "bench/gpu_first_run.py", "--stand-in", "--out", report, *only]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
        return done.returncode, [json.loads(line) for line in report.read_text().splitlines()]

    return run


def test_a_section_is_measured_once(run):
    code, [line] = run("random words")
    assert (code, line["status"], line["result"]) == (0, "passed", {"count": 1000})

    assert run("random words") == (0, [line])


@pytest.mark.slow
def test_short_sections_pass_on_the_stand_in(run):
    names = [
        "facts", "nets against the host", "training against the host", "training in 16 bits",
        "options against defaults", "steps", "options", "cuDNN and NaN", "host microseconds",
        "GB/s", "TFLOP/s", "convolutions", "milliseconds by layer",
    ]  # fmt: skip
    code, lines = run(*names)

    assert [(line["section"], line["status"], line.get("printed")) for line in lines] == [
        (name, "passed", None) for name in names
    ]
    assert code == 0


def test_sections_that_end_badly_do_not_stop_the_others(run):
    code, lines = run("hangs", "crashes", "fails", "copies in an iteration")

    assert code == 1
    assert [(line["section"], line["status"]) for line in lines] == [
        ("hangs", "timed out"),
        ("crashes", "crashed"),
        ("fails", "failed"),
        ("copies in an iteration", "passed"),
        ("hangs, launch blocking", "timed out"),
        ("crashes, launch blocking", "crashed"),
        ("fails, launch blocking", "failed"),
    ]
    assert "a check that fails" in lines[2]["printed"]


@pytest.mark.slow
def test_options_are_compared_over_a_simulated_cudnn(monkeypatch):
    """The sections themselves run without cuDNN on the stand-in."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    checks = import_module("gpu_checks")
    with installed(Frontend()) as frontend, gpu_with_cudnn(frontend) as gpu:
        found = checks.options(gpu, dry=True)

    assert found["channels_last, residual"]["option"] > 0
    assert found["channels_last, googlenet"]["option"] > 0


@pytest.mark.parametrize(
    ("gains", "default"),
    [
        ([1.2, 0.995], "on"),
        ([1.04, 1.03, 1.0], "on"),
        ([1.04, 1.0, 1.0], "off"),
        ([1.5, 1.1, 0.98], "off"),
    ],
)
def test_which_default_is_right(gains, default, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))

    assert import_module("gpu_steps").right_default(gains) == default
