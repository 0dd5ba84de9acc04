"""What files and arguments contain cannot speak to the terminal, or forge a line of the output."""

import os
import re
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from demitasse import Net
from demitasse.cli.errors import note_arguments, printable
from demitasse.io.data.databases.writing import write_database

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")

EVIL = "a\x1b[38;5;201m\r\nI1122 FORGED\x9b2J\u202e\u2028Z\x07"
RAW = re.compile("[\x07\x80-\x9f\u202e\u2028]|\x1b\\[38;5;201m|^I1122 FORGED", re.MULTILINE)
OCTAL = "".join(f"\\{byte:03o}" for byte in EVIL.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of files with evil names and contents."""
    folder = tmp_path_factory.mktemp("evil")
    fc = (
        f'layer {{ name: "{OCTAL}fc" type: "InnerProduct" bottom: "{OCTAL}" top: "{OCTAL}y" '
        'inner_product_param { num_output: 2 weight_filler { type: "xavier" } } } '
    )
    data = (
        f'layer {{ name: "{OCTAL}" type: "DummyData" top: "{OCTAL}" top: "l" dummy_data_param {{ '
        "shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } } "
    )
    loss = f'layer {{ name: "{OCTAL}loss" type: "SoftmaxWithLoss" bottom: "{OCTAL}y" bottom: "l" }}'
    shape = f'input: "{OCTAL}" input_shape {{ dim: 1 dim: 3 dim: 8 dim: 8 }} '
    texts = {
        "n.prototxt": shape + fc,
        "other.prototxt": (shape + fc).replace(f"{OCTAL}fc", "fc"),
        "t.prototxt": data + fc + loss,
        "bad.prototxt": shape + fc.replace("InnerProduct", OCTAL),
        "s.prototxt": 'net: "t.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 1 display: 1',
        "s2.prototxt": f'net: "{OCTAL}" base_lr: 0.01 lr_policy: "{OCTAL}" type: "{OCTAL}"',
        "labels.txt": "one\x1b[38;5;201m\ntwo\x9b2J\n",
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    (folder / "raw.prototxt").write_bytes(b"layer { " + EVIL.encode() + b": 3 }")
    for name in ("n", "other"):
        net = Net(folder / f"{name}.prototxt", "TEST", device="numpy", seed=1)
        net.save(folder / f"{name}.caffemodel")
    (folder / "pics").mkdir()
    PIL.Image.new("RGB", (8, 8)).save(folder / "q.png")
    (folder / "pics" / f"{EVIL}.png").write_bytes((folder / "q.png").read_bytes())
    (folder / "pics" / f"{EVIL}2.png").write_bytes(b"no image")
    write_database(folder / "db", [(np.zeros((3, 8, 8), np.uint8), 1)] * 2)
    return folder


def test_line_breaks_of_the_output_itself_stay():
    note_arguments(["\n", "a\n", "--name=b\nc", "d/e\nf/g"])
    try:
        shown = printable("a\nb\nc and e\nf.png\n")
    finally:
        note_arguments([])

    assert shown == "a\nb\\nc and e\\nf.png\n"


MODEL = ["n.prototxt", "--weights", "n.caffemodel"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["weights", "diff", "n.caffemodel", "other.caffemodel"],
        ["weights", "list", "n.caffemodel"],
        ["weights", EVIL],
        ["summary", "n.prototxt"],
        ["summary", "bad.prototxt"],
        ["summary", "raw.prototxt"],
        ["summary", EVIL],
        ["lint", "s2.prototxt"],
        ["train", "--solver", "s.prototxt", "--device", "numpy"],
        ["train", "--solver", "s2.prototxt"],
        ["train", f"--solver={EVIL}"],
        ["run", *MODEL, "pics"],
        ["run", *MODEL, "--labels", "labels.txt", "q.png"],
        ["run", EVIL, EVIL],
        ["serve", EVIL],
        ["predict", *MODEL, "pics", "--out", "parts"],
        ["compute_image_mean", "db", EVIL],
        ["extract_features", "n.caffemodel", "n.prototxt", EVIL, "features", "1"],
        ["explain", EVIL],
        [EVIL],
        [f"--{EVIL}"],
    ],
)
def test_nothing_raw_reaches_the_terminal(folder, arguments):
    main, side = pty.openpty()
    command = [sys.executable, "-P", "-m", "demitasse", *arguments]
    done = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=side, stderr=side)
    os.close(side)
    content = b""
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # Linux: the last process has closed the terminal
            break
        if not part:
            break
        content += part
    os.close(main)
    done.wait()

    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    assert text
    assert RAW.findall(text) == [], text
    assert "Traceback" not in text
