"""The server's paths, what it answers, and what it refuses."""

import asyncio
import base64
import hashlib
import io
import json
import re
import threading
import time

import numpy as np
import pytest
from PIL import Image
from serving_client import Transport

from demitasse.errors import DataError
from demitasse.inference.serving import InferRequest, Tensor, read_response, write_request
from demitasse.inference.serving.app import Limits
from demitasse.inference.serving.batching import BusyError, Queue
from demitasse.inference.serving.connections import Connection
from demitasse.inference.serving.messages import LENGTH_HEADER
from demitasse.net import Net

INFER = "/v2/models/means/infer"

DATA = np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float32)


def asked(values=DATA, outputs=("score",), name="data", **fields):
    tensor = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
    chosen = {"outputs": [{"name": one} for one in outputs]} if outputs else {}
    return {"inputs": [{**tensor, "data": values.ravel().tolist(), **fields}], **chosen}


def png(color, size=(4, 4)):
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def test_the_server_says_what_it_is(serving):
    client = serving()

    assert client.get("/v2").json()["extensions"] == [
        "binary_tensor_data", "statistics", "model_configuration",
    ]  # fmt: skip
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/means/ready").json() == {"name": "means", "ready": True}
    assert client.get("/v2/models/means/versions/1/ready").status == 200
    assert client.get("/v2/models").json() == {"models": ["means", "fixed"]}


def test_a_model_says_what_it_takes_and_returns(serving):
    client = serving()

    assert client.get("/v2/models/means").json() == {
        "name": "means",
        "versions": ["1"],
        "platform": "demitasse",
        "inputs": [{"name": "data", "datatype": "FP32", "shape": [-1, 3, 4, 4]}],
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "answer", "datatype": "BYTES", "shape": [-1]},
        ],
    }
    fixed = client.get("/v2/models/fixed/versions/1").json()
    assert fixed["inputs"][0]["shape"] == [2, 3, 4, 4]
    assert fixed["outputs"] == [{"name": "flat", "datatype": "FP32", "shape": [1, 96]}]


@pytest.mark.parametrize(("after", "rows"), [("dim: -1 dim: 7", -1), ("dim: 1 dim: 7", 1)])
def test_a_detector_says_that_the_number_of_its_detections_varies(serving, folder, after, rows):
    inputs = {"boxes": (1, 12), "scores": (1, 6), "priors": (1, 2, 12)}
    text = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" '
        f"input_param {{ shape {{ {' '.join(f'dim: {n}' for n in shape)} }} }} }}"
        for name, shape in inputs.items()
    )
    (folder / "fixed" / "net.prototxt").write_text(f"""{text}
        layer {{ name: "found" type: "DetectionOutput" bottom: "boxes" bottom: "scores"
                 bottom: "priors" top: "found"
                 detection_output_param {{ num_classes: 2 keep_top_k: 1 }} }}
        layer {{ name: "rows" type: "Reshape" bottom: "found" top: "rows"
                 reshape_param {{ shape {{ {after} }} }} }}
        layer {{ name: "end" type: "Silence" bottom: "rows" }}
        layer {{ name: "read" type: "Power" bottom: "found" top: "read" }}
        layer {{ name: "cut" type: "Power" bottom: "rows" top: "cut" }}""")
    client = serving()

    outputs = client.get("/v2/models/fixed").json()["outputs"]

    assert {one["name"]: one["shape"] for one in outputs} == {
        "read": [1, 1, -1, 7], "cut": [rows, 7],
    }  # fmt: skip


def test_a_model_says_how_it_is_configured(serving):
    client = serving(max_delay=0.002, workers=2)

    assert client.get("/v2/models/means/config").json() == {
        "name": "means",
        "platform": "demitasse",
        "backend": "demitasse",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 4,
        "input": [{"name": "data", "dims": [3, 4, 4], "data_type": "TYPE_FP32"}],
        "output": [
            {"name": "score", "dims": [3], "data_type": "TYPE_FP32"},
            {"name": "answer", "dims": [], "data_type": "TYPE_STRING"},
        ],
        "dynamic_batching": {"max_queue_delay_microseconds": 2000},
        "instance_group": [{"kind": "KIND_AUTO", "count": 2}],
    }
    fixed = client.get("/v2/models/fixed/versions/1/config").json()
    assert fixed["max_batch_size"] == 0
    assert fixed["input"][0]["dims"] == [2, 3, 4, 4]
    assert "dynamic_batching" not in fixed


def test_statistics_count_requests_items_and_batches(serving):
    client = serving()
    before = client.get("/v2/models/means/stats").json()["model_stats"][0]
    two = np.concatenate([DATA, DATA])
    client.post(INFER, asked())
    client.post(INFER, asked(two))
    client.post(INFER, b"no json")

    [found] = client.get("/v2/models/means/versions/1/stats").json()["model_stats"]
    both = client.get("/v2/models/stats").json()["model_stats"]

    assert before["last_inference"] == before["inference_count"] == 0
    assert found["last_inference"] > 1_600_000_000_000
    assert (found["inference_count"], found["execution_count"]) == (3, 2)
    counts = {key: one["count"] for key, one in found["inference_stats"].items()}
    assert counts == {
        "success": 2, "fail": 1, "queue": 2, "compute_infer": 2, "compute_input": 0,
        "compute_output": 0, "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    assert [one["batch_size"] for one in found["batch_stats"]] == [1, 2]
    assert both[0] == found
    assert [one["name"] for one in both] == ["means", "fixed"]


def test_the_index_lists_the_models(serving):
    client = serving()
    index = "/v2/repository/index"

    everything = client.post(index).json()

    assert everything[0] == {"name": "means", "version": "1", "state": "READY", "reason": ""}
    assert client.post(index, {"ready": True}).json() == everything
    assert client.get(index).status == 405
    for body in (b"[]", b"{", b'{"ready": 1}', b"[" * 10_000):
        assert client.post(index, body).status == 400
    assert client.post(index, b" " * (1 << 15)).status == 413
    assert client.post("/v2/repository/models/means/unload").status == 404


def test_json_is_answered_with_json(serving):
    reply = serving().post(INFER, {**asked(), "id": "mine"})

    assert reply.status == 200
    answer = read_response(reply.body)
    assert (answer.model, answer.id) == ("means", "mine")
    np.testing.assert_allclose(
        answer.outputs[0].values, DATA.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6
    )


def test_binary_is_answered_with_binary(serving):
    request = InferRequest([Tensor("data", DATA)], {"score": True})
    headers, body = write_request(request)

    reply = serving().post("/v2/models/means/versions/1/infer", body, headers)

    answer = read_response(reply.body, int(reply.headers[LENGTH_HEADER.lower()]))
    np.testing.assert_allclose(
        answer.outputs[0].values, DATA.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6
    )


def test_a_model_without_a_card_takes_the_shape_it_declares(serving):
    client = serving()
    values = np.arange(96, dtype=np.float32).reshape(2, 3, 4, 4)

    good = client.post("/v2/models/fixed/infer", asked(values, ()))
    bad = client.post("/v2/models/fixed/infer", asked(values[:1], ()))

    assert good.json()["outputs"][0]["data"] == list(range(96))
    assert bad.status == 400
    error = bad.json()["error"]
    assert "[2, 3, 4, 4]" in error
    assert "[1, 3, 4, 4]" in error


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_request_does_not_continue_the_sequences_of_another(serving, folder, device):
    net = """
        layer { name: "x" type: "Input" top: "x" top: "cont"
                input_param { shape { dim: 4 dim: 1 dim: 2 } shape { dim: 4 dim: 1 } } }
        layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "y" recurrent_param {
                num_output: 3 weight_filler { type: "uniform" min: -1 }
                bias_filler { type: "constant" value: 1 } } }
    """
    (folder / "fixed" / "net.prototxt").write_text(net)
    made = Net(folder / "fixed" / "net.prototxt", "TEST", device="numpy")
    made.save(folder / "fixed" / "net.caffemodel")
    client = serving(device=device)
    x, cont = np.random.default_rng(2).standard_normal((2, 4, 1, 2)), np.ones((4, 1))
    wanted = made.predict({"x": x[0], "cont": cont})["y"]

    for values in (x[0], x[1], x[0]):
        inputs = [asked(values, name="x")["inputs"][0], asked(cont, name="cont")["inputs"][0]]
        answer = client.post("/v2/models/fixed/infer", {"inputs": inputs}).json()

    np.testing.assert_allclose(answer["outputs"][0]["data"], wanted.ravel(), rtol=1e-5)


def test_images_are_prepared_by_the_card(serving):
    images = np.array([png((200, 10, 20), (9, 7)), png((10, 20, 200))], object)
    headers, body = write_request(InferRequest([Tensor("data", images)]))

    reply = serving().post(INFER, body, headers)

    outputs = {one["name"]: one for one in reply.json()["outputs"]}
    assert outputs["score"]["data"] == [20, 10, 200, 200, 20, 10]
    best = [json.loads(text)["classes"][0] for text in outputs["answer"]["data"]]
    assert [one["label"] for one in best] == ["red", "blue"]


def test_a_score_that_is_nan_is_a_text_in_the_answer(serving, folder):
    weights = folder / "means" / "net.caffemodel"
    with Net(folder / "means" / "net.prototxt", "TEST", device="numpy") as net:
        net.params["score"][0].data[...] = np.nan
        net.save(weights)

    reply = serving().post(INFER, png((200, 10, 20)))

    [output] = reply.json()["outputs"]
    best = json.loads(output["data"][0], parse_constant=pytest.fail)["classes"][0]
    assert best == {"index": 0, "label": "blue", "score": "nan"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/x-www-form-urlencoded"},  # curl --data-binary
        {"Content-Type": "image/png"},
        {"Content-Type": "application/octet-stream", LENGTH_HEADER: "0"},  # Triton's raw request
        {},
    ],
)
def test_a_file_alone_is_an_image(serving, headers):
    reply = serving().post(INFER, png((200, 10, 20), (9, 7)), headers)

    [output] = reply.json()["outputs"]
    assert (output["name"], output["shape"]) == ("answer", [1])
    assert json.loads(output["data"][0])["classes"][0]["label"] == "red"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"GIF89a", {}),
        (b"{}", {"Content-Type": "image/png"}),
        (png((1, 2, 3)), {"Content-Type": "application/json"}),
        (png((1, 2, 3)), {LENGTH_HEADER: "5"}),
        (b"", {}),
        (b" " * 200, {}),
    ],
)
def test_a_file_that_is_no_image_is_refused(serving, body, headers):
    client = serving()

    assert client.post(INFER, body, headers).status == 400
    assert client.post("/v2/models/fixed/infer", body, headers).status == 400


def test_a_file_for_a_model_that_takes_no_images_is_refused(serving):
    reply = serving().post("/v2/models/fixed/infer", png((1, 2, 3)))

    assert reply.status == 400
    assert "model 'fixed' has no card and takes no image files" in reply.json()["error"]


def test_the_page_runs_its_own_script_alone(serving):
    reply = serving().get("/")

    page = reply.body.decode()
    policy = dict(one.split(" ", 1) for one in reply.headers["content-security-policy"].split("; "))
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag in ("style", "script"):
        content = page.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # nothing from outside
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|eval\(|\son\w+=|\sstyle=", page)


@pytest.mark.parametrize("channels", ["bgr", "y"])
def test_an_image_that_the_net_makes_is_answered(serving, folder, channels):
    inputs = {"bgr": 3, "y": 1}[channels]
    net = f"""
        layer {{ name: "data" type: "Input" top: "data"
                input_param {{ shape {{ dim: 1 dim: {inputs} dim: 4 dim: 4 }} }} }}
        layer {{ name: "same" type: "Power" bottom: "data" top: "same" }}"""
    (folder / "means" / "net.prototxt").write_text(net)
    card = f'task = "image"\n[preprocess]\nchannels = "{channels}"\n'
    text = (folder / "means" / "model.toml").read_text()
    (folder / "means" / "model.toml").write_text(text[: text.index("task")] + card)
    client = serving()
    headers, body = write_request(
        InferRequest([Tensor("data", np.array([png((200, 10, 20), (9, 7))], object))])
    )

    reply = client.post(INFER, body, headers)
    bare = client.post(INFER, asked(np.zeros((1, inputs, 4, 4), "f4"), outputs=()))

    outputs = {one["name"]: one for one in reply.json()["outputs"]}
    made = json.loads(outputs["answer"]["data"][0])["result"]
    with Image.open(io.BytesIO(base64.b64decode(made["png"]))) as image:
        assert image.size == (made["width"], made["height"]) == (9, 7)
        assert image.getpixel((0, 0)) == (200, 10, 20)
    assert bare.status == (200 if channels == "bgr" else 400)


@pytest.mark.parametrize(
    ("files", "mentions"),
    [
        ([b"none"], "image 0"),
        ([b""], "image 0"),
        ([png((1, 2, 3))] * 5, "[5]"),
        ([[png((1, 2, 3))]], "[1, 1]"),
    ],
)
def test_images_that_cannot_be_read_are_refused(serving, files, mentions):
    headers, body = write_request(InferRequest([Tensor("data", np.array(files, object))]))

    reply = serving().post(INFER, body, headers)

    assert reply.status == 400
    assert mentions in reply.json()["error"]


def test_a_small_file_with_a_huge_image_is_not_decoded(serving):
    file = io.BytesIO()
    Image.new("1", (8192, 8192)).save(file, "PNG")
    headers, body = write_request(
        InferRequest([Tensor("data", np.array([file.getvalue()], object))])
    )

    reply = serving().post(INFER, body, headers)

    assert reply.status == 400
    assert "pixels" in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "mentions"),
    [
        (asked(DATA.reshape(1, 3, 2, 8)), ["'data'", "[-1, 3, 4, 4]", "[1, 3, 2, 8]"]),
        (asked(np.zeros((5, 3, 4, 4), "f4")), ["'data'", "5", "'means'", "4"]),
        (asked(np.zeros((0, 3, 4, 4), "f4")), ["'data'", "0"]),
        (asked(name="date"), ["'date'", "'data'"]),
        (asked(outputs=["scores"]), ["'scores'", "score, answer", "'score'"]),
        (asked(datatype="FP64"), ["'data'", "'means'", "FP32", "FP64"]),
        (b"{", ["JSON"]),
        (
            b'{"inputs": [{"name": "\\u0000", "shape": [], "datatype": "BYTES"}]}',
            ["inputs[0].data"],
        ),
    ],
)
def test_wrong_requests_are_refused_with_a_reason(serving, body, mentions):
    reply = serving().post(INFER, body)

    assert reply.status == 400
    assert reply.headers["content-type"] == "application/json"
    assert all(name in reply.json()["error"] for name in mentions)


def test_nan_is_answered_in_binary_alone(serving):
    client = serving()
    values = np.full_like(DATA, np.nan)
    for binary, status in ((False, 400), (True, 200)):
        headers, body = write_request(InferRequest([Tensor("data", values)], {"score": binary}))

        reply = client.post(INFER, body, headers)

        assert reply.status == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/page.html", 404),
        ("POST", "/", 405),
        ("GET", "/v2/health", 404),
        ("GET", "/v2/models/none", 404),
        ("POST", "/v2/models/none/infer", 404),
        ("GET", "/v2/models/means/versions/2", 404),
        ("GET", "/v2/models/means/infer/more", 404),
        ("GET", "/v2/models/../../etc/passwd", 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/health/live", 405),
    ],
)
def test_other_paths_and_methods_are_refused(serving, method, path, status):
    reply = asyncio.run(serving().ask(method, path))

    assert reply.status == status
    assert "error" in reply.json()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "1001"}, 413),
        ({"Content-Length": "-5"}, 400),
        ({LENGTH_HEADER: "x"}, 400),
        ({LENGTH_HEADER: "9" * 30}, 400),
        ({LENGTH_HEADER: "999"}, 400),
        ({"Content-Encoding": "gzip"}, 415),
    ],
)
def test_headers_that_cannot_be_are_refused(serving, headers, status):
    reply = serving(Limits(max_bytes=1000)).post(INFER, b"{}", headers)

    assert reply.status == status


def test_a_body_that_grows_too_long_is_cut_off(serving):
    client = serving(Limits(max_bytes=1000))

    reply = client.post(INFER, pieces=[b" " * 600] * 1000)

    assert reply.status == 413
    assert "1000" in reply.json()["error"]


def test_a_body_that_does_not_come_ends(serving):
    reply = serving(Limits(timeout=0.05)).post(INFER, b"{", end=False)

    assert reply.status == 408


def test_bodies_together_are_bounded(serving):
    client = serving(Limits(max_bytes=1000, held=1000, timeout=0.3))

    async def both():
        first = asyncio.create_task(client.ask("POST", INFER, b" " * 800, end=False))
        await asyncio.sleep(0.05)
        second = await client.ask("POST", INFER, b" " * 800)
        await first
        third = await client.ask("POST", INFER, b" " * 800)
        return second, third

    second, third = asyncio.run(both())

    assert (second.status, second.headers["retry-after"]) == (503, "1")
    assert third.status == 400


class Held:
    """Holds a model's thread until it is let go."""

    def __init__(self, monkeypatch):
        self.go, self.begun, self.sizes = threading.Event(), threading.Event(), []
        run = monkeypatch.derive

        def held(runner, works):
            self.begun.set()
            assert self.go.wait(30)
            self.sizes.append(len(works))
            return run(runner, works)

        self.run = held


@pytest.fixture
def held(monkeypatch):
    """Nets wait before they run until ``go`` is set; ``sizes`` are those of the batches."""
    from demitasse.inference.serving.model import Runner

    monkeypatch.derive = Runner.run
    found = Held(monkeypatch)
    monkeypatch.setattr(Runner, "run", found.run)
    yield found
    found.go.set()


def test_a_full_queue_says_when_to_come_again(serving, held):
    client = serving(max_queue=1)

    async def three():
        first = asyncio.create_task(client.ask("POST", INFER, json.dumps(asked()).encode()))
        await asyncio.to_thread(held.begun.wait, 30)
        second = asyncio.create_task(client.ask("POST", INFER, json.dumps(asked()).encode()))
        await asyncio.sleep(0.05)
        third = await client.ask("POST", INFER, json.dumps(asked()).encode())
        held.go.set()
        return [await first, await second, third]

    replies = asyncio.run(three())

    assert [reply.status for reply in replies] == [200, 200, 503]
    assert replies[2].headers["retry-after"] == "1"
    assert "'means'" in replies[2].json()["error"]


def test_an_answer_that_is_late_is_a_timeout(serving, held):
    reply = serving(Limits(timeout=0.1)).post(INFER, asked())

    assert reply.status == 504
    held.go.set()


def test_requests_that_wait_are_joined(serving, held):
    client = serving()
    values = [DATA * i for i in range(6)]

    async def many():
        bodies = [json.dumps(asked(one)).encode() for one in values]
        first = asyncio.create_task(client.ask("POST", INFER, bodies[0]))
        await asyncio.to_thread(held.begun.wait, 30)
        others = [asyncio.create_task(client.ask("POST", INFER, body)) for body in bodies[1:]]
        await asyncio.sleep(0.1)
        held.go.set()
        return [await one for one in (first, *others)]

    replies = asyncio.run(many())

    assert held.sizes == [1, 4, 1]
    for one, reply in zip(values, replies, strict=True):
        [tensor] = read_response(reply.body).outputs
        np.testing.assert_allclose(tensor.values, one.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6)


def test_a_request_waits_for_others_to_join(serving):
    client = serving(max_delay=30.0)

    async def four():
        body = json.dumps(asked()).encode()
        return await asyncio.gather(*(client.ask("POST", INFER, body) for _ in range(4)))

    replies = asyncio.run(four())

    assert [reply.status for reply in replies] == [200] * 4
    metrics = client.get("/metrics").body.decode()
    assert 'demitasse_batches_total{model="means"} 1' in metrics
    assert 'demitasse_batched_items_total{model="means"} 4' in metrics


def test_what_fails_inside_is_not_told_to_the_client(serving, monkeypatch, caplog):
    from demitasse.inference.serving.model import Runner

    def fail(runner, works):
        raise DataError("secret place")

    monkeypatch.setattr(Runner, "run", fail)

    reply = serving().post(INFER, asked())

    assert reply.status == 500
    assert "secret" not in reply.json()["error"]
    assert "secret place" in caplog.text


def test_one_that_fails_does_not_take_others_along(serving, monkeypatch):
    from demitasse.inference.serving.model import Runner

    run = Runner.run

    def fail(runner, works):
        if any(work.inputs["data"].max() > 1e6 for work in works):
            raise ValueError("bad")
        return run(runner, works)

    monkeypatch.setattr(Runner, "run", fail)
    client = serving(max_delay=30.0, max_batch=2)

    async def both():
        good = client.ask("POST", INFER, json.dumps(asked()).encode())
        bad = client.ask("POST", INFER, json.dumps(asked(DATA * 1e9)).encode())
        return await asyncio.gather(good, bad)

    assert [reply.status for reply in asyncio.run(both())] == [200, 500]


def test_metrics_are_prometheus_text(serving):
    client = serving()
    client.post(INFER, asked())
    client.post(INFER, b"{")
    client.post("/v2/models/none/infer", b"{")

    lines = client.get("/metrics").body.decode().splitlines()

    assert "# TYPE demitasse_request_duration_seconds histogram" in lines
    assert 'demitasse_requests_total{model="means",status="200"} 1' in lines
    assert 'demitasse_requests_total{model="means",status="400"} 1' in lines
    assert 'demitasse_request_duration_seconds_bucket{model="means",le="+Inf"} 2' in lines
    assert 'demitasse_queue_length{model="means"} 0' in lines
    assert not any("none" in line for line in lines)


def test_a_closed_queue_answers_what_waits_and_takes_no_more(serving, folder):
    from demitasse.inference.cards.model_files import find_model
    from demitasse.inference.serving.model import Model

    queue = Queue(Model("means", find_model(folder / "means"), "numpy", 4), max_delay=30.0)
    model = queue.model
    body = json.dumps(asked()).encode()
    from demitasse.inference.serving import read_request

    prepared = model.prepare(*model.reader.decode(read_request(body)))

    async def closed():
        waiting = asyncio.create_task(queue.run(prepared))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(queue.close)
        assert (await waiting)["score"].shape == (1, 3)
        with pytest.raises(BusyError):
            await queue.run(prepared)

    asyncio.run(closed())


def test_a_request_finishes_when_the_thread_hands_over_as_it_begins_to_wait(
    serving, held, monkeypatch
):
    client = serving()
    queue = client.app._queues["means"]
    run_in_loop = queue._run_in_loop

    def slowly():
        ran = run_in_loop()
        if held.begun.is_set() and len(queue) and not held.go.is_set():
            queue._workers[0].mean = 0.0  # the thread's next passes belong in the event loop
            held.go.set()
            while not queue._in_loop:
                time.sleep(0.001)
        return ran

    async def at_once():
        body = json.dumps(asked()).encode()
        first = asyncio.create_task(client.ask("POST", INFER, body))
        await asyncio.to_thread(held.begun.wait, 30)
        monkeypatch.setattr(queue, "_run_in_loop", slowly)
        async with asyncio.timeout(20):
            second = await client.ask("POST", INFER, body)
            return [(await first).status, second.status]

    assert asyncio.run(at_once()) == [200, 200]


def test_several_threads_have_nets_of_their_own(serving):
    client = serving(workers=3)

    async def many():
        bodies = [json.dumps(asked(DATA * i)).encode() for i in range(20)]
        return await asyncio.gather(*(client.ask("POST", INFER, body) for body in bodies))

    for i, reply in enumerate(asyncio.run(many())):
        [tensor] = read_response(reply.body).outputs
        wanted = (DATA * i).mean(axis=(2, 3))
        np.testing.assert_allclose(tensor.values, wanted, rtol=1e-5, atol=1e-5)


class Failing:
    """Makes the nets of a model fail while ``error`` is set."""

    def __init__(self, monkeypatch):
        from demitasse.inference.cards.model_files import LoadedModel

        self.error, run = None, LoadedModel.run

        def failing(model, inputs):
            if self.error is not None:
                raise self.error
            return run(model, inputs)

        monkeypatch.setattr(LoadedModel, "run", failing)


def test_a_model_whose_net_fails_is_not_ready_until_it_runs_again(serving, monkeypatch):
    failing = Failing(monkeypatch)
    failing.error = MemoryError("none left")
    client = serving()

    assert client.get("/v2/health/ready").status == 503
    assert client.get("/v2/models/means/ready").json() == {"name": "means", "ready": False}
    assert client.get("/v2/health/live").status == 200
    failing.error = None
    while client.get("/v2/health/ready").status == 503:
        pass
    assert client.post(INFER, asked()).status == 200


def test_a_request_that_fails_alone_leaves_the_model_ready(serving, held, monkeypatch):
    held.go.set()
    client = serving()
    run = held.run

    def failing(runner, works):
        message = "this request alone"
        raise ValueError(message)

    from demitasse.inference.serving.model import Runner

    monkeypatch.setattr(Runner, "run", failing)
    assert client.post(INFER, asked()).status == 500
    monkeypatch.setattr(Runner, "run", run)

    assert client.post(INFER, asked()).status == 200
    assert client.get("/v2/health/ready").status == 200


def test_a_worker_that_ends_is_not_ready_and_nobody_waits_for_it(serving, monkeypatch):
    failing = Failing(monkeypatch)
    client = serving(workers=2)
    failing.error = SystemExit(1)

    assert client.post(INFER, asked()).status == 500
    assert client.get("/v2/health/ready").status == 503
    failing.error = None
    assert client.post(INFER, asked()).status == 200
    failing.error = SystemExit(1)
    assert client.post(INFER, asked()).status == 500
    failing.error = None

    assert client.post(INFER, asked()).status == 500
    assert client.get("/v2/health/ready").status == 503


def test_joined_requests_have_few_numbers_of_rows(serving, held):
    client = serving(max_batch=64)

    async def many():
        body = json.dumps(asked()).encode()
        first = asyncio.create_task(client.ask("POST", INFER, body))
        await asyncio.to_thread(held.begun.wait, 30)
        others = [asyncio.create_task(client.ask("POST", INFER, body)) for _ in range(47 + 15 + 5)]
        await asyncio.sleep(0.3)
        held.go.set()
        return [(await one).status for one in (first, *others)]

    assert set(asyncio.run(many())) == {200}
    assert sum(held.sizes) == 68
    assert held.sizes == [1, 64, 3]


@pytest.mark.parametrize(
    ("waiting", "sizes"), [(13, [12, 1]), (11, [8, 3]), (31, [24, 7]), (63, [48, 12, 3])]
)
def test_a_batch_is_cut_to_a_prepared_number_of_rows(serving, held, waiting, sizes):
    client = serving(max_batch=64)

    async def many():
        body = json.dumps(asked()).encode()
        first = asyncio.create_task(client.ask("POST", INFER, body))
        await asyncio.to_thread(held.begun.wait, 30)
        others = [asyncio.create_task(client.ask("POST", INFER, body)) for _ in range(waiting)]
        await asyncio.sleep(0.3)
        held.go.set()
        return [(await one).status for one in (first, *others)]

    assert set(asyncio.run(many())) == {200}
    assert held.sizes == [1, *sizes]


def test_many_numbers_are_written_as_few_are(serving, monkeypatch):
    values = np.random.default_rng(3).standard_normal((2, 3, 4, 4)).astype(np.float32)
    client = serving()
    few = client.post("/v2/models/fixed/infer", asked(values, ()))
    monkeypatch.setattr("demitasse.inference.serving.app.FEW", 0)
    monkeypatch.setattr("demitasse.inference.serving.app.SMALL", 0)

    many = client.post("/v2/models/fixed/infer", asked(values, ()))

    assert many.body == few.body
    assert {**many.headers, "date": ""} == {**few.headers, "date": ""}


def test_large_answers_are_sent_in_pieces(serving, monkeypatch):
    monkeypatch.setattr("demitasse.inference.serving.connections.PART", 7)
    headers, body = write_request(InferRequest([Tensor("data", DATA)], {"score": True}))

    reply = serving().post(INFER, body, headers)

    answer = read_response(reply.body, int(reply.headers[LENGTH_HEADER.lower()]))
    np.testing.assert_allclose(
        answer.outputs[0].values, DATA.mean(axis=(2, 3)), rtol=1e-5, atol=1e-6
    )


def test_answers_count_until_they_are_taken(serving, monkeypatch):
    monkeypatch.setattr("demitasse.inference.serving.connections.PART", 7)
    client = serving(Limits(max_bytes=2000, held=2000))
    body = json.dumps(asked()).encode()

    async def both():
        slow = [Connection(client.app) for _ in range(20)]
        for one in slow:
            one.connection_made(Transport())
            one._writable.clear()
            one.data_received(b"POST %b HTTP/1.1\r\nHost: a\r\n" % INFER.encode())
            one.data_received(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await asyncio.sleep(0.05)
        refused = await client.ask("POST", INFER, body)
        for one in slow:
            one._writable.set()
        await asyncio.gather(*(one.transport.ended.wait() for one in slow))
        return refused, await client.ask("POST", INFER, body)

    refused, accepted = asyncio.run(both())

    assert refused.status == 503
    assert accepted.status == 200


@pytest.fixture
def threads(monkeypatch):
    """Threads in which nets ran, and numbers of requests in batches."""
    from demitasse.inference.serving.model import Runner

    found, run = [], Runner.run

    def noting(runner, requests):
        found.append((threading.current_thread(), len(requests)))
        return run(runner, requests)

    monkeypatch.setattr(Runner, "run", noting)
    return found


async def ask_often(client, count):
    body = json.dumps(asked()).encode()
    replies = [await client.ask("POST", INFER, body) for _ in range(count)]
    assert {reply.status for reply in replies} == {200}


def test_a_net_whose_passes_are_short_runs_in_the_event_loop(serving, threads, monkeypatch):
    monkeypatch.setattr("demitasse.inference.serving.batching.SHORT", 60.0)
    client = serving()

    async def many():
        await ask_often(client, 24)
        body = json.dumps(asked()).encode()
        return await asyncio.gather(*(client.ask("POST", INFER, body) for _ in range(4)))

    assert {reply.status for reply in asyncio.run(many())} == {200}
    assert threads[0][0] is not threading.current_thread()
    assert threads[-1] == (threading.current_thread(), 4)


def test_a_long_pass_has_the_next_ones_run_in_a_thread(serving, threads, monkeypatch):
    monkeypatch.setattr("demitasse.inference.serving.batching.SHORT", 60.0)
    client = serving()

    async def many():
        await ask_often(client, 24)
        monkeypatch.setattr("demitasse.inference.serving.batching.SHORT", 0.0)
        await ask_often(client, 3)

    asyncio.run(many())
    here = [thread is threading.current_thread() for thread, _ in threads]
    assert here[-3:] == [True, False, False]


@pytest.mark.parametrize("how", [{"workers": 2}, {"max_delay": 0.001}])
def test_several_workers_and_delays_need_threads(serving, threads, monkeypatch, how):
    monkeypatch.setattr("demitasse.inference.serving.batching.SHORT", 60.0)

    asyncio.run(ask_often(serving(**how), 48))

    assert threading.current_thread() not in {thread for thread, _ in threads}


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1)])
def test_a_net_that_fails_in_the_event_loop_is_tried_in_its_thread(
    serving, threads, monkeypatch, error
):
    monkeypatch.setattr("demitasse.inference.serving.batching.SHORT", 60.0)
    failing = Failing(monkeypatch)
    client = serving()

    async def many():
        await ask_often(client, 24)
        failing.error = error
        refused = await client.ask("POST", INFER, json.dumps(asked()).encode())
        failing.error = None
        return refused

    assert asyncio.run(many()).status == 500
    assert threads[-1][0] is threading.current_thread()
    if isinstance(error, ValueError):
        while client.get("/v2/health/ready").status == 503:
            pass
        assert client.post(INFER, asked()).status == 200


def test_requests_that_wait_for_a_thread_go_on_in_the_event_loop(serving, held, monkeypatch):
    monkeypatch.setattr("demitasse.inference.serving.batching.SHORT", 60.0)
    client = serving(max_batch=1)

    async def many():
        body = json.dumps(asked()).encode()
        tasks = [asyncio.create_task(client.ask("POST", INFER, body)) for _ in range(4)]
        await asyncio.to_thread(held.begun.wait, 30)
        await asyncio.sleep(0.05)
        held.go.set()
        return [(await one).status for one in tasks]

    assert asyncio.run(many()) == [200] * 4


def test_a_request_whose_client_gets_no_result_is_not_run(serving, held):
    client = serving(Limits(timeout=0.1))

    async def late():
        body = json.dumps(asked()).encode()
        return await asyncio.gather(*(client.ask("POST", INFER, body) for _ in range(6)))

    assert [reply.status for reply in asyncio.run(late())] == [504] * 6
    held.go.set()
    assert client.post(INFER, asked()).status == 200
    assert sum(held.sizes) < 6
