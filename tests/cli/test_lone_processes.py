"""Processes that were started together and cannot find each other, as by ``srun`` without PMIx."""

import pytest

pytestmark = pytest.mark.usefixtures("project")


@pytest.fixture
def in_step(monkeypatch):
    """Let this process be one of four tasks of a step of Slurm."""
    for name, value in (("STEP_ID", "0"), ("STEP_NUM_TASKS", "4"), ("NTASKS", "4")):
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_lone_ones_of_several_do_not_train(run, in_step, project):
    result = run("train -solver solver.prototxt")

    assert result.exit_code == 3
    assert "srun" in result.stderr
    assert "4" in result.stderr
    assert "--expect-processes 1" in result.stderr
    assert not list(project.glob("*.caffemodel"))


def test_they_train_where_each_is_to_be_by_itself(run, in_step):
    assert run("train -solver solver.prototxt -expect-processes 1").exit_code == 0


def test_a_script_of_a_job_with_several_tasks_is_none_of_them(run, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")

    assert run("train -solver solver.prototxt").exit_code == 0


def test_the_one_task_of_a_step_trains(run, in_step, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")

    assert run("train -solver solver.prototxt").exit_code == 0
