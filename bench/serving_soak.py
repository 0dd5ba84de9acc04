"""Soak `demitasse serve` beside a few lines over ONNX Runtime, with the same net and clients.

    python bench/serving_soak.py                              # an hour, 500 connections
    python bench/serving_soak.py --minutes 2 --connections 100
    python bench/serving_soak.py --minutes 0 --net squeezenet # 1, 8 and 64 clients alone
    python bench/serving_soak.py --results bench/results/serving_DATE.json

Needs the packages onnx, onnxruntime and uvicorn, of which the server beside ours is made.

First each server answers 1, 8 and 64 clients alone, in turns. Then `demitasse serve` answers all
connections for nine tenths of the rest of the time, and ONNX Runtime for one, in ten turns each.
Printed are answers per second, the server's processor time per answer and percentiles of the
latency in milliseconds, and the resident memory of all processes of the servers in MiB. A server
that closes an idle connection loses no answer; the client connects again. Exits with 1 if an answer
was wrong, or the memory grew.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from nets import NETS

TINY = """
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 48 dim: 48 } } }
layer { name: "c1" type: "Convolution" bottom: "data" top: "c1" convolution_param {
  num_output: 32 kernel_size: 3 stride: 2 weight_filler { type: "msra" } } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2" convolution_param {
  num_output: 64 kernel_size: 3 stride: 2 weight_filler { type: "msra" } } }
layer { name: "r2" type: "ReLU" bottom: "c2" top: "c2" }
layer { name: "ip" type: "InnerProduct" bottom: "c2" top: "ip" inner_product_param {
  num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

PEER = """
import json, sys
import numpy as np, onnxruntime as ort, uvicorn
session = ort.InferenceSession(sys.argv[1])
[given] = session.get_inputs()
shape = [-1, *given.shape[1:]]
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    size = int(dict(scope["headers"])[b"inference-header-content-length"])
    x = np.frombuffer(body[size:], "f4").reshape(shape)
    [y] = session.run(None, {given.name: x})
    head = {"outputs": [{"name": "prob", "datatype": "FP32", "shape": list(y.shape),
                         "parameters": {"binary_data_size": y.nbytes}}]}
    head = json.dumps(head).encode()
    headers = [(b"content-length", str(len(head) + y.nbytes).encode()),
               (b"inference-header-content-length", str(len(head)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": head + y.tobytes()})
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", lifespan="off")
"""

PEER_NAME = "ONNX Runtime"

TURNS = 10
"""Turns of the soak."""

MAX_GROWTH = 1.2
"""Memory at the end, as a multiple of the memory after the first turn."""


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=10, help="for each number of clients")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--net", choices=["tiny", *NETS], default="tiny")
    parser.add_argument("--results", type=Path, help="file of JSON lines for the figures")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        print(json.dumps(asyncio.run(load(**json.loads(given.load)))))
        return 0
    with tempfile.TemporaryDirectory(prefix="demitasse_soak_") as name:
        return run(Path(name), given)


def run(folder: Path, given: argparse.Namespace) -> int:
    """Start the servers, measure, and print the figures."""
    prepare(folder, given.net)
    command = ["-m", "demitasse", "serve", "net.caffemodel"]
    servers = {
        "demitasse": [*command, "--port"],
        "demitasse, alone": [*command, "--max_batch", "1", "--port"],
        PEER_NAME: ["-c", PEER, "net.onnx"],
    }
    running, ports = {}, {}
    results: list[dict[str, object]] = []
    if given.results:
        from peers.facts import facts

        settings = {"net": given.net, "seconds": given.seconds, "minutes": given.minutes}
        results += [{"section": "facts", **facts()}, {"section": "settings", **settings}]
    try:
        for name, arguments in servers.items():
            ports[name] = free_port()
            running[name] = subprocess.Popen(
                [sys.executable, *arguments, str(ports[name])],
                cwd=folder, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        for port in ports.values():
            wait_for(port)

        def turn(section: str, name: str, clients: int, seconds: float) -> dict[str, float]:
            pid = running[name].pid
            found = measured(folder, pid, ports[name], clients, seconds)
            found["MiB"] = resident(pid)
            print(row(name, clients, found), flush=True)
            rounded = {key: round(value, 3) for key, value in found.items()}
            results.append({"section": section, "server": name, "clients": clients, **rounded})
            return found

        columns = " ".join(f"{one:>7}" for one in ("CPU", "p50", "p99", "p99.9", "max", "MiB"))
        print(f"{'server':18} {'clients':>7} {'answers/s':>9} {columns}")
        begin, found = time.monotonic(), []
        for _ in range(given.rounds):
            for clients in given.clients:
                found += [turn("throughput", one, clients, given.seconds) for one in servers]
        left = given.minutes * 60 - (time.monotonic() - begin)
        soak = []
        for _ in range(TURNS if left > 0 else 0):
            soak.append(turn("soak", "demitasse", given.connections, 0.9 * left / TURNS))
            turn("soak", PEER_NAME, given.connections, 0.1 * left / TURNS)
        wrong = sum(one["wrong"] for one in found + soak)
        growth = soak[-1]["MiB"] / soak[0]["MiB"] if soak else 1
        print(f"memory grew {growth:.2f} times; {wrong} answers were wrong")
        return int(wrong > 0 or growth > MAX_GROWTH)
    finally:
        if given.results:
            given.results.write_text("".join(json.dumps(one) + "\n" for one in results))
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def prepare(folder: Path, name: str) -> None:
    """Write the net, its weights for both servers, an input and the output."""
    from demitasse import Net
    from demitasse.interop.onnx_export import export_onnx

    (folder / "net.prototxt").write_text(TINY if name == "tiny" else NETS[name](1, False))
    net = Net(folder / "net.prototxt", "TEST", device="cpu", seed=1)
    net.save(folder / "net.caffemodel")
    export_onnx(net, None, folder / "net.onnx")
    shape = net.blobs[net.inputs[0]].shape
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    np.save(folder / "x.npy", values)
    np.save(folder / "y.npy", net.predict(values)["prob"])


def measured(folder: Path, pid: int, port: int, clients: int, seconds: float) -> dict[str, float]:
    """Load a server from a process of its own, whose work does not delay this one."""
    how = {"folder": str(folder), "port": port, "clients": clients, "seconds": seconds}
    command = [sys.executable, __file__, "--load", json.dumps(how)]
    before = processor_time(pid)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    answers = max(found["rate"] * seconds, 1)
    return {**found, "cpu": (processor_time(pid) - before) * 1000 / answers}


async def load(folder: str, port: int, clients: int, seconds: float) -> dict[str, float]:
    """Ask a server from many connections; return the figures."""
    x, y = (np.load(f"{folder}/{name}.npy") for name in "xy")
    inputs = {"name": "data", "datatype": "FP32", "shape": list(x.shape)}
    inputs["parameters"] = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [inputs], "parameters": {"binary_data_output": True}}).encode()
    request = (
        f"POST /v2/models/net/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(head) + x.nbytes}"
        f"\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
    ).encode() + head
    request += x.tobytes()
    times: list[float] = []
    wrong = busy = closed = 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal wrong, busy, closed
        await asyncio.sleep(number * 0.002)
        reader = writer = None
        while time.perf_counter() < end:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            start = time.perf_counter()
            try:
                writer.write(request)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", answer.lower().split(b"inference")[0])
                length = length or re.search(rb"\r\ncontent-length: (\d+)", answer.lower())
                content = await reader.readexactly(int(length[1]))
            except (OSError, asyncio.IncompleteReadError):
                writer.close()
                writer = None
                closed += 1
                continue
            if b" 503 " in answer:  # the queue is full, and says so
                busy += 1
                await asyncio.sleep(0.05)
                continue
            times.append(time.perf_counter() - start)
            values = np.frombuffer(content[-y.nbytes :], np.float32)
            wrong += not np.allclose(values, y.ravel(), rtol=1e-4, atol=1e-6)
        if writer is not None:
            writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    found = np.quantile(times or [0], [0.5, 0.99, 0.999, 1]) * 1000
    percentiles = dict(zip(("p50", "p99", "p99.9", "max"), found.tolist(), strict=True))
    counts = {"wrong": wrong, "busy": busy, "closed": closed}
    return {"rate": len(times) / seconds, **percentiles, **counts}


def row(name: str, clients: int, found: dict[str, float]) -> str:
    """Return a line of the table."""
    columns = ("cpu", "p50", "p99", "p99.9", "max", "MiB")
    times = " ".join(f"{found[one]:7.1f}" for one in columns)
    return f"{name:18} {clients:7} {found['rate']:9.1f} {times}"


def processor_time(pid: int) -> float:
    """Return the processor time of a process and its children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total + sum(processor_time(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(one) for t in threads for one in (t / "children").read_text().split()]


def resident(pid: int) -> float:
    """Return the resident memory of a process and its children, in MiB."""
    total = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024
    return total + sum(resident(child) for child in children(pid))


def free_port() -> int:
    """Return the number of a port that is free."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    """Wait until a server listens."""
    import socket

    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    message = f"no server listens at port {port}"
    raise TimeoutError(message)


if __name__ == "__main__":
    sys.exit(main())
