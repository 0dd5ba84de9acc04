"""``predict``: many inputs through a net, in parts that are put together again."""

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from model_cards import classifier_card
from needs import NO_SUCH_FILE, slashes
from PIL import Image

from demitasse.net import Net

LABELS = ["top", "middle", "bottom"]

CARD = classifier_card("stripes", LABELS, "gray", net="deploy")

PREDICT = "predict stripes.caffemodel train_lmdb --batch 3 --device"


@pytest.fixture
def model(project):
    """Weights with a net beside them, a card, and a folder of images."""
    Net("deploy.prototxt", "TEST", device="numpy").save("stripes.caffemodel")
    Path("model.toml").write_text(CARD)
    Path("photos").mkdir()
    rows = np.random.default_rng(3).integers(0, 255, (10, 5, 7), np.uint8)
    for index, row in enumerate(rows):
        Image.fromarray(row).save(f"photos/{index}.png")
    return project


def good(result):
    assert result.exit_code == 0, result.stderr
    return result.stdout


def parts(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("count", [2, 5, 20])
@pytest.mark.usefixtures("model")
def test_parts_of_several_are_the_bits_of_one(run, device, count):
    good(run(f"{PREDICT} {device} -o one"))

    for index in reversed(range(count)):
        good(run(f"{PREDICT} {device} -o many --shard {index}/{count}"))
    good(run("predict --join one -o one.npz"))
    good(run("predict --join many -o many.npz"))

    assert len(parts("many")) == count
    assert Path("one.npz").read_bytes() == Path("many.npz").read_bytes()
    with np.load("one.npz") as joined:
        assert joined["prob"].shape == (40, 3)
        assert joined["items"].tolist() == sorted(joined["items"].tolist())


RECURRENT = """
    layer { name: "x" type: "Input" top: "x" top: "cont"
            input_param { shape { dim: 4 dim: 1 dim: 2 } shape { dim: 4 dim: 1 } } }
    layer { name: "rnn" type: "RNN" bottom: "x" bottom: "cont" top: "y"
            recurrent_param { num_output: 3 weight_filler { type: "uniform" min: -1 } } }
"""


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_shard_does_not_begin_within_a_sequence(run, tmp_path, monkeypatch, goes_on, device):
    monkeypatch.chdir(tmp_path)
    Path("deploy.prototxt").write_text(RECURRENT)
    Net("deploy.prototxt", "TEST", device="numpy").save("rnn.caffemodel")
    cont = np.ones((12, 1), np.float32)
    if not goes_on:
        cont[::4] = 0
    x = np.random.default_rng(6).standard_normal((12, 1, 2)).astype(np.float32)
    np.savez("x.npz", x=x, cont=cont)
    command = f"predict deploy.prototxt --weights rnn.caffemodel x.npz --batch 4 --device {device}"

    good(run(f"{command} -o one"))
    good(run(f"{command} -o many --shard 0/2"))
    result = run(f"{command} -o many --shard 1/2")

    if goes_on:
        assert result.exit_code == 3, result.stderr
        assert "layer 'rnn' (RNN) carries its state into the first batch of shard 1/2" in (
            result.stderr
        )
    else:
        good(result)
        good(run("predict --join one -o one.npz"))
        good(run("predict --join many -o many.npz"))
        assert Path("one.npz").read_bytes() == Path("many.npz").read_bytes()


@pytest.mark.usefixtures("model")
def test_outputs_are_those_of_the_net(run):
    values = np.random.default_rng(5).standard_normal((8, 1, 3, 3)).astype(np.float32)
    np.save("x.npy", values)
    np.savez("x.npz", data=values)
    with Net("deploy.prototxt", "TEST", device="numpy") as net:
        net.load("stripes.caffemodel")
        wanted = net.predict(values, batch_size=4)["prob"]

    for name in ("x.npy", "x.npz"):
        good(run(f"predict stripes.caffemodel {name} --batch 4 -o {name}.out --device numpy"))
        with np.load(f"{name}.out/part-00000-of-00001.npz") as part:
            np.testing.assert_array_equal(part["prob"], wanted)


@pytest.mark.usefixtures("model")
def test_rows_of_hdf5_are_taken(run):
    h5py = pytest.importorskip("h5py", reason="HDF5 files need h5py")
    values = np.random.default_rng(5).standard_normal((5, 1, 3, 3)).astype(np.float32)
    with h5py.File("x.h5", "w") as file:
        file["data"] = values
    np.save("x.npy", values)

    for name in ("x.npy", "x.h5"):
        good(run(f"predict stripes.caffemodel {name} --output ip -o {name}.out --device numpy"))

    npy, hdf5 = (np.load(f"x.{kind}.out/part-00000-of-00001.npz")["ip"] for kind in ("npy", "h5"))
    np.testing.assert_array_equal(npy, hdf5)


@pytest.mark.usefixtures("model")
def test_images_are_prepared_by_the_card(run):
    Path("photos/4.png").write_bytes(b"none")
    names = "\n".join(str(path) for path in sorted(Path("photos").iterdir()))
    Path("list.txt").write_text(names, "utf-8-sig")
    for index in range(3):
        flags = f"--format jsonl --shard {index}/3 --batch 2 --device numpy"
        good(run(f"predict model.toml list.txt -o many {flags}"))
    good(run("predict --join many -o many.jsonl"))

    lines = [json.loads(line) for line in Path("many.jsonl").read_text().splitlines()]
    assert [slashes(line["item"]) for line in lines] == [f"photos/{i}.png" for i in range(10)]
    assert "cannot be decoded" in lines[4]["error"]
    assert sorted(one["label"] for one in lines[0]["classes"]) == ["bottom", "middle", "top"]


@pytest.mark.usefixtures("model")
def test_a_part_that_is_there_is_not_made_again(run):
    command = f"{PREDICT} numpy -o out --shard 1/2"
    good(run(command))
    before = Path("out/part-00001-of-00002.npz").stat()

    shown = good(run(command))

    after = Path("out/part-00001-of-00002.npz").stat()
    assert "exists already" in shown
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.usefixtures("model")
def test_a_name_with_a_zero_byte_is_refused(run):
    Path("list.txt").write_bytes(b"photos/1.png\n\0.png\n")

    failed = run("predict model.toml list.txt -o out --device numpy")

    assert failed.exit_code == 3
    assert "null byte" in failed.stderr


@pytest.mark.usefixtures("model")
def test_a_score_that_is_nan_is_a_text_in_a_line(run):
    with Net("deploy.prototxt", "TEST", device="numpy") as net:
        net.params["ip"][0].data[...] = np.nan
        net.save("stripes.caffemodel")

    good(run("predict model.toml photos/1.png -o out --format jsonl --device numpy"))

    _, line = Path("out/part-00000-of-00001.jsonl").read_text().splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert [one["score"] for one in found["classes"]] == ["nan"] * 3


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("kind", ["npz", "jsonl"])
def test_a_part_of_something_else_stays_unless_it_is_forced(run, kind):
    command = f"predict model.toml photos -o out --device numpy --format {kind}"
    good(run(command))
    before = parts("out")
    Net("deploy.prototxt", "TEST", device="numpy").save("stripes.caffemodel")

    refused = run(command)
    same = parts("out")
    good(run(f"{command} --force"))

    assert refused.exit_code == 3
    assert "--force" in refused.stderr
    assert same == before
    assert parts("out") != before


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("content", [b"", b"none", b"PK\x03\x04", b"{}\n", b"[1]\n"])
def test_a_part_that_is_none_is_refused(run, content):
    Path("out").mkdir()
    for kind in ("npz", "jsonl"):
        Path(f"out/part-00000-of-00001.{kind}").write_bytes(content)

        shown = run(f"predict model.toml photos -o out --device numpy --format {kind}")

        assert shown.exit_code == 3
        assert "--force" in shown.stderr


@pytest.mark.usefixtures("model")
def test_a_kill_leaves_a_whole_part_or_none(run, start):
    """The same command makes the same bytes, however often it was killed before."""
    command = f"{PREDICT} numpy -o out --shard 0/2"
    good(run(command.replace("-o out", "-o whole")))
    draw = random.Random(1)
    begun = time.monotonic()
    start(command.replace("-o out", "-o timed")).wait(120)
    took = time.monotonic() - begun

    for _ in range(6):
        process = start(command)
        time.sleep(took * draw.uniform(0.5, 1.05))
        process.kill()
        process.wait(60)
        left = {name: content for name, content in parts_there("out").items() if name[0] != "."}
        assert left.items() <= parts("whole").items()
    good(run(command))

    assert {k: v for k, v in parts("out").items() if k[0] != "."} == parts("whole")


def parts_there(folder):
    return parts(folder) if Path(folder).exists() else {}


@pytest.mark.usefixtures("model")
def test_the_environment_says_which_shard(run, monkeypatch):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")

    shown = good(run(f"{PREDICT} numpy -o out --shard auto/4"))

    assert "Shard 3/4, from a Kubernetes job (JOB_COMPLETION_INDEX)" in shown
    assert list(parts("out")) == ["part-00003-of-00004.npz"]


@pytest.mark.usefixtures("model")
def test_parts_that_do_not_belong_together_are_not_joined(run):
    good(run(f"{PREDICT} numpy -o out --shard 0/2"))

    missing = run("predict --join out -o all.npz")
    absent = run("predict --join nothing -o all.npz")
    good(run(f"{PREDICT} numpy -o out --shard 1/3"))
    mixed = run("predict --join out -o all.npz")
    Path("out/part-00001-of-00003.npz").unlink()
    other = "predict stripes.caffemodel train_lmdb --batch 5 --device numpy"
    good(run(f"{other} -o out --shard 1/2"))
    strange = run("predict --join out -o all.npz")
    ending = run("predict --join out -o all.jsonl")

    assert "part-00001-of-00002.npz" in missing.stderr
    assert (absent.exit_code, absent.stderr[:14]) == (3, "error: nothing")
    assert all(text in mixed.stderr for text in ("2", "3", "npz", "a folder of its own by -o"))
    assert strange.exit_code == 3
    assert "npz" in ending.stderr
    assert not Path("all.npz").exists()


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("stripes.caffemodel -o out", 2, "INPUT..."),
        (
            "stripes.caffemodel photos -o out",
            3,
            "demitasse card",
        ),
        ("stripes.caffemodel none -o out", 3, NO_SUCH_FILE),
        ("stripes.caffemodel photos --weights other.caffemodel -o out", 3, "both weights"),
        ("model.toml none.png -o out", 3, "none.png"),
        ("model.toml none.npy -o out", 3, "none.npy"),
        ("model.toml train_lmdb photos -o out", 3, "database"),
        ("stripes.caffemodel train_lmdb --format jsonl -o out", 3, "--format npz"),
        ("stripes.caffemodel train_lmdb --output none -o out", 3, "got --output none,"),
        ("model.toml photos --shard 2/2 -o out", 2, "--shard"),
        ("--join model.toml -o out.npz", 3, "model.toml: expected a folder"),
    ],
)
def test_what_cannot_be_predicted_is_told(run, args, code, message):
    shown = run(f"predict {args} --device numpy")

    assert shown.exit_code == code
    assert message in shown.stderr.replace("\n", " ")
    assert not list(Path().glob("out/*"))
