"""``dataset``, ``new`` and ``deploy``: from a folder of images to a trained net in use."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_errors import failed_with
from expect_error import expect_error
from needs import needs
from PIL import Image, ImageDraw

from demitasse.errors import ConfigError, ErrorCode
from demitasse.examples.nets import NETS, StartData, net_files
from demitasse.inference.cards import load_model, read_card
from demitasse.io.data import read_mean
from demitasse.io.data.dataset import read_dataset
from demitasse.io.proto import read_net, read_net_text
from demitasse.net import Net
from demitasse.training import Solver

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 50), "red": (220, 30, 20)}


def draw(folder, each=12, *, sides=(40, 33)):
    """Write images of coloured discs, a folder for each colour; sizes differ."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        Path(folder, name).mkdir(parents=True)
        for number in range(each):
            size = [side + int(rng.integers(0, 9)) for side in sides]
            image = Image.new("RGB", size, tuple(map(int, rng.integers(100, 160, 3))))
            x, y = map(int, rng.integers(0, 12, 2))
            ImageDraw.Draw(image).ellipse((x, y, x + 20, y + 20), fill=colour)
            image.save(Path(folder, name, f"{number:03}.{('png', 'jpg')[number % 2]}"))


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Work in a folder with class folders of images."""
    monkeypatch.chdir(tmp_path)
    draw("photos")


def contents(folder):
    """The files of a data set that do not depend on the machine, and the keys of its LMDBs."""
    found = {name: Path(folder, name).read_bytes() for name in ("labels.txt", "mean.binaryproto")}
    return found | {part: Path(folder, f"{part}.txt").read_text() for part in ("train", "test")}


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(("name", "side"), [("lenet", 24), ("cifar10_quick", 32), ("resnet20", 16)])
def test_four_commands_lead_to_a_net_that_knows_the_images(run, name, side):
    assert run(f"dataset photos data --size {side}").exit_code == 0
    assert run(f"new --data data --net {name} -o net").exit_code == 0
    solver = Path("net/solver.prototxt")
    solver.write_text(solver.read_text().replace("max_iter: 400", "max_iter: 40"))
    assert run("train --solver net/solver.prototxt").exit_code == 0
    weights = f"net/{name}_iter_40.caffemodel"

    shown = run(
        f"deploy net/train_val.prototxt --weights {weights} --labels data/labels.txt -o model"
    )

    assert shown.exit_code == 0, shown.stderr
    with Net("net/train_val.prototxt", "TEST", device="numpy") as net:
        net.load(weights)
        net.forward()
        assert float(net.blobs["accuracy"].data) > 0.6
    lines = [json.loads(line) for line in run("run model photos --json").stdout.splitlines()]
    right = [line["classes"][0]["label"] in line["image"] for line in lines]
    assert len(right) == 36
    assert np.mean(right) > 0.6


@pytest.mark.usefixtures("photos")
def test_the_deploy_net_scores_as_the_training_net_does(run):
    assert run("dataset photos data --size 24x32").exit_code == 0
    assert run("new --data data --net resnet20").exit_code == 0
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
        net.forward()
        scores = net.blobs["score"].data.copy()
        images = net.blobs["data"].data.copy()
    assert run("deploy train_val.prototxt --weights w.caffemodel").exit_code == 0

    with Net("deploy.prototxt", "TEST", weights="w.caffemodel", device="numpy") as net:
        assert net.blobs["data"].shape == (1, 3, 24, 32)
        found = net.predict({"data": images})["prob"]

    expected = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), rtol=1e-4)
    types = {layer.type for layer in read_net(Path("deploy.prototxt")).message.layer}
    assert not types & {"Data", "Accuracy", "SoftmaxWithLoss"}


@pytest.mark.usefixtures("photos")
def test_a_data_set_has_labels_lists_and_the_mean(run):
    shown = run("dataset photos data --size 16x20 --test 0.25 --json")

    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    made = read_dataset(Path("data"))
    assert found["labels"] == list(made.labels) == ["blue", "green", "red"]
    assert made.shape == (3, 16, 20) == read_mean(Path("data/mean.binaryproto")).shape
    assert (made.train, made.test) == (27, 9)
    lists = {part: Path(f"data/{part}.txt").read_text().splitlines() for part in ("train", "test")}
    assert not set(lists["train"]) & set(lists["test"])
    assert sorted(line[-1] for line in lists["test"]) == list("000111222")
    assert [line[-1] for line in lists["train"]] != sorted(line[-1] for line in lists["train"])
    assert sorted(one.name for one in Path().iterdir()) == ["data", "photos"]


@pytest.mark.usefixtures("photos")
def test_a_seed_decides_on_the_split_and_the_order(run):
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert run(f"dataset photos {folder} --size 16 --seed {seed}").exit_code == 0

    assert contents("a") == contents("b")
    assert contents("a")["test"] != contents("c")["test"]


@pytest.mark.usefixtures("photos")
def test_gray_images_and_few_of_a_class(run):
    assert run("dataset photos data --size 28 --gray --max-per-class 5").exit_code == 0

    made = read_dataset(Path("data"))
    assert (made.shape, made.train, made.test) == ((1, 28, 28), 12, 3)
    assert run("new --data data").exit_code == 0
    assert read_net(Path("train_val.prototxt")).message.name == "lenet"
    assert "mirror" not in Path("train_val.prototxt").read_text()


@pytest.mark.usefixtures("photos")
def test_a_broken_image_ends_the_command_or_is_skipped(run):
    Path("photos/red/000.png").write_bytes(b"no image")

    failed_with(run("dataset photos data"), 3, ErrorCode.UNREADABLE, mentions="--on_error skip")
    assert [one.name for one in Path().iterdir()] == ["photos"]

    assert run("dataset photos data --on-error skip").exit_code == 0
    made = read_dataset(Path("data"))
    assert made.train + made.test == 35
    lists = Path("data/train.txt").read_text() + Path("data/test.txt").read_text()
    assert "red/000.png" not in lists
    assert lists.count("\n") == 35


@pytest.mark.usefixtures("photos")
def test_folders_of_training_and_test_are_no_classes_without_a_warning(run):
    Path("both").mkdir()
    shutil.copytree("photos", "both/train")
    shutil.copytree("photos/red", "both/val/red")

    shown = run("dataset both data --size 16")

    assert "The classes are train and val; " in shown.stderr
    assert f"give one folder: {Path('both/train')}" in shown.stderr
    assert "The classes are" not in run("dataset both/train other --size 16").stderr


@pytest.mark.usefixtures("photos")
def test_a_class_without_a_readable_image_is_refused(run):
    for path in Path("photos/red").iterdir():
        path.write_bytes(b"no image")

    shown = run("dataset photos data --on-error skip")

    failed_with(shown, 3, ErrorCode.UNREADABLE, classes=["red"])
    assert not Path("data").exists()


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda: Path("photos").rename("elsewhere"), ErrorCode.NOT_FOUND),
        (lambda: Path("photos/empty").mkdir(), ErrorCode.NOT_FOUND),
        (lambda: [Path(f"photos/{name}").rename(name) for name in ("red", "blue")],
         ErrorCode.MISSING),
        (lambda: [Path(f"photos/{name}").rename(name) for name in COLOURS], ErrorCode.MISSING),
        pytest.param(lambda: Path("photos/red/a\nb.png").write_bytes(b""), ErrorCode.INVALID,
                     marks=needs("names of any characters")),
    ],
    ids=["no folder", "empty class", "one class", "no class", "line break"],
)  # fmt: skip
def test_what_makes_no_data_set_is_refused(run, prepare, code):
    prepare()
    before = sorted(Path().rglob("*"))

    failed_with(run("dataset photos data"), 3, code)

    assert sorted(Path().rglob("*")) == before


@needs("links")
def test_a_circular_link_in_place_of_the_images_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").symlink_to("photos")

    failed_with(run("dataset photos data"), 3, ErrorCode.NOT_FOUND)


@pytest.mark.usefixtures("photos")
def test_a_data_set_is_replaced_on_demand_and_other_folders_never(run):
    assert run("dataset photos data --size 16").exit_code == 0
    failed_with(run("dataset photos data --size 20"), 3, ErrorCode.EXISTS)
    assert run("dataset photos data --size 20 --overwrite").exit_code == 0
    assert read_dataset(Path("data")).shape == (3, 20, 20)

    Path("data/notes.txt").write_text("mine")
    failed_with(run("dataset photos data --overwrite"), 3, ErrorCode.EXISTS)
    failed_with(run("dataset photos photos/data"), 3, ErrorCode.CONFLICT)
    assert Path("data/notes.txt").read_text() == "mine"


@needs("signals")
@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("sent", [signal.SIGINT, getattr(signal, "SIGKILL", None)])
def test_an_interrupted_data_set_is_not_there_and_is_made_again(run, tmp_path, monkeypatch, sent):
    monkeypatch.chdir(tmp_path)
    draw("photos", 150, sides=(400, 400))
    command = [sys.executable, "-m", "demitasse", "dataset", "photos", "data", "--size", "300"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not list(Path().glob(".data.*.part/dataset/labels.txt")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sent)
        assert process.wait() != 0

    assert not Path("data").exists()
    failed_with(run("new --data data"), 3, ErrorCode.NOT_FOUND)
    assert run("dataset photos data --size 16").exit_code == 0
    assert read_dataset(Path("data")).train == 360


@pytest.mark.usefixtures("photos")
def test_a_lone_image_of_a_class_is_for_training(run):
    for path in list(Path("photos/red").iterdir())[1:]:
        path.unlink()

    assert run("dataset photos data").exit_code == 0

    assert [line[-1] for line in Path("data/train.txt").read_text().splitlines()].count("2") == 1


@pytest.mark.usefixtures("photos")
def test_a_class_has_any_name_without_line_ends(run):
    names = ["blue\x85", "green\u2028leaf", "red\udcfe" if os.name == "posix" else "red"]
    for old, new in zip(("blue", "green", "red"), names, strict=True):
        Path("photos", old).rename(Path("photos", new))

    assert run("dataset photos data").exit_code == 0

    assert list(read_dataset(Path("data")).labels) == names


# -- new ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_each_net_trains(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    draw("photos")
    side = {"squeezenet": 64}.get(name, 32)
    assert run(f"dataset photos data --size {side}").exit_code == 0
    assert run(f"new --data data --net {name}").exit_code == 0
    assert run("lint solver.prototxt").exit_code == 0, run("lint solver.prototxt").output

    with Solver("solver.prototxt", device="numpy") as solver:
        assert np.isfinite(solver.step(2))
        assert solver.test(0)["accuracy"] >= 0


def test_squeezenet_has_the_names_of_the_published_weights(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("new --classes 7 --net squeezenet").exit_code == 0

    layers = {one.name: one for one in read_net(Path("train_val.prototxt")).message.layer}

    fires = [f"fire{number}/{part}" for number in range(2, 10)
             for part in ("squeeze1x1", "expand1x1", "expand3x3")]  # fmt: skip
    learned = [name for name, one in layers.items() if one.type == "Convolution"]
    assert learned == ["conv1", *fires, "score"]
    assert layers["score"].convolution_param.num_output == 7
    assert list(layers["data"].transform_param.mean_value) == [104, 117, 123]


def test_paths_with_quotes_and_line_ends_stay_paths():
    odd = 'it\'s a "path"\n\\'
    data = StartData(3, (1, 28, 28), (0.0,), (odd, "test"))

    net = read_net_text(net_files("lenet", data, odd)["train_val.prototxt"])

    assert net.message.layer[0].data_param.source == odd


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--classes 3 --net squeezenet --gray", ErrorCode.SHAPE_MISMATCH),
        ("--classes 3 --net lenet --size 12", ErrorCode.OUT_OF_RANGE),
        ("--data nothing", ErrorCode.NOT_FOUND),
    ],
)
def test_what_makes_no_net_is_refused(run, tmp_path, monkeypatch, flags, code):
    monkeypatch.chdir(tmp_path)

    failed_with(run(f"new {flags}"), 3, code)

    assert not list(Path().iterdir())


def test_wrong_flags_of_new_are_wrong_usage(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for flags in ("", "--classes 1", "--classes 3 --net alexnet", "--classes 3 --size big"):
        assert run(f"new {flags}").exit_code == 2
    assert run("new --classes 3").exit_code == 0
    assert run("new --classes 3").exit_code == 2
    assert run("new --classes 4 --overwrite").exit_code == 0


# -- deploy ------------------------------------------------------------------------------------

DATA = """
name: "ours"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "data/train_lmdb" backend: LMDB batch_size: 8 }
  transform_param { crop_size: 14 scale: 0.5 mirror: true } }
layer { name: "data" type: "Data" top: "data" top: "label" exclude { phase: TRAIN }
  data_param { source: "data/test_lmdb" backend: LMDB batch_size: 3 }
  transform_param { crop_size: 14 scale: 0.25 MEAN } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
"""

TAILS = {
    "softmax": ("""layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }""",
                ["Input", "InnerProduct", "Dropout", "Softmax"], "classify"),
    "loss in TRAIN": ("""
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label"
                include { phase: TRAIN } }
        layer { name: "p" type: "Softmax" bottom: "ip" top: "p" include { phase: TEST } }
        layer { name: "a" type: "Accuracy" bottom: "p" bottom: "label" top: "a"
                include { phase: TEST } }""",
                ["Input", "InnerProduct", "Dropout", "Softmax"], "classify"),
    "sigmoid": ("""
        layer { name: "column" type: "Reshape" bottom: "label" top: "column"
                reshape_param { shape { dim: -1 dim: 1 } } }
        layer { name: "flat" type: "Tile" bottom: "column" top: "flat" tile_param { tiles: 3 } }
        layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "ip" bottom: "flat" }""",
                ["Input", "InnerProduct", "Dropout", "Sigmoid"], "features"),
    "hinge": ("""layer { name: "loss" type: "HingeLoss" bottom: "ip" bottom: "label" }""",
              ["Input", "InnerProduct", "Dropout"], "features"),
    "auxiliary": ("""
        layer { name: "aux" type: "InnerProduct" bottom: "data" top: "aux"
                inner_product_param { num_output: 3 } }
        layer { name: "loss1" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label"
                loss_weight: 0.3 }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }
        layer { name: "top5" type: "Accuracy" bottom: "ip" bottom: "label" top: "top5" }""",
                  ["Input", "InnerProduct", "Dropout", "Softmax"], "classify"),
}  # fmt: skip


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("mean", ["values", "file"])
def test_losses_become_scores_and_the_card_has_the_preprocessing(run, tail, mean):
    text, types, task = TAILS[tail]
    assert run("dataset photos data --size 16x18").exit_code == 0
    field = {"values": "mean_value: 100.1", "file": 'mean_file: "data/mean.binaryproto"'}[mean]
    Path("train_val.prototxt").write_text(DATA.replace("MEAN", field) + text)
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")

    shown = run(
        "deploy train_val.prototxt --weights w.caffemodel --labels data/labels.txt -o model"
    )

    assert shown.exit_code == 0, shown.stderr
    made = read_net(Path("model/deploy.prototxt")).message
    assert [one.type for one in made.layer] == types
    assert list(made.layer[0].input_param.shape[0].dim) == [1, 3, 14, 14]
    assert not any(one.include or one.exclude for one in made.layer)
    card = read_card(Path("model/model.toml"))
    how = card.preprocess
    assert (card.task, card.labels) == (task, ("blue", "green", "red"))
    assert (how.channels, how.size, how.crop, how.scale) == ("bgr", (16, 18), (14, 14), (0.25,))
    expected = (100.1,) if mean == "values" else Path("model/mean.binaryproto")
    assert how.mean == expected
    assert run("run model photos/red/000.png").exit_code == 0


@pytest.mark.usefixtures("photos")
def test_a_net_whose_data_is_gone_has_its_crop_or_the_given_shape(run):
    text = DATA.replace("MEAN", "") + TAILS["softmax"][0]
    assert run("dataset photos data --size 14").exit_code == 0
    Path("train_val.prototxt").write_text(text)
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
    Path("data").rename("gone")

    assert run("deploy train_val.prototxt --weights w.caffemodel").exit_code == 0
    Path("train_val.prototxt").write_text(text.replace("crop_size: 14", ""))
    again = "deploy train_val.prototxt --weights w.caffemodel --overwrite"
    failed_with(run(again), 3, ErrorCode.MISSING, blob="data")
    assert run(f"{again} --shape data=1,3,14,14").exit_code == 0


@pytest.mark.usefixtures("photos")
def test_nothing_is_written_for_wrong_weights_or_labels(run):
    assert run("dataset photos data --size 16").exit_code == 0
    Path("train_val.prototxt").write_text(DATA.replace("MEAN", "") + TAILS["softmax"][0])
    Path("w.caffemodel").write_bytes(b"no weights")
    command = "deploy train_val.prototxt --weights w.caffemodel -o model"
    assert run(command).exit_code == 3

    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
    Path("labels.txt").write_text("one\ntwo\n")
    failed_with(run(f"{command} --labels labels.txt"), 3, ErrorCode.COUNT_MISMATCH, field="labels")
    assert run(f"{command} --labels nothing.txt").exit_code == 3
    assert not Path("model").exists()
    assert run(command).exit_code == 0
    assert run(command).exit_code == 2


@pytest.fixture
def training_net(run, photos):
    """A training net, its weights, and what its deploy net says of the photos."""
    assert run("dataset photos data --size 16").exit_code == 0
    Path("train_val.prototxt").write_text(DATA.replace("MEAN", "") + TAILS["softmax"][0])
    with Net("train_val.prototxt", "TEST", device="numpy", seed=1) as net:
        net.save("w.caffemodel")
    deploy = "deploy train_val.prototxt --weights w.caffemodel --labels data/labels.txt --out out"
    assert run(deploy).exit_code == 0
    return run("run out photos").stdout


@pytest.mark.parametrize(
    "command",
    [
        "run train_val.prototxt photos --weights w.caffemodel --labels data/labels.txt",
        "run model.toml photos",
    ],
)
def test_a_training_net_runs_as_its_deploy_net_does(run, training_net, command):
    card = "card train_val.prototxt w.caffemodel --labels data/labels.txt"
    if "toml" in command:
        assert run(card).exit_code == 0

    assert run(command).stdout == training_net
    assert not Path("deploy.prototxt").exists()


@pytest.mark.usefixtures("training_net")
def test_a_mean_image_of_the_training_may_be_given_in_place_of_a_missing_one(run):
    text = DATA.replace("MEAN", 'mean_file: "elsewhere/m.binaryproto"') + TAILS["softmax"][0]
    Path("train_val.prototxt").write_text(text)
    np.save("m.npy", np.full((3, 16, 16), 20, np.float32))
    net = "train_val.prototxt photos --weights w.caffemodel"

    failed_with(run(f"run {net}"), 3, ErrorCode.NOT_FOUND, file="elsewhere/m.binaryproto")
    given = run(f"run {net} --mean m.npy")
    assert given.exit_code == 0, given.output
    assert run("card train_val.prototxt w.caffemodel --mean m.npy").exit_code == 0
    assert run("run model.toml photos").stdout == given.stdout


@pytest.mark.usefixtures("training_net")
def test_a_training_net_predicts(run):
    for net, out in (("train_val.prototxt --weights w.caffemodel", "mine"), ("out", "theirs")):
        result = run(f"predict {net} photos -o {out}")
        assert result.exit_code == 0, result.output
        assert run(f"predict --join {out} -o {out}.npz").exit_code == 0

    with np.load("mine.npz") as mine, np.load("theirs.npz") as theirs:
        assert set(mine) == set(theirs)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.mark.usefixtures("training_net")
def test_a_training_net_is_served(start):
    server = start("serve train_val.prototxt --weights w.caffemodel --port 0 --device numpy")

    assert "http://" in server.stdout.readline()


def test_the_card_of_a_net_with_dense_image_data_has_its_size_and_crop(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train_val.prototxt").write_text("""
        layer { name: "data" type: "DenseImageData" top: "data" top: "label"
          transform_param { scale: 0.5 }
          dense_image_data_param { source: "list.txt" batch_size: 1 new_height: 16 new_width: 12
            crop_height: 8 crop_width: 10 } }
        layer { name: "score" type: "Convolution" bottom: "data" top: "score"
          convolution_param { num_output: 2 kernel_size: 1 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" }""")
    for name in ("image.png", "label.png"):
        pixels = np.zeros((20, 20, 3) if name == "image.png" else (20, 20), np.uint8)
        Image.fromarray(pixels).save(name)
    Path("list.txt").write_text("image.png label.png\n")
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")

    shown = run("deploy train_val.prototxt --weights w.caffemodel -o model")

    assert shown.exit_code == 0, shown.stderr
    card = read_card(Path("model/model.toml"))
    how = card.preprocess
    assert (card.task, how.size, how.crop, how.scale) == ("segment", (16, 12), (8, 10), (0.5,))
    assert run("run model image.png").exit_code == 0


def test_the_card_of_a_net_prepares_an_image_as_its_image_data_does(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train_val.prototxt").write_text("""
        layer { name: "data" type: "ImageData" top: "data" top: "label"
          transform_param { crop_size: 12 scale: 0.5 mean_value: 10 }
          image_data_param { source: "list.txt" batch_size: 1 } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
          inner_product_param { num_output: 2 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }""")
    pixels = np.random.default_rng(5).integers(0, 256, (20, 26, 3), np.uint8)
    Image.fromarray(pixels).save("image.png")
    Path("list.txt").write_text("image.png 0\n")
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
        net.forward()
        expected = net.blobs["data"].cpu_data()[0].copy()

    shown = run("deploy train_val.prototxt --weights w.caffemodel -o model")

    assert shown.exit_code == 0, shown.stderr
    model = load_model("model", device="numpy")
    np.testing.assert_array_equal(model.prepare(model.pixels("image.png")).values, expected)


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize("mode", ["FIT_SMALL_SIZE", "FIT_LARGE_SIZE_AND_PAD"])
def test_a_net_whose_images_no_card_can_prepare_gets_no_card(run, mode):
    assert run("dataset photos data --size 16x18").exit_code == 0
    resize = f"resize_param {{ height: 15 width: 15 resize_mode: {mode} }}"
    text = DATA.replace("MEAN", resize) + TAILS["softmax"][0]
    Path("train_val.prototxt").write_text(text)
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")

    shown = run("deploy train_val.prototxt --weights w.caffemodel -o model")
    card = run("card model/deploy.prototxt w.caffemodel --task classify --train train_val.prototxt")

    assert shown.exit_code == 0, shown.stderr
    assert f"no model card: resize_mode {mode} of layer 'data'" in shown.stdout
    assert not Path("model/model.toml").exists()
    failed_with(card, 3, ErrorCode.UNSUPPORTED, field="resize_mode")
    Path("model/model.toml").write_text("format = 1")
    again = run("deploy train_val.prototxt --weights w.caffemodel -o model --overwrite")
    assert "model.toml is the card of an earlier net" in again.stdout


@pytest.mark.usefixtures("photos")
def test_the_card_of_a_net_with_annotated_data_has_the_size_of_the_records(run):
    files = sorted(path.relative_to("photos").as_posix() for path in Path("photos").rglob("*.*"))
    Path("list.txt").write_text("".join(f"{file} {i % 3}\n" for i, file in enumerate(files)))
    made = run("convert_annoset photos/ list.txt data --resize_height 16 --resize_width 18")
    assert made.exit_code == 0, made.stderr
    text = DATA.replace("MEAN", "").replace('"Data"', '"AnnotatedData"') + TAILS["softmax"][0]
    text = text.replace("data/train_lmdb", "data").replace("data/test_lmdb", "data")
    Path("train_val.prototxt").write_text(text)
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")

    shown = run("deploy train_val.prototxt --weights w.caffemodel -o model")

    assert shown.exit_code == 0, shown.stderr
    how = read_card(Path("model/model.toml")).preprocess
    assert (how.size, how.crop) == ((16, 18), (14, 14))


@pytest.mark.usefixtures("training_net")
@pytest.mark.parametrize("command", ["run NET photos", "predict NET photos -o mine", "serve NET"])
def test_a_training_net_without_its_data_names_the_command_that_takes_a_shape(run, command):
    text = DATA.replace("MEAN", "") + TAILS["softmax"][0]
    text = text.replace("data/", "elsewhere/").replace("crop_size: 14", "")
    Path("train_val.prototxt").write_text(text)
    net = "train_val.prototxt --weights w.caffemodel"

    result = run(command.replace("NET", net))
    failed_with(result, 3, ErrorCode.MISSING, blob="data")
    assert "--shape data=1,3,224,224, to: " in result.stderr
    assert f"demitasse deploy {net}\n" in result.stderr

    made = run(f"deploy {net} --labels data/labels.txt --shape data=1,3,14,14 -o made")
    assert made.exit_code == 0, made.output
    assert run("run made photos").exit_code == 0


@pytest.mark.usefixtures("training_net")
@pytest.mark.parametrize("command", ["run NET photos", "predict NET photos -o mine", "serve NET"])
def test_a_lost_mean_image_is_given_to_deploy(run, command):
    text = DATA.replace("MEAN", 'mean_file: "gone.binaryproto"') + TAILS["softmax"][0]
    Path("train_val.prototxt").write_text(text)
    net = "train_val.prototxt --weights w.caffemodel"

    result = run(command.replace("NET", net))
    failed_with(result, 3, ErrorCode.NOT_FOUND, flag="--mean")
    assert "with --mean, to: " in result.stderr
    assert f"demitasse deploy {net}\n" in result.stderr

    made = run(f"deploy {net} --labels data/labels.txt -o made --mean 100,110,120.5")
    assert made.exit_code == 0, made.output
    assert read_card(Path("made/model.toml")).preprocess.mean == (100, 110, 120.5)
    again = run(f"deploy {net} -o made --overwrite --mean data/mean.binaryproto")
    assert again.exit_code == 0, again.output
    assert read_card(Path("made/model.toml")).preprocess.mean == Path("made/mean.binaryproto")


@pytest.mark.usefixtures("training_net")
def test_a_training_net_in_python_names_deploy():
    with expect_error(ConfigError, ErrorCode.UNKNOWN, field="weights"):
        load_model("train_val.prototxt", "w.caffemodel")
    with expect_error(ConfigError, ErrorCode.MISSING, mentions="demitasse deploy"):
        load_model("train_val.prototxt", "w.caffemodel", card="caffenet")


@pytest.mark.usefixtures("photos")
def test_weights_of_another_net_and_states_without_data_are_refused(run):
    assert run("dataset photos data --size 16").exit_code == 0
    text = DATA.replace("MEAN", "") + TAILS["softmax"][0]
    Path("train_val.prototxt").write_text(text)
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
    Path("train_val.prototxt").write_text(text.replace('name: "ip"', 'name: "other"'))
    command = "deploy train_val.prototxt --weights w.caffemodel"
    failed_with(run(command), 3, ErrorCode.MISSING, layers=["other"])

    stage = text.replace("exclude { phase: TRAIN }", 'include { phase: TEST stage: "seen" }')
    Path("train_val.prototxt").write_text(stage)
    failed_with(run(command), 3, ErrorCode.MISSING, blob="data", stages=["seen"])
    assert run(f"{command} --stage seen").exit_code == 0


@pytest.mark.usefixtures("photos")
def test_targets_before_predictions_and_unread_labels_are_left_out(run):
    Path("train_val.prototxt").write_text("""
        input: "data" input: "label"
        input_shape { dim: 8 dim: 3 dim: 4 dim: 4 } input_shape { dim: 8 dim: 2 }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
                inner_product_param { num_output: 2 } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "label" bottom: "ip" top: "loss" }""")
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")

    shown = run("deploy train_val.prototxt --weights w.caffemodel")

    assert shown.exit_code == 0
    with Net("deploy.prototxt", "TEST", device="numpy") as net:
        assert (list(net.inputs), list(net.outputs)) == (["data"], ["ip"])
        assert net.blobs["data"].shape == (1, 3, 4, 4)
    assert not Path("model.toml").exists()  # the prototxt does not define a preprocessing


@pytest.mark.usefixtures("photos")
def test_copies_replace_no_other_files(run):
    assert run("dataset photos data --size 16").exit_code == 0
    text = DATA.replace("MEAN", "") + TAILS["softmax"][0]
    Path("train_val.prototxt").write_text(text)
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
    Path("model").mkdir()
    Path("model/labels.txt").write_text("mine")
    command = "deploy train_val.prototxt --weights w.caffemodel --labels data/labels.txt -o model"

    failed_with(run(command), 3, ErrorCode.EXISTS)
    assert [one.name for one in Path("model").iterdir()] == ["labels.txt"]
    assert run(f"{command} --overwrite").exit_code == 0
    assert Path("model/labels.txt").read_bytes() == Path("data/labels.txt").read_bytes()

    Path("deploy.prototxt").write_text(text)
    own = "deploy deploy.prototxt --weights w.caffemodel --overwrite"
    failed_with(run(own), 3, ErrorCode.CONFLICT)
    assert Path("deploy.prototxt").read_text() == text


@pytest.mark.usefixtures("photos")
def test_a_deployed_model_predicts_many_images(run):
    assert run("dataset photos data --size 16").exit_code == 0
    Path("train_val.prototxt").write_text(DATA.replace("MEAN", "") + TAILS["softmax"][0])
    with Net("train_val.prototxt", "TEST", device="numpy") as net:
        net.save("w.caffemodel")
    assert run("deploy train_val.prototxt --weights w.caffemodel -o model").exit_code == 0
    Path("model").rename("moved")

    assert run("predict moved photos -o parts --format jsonl").exit_code == 0
    [part] = Path("parts").glob("*.jsonl")
    assert part.read_text().count('"item"') == 36
