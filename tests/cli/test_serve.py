"""``serve``: trained nets over HTTP, until the process is asked to end."""

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from functools import partial

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse.net import Net

DATA = np.random.default_rng(1).standard_normal((2, 1, 3, 3)).astype(np.float32)


@pytest.fixture
def model(project):
    """Weights with a net beside them, which have no card."""
    Net("deploy.prototxt", "TEST", device="numpy").save("stripes.caffemodel")
    return project


@pytest.fixture
def server(model, start):
    """Start a server on a port that is free; wait until it is ready."""

    def begin(args=""):
        process = start(f"serve stripes.caffemodel --port 0 --device numpy {args}")
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "Ready\n":
                break
        else:
            pytest.fail(process.stderr.read())
        address = re.search(r"http://\S+?:\d+", lines[0])[0]
        return process, address, lines

    return begin


def asked(values):
    tensor = {"name": "data", "datatype": "FP32", "shape": list(values.shape)}
    return json.dumps({"inputs": [{**tensor, "data": values.ravel().tolist()}]}).encode()


def infer(address, body):
    url = f"{address}/v2/models/stripes/infer"
    with urllib.request.urlopen(url, body, timeout=60) as reply:
        return json.load(reply)


@needs("signals")
def test_a_net_is_served_until_it_is_asked_to_end(server):
    process, address, lines = server()
    with Net("deploy.prototxt", "TEST", device="numpy") as net:
        net.load("stripes.caffemodel")
        wanted = net.predict(DATA)["prob"]

    answer = infer(address, asked(DATA))

    assert "data [-1, 1, 3, 3], up to 16 at once" in lines[0]
    assert "--host 0.0.0.0" in lines[1]
    np.testing.assert_array_equal(
        np.array(answer["outputs"][0]["data"], "f4").reshape(2, 3), wanted
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def head_of(body, host, more=""):
    lines = f"Host: {host}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return f"POST /v2/models/stripes/infer HTTP/1.1\r\n{lines}".encode()


@needs("signals")
def test_what_is_under_way_is_finished(server):
    process, address, _ = server()
    host, port = address.removeprefix("http://").split(":")
    body = asked(DATA)
    head = head_of(body, host, "Expect: 100-continue\r\n")

    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head)
        begun = client.recv(1000)  # the application has asked for the body
        process.send_signal(signal.SIGTERM)
        wait_until_nobody_listens(host, int(port))
        client.sendall(body)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))

    assert begun.startswith(b"HTTP/1.1 100")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"name":"prob"' in answer
    assert process.wait(60) == 0


@needs("signals")
def test_requests_that_were_sent_before_the_end_are_answered(server):
    process, address, _ = server()
    host, port = address.removeprefix("http://").split(":")
    body = asked(DATA)
    request = head_of(body, host) + body

    clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(20)]
    for client in clients[:10]:  # connections that the server knows
        client.sendall(request)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    process.send_signal(signal.SIGSTOP)  # what is sent now is read after the signal
    for client in clients:
        client.sendall(request)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    # to the end of each connection, which the server closes
    answers = [b"".join(iter(partial(client.recv, 1 << 16), b"")) for client in clients]
    for client in clients:
        client.close()

    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 20
    assert process.wait(60) == 0


def wait_until_nobody_listens(host, port):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection((host, port), timeout=60).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)


NO_HTTP = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v2/models/stripes/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n{}{}{}",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    bytes(range(256)),
]


def test_what_is_no_http_is_refused(server):
    _, address, _ = server()
    host, port = address.removeprefix("http://").split(":")

    answers = []
    for sent in NO_HTTP:
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(sent)
            answers.append(client.recv(1000)[:10])

    assert answers == [b"HTTP/1.1 4"] * len(NO_HTTP)
    assert "prob" in str(infer(address, asked(DATA)))


def test_a_request_that_is_too_long_is_refused(server):
    _, address, _ = server("--max_bytes 100")

    with expect_error(urllib.error.HTTPError, mentions="413") as caught:
        infer(address, asked(DATA))

    assert "100" in json.load(caught.value)["error"]


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("serve", 2, "MODEL..."),
        ("serve stripes.caffemodel stripes.caffemodel", 2, "'stripes'"),
        ("serve deploy.prototxt a=x.toml a=y.toml", 2, "one=x.toml"),
        ("serve a=stripes.caffemodel b=none.caffemodel --port 0", 3, "none.caffemodel"),
        ("serve a=deploy.prototxt", 3, "deploy.prototxt"),
        ("serve a=x b=y --weights w", 2, "--weights"),
        ("serve stripes.caffemodel --port 0 --host 300.1.1.1", 3, "300.1.1.1"),
        ("serve -- -", 2, "'-'"),
    ],
)
def test_what_cannot_be_served_is_told(run, args, code, message):
    shown = run(args)

    assert shown.exit_code == code
    assert message in shown.stderr.replace("\n", " ")
