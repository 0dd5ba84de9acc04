"""``run``: what a trained net says of images."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_errors import failed_with
from model_cards import classifier_card
from needs import NO_SUCH_FILE, slashes
from PIL import Image

from demitasse.errors import ErrorCode
from demitasse.net import Net

INPUT = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
"""

ONE_BY_ONE = """
layer { name: "score" type: "Convolution" bottom: "data" top: "score"
        convolution_param { num_output: 2 kernel_size: 1 } }
"""

NET = f"""{INPUT}
layer {{ name: "means" type: "Pooling" bottom: "data" top: "means"
        pooling_param {{ pool: AVE global_pooling: true }} }}
"""

CARD = classifier_card("net", ["blue", "green", "red"], "bgr")

RED, GREEN, BLUE = (200, 10, 20), (10, 200, 20), (10, 20, 200)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Work in a folder with a model and some images."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/net.prototxt").write_text(NET)
    Net("model/net.prototxt", "TEST", device="numpy").save("model/net.caffemodel")
    Path("model/model.toml").write_text(CARD)
    Path("photos/more").mkdir(parents=True)
    for name, color in (("b", RED), ("a", GREEN), ("more/a", BLUE)):
        Image.new("RGB", (8, 6), color).save(f"photos/{name}.png")
    Path("photos/notes.txt").touch()
    Path("photos/.hidden.png").touch()
    return tmp_path


def lines(shown):
    return [json.loads(line) for line in shown.stdout.splitlines()]


@pytest.mark.usefixtures("photos")
def test_classes_are_printed(run):
    shown = run("run model photos/b.png --top 2")

    assert shown.exit_code == 0
    assert slashes(shown.stdout) == "photos/b.png (8 x 6)\n  200.0000  red\n   20.0000  blue\n"


@pytest.mark.usefixtures("photos")
def test_folders_come_in_order(run):
    shown = run("run model/model.toml photos --top 1 --batch 2")

    assert slashes(shown.stdout).splitlines()[::2] == [
        "photos/a.png (8 x 6)",
        "photos/b.png (8 x 6)",
        "photos/more/a.png (8 x 6)",
    ]


@pytest.mark.usefixtures("photos")
def test_json_has_a_line_for_each_image(run):
    shown = run("run model photos/a.png photos/none.png --json --top 1")

    [good, bad] = lines(shown)
    assert good == {
        "image": str(Path("photos/a.png")),
        "frame": None,
        "width": 8,
        "height": 6,
        "classes": [{"index": 1, "label": "green", "score": 200.0}],
    }
    assert bad == {"image": str(Path("photos/none.png")), "frame": None, "error": bad["error"]}
    assert NO_SUCH_FILE in bad["error"]


@pytest.mark.usefixtures("photos")
def test_broken_images_are_told_and_gone_on_from(run):
    Path("photos/aa.png").write_bytes(b"none")

    shown = run("run model photos --top 1")

    assert shown.exit_code == 3
    assert "error: photos/aa.png: " in slashes(shown.stderr)
    assert shown.stdout.count("(8 x 6)") == 3


@pytest.mark.usefixtures("photos")
def test_a_folder_without_images_is_told(run):
    Path("empty").mkdir()

    shown = run("run model empty photos/a.png")

    assert shown.exit_code == 3
    assert "error: empty: " in shown.stderr


@pytest.mark.usefixtures("photos")
def test_names_may_come_from_standard_input(start):
    process = start("run model - --json", stdin=subprocess.PIPE)

    shown, _ = process.communicate("photos/a.png\n\nphotos/more\n", timeout=120)

    found = [slashes(json.loads(line)["image"]) for line in shown.splitlines()]
    assert found == ["photos/a.png", "photos/more/a.png"]


@pytest.mark.usefixtures("photos")
def test_answers_are_drawn(run):
    shown = run("run model photos photos/a.png --draw out --top 1")

    assert shown.exit_code == 0
    written = sorted(path.as_posix() for path in Path("out").rglob("*.png"))
    assert written == ["out/a-2.png", "out/a.png", "out/b.png", "out/more/a.png"]
    with Image.open("out/a.png") as image:
        assert image.size == (8, 6)


@pytest.mark.usefixtures("photos")
def test_images_of_the_net_are_written(run):
    text = Path("model/net.prototxt").read_text().replace("global_pooling: true", "kernel_size: 1")
    Path("model/net.prototxt").write_text(text)
    Path("model/model.toml").write_text(CARD.replace("classify", "image"))

    shown = run("run model photos/b.png --draw drawn")
    [line] = lines(run("run model photos/b.png --json"))

    assert "8 x 6" in shown.stdout
    drawn = np.asarray(Image.open("drawn/b.png"))
    np.testing.assert_array_equal(drawn, np.asarray(Image.open("photos/b.png")))
    assert (slashes(line["image"]), line["result"]["width"], line["result"]["height"]) == (
        "photos/b.png", 8, 6,
    )  # fmt: skip


@pytest.mark.usefixtures("photos")
def test_masks_are_written(run):
    Path("model/net.prototxt").write_text(INPUT + ONE_BY_ONE)
    net = Net("model/net.prototxt", "TEST", device="numpy")
    net.params["score"][0].data[...] = np.array([[0, 0, 0], [0, 0, 1]])[:, :, None, None]
    net.params["score"][1].data[...] = [0, -100]
    net.save("model/net.caffemodel")
    card = CARD.replace("classify", "segment").replace("labels", "# labels")
    Path("model/model.toml").write_text(card)

    shown = run("run model photos/a.png photos/b.png --masks masks")

    assert slashes(shown.stdout) == (
        "photos/a.png (8 x 6)\n   100.00%  0\nphotos/b.png (8 x 6)\n   100.00%  1\n"
    )
    for name, kind in (("a", 0), ("b", 1)):
        with Image.open(f"masks/{name}.png") as mask:
            assert mask.getcolors() == [(48, kind)]


@pytest.mark.usefixtures("photos")
def test_masks_are_of_segments(run):
    shown = run("run model photos/a.png --masks masks")

    assert shown.exit_code == 3
    failed_with(shown, 3, ErrorCode.INVALID, flag="--masks")


@pytest.mark.usefixtures("photos")
def test_animations_are_taken_frame_by_frame(run):
    frames = [Image.new("RGB", (8, 6), color) for color in (RED, GREEN, BLUE)]
    frames[0].save("clip.webp", save_all=True, append_images=frames[1:], lossless=True)

    shown = run("run model clip.webp --json --top 1 --draw out")

    found = lines(shown)
    assert [line["frame"] for line in found] == [0, 1, 2]
    assert [line["classes"][0]["label"] for line in found] == ["red", "green", "blue"]
    assert Path("out/clip-000002.png").exists()
    every = run("run model clip.webp --json --every 2")
    assert [line["frame"] for line in lines(every)] == [0, 2]


@pytest.mark.usefixtures("photos")
def test_videos_are_read_by_opencv(run):
    cv2 = pytest.importorskip("cv2")
    kind = cv2.VideoWriter.fourcc(*"MJPG")
    video = cv2.VideoWriter("clip.avi", kind, 5, (32, 32))
    for color in (RED, GREEN, BLUE):
        video.write(np.full((32, 32, 3), color[::-1], np.uint8))
    video.release()

    shown = run("run model clip.avi --json --top 1")

    found = lines(shown)
    assert [line["frame"] for line in found] == [0, 1, 2]
    assert [line["classes"][0]["label"] for line in found] == ["red", "green", "blue"]


@pytest.mark.usefixtures("photos")
def test_without_opencv_a_video_is_told(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "cv2", None)
    Path("clip.mp4").write_bytes(b"none")

    shown = run("run model clip.mp4")

    assert shown.exit_code == 3
    assert "'demitasse[video]'" in shown.stderr


@pytest.mark.usefixtures("photos")
def test_lines_fit_the_terminal(monkeypatch, run):
    card = Path("model/model.toml")
    card.write_text(card.read_text().replace('"green"', f'"{"green " * 30}"'))
    monkeypatch.setattr("demitasse.cli.run_images.terminal_width", lambda: 40)

    shown = run("run model photos/a.png --top 1")

    assert [len(line) for line in shown.stdout.splitlines()] == [20, 40]


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("run photos photos/a.png", 3, "model.toml"),
        ("run model/net.prototxt photos/a.png", 3, "model/net.prototxt"),
        (
            "run model/net.prototxt --weights model/net.caffemodel photos/a.png",
            3,
            "demitasse card model/net.prototxt model/net.caffemodel",
        ),
        ("run model", 2, "IMAGE..."),
        ("run model/none.toml photos/a.png", 3, "model/none.toml"),
    ],
)
def test_what_cannot_be_run_is_refused(run, args, code, message):
    shown = run(args)

    assert shown.exit_code == code
    assert message in slashes(shown.stderr).replace("\n", " ")
