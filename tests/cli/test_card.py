"""``card``: write a model card."""

from pathlib import Path

import numpy as np
import pytest
from cli_errors import failed_with
from PIL import Image

from demitasse.core.text import shell_words
from demitasse.errors import ErrorCode
from demitasse.inference.cards import read_card
from demitasse.io.proto import BlobProto, set_floats
from demitasse.net import Net

NET = """
name: "Ours"
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 1 dim: CHANNELS dim: 4 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

TRAIN = """
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }
        transform_param { crop_size: 3 mirror: true } image_data_param { source: "x" } }
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TEST }
        transform_param { crop_size: 4 scale: 0.00390625 MEAN }
        image_data_param { source: "x" new_height: 6 new_width: 8 } }
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Work in a folder with a net for colour images and its weights."""
    monkeypatch.chdir(tmp_path)
    write_net(3)
    Path("train.prototxt").write_text(
        TRAIN.replace("MEAN", "mean_value: 104 mean_value: 117.5 mean_value: 123")
    )
    Path("labels.txt").write_text("ant\nbee\n")


def write_net(channels):
    Path("net.prototxt").write_text(NET.replace("CHANNELS", str(channels)))
    Net("net.prototxt", "TEST", device="numpy").save("net.caffemodel")


@pytest.mark.usefixtures("files")
def test_the_command_to_run_a_card_is_for_a_shell(run):
    flags = ["--channels", "bgr", "--mean", "none", "--scale", "1", "--out", "my card.toml"]

    shown = run("card", "net.prototxt", "net.caffemodel", *flags)

    file = shell_words("my card.toml")
    assert shown.stdout == f"Wrote my card.toml: demitasse run {file} IMAGE...\n"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("flag", ["--name", "--source"])
def test_a_name_that_is_not_utf8_is_refused(run, flag):
    flags = ["--channels", "bgr", "--mean", "none", flag, "b\udcffd"]

    failed = run("card", "net.prototxt", "net.caffemodel", *flags)

    assert failed.exit_code == 3
    assert 'd", expected UTF-8' in failed.stderr
    assert not Path("model.toml").exists()


@pytest.mark.usefixtures("files")
def test_a_card_has_the_input_and_the_softmax_of_the_flags(run):
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace('"Softmax"', '"Sigmoid"'))

    shown = run(
        "card net.prototxt net.caffemodel --task classify --channels bgr --mean none "
        "--input data --output ip --softmax"
    )

    assert shown.exit_code == 0
    card = read_card(Path("model.toml"))
    assert (card.input, card.outputs, card.softmax) == ("data", ("ip",), True)


@pytest.mark.usefixtures("files")
def test_a_card_is_written_and_runs(run):
    shown = run(
        "card net.prototxt net.caffemodel --channels bgr --mean 104,117,123 --scale 0.5 "
        "--size 6 --crop 4 --labels labels.txt --source here --licence BSD"
    )

    assert shown.exit_code == 0
    assert shown.stdout == "Wrote model.toml: demitasse run model.toml IMAGE...\n"
    card = read_card(Path("model.toml"))
    assert (card.name, card.task, card.source, card.licence) == ("Ours", "classify", "here", "BSD")
    assert card.labels == ("ant", "bee")
    how = card.preprocess
    assert (how.size, how.crop) == ((6, 6), (4, 4))
    assert (how.mean, how.scale) == ((104, 117, 123), (0.5,))
    Image.new("RGB", (9, 9)).save("a.png")
    assert run("run . a.png").exit_code == 0


@pytest.mark.usefixtures("files")
def test_what_is_missing_is_asked_for_at_once(run):
    shown = run("card net.prototxt net.caffemodel")

    assert shown.exit_code == 3
    failed_with(shown, 3, ErrorCode.MISSING, flags=["--channels", "--mean"])
    assert not Path("model.toml").exists()


@pytest.mark.usefixtures("files")
def test_the_prototxt_of_the_training_is_asked(run):
    shown = run("card net.prototxt net.caffemodel --channels bgr --train train.prototxt")

    assert shown.exit_code == 0
    how = read_card(Path("model.toml")).preprocess
    assert (how.size, how.crop) == ((6, 8), (4, 4))
    assert (how.mean, how.scale) == ((104, 117.5, 123), (0.00390625,))


@pytest.mark.usefixtures("files")
def test_a_mean_image_of_the_training_is_found_or_asked_for(run):
    Path("train.prototxt").write_text(TRAIN.replace("MEAN", 'mean_file: "/else/mean.binaryproto"'))
    args = "card net.prototxt net.caffemodel --channels bgr --train train.prototxt"

    failed_with(run(args), 3, ErrorCode.NOT_FOUND, flag="--mean")

    mean = BlobProto(num=1, channels=3, height=6, width=8)
    set_floats(mean, np.zeros(3 * 6 * 8, np.float32))
    Path("mean.binaryproto").write_bytes(mean.SerializeToString())
    assert run(args).exit_code == 0
    assert read_card(Path("model.toml")).preprocess.mean == Path("mean.binaryproto")


@pytest.mark.usefixtures("files")
def test_a_mean_image_suffices_without_the_training(run):
    np.save("mean.npy", np.full((3, 6, 8), 7, np.float32))

    shown = run("card net.prototxt net.caffemodel --channels bgr --mean mean.npy")

    assert shown.exit_code == 0, shown.output
    assert read_card(Path("model.toml")).preprocess.mean == Path("mean.npy")


@pytest.mark.usefixtures("files")
def test_a_net_for_one_channel_is_gray(run):
    write_net(1)

    shown = run("card net.prototxt net.caffemodel --mean none")

    assert shown.exit_code == 0
    assert read_card(Path("model.toml")).preprocess.channels == "gray"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("flags", "noted"),
    [
        ("--mean none", True),
        ("--mean 1,2,3", True),
        ("--mean none --scale 1", False),
        ("--train train.prototxt", False),
    ],
)
def test_a_scale_that_was_not_given_is_noted(run, flags, noted):
    shown = run(f"card net.prototxt net.caffemodel --channels bgr {flags}")

    assert shown.exit_code == 0
    assert ("give it by --scale" in shown.stdout) == noted


@pytest.mark.usefixtures("files")
def test_files_elsewhere_are_refused(run):
    Path("cards").mkdir()
    args = "card net.prototxt net.caffemodel --channels rgb --mean none --out cards/a.toml"

    shown = run(args)

    assert shown.exit_code == 3
    assert "cards" in shown.stderr


@pytest.mark.usefixtures("files")
def test_a_card_that_is_there_stays_unless_told(run):
    args = "card net.prototxt net.caffemodel --channels rgb --mean none"
    assert run(args).exit_code == 0

    assert run(args).exit_code == 2
    assert run(f"{args} --overwrite").exit_code == 0


@pytest.mark.usefixtures("files")
def test_a_published_card_is_a_beginning(run):
    shown = run(
        "card net.prototxt net.caffemodel --card mobilenet_ssd --task classify "
        "--size 4 --output prob --labels labels.txt"
    )

    assert shown.exit_code == 0
    card = read_card(Path("model.toml"))
    assert card.preprocess.mean == (127.5,)
    assert card.labels == ("ant", "bee")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--mean a,b", "--mean"),
        ("--mean 1,2", "mean"),
        ("--mean none --size big", "--size"),
        ("--mean none --task detect", ""),
        ("--mean none --output nothing", "nothing"),
        ("--mean none --train net.prototxt", "net.prototxt"),
    ],
)
def test_what_cannot_be_is_refused(run, flags, message):
    shown = run(f"card net.prototxt net.caffemodel --channels bgr {flags}")

    if message:
        assert shown.exit_code == 3
        assert message in shown.stderr


def test_published_cards_are_listed(run):
    shown = run("card --list")

    assert shown.exit_code == 0
    assert "caffenet" in shown.stdout
    assert "BVLC CaffeNet" in shown.stdout
