"""The server as a process: what one client does keeps neither others nor probes waiting."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from needs import needs

from demitasse.inference.serving import InferRequest, Tensor, read_response, write_request

pytestmark = needs("signals")

DATA = np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float32)
PATIENCE = 60.0
"""Seconds after which a test fails that waits for something."""

COMMAND = ["demitasse", "serve", "means", "--port", "0"]

INFER = b"POST /v2/models/means/infer HTTP/1.1\r\nHost: a\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n"


class Server:
    """A server of one model, and clients on plain sockets."""

    def __init__(self, folder, *flags, device="numpy"):
        self.log = folder / f"log{''.join(flags)}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *COMMAND, "--device", device, *flags],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.port = int(re.search(r"http://\S+?:(\d+)", self.process.stdout.readline())[1])
        while "Ready" not in self.process.stdout.readline():
            pass

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def raw(self, content):
        """Send bytes, end the sending side if nothing closes; return all that comes back."""
        with self.connect() as client:
            client.sendall(content)
            return everything(client)

    def ask(self, content):
        """Send one request; return status and body."""
        with self.connect() as client:
            client.sendall(content)
            return answer(client)

    def infer(self, values=DATA):
        headers, body = write_request(InferRequest([Tensor("data", values)], {"score": True}))
        lines = b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items())
        status, content = self.ask(INFER + lines + length(body) + b"\r\n" + body)
        assert status == 200
        return read_response(content, content.index(b"]}") + 2).outputs[0].values

    def children(self, name):
        """Return the process ids of children whose command has a word."""
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children")
        threads = Path(f"/proc/{pid}/task").iterdir()
        pids = [int(one) for t in threads for one in (t / "children").read_text().split()]
        assert found.exists()
        return [p for p in pids if f"serving.{name}" in Path(f"/proc/{p}/cmdline").read_text()]

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.stdout.close()


def length(body):
    return b"Content-Length: %d\r\n" % len(body)


def everything(client):
    parts = []
    try:
        while part := client.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answer(client):
    content = b""
    while b"\r\n\r\n" not in content:
        part = client.recv(1 << 16)
        assert part, content
        content += part
    head, _, body = content.partition(b"\r\n\r\n")
    wanted = int(re.search(rb"content-length: (\d+)", head.lower())[1])
    while len(body) < wanted:
        part = client.recv(1 << 16)
        assert part
        body += part
    return int(head.split(b" ")[1]), body


def statuses(content):
    return [int(one) for one in re.findall(rb"HTTP/1.1 (\d+)", content)]


@pytest.fixture(scope="module")
def server(shared_folder):
    made = Server(shared_folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def hasty(shared_folder):
    """A server whose clients have little time."""
    made = Server(shared_folder, "--timeout", "0.5")
    yield made
    made.close()


HUGE = b'{"inputs":[' + b"{}," * 100_000 + b"{}]}"


@needs("/proc")
def test_a_large_body_keeps_nobody_waiting(server):
    codecs = server.children("codec")
    assert codecs
    for pid in codecs:
        os.kill(pid, signal.SIGSTOP)
    held = [server.connect() for _ in range(4)]
    for client in held:
        client.sendall(INFER + length(HUGE) + b"\r\n" + HUGE)

    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/means/ready", "/metrics"):
        assert server.ask(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())[0] == 200
    np.testing.assert_allclose(server.infer(), DATA.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6)

    for pid in codecs:
        os.kill(pid, signal.SIGCONT)
    for client in held:
        assert answer(client)[0] == 400
        client.close()


def test_probes_are_answered_while_the_event_loop_is_not_running(server):
    assert server.ask(LIVE)[0] == 200
    server.process.send_signal(signal.SIGSTOP)

    assert server.ask(LIVE) == (200, b'{"live": true}')
    with server.connect() as client:
        for _ in range(3):
            client.sendall(LIVE)
            assert answer(client)[0] == 200
    server.process.send_signal(signal.SIGCONT)

    assert server.ask(GET + b"\r\n")[0] == 200


@needs("/proc")
def test_processes_that_end_are_started_again(server):
    for name in ("codec", "gate", "codec", "gate"):
        for pid in server.children(name):
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                status = server.ask(INFER + length(HUGE) + b"\r\n" + HUGE)[0]
            except (OSError, AssertionError):
                status = 0  # a connection that ended with the process
            if status == 400:
                break
            assert status in (0, 500)
            assert time.monotonic() < until

        assert server.ask(LIVE)[0] == 200


def test_a_connection_goes_on_after_a_probe(server):
    with server.connect() as client:
        for content, status in [(LIVE, 200), (GET + b"\r\n", 200), (LIVE, 200)]:
            client.sendall(content)
            assert answer(client)[0] == status
        client.sendall(LIVE + GET + b"\r\n" + LIVE)
        assert [answer_exactly(client) for _ in range(3)] == [200, 200, 200]


def answer_exactly(client):
    """Read one of several answers."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    for _ in range(int(re.search(rb"content-length: (\d+)", head.lower())[1])):
        client.recv(1)
    return int(head.split(b" ")[1])


CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n2;x\r\n{}\r\n0\r\nA: b\r\n\r\n"
SMUGGLED = b"GET /v2/models HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (INFER + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (INFER + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n", 400),
        (INFER + b"Content-Length : 40\r\n\r\n", 400),
        (INFER + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (INFER.replace(b"/1.1", b"/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (INFER + b"Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\nX\r\n0\r\n\r\n", 400),
        (INFER + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc\r\n0\r\n\r\n", 400),
        (INFER + b"X: a\nContent-Length: 30\r\n\r\n", 400),
        (GET.replace(b"\r\n", b"\n") + b"\n", 400),
        (b"GET /v2\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (GET + b"A: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000, 431),
        (bytes(range(256)), 400),
        (b"GET /v2 HTTP/1.1\nHost: a", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_nothing_is_smuggled_past_a_proxy(server, content, status):
    found = server.raw(content + SMUGGLED)

    assert statuses(found) == [status]
    assert b"connection: close" in found.lower()


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (GET + b"\r\n" + SMUGGLED, [200, 200]),
        (b"\r\n\r\n" + GET + b"\r\n", [200]),
        (GET + b"Content-Length: 3\r\n\r\nabc" + SMUGGLED, [200, 200]),
        (INFER + b"Content-Length: 2\r\n\r\n{}" + SMUGGLED, [400, 200]),
        (INFER + CHUNKS + SMUGGLED, [400, 200]),
        (INFER + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", [100, 400]),
        (b"GET http://a/v2 HTTP/1.1\r\nHost: a\r\n\r\n", [200]),
        (b"GET /v2 HTTP/1.0\r\n\r\n", [200]),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", [404]),
        (INFER.replace(b"means", b"none") + b"Content-Length: 2\r\n\r\n{}" + SMUGGLED, [404, 200]),
    ],
)
def test_pipelined_requests_are_told_apart(server, content, wanted):
    last = b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

    found = server.raw(content if b"/1.0" in content else content + last)

    assert statuses(found) == [*wanted, *([] if b"/1.0" in content else [200])]


def test_no_body_is_asked_for_that_will_be_refused(server):
    expect = b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n"

    assert statuses(server.raw(INFER + expect)) == [413]


STARTED = [
    b"",
    b"G",
    LIVE[:-2],
    GET,
    INFER + b"Content-Length: 100000\r\n\r\n{",
    INFER + b"Content-Length: 100\r\n\r\n{",
    INFER + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    INFER.replace(b"means", b"none") + b"Content-Length: 100000\r\n\r\n{",
    GET + b"Content-Length: 100000\r\n\r\n{",
    GET + b"Content-Length: 100\r\n\r\n{",
    INFER + b"Content-Length: 99999999999\r\n\r\n{",
    b"no HTTP\r\n\r\n",
    LIVE,
    GET + b"\r\n",
]
"""Requests of which most never end."""


def test_every_connection_ends(hasty):
    """A client that sends a byte now and then is cut off as one that sends nothing."""

    def ends(content, trickle):
        with hasty.connect() as client:
            client.sendall(content)
            client.settimeout(0.2)
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                try:
                    if trickle:
                        client.sendall(trickle)
                    if not client.recv(1 << 16):
                        return True
                except TimeoutError:
                    continue
                except OSError:
                    return True
            return False

    clients = list(product(STARTED, [b"", b" "]))
    with ThreadPoolExecutor(len(clients)) as pool:  # which wait at the same time
        ended = list(pool.map(ends, *zip(*clients, strict=True)))

    assert [client for client, end in zip(clients, ended, strict=True) if not end] == []


def test_the_time_for_a_body_is_up_and_then_the_connection(hasty):
    found = hasty.raw(INFER + b"Content-Length: 100000\r\n\r\n{")

    assert statuses(found) == [408]
    assert b"connection: close" in found.lower()


def asked(**changes):
    tensor = {"name": "data", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": [0.5] * 48}
    return json.dumps({"inputs": [tensor], **changes}).encode()


@pytest.mark.parametrize(
    "body",
    [
        asked(outputs=[{"name": "score"}] * 1001),
        asked(outputs=[{"name": "score"}] * 2),
        asked(outputs=[{"name": f"o{i}"} for i in range(1001)]),
        asked(outputs=[{"name": "score", "parameters": {"shared_memory_region": "a"}}]),
        asked(inputs=[json.loads(asked())["inputs"][0]] * 1001),
        asked(
            inputs=[
                {
                    "name": "data",
                    "datatype": "FP32",
                    "shape": [1, 3, 4, 4],
                    "parameters": {"shared_memory_region": "a", "shared_memory_byte_size": 192},
                }
            ]
        ),
        # deep enough for pickle to fail, which sends a long body to another process
        asked().replace(b"0.5]}", b'0.5], "parameters": {"a": %b}}' % (b"[" * 900 + b"]" * 900))
        + b" " * 20_000,
    ],
)
def test_outputs_inputs_and_parameters_have_limits(server, body):
    assert server.ask(INFER + length(body) + b"\r\n" + body)[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/../means/infer",
        "/v2/models/..%2f..%2fetc%2fpasswd",
        "/v2/models/means%00/ready",
        "/v2/models/%0d%0aerror%3a%20forged/ready",
        "/v2/models/means/versions/..%2f1",
        "/v2/models/means/versions/-1/ready",
        "/v2/repository/index/..%2f..%2fetc%2fpasswd",
        "/v2/repository/models/..%2fx/load",
        "/v2/repository/models/means/unload",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/cudasharedmemory/status",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/..%2fmeans/config",
        "/v2/models/means/config/..%2fnet.prototxt",
        "/etc/passwd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_there_are_no_files_and_no_controls(server, path, method):
    status, body = server.ask(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert status in (404, 405)
    assert b"root:" not in body
    assert "forged" not in server.log.read_text()


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_loaded_weights_stay_when_their_file_changes(folder, device):
    server = Server(folder, device=device)
    before = server.infer()
    path = folder / "means" / "net.caffemodel"
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))
    os.truncate(path, 1)

    np.testing.assert_array_equal(server.infer(), before)
    server.close()


@needs("/proc")
def test_the_server_ends_while_a_large_body_is_read(folder):
    server = Server(folder)
    for pid in server.children("codec"):
        os.kill(pid, signal.SIGSTOP)
    with server.connect() as client:
        client.sendall(INFER + length(HUGE) + b"\r\n" + HUGE)
        assert server.ask(LIVE)[0] == 200
        for pid in server.children("codec"):
            os.kill(pid, signal.SIGCONT)
        server.close()
