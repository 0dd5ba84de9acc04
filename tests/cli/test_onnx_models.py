"""ONNX files in place of prototxts."""

import json
import re
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from cli_errors import failed_with
from expect_error import expect_error
from model_cards import classifier_card
from needs import needs
from PIL import Image

import demitasse as dm
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards import find_card, read_card
from demitasse.inference.cards.model_files import find_model
from demitasse.net import Net

pytest.importorskip("onnx", reason="pip install 'demitasse[onnx]'")

NET = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

FLAGS = "--task classify --channels rgb --mean 100,110,120 --scale 0.01 --size 4"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Work in a folder with a net as prototxt and as ONNX, and a photo."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    with Net("net.prototxt", "TEST", device="numpy", seed=1) as net:
        net.save("net.caffemodel")
    dm.export_onnx("net.prototxt", "net.caffemodel", "model.onnx")
    pixels = np.random.default_rng(2).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(pixels).save("photo.png")


def scores(shown):
    assert shown.exit_code == 0, shown.stderr
    return {one["index"]: one["score"] for one in json.loads(shown.stdout)["classes"]}


def test_an_onnx_file_has_a_summary(run):
    found = json.loads(run("summary model.onnx --json").stdout)

    assert found["total"]["parameters"] == 3 * 48 + 3
    assert found["phase"] == "TEST"


def test_an_onnx_file_is_measured(run):
    done = run("bench model.onnx --devices numpy --batches 1 2 --rounds 1 --seconds 0")

    rows = [row.split()[:4] for row in done.stdout.splitlines()[1:3]]
    assert done.exit_code == 0, done.output
    assert rows == [["model", "TEST", "numpy", batch] for batch in ("1", "2")]


def test_devices_agree_on_an_onnx_file(run):
    shown = run("consistency model.onnx --devices numpy strict:device1 --json")
    steps = run("consistency model.onnx --devices numpy strict:device1 --steps 1")

    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["agree"]
    assert steps.exit_code == 2


def test_an_onnx_file_runs_by_the_card_that_was_written_for_it(run):
    written = run(f"card model.onnx {FLAGS}")
    expected = run(f"card net.prototxt net.caffemodel {FLAGS} --out other.toml")

    assert (written.exit_code, expected.exit_code) == (0, 0)
    card = read_card(Path("model.toml"))
    assert (card.net, card.weights) == (Path("model.onnx"), ())
    wanted = scores(run("run other.toml photo.png --json"))
    for model in ("model.onnx", "model.toml", "."):
        found = scores(run(f"run {model} photo.png --json"))
        assert found == pytest.approx(wanted, rel=1e-4)


def test_an_onnx_file_may_go_by_a_published_card():
    card = find_card("model.onnx", card="nin")

    assert (card.net, card.weights, len(card.labels)) == (Path("model.onnx"), (), 1000)


def test_an_onnx_file_predicts_with_and_without_a_card(run):
    np.save("images.npy", np.ones((2, 3, 4, 4), np.float32))
    plain = run("predict model.onnx images.npy -o plain --batch 1")
    run(f"card model.onnx {FLAGS}")
    lines = run("predict model.onnx photo.png -o lines --format jsonl")
    again = run("predict model.onnx photo.png -o lines --format jsonl")

    assert (plain.exit_code, lines.exit_code) == (0, 0)
    assert "exists already" in again.stdout
    with np.load("plain/part-00000-of-00001.npz") as part:
        assert part["prob"].shape == (2, 3)


@needs("signals")
def test_an_onnx_file_is_served(run, start):
    run(f"card model.onnx {FLAGS}")
    server = start("serve model.onnx --port 0 --device numpy")
    address = re.search(r"http://\S+?:\d+", server.stdout.readline())[0]

    body = Path("photo.png").read_bytes()
    with urllib.request.urlopen(f"{address}/v2/models/model/infer", body, timeout=60) as reply:
        [output] = json.load(reply)["outputs"]

    assert len(json.loads(output["data"][0])["classes"]) == 3
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        ("run model.onnx photo.png", ErrorCode.MISSING, "card"),
        ("run model.onnx photo.png --weights net.caffemodel", ErrorCode.CONFLICT, "weights"),
        ("run both.toml photo.png", ErrorCode.CONFLICT, "weights"),
        ("card model.onnx --task classify", ErrorCode.MISSING, None),
    ],
)
def test_what_an_onnx_file_lacks_is_said(run, args, code, field):
    card = classifier_card("net", ["a", "b", "c"], "rgb").replace("net.prototxt", "model.onnx")
    Path("both.toml").write_text(card)

    shown = run(args)

    failed_with(shown, 3, code, **({"field": field} if field else {}))


@pytest.mark.parametrize("args", ["card model.onnx net.caffemodel", "card net.prototxt"])
def test_weights_belong_to_prototxts(run, args):
    assert run(args).exit_code == 2


def test_a_card_of_another_file_is_not_taken():
    Path("other.onnx").write_bytes(Path("model.onnx").read_bytes())
    text = classifier_card("net", ["a", "b", "c"], "rgb").replace("net.prototxt", "other.onnx")
    Path("model.toml").write_text(text.replace('weights = "net.caffemodel"', ""))

    assert find_card("other.onnx").net == Path("other.onnx")
    with expect_error(ConfigError, ErrorCode.MISSING, field="card"):
        find_card("model.onnx")
    assert find_model("model.onnx").card is None


def test_python_is_told_to_import_the_file(run):
    run(f"card model.onnx {FLAGS}")

    with expect_error(ConfigError, ErrorCode.UNSUPPORTED, mentions="import"):
        dm.load_model("model.onnx")
