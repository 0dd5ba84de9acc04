"""The socket that the server listens at."""

import socket

import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.serving.server import listening


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
