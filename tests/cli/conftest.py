"""A small data set, a net that learns it, and a way to run the command line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner, Result

from demitasse.cli.errors import CliError
from demitasse.cli.root import cli
from demitasse.io.data.databases.writing import write_database

NET = """
name: "stripes"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "train_lmdb" backend: LMDB batch_size: 8 } transform_param { scale: 0.01 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { source: "test_lmdb" backend: LMDB batch_size: 4 } transform_param { scale: 0.01 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

DEPLOY = """
name: "stripes"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 1 dim: 3 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

SOLVER = """
net: "net.prototxt"
test_iter: 2 test_interval: 10
base_lr: 0.05 lr_policy: "step" gamma: 0.5 stepsize: 10 momentum: 0.9
max_iter: 20 display: 5 random_seed: 1 snapshot_prefix: "run"
"""

RECORDS = {"train": 40, "test": 10}


def stripes(count: int) -> list[tuple[np.ndarray, int]]:
    """Images (1, 3, 3) with one bright row, whose number is the label."""
    noise = np.random.default_rng(count).integers(0, 40, (count, 1, 3, 3))
    for index in range(count):
        noise[index, 0, index % 3] += 200
    return [(image, index % 3) for index, image in enumerate(noise.astype(np.uint8))]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder that holds two databases, nets and a solver."""
    for split, count in RECORDS.items():
        write_database(tmp_path / f"{split}_lmdb", stripes(count))
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run the command line in this process; arguments are one text, or several.

    The result's ``error`` is the exception that ended the command, or None.
    """

    def invoke(*args: str) -> Result:
        words = args[0].split() if len(args) == 1 else list(args)
        faults: list[CliError] = []
        show = CliError.show

        def record(fault: CliError, file: object = None) -> None:
            faults.append(fault)
            show(fault, file)

        with patch.object(CliError, "show", record):
            result = CliRunner().invoke(cli, words)
        result.error = faults[-1].__cause__ if faults else None
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def trained(project: Path, run: Callable[..., Result]) -> Path:
    """The project, after a training run of 20 iterations."""
    assert run("train -solver solver.prototxt").exit_code == 0
    return project


@pytest.fixture
def start() -> Callable[..., subprocess.Popen]:
    """Start the command line as a process; it is killed when the test ends before it."""
    started = []

    def popen(args: str, **options: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "demitasse", *args.split()]
        options = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True} | options
        process = subprocess.Popen(command, **options)
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
