"""Loggers by the names that a command line gives them."""

import errno
import importlib.util
import os
import sys
import threading
from types import SimpleNamespace

import pytest
from expect_error import expect_error
from needs import needs

from demitasse.errors import ConfigError, ErrorCode
from demitasse.training.tracking import JsonLines, open_logger


def test_json_lines_need_nothing_else(tmp_path):
    logger = open_logger(f"jsonl:{tmp_path / 'a.jsonl'}")

    assert isinstance(logger, JsonLines)
    logger.close()


@pytest.mark.parametrize("target", ["a.jsonl", "jsonl:", "csv:a", ""])
def test_another_kind_is_refused_with_those_there_are(target):
    with expect_error(ConfigError, mentions="jsonl:PATH, tensorboard:DIR", got=target):
        open_logger(target)


@pytest.mark.parametrize(
    ("kind", "module"),
    [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow.entities")],
)
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, kind, module):
    monkeypatch.setitem(sys.modules, module, None)

    install = f"pip install 'demitasse[{kind}]'"
    with expect_error(ConfigError, ErrorCode.UNAVAILABLE, mentions=install, extra=kind):
        open_logger(f"{kind}:place")


def test_a_service_that_cannot_be_reached_is_told(monkeypatch):
    def init(project):
        raise RuntimeError("api_key not configured")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))

    reason = "RuntimeError: api_key not configured"
    with expect_error(ConfigError, ErrorCode.FAILED, mentions=reason, got="wandb:digits"):
        open_logger("wandb:digits")


@needs("named pipes")
def test_json_lines_do_not_wait_for_who_reads_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with expect_error(OSError, mentions=["pipe", str(tmp_path / "pipe")]):
        open_logger(f"jsonl:{tmp_path / 'pipe'}")


def test_tensorboard_without_shared_memory_says_so(monkeypatch):
    def write(folder, **how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of a semaphore: no file's name

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=write))

    with expect_error(OSError, mentions=["shared memory", "No space left on device", "'place'"]):
        open_logger("tensorboard:place")


def test_tensorboard_does_not_wait_for_a_thread_that_has_ended(tmp_path):
    if importlib.util.find_spec("tensorboardX") is None:
        pytest.skip("files of events need tensorboardX")
    logger = open_logger(f"tensorboard:{tmp_path}")
    events = logger._writer.file_writer.event_writer
    events._event_queue.put(events._worker._shutdown_signal)  # as an exception in it ends it
    events._worker.join()
    failed = []

    def tell():
        try:
            for iteration in range(20):
                logger.scalars(iteration, {"loss": 0.5})
        except OSError as error:
            failed.append(error)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    telling.join(20)

    assert not telling.is_alive()
    assert "the thread that writes has ended" in str(failed[0])
    logger.close()


def test_tensorboard_gets_files_of_events(tmp_path):
    if importlib.util.find_spec("tensorboardX") is None:
        pytest.skip("files of events need tensorboardX")
    logger = open_logger(f"tensorboard:{tmp_path}")

    logger.event(0, "begin", {"net": "small"})
    logger.scalars(3, {"train/loss": 0.5})
    logger.close()

    [file] = tmp_path.rglob("events.out.tfevents.*")
    assert b"train/loss" in file.read_bytes()


def test_weights_and_biases_counts_iterations_and_not_calls(monkeypatch):
    calls = []
    run = SimpleNamespace(
        define_metric=lambda *args, **named: calls.append(("metric", args, named)),
        log=lambda values: calls.append(("log", values)),
        config=SimpleNamespace(update=lambda facts, **_: calls.append(("config", facts))),
        finish=lambda: calls.append("finish"),
    )
    client = SimpleNamespace(init=lambda project: run)
    monkeypatch.setitem(sys.modules, "wandb", client)

    logger = open_logger("wandb:digits")
    logger.event(0, "begin", {"net": "small"})
    logger.scalars(3, {"loss": 0.5})
    logger.close()

    assert ("metric", ("*",), {"step_metric": "iteration"}) in calls
    assert calls[-3:] == [
        ("config", {"begin": {"iteration": 0, "net": "small"}}),
        ("log", {"loss": 0.5, "iteration": 3}),
        "finish",
    ]


DISTRIBUTIONS = {
    "parameters": {
        "ip/0": {
            "weights": {
                "low": -1.0, "high": 1.0, "mean": 0.0, "norm": 2.0, "count": 10,
                "edges": [-1.0, 0.0, 1.0], "counts": [4, 6],
            }
        }
    }
}  # fmt: skip


def test_tensorboard_gets_histograms(tmp_path):
    if importlib.util.find_spec("tensorboardX") is None:
        pytest.skip("files of events need tensorboardX")
    logger = open_logger(f"tensorboard:{tmp_path}")

    logger.event(3, "distributions", DISTRIBUTIONS)
    logger.close()

    [file] = tmp_path.rglob("events.out.tfevents.*")
    assert b"weights/ip/0" in file.read_bytes()


def test_weights_and_biases_gets_histograms(monkeypatch):
    calls = []
    run = SimpleNamespace(define_metric=lambda *_, **__: None, log=calls.append)
    client = SimpleNamespace(init=lambda project: run, Histogram=lambda np_histogram: np_histogram)
    monkeypatch.setitem(sys.modules, "wandb", client)

    open_logger("wandb:digits").event(3, "distributions", DISTRIBUTIONS)

    assert calls == [{"weights/ip/0": ([4, 6], [-1.0, 0.0, 1.0]), "iteration": 3}]


def test_mlflow_gets_metrics_with_names_it_knows(monkeypatch):
    calls = []
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: None,
        create_experiment=lambda name: "7",
        create_run=lambda number: SimpleNamespace(info=SimpleNamespace(run_id=f"run of {number}")),
        log_batch=lambda run, metrics: calls.append((run, metrics)),
        set_tag=lambda run, key, value: calls.append((key, value)),
        set_terminated=calls.append,
    )
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(
        sys.modules,
        "mlflow.entities",
        SimpleNamespace(Metric=lambda name, value, time, step: (name, value, step)),
    )
    tracking = SimpleNamespace(MlflowClient=lambda: client)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)

    logger = open_logger("mlflow:digits")
    logger.event(0, "begin", {"prototxt": "x" * 9999})
    logger.scalars(3, {"test0/top[1]": 0.5})
    logger.close()

    assert ("begin.prototxt", "x" * 500) in calls
    assert ("run of 7", [("test0/top_1_", 0.5, 3)]) in calls
    assert calls[-1] == "run of 7"
