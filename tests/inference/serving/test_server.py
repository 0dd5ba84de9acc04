"""The socket that the server listens at, and the threads of the passes."""

import math
import socket
from types import SimpleNamespace

import pytest
from expect_error import expect_error

from demitasse.core.config import settings
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.model_files import find_model
from demitasse.inference.serving.batching import Queue
from demitasse.inference.serving.model import Model
from demitasse.inference.serving.server import listening, thread_setting


def test_the_end_of_an_answer_does_not_wait_for_the_client():
    """What comes in two pieces would take 40 ms with a client that puts off acknowledging."""
    with (
        listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        connection, _ = listener.accept()

        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert client.fileno() >= 0


def test_a_port_that_is_taken_is_told():
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        with expect_error(ConfigError, ErrorCode.UNAVAILABLE, host="127.0.0.1", port=port):
            listening("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a\udc9b.example", "\u202e", "a\0b", "x" * 300, "999.1.1.1"])
def test_so_is_a_host_that_is_none(host):
    with expect_error(ConfigError, ErrorCode.UNAVAILABLE, host=host):
        listening(host, 0)


@pytest.mark.parametrize(
    ("seconds", "threads", "wanted"),
    [([1e-5], 0, {"threads": 1}), ([1e-5, 1.0], 0, {}), ([1e-5], 2, {}), ([math.inf], 0, {})],
)
def test_one_thread_runs_short_passes(seconds, threads, wanted, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    queues = [SimpleNamespace(seconds=one) for one in seconds]

    with settings.override(threads=threads):
        assert thread_setting(queues) == wanted


def test_openmp_variables_decide_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    assert thread_setting([SimpleNamespace(seconds=1e-5)]) == {}


def test_the_time_of_a_pass_is_that_of_the_slowest_worker(shared_folder):
    model = Model("means", find_model(shared_folder / "means"), "numpy", 4)
    queue = Queue(model, workers=2)
    queue.close()

    assert 0 < queue.seconds < math.inf


def test_nets_are_prepared_again_for_other_threads(shared_folder):
    queue = Queue(Model("means", find_model(shared_folder / "means"), "numpy", 4))
    queue.close()
    [net] = [worker.runner.net for worker in queue._workers]
    plan = net.plan

    queue.reset_plans()

    assert net.plan is not plan
