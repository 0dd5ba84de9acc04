"""What a solver tells its loggers."""

import itertools
import json

from demitasse.training import Solver, report
from demitasse.training.tracking import JsonLines


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def named(path, name):
    return {
        entry["iteration"]: entry["values"][name]
        for entry in entries(path)
        if name in entry.get("values", {})
    }


def test_what_is_displayed_and_tested_is_told(fields, tmp_path):
    path = tmp_path / "run.jsonl"
    param = fields("display: 4 test_iter: 1 test_interval: 4")

    with Solver(param, device="numpy") as solver:
        solver.loggers.append(JsonLines(path))
        solver.solve()

    assert list(named(path, "loss")) == [0, 4, 8]
    assert list(named(path, "learning_rate").values()) == [param.base_lr] * 2
    assert list(named(path, "images_per_second")) == [4]
    assert list(named(path, "test0/accuracy")) == [0, 4, 8]
    assert list(named(path, "train/loss")) == [0, 4]


def test_speed_is_that_of_all_steps_since_the_last_display(fields, tmp_path, monkeypatch):
    path, clock = tmp_path / "run.jsonl", itertools.count()
    monkeypatch.setattr(report, "perf_counter", lambda: 2.0 * next(clock))

    with Solver(fields("display: 4"), device="numpy") as solver:
        solver.loggers.append(JsonLines(path))
        for _ in range(9):
            solver.step(1)  # each reads the clock at its beginning, its end, and twice to display
            next(clock)  # the time between two steps does not count

    speed = named(path, "iterations_per_second")
    assert speed == {4: 4 / 10, 8: 4 / 10}


def test_the_first_line_says_what_begins(fields, tmp_path):
    path = tmp_path / "run.jsonl"

    with Solver(fields("display: 1"), device="numpy") as solver:
        solver.loggers.append(JsonLines(path))
        solver.step(1)

    begin = entries(path)[0]
    assert begin["kind"] == "begin"
    assert begin["facts"]["batch"] == 4
    assert begin["facts"]["device"] == "numpy"
    assert 'name: "small"' in begin["facts"]["prototxt"]


def test_a_run_that_goes_on_says_where_and_names_its_snapshots(fields, tmp_path):
    path = tmp_path / "run.jsonl"
    param = fields("display: 1", snapshot_prefix=str(tmp_path / "small"))
    with Solver(param, device="numpy") as solver:
        solver.loggers.append(JsonLines(path))
        solver.step(2)
        _, state = solver.snapshot()
        solver.step(1)

    with Solver(param, device="numpy") as solver:
        solver.loggers.append(JsonLines(path))
        solver.restore(state)
        solver.step(1)

    kinds = [(e["kind"], e["iteration"]) for e in entries(path) if e["kind"] != "scalars"]
    assert kinds == [("begin", 0), ("snapshot", 2), ("begin", 2)]
    assert str(state) in path.read_text().replace("\\\\", "\\")


def test_lists_of_loggers_and_callbacks_may_be_replaced(fields, tmp_path):
    path, tested = tmp_path / "run.jsonl", []

    with Solver(fields("display: 1 test_iter: 2 test_interval: 1"), device="numpy") as solver:
        solver.loggers = [JsonLines(path)]
        solver.on_test_batch = [lambda net, done, batches: tested.append((done, batches))]
        solver.step(1)

    assert list(named(path, "loss")) == [0]
    assert tested == [(0, 2), (1, 2), (2, 2)]


def test_only_the_first_rank_tells(fields, tmp_path):
    path = tmp_path / "run.jsonl"
    logger = JsonLines(path)
    with Solver(fields("display: 1"), device="numpy", rank=1, world_size=2) as solver:
        solver.loggers.append(logger)

        solver.step(1)

    assert entries(path) == []
    logger.close()


def test_loggers_change_no_number(fields, tmp_path):
    plain, told = (Solver(fields("display: 1"), device="numpy") for _ in range(2))
    told.loggers.append(JsonLines(tmp_path / "run.jsonl"))

    plain.step(3)
    told.step(3)

    one, other = (s.net.params["ip1"][0].data for s in (plain, told))
    assert (one == other).all()
    told.close()
