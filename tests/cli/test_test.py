"""``demitasse test``: scores, and one epoch exactly."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from demitasse import Net


def score(run, flags: str) -> dict:
    result = run(f"test -model net.prototxt -weights run_iter_20.caffemodel --json {flags}")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_every_batch_and_the_means_are_logged(trained, run):
    log = run("test -model=net.prototxt -weights=run_iter_20.caffemodel -iterations=3").stderr

    losses = [float(v) for v in re.findall(r"Batch \d, loss = (\S+)", log)]
    [mean] = re.findall(r"\] Loss: (\S+)", log)
    assert "Running for 3 iterations." in log
    assert len(losses) == 3
    assert float(mean) == pytest.approx(np.mean(losses), rel=1e-4)
    assert f"loss = {mean} (* 1 = {mean} loss)" in log
    assert re.search(r"\] accuracy = \S+$", log, re.MULTILINE)


def test_fifty_batches_are_the_default(trained, run):
    assert score(run, "")["batches"] == 50


@pytest.mark.parametrize("weights", ["", ",", " "])
def test_weights_that_name_no_file_are_wrong_usage(project, run, weights):
    result = run("test", "-model", "net.prototxt", f"-weights={weights}")

    assert result.exit_code == 2
    assert "--weights" in result.stderr


@pytest.mark.parametrize("number", ["0", "-3", "many", "1.5"])
def test_other_numbers_of_batches_are_wrong_usage(project, run, number):
    result = run(f"test -model net.prototxt -weights w -iterations {number}")

    assert result.exit_code == 2
    assert "epoch" in result.stderr


def test_an_epoch_counts_every_record_once(trained, run):
    text = Path("net.prototxt").read_text()
    Path("whole.prototxt").write_text(text.replace("batch_size: 4", "batch_size: 10"))

    epoch = score(run, "-iterations epoch")

    whole = run("test -model whole.prototxt -weights run_iter_20.caffemodel -iterations 1 --json")
    assert epoch["batches"] == 3  # 4 + 4 + 2 of 10 records
    assert epoch["outputs"] == pytest.approx(json.loads(whole.stdout)["outputs"], rel=1e-5)
    assert epoch["outputs"] != pytest.approx(score(run, "-iterations 3")["outputs"], rel=1e-5)


def test_an_epoch_of_batches_that_divide_it(trained, run):
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace("batch_size: 4", "batch_size: 5"))

    assert score(run, "-iterations epoch")["batches"] == 2


def test_an_epoch_smaller_than_a_batch(trained, run):
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace("batch_size: 4", "batch_size: 64"))

    assert score(run, "-iterations epoch")["batches"] == 1


def test_an_epoch_without_data_is_refused(trained, run):
    result = run("test -model deploy.prototxt -weights run_iter_20.caffemodel -iterations epoch")

    assert result.exit_code == 3
    assert "epoch" in result.stderr


@pytest.mark.parametrize("kind", ["h5", "npz", "safetensors"])
def test_an_export_scores_what_the_weights_score(trained, run, kind):
    run(f"weights export run_iter_20.caffemodel exported.{kind}")

    result = run(f"test -model net.prototxt -weights exported.{kind} --json -iterations 3")

    assert json.loads(result.stdout) == score(run, "-iterations 3")


def test_layers_without_weights_are_told(trained, run):
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace('name: "ip"', 'name: "other"'))

    log = run("test -model net.prototxt -weights run_iter_20.caffemodel -iterations 1").stderr

    assert "Ignoring source layer ip" in log
    assert "No file has weights for layer other" in log


def test_layers_that_do_not_fit_can_be_left_out(trained, run):
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace("num_output: 3", "num_output: 4"))
    flags = "-model net.prototxt -weights run_iter_20.caffemodel -iterations 1"

    assert run(f"test {flags}").exit_code == 3
    assert "Left out: " in run(f"test {flags} -on_mismatch skip").stderr


def test_the_device_is_that_of_the_argument(trained, run):
    flags = "-iterations 1 -device numpy"

    log = run(f"test -model net.prototxt -weights run_iter_20.caffemodel {flags}").stderr

    assert "Use numpy." in log


def test_weights_are_needed(project, run):
    assert run("test -model net.prototxt").exit_code == 2


def test_scores_agree_with_the_net(trained, run):
    net = Net("net.prototxt", "TEST", weights="run_iter_20.caffemodel")
    losses = [net.forward() for _ in range(4)]
    net.close()

    assert score(run, "-iterations 4")["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
