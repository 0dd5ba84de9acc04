"""A run as a file of JSON lines."""

import json
import math

import numpy as np
import pytest

from demitasse.training.tracking import JsonLines


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_and_events_are_a_line_each(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    logger = JsonLines(path)

    logger.event(0, "begin", {"net": "small"})
    logger.scalars(5, {"loss": 0.5, "learning_rate": math.nan})
    logger.close()

    begin, scalars = entries(path)
    assert begin["kind"] == "begin"
    assert begin["facts"] == {"net": "small"}
    assert scalars["iteration"] == 5
    assert scalars["values"] == {"loss": 0.5, "learning_rate": "nan"}
    assert scalars["time"].endswith("+00:00")


def test_numbers_of_numpy_are_numbers(tmp_path):
    path = tmp_path / "run.jsonl"
    logger = JsonLines(path)
    values = {"norm": np.linalg.norm(np.ones(4, np.float32)), "all": np.array([1, np.inf])}

    logger.scalars(np.int64(1), values)
    logger.close()

    (entry,) = entries(path)
    assert entry["iteration"] == 1
    assert entry["values"] == {"norm": 2.0, "all": [1.0, "inf"]}


def test_a_line_is_in_the_file_before_it_is_closed(tmp_path):
    path = tmp_path / "run.jsonl"
    logger = JsonLines(path)

    logger.scalars(0, {"loss": 1.0})

    assert len(entries(path)) == 1
    logger.close()


@pytest.mark.parametrize(("before", "lines"), [("", 1), ('{"kind": 1}\n', 2), ('{"kin', 2)])
def test_a_run_goes_on_behind_what_is_there(tmp_path, before, lines):
    path = tmp_path / "run.jsonl"
    path.write_text(before)

    logger = JsonLines(path)
    logger.scalars(0, {"loss": 1.0})
    logger.close()

    text = path.read_text().splitlines()
    assert len(text) == lines
    assert json.loads(text[-1])["values"] == {"loss": 1.0}
