"""Verbs that make databases, as Caffe's scripts call them."""

import json
import os
import struct
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from needs import needs, slashes

from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.codecs import read_image
from demitasse.io.proto import Datum
from demitasse.testing import make_layer


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(path, backend="LMDB"):
    with closing(open_db(path, backend)) as database, closing(database.new_cursor()) as cursor:
        return {key: Datum.FromString(bytes(value)) for key, value in records(cursor)}


@pytest.fixture
def photos(folder):
    """Twelve images and a list of them."""
    image = pytest.importorskip("PIL.Image")
    (folder / "photos").mkdir()
    for number in range(12):
        pixels = np.full((6, 8, 3), 20 * number, np.uint8)
        image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    (folder / "list.txt").write_text("".join(f"{n}.png {n % 3}\n" for n in range(12)))


def test_a_list_of_images_becomes_a_database(photos, run):
    result = run("convert_imageset photos/ list.txt db")

    assert (result.exit_code, result.stdout) == (0, "db: 12 records written\n")
    assert [d.label for d in contents("db").values()] == [0, 1, 2] * 4
    assert "A total of 12 images." in result.stderr
    assert "Processed 12 files." in result.stderr


@pytest.mark.parametrize(
    "flags",
    [
        "-gray -resize_width 4 -resize_height 3 -backend leveldb",
        "--gray --resize_width=4 --resize_height=3 --backend=leveldb",
        "--gray=true --shuffle=true --noshuffle --resize-width=4 -resize_height 3 -backend=LEVELDB",
        "-flagfile flags.txt",
    ],
)
def test_flags_in_every_spelling(photos, run, flags):
    Path("flags.txt").write_text(
        "-gray\n# of gflags\n\n--resize_width=4\n-resize_height=3\n--backend=leveldb\n",
        "utf-8-sig",
    )

    result = run(f"convert_imageset {flags} photos/ list.txt db")

    found = contents("db", "LEVELDB")
    assert result.exit_code == 0
    assert list(found)[:2] == [b"00000000_0.png", b"00000001_1.png"]
    assert {(d.channels, d.height, d.width) for d in found.values()} == {(1, 3, 4)}


def test_a_file_of_flags_may_begin_with_a_byte_order_mark(photos, run):
    Path("flags.txt").write_text("-gray\n", "utf-8-sig")

    run("convert_imageset -flagfile flags.txt photos/ list.txt db")

    assert {d.channels for d in contents("db", "LMDB").values()} == {1}


def test_a_missing_file_of_flags_is_wrong_usage(run):
    assert run("convert_imageset -flagfile none a b c").exit_code == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"-flagfile=flags.txt\n", "named twice"),
        (b"-gray\n" * 200_000, "1048576"),
        (b"-\xff\n", "decode"),
    ],
    ids=["names itself", "is too large", "is no text"],
)
def test_a_file_of_flags_that_cannot_be_used_is_wrong_usage(
    tmp_path, monkeypatch, run, content, told
):
    monkeypatch.chdir(tmp_path)
    Path("flags.txt").write_bytes(content)

    result = run("convert_imageset -flagfile flags.txt a b c")

    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_files_of_flags_that_name_others_many_times_are_wrong_usage(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    for number in range(40):  # 2^40 flags, if all were read
        Path(f"{number}").write_text(f"-flagfile={number + 1}\n" * 2)
    Path("40").write_text("-gray\n")

    result = run("convert_imageset -flagfile 0 a b c")

    assert result.exit_code == 2
    assert "40" in result.stderr


def test_images_that_cannot_be_read_are_told(photos, run):
    Path("photos/3.png").unlink()

    result = run("convert_imageset photos/ list.txt db --json")

    assert json.loads(result.stdout) == {"database": "db", "written": 11, "skipped": 1}
    assert "photos/3.png" in slashes(result.stderr)
    assert run("convert_imageset photos/ list.txt other --on_error raise").exit_code == 3


def test_a_killed_conversion_goes_on(photos, start, run):
    Path("list.txt").write_text(Path("list.txt").read_text() * 200)
    command = "convert_imageset photos/ list.txt db --encode_type png --resize_width 40"
    command += " --resize_height 40"
    process = start(command, stderr=None, stdout=None)
    partial = Path(".db.partial", "database", "data.mdb")
    while not (partial.exists() and partial.stat().st_size > 20_000) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not Path("db").exists()

    result = run(f"{command} --resume")

    assert result.exit_code == 0
    assert len(contents("db")) == 2400
    assert not Path(".db.partial").exists()


# -- published data sets -----------------------------------------------------------------------


@pytest.fixture
def mnist():
    """Five images with the labels 0, 1, 0, 1, 0."""
    pixels = np.random.default_rng(2).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    Path("images").write_bytes(struct.pack(">HBB3I", 0, 8, 3, *pixels.shape) + pixels.tobytes())
    Path("labels").write_bytes(struct.pack(">HBBI", 0, 8, 1, 5) + bytes([0, 1, 0, 1, 0]))
    return pixels


@pytest.mark.parametrize("flag", ["", "--backend=lmdb", "--backend=leveldb"])
def test_files_of_mnist(mnist, run, flag):
    result = run(f"convert_mnist_data images labels out {flag}")

    found = contents("out", "LEVELDB" if "leveldb" in flag else "LMDB")
    assert (result.exit_code, result.stdout) == (0, "out: 5 records\n")
    assert list(found) == [b"%08d" % n for n in range(5)]
    assert (np.concatenate([datum_to_array(d) for d in found.values()]) == mnist).all()


def test_pairs_of_mnist(mnist, run):
    assert run("convert_mnist_siamese_data images labels out").exit_code == 0
    assert run("convert_mnist_siamese_data images labels again").exit_code == 0
    assert run("convert_mnist_siamese_data images labels other --seed 1").exit_code == 0

    found = contents("out", "LEVELDB")
    labels = {image.tobytes(): n % 2 for n, image in enumerate(mnist)}
    assert list(found) == [b"%08d" % n for n in range(5)]
    for datum in found.values():
        first, second = (labels[image.tobytes()] for image in datum_to_array(datum))
        assert datum.label == (first == second)
    assert contents("again", "LEVELDB") == found != contents("other", "LEVELDB")


def test_labels_that_do_not_belong_to_the_images(mnist, run):
    Path("labels").write_bytes(struct.pack(">HBBI", 0, 8, 1, 4) + bytes(4))

    result = run("convert_mnist_data images labels out")

    assert result.exit_code == 3
    assert "labels" in result.stderr


@pytest.fixture
def cifar():
    """Six files of three records."""
    Path("cifar").mkdir()
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    rows = np.random.default_rng(1).integers(0, 256, (6, 3, 3073), dtype=np.uint8)
    rows[:, :, 0] %= 10
    for name, file in zip(names, rows, strict=True):
        Path("cifar", f"{name}.bin").write_bytes(file.tobytes())
    return rows


@pytest.mark.parametrize("kind", ["lmdb", "leveldb"])
def test_files_of_cifar(cifar, run, kind):
    Path("out").mkdir()

    result = run(f"convert_cifar_data cifar out {kind}")

    assert result.exit_code == 0
    for split, rows in (("train", cifar[:5]), ("test", cifar[5:])):
        found = contents(Path("out", f"cifar10_{split}_{kind}"), kind.upper())
        expected = rows.reshape(-1, 3073)
        assert list(found) == [b"%05d" % n for n in range(len(expected))]
        assert [d.label for d in found.values()] == expected[:, 0].tolist()
        values = [datum_to_array(d).ravel() for d in found.values()]
        assert (np.stack(values) == expected[:, 1:]).all()


@pytest.mark.parametrize("damage", [lambda f: f.unlink(), lambda f: f.write_bytes(b"short")])
def test_a_file_of_cifar_that_is_missing_or_cut_short(cifar, run, damage):
    damage(Path("cifar", "data_batch_4.bin"))

    result = run("convert_cifar_data cifar out lmdb")

    assert result.exit_code == 3
    assert "data_batch_4.bin" in result.stderr
    assert not list(Path("out").glob("*"))


# -- resize_and_crop_images --------------------------------------------------------------------


def test_squares_of_images(photos, run):
    Path("names.txt").write_text("photos/1.png\nphotos/none.png\n2.png\n")

    result = run(
        "resize_and_crop_images --input=names.txt --input_folder=photos --output_folder=out/"
        " --output_side_length=4"
    )

    assert result.exit_code == 0
    assert "none.png" in result.stderr
    assert [read_image(Path(f"out/{n}.png")).shape for n in (1, 2)] == [(3, 4, 4)] * 2


def test_squares_of_images_beside_the_working_directory(photos, run, monkeypatch):
    Path("work").mkdir()
    Path("photos").rename(".photos")
    Path("work/names.txt").write_text("../.photos/1.png\n")
    Path("names.txt").write_text(".photos/2.png\n")
    flags = "resize_and_crop_images --input=names.txt --output_side_length=4"

    hidden = run(f"{flags} --output_folder=out")
    monkeypatch.chdir("work")
    beside = run(f"{flags} --output_folder=../out")

    assert hidden.stdout + beside.stdout == "out: 1 images written\n../out: 1 images written\n"
    found = [read_image(Path(f"../out/.photos/{n}.png")).shape for n in (1, 2)]
    assert found == [(3, 4, 4)] * 2


def test_a_line_with_the_folder_alone_is_left_out(photos, run):
    Path("names.txt").write_text("photos\n1.png\n")

    result = run(
        "resize_and_crop_images --input=names.txt --input_folder=photos --output_folder=out"
    )

    assert result.stdout == "out: 1 images written\n"
    assert "Left out: photos" in result.stderr


def test_squares_as_pil_makes_them(photos, run):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8)
    image.fromarray(pixels).save("photos/large.png")
    image.fromarray(pixels).convert("RGBA").save("photos/clear.png")
    Path("names.txt").write_text("large.png\n1.png\nclear.png\nnone.png\n")

    result = run(
        "resize_and_crop_images --input=names.txt --input_folder=photos --output_folder=out/"
        " --output_side_length=24 --image_lib=pil"
    )

    assert result.output.endswith("2 images written\n")
    assert "clear.png" in result.stderr
    assert "none.png" in result.stderr
    # of 50 x 90 pixels half of the rows and columns, of those the middle, averaged
    half = image.fromarray(pixels)
    half.thumbnail((45, 25), image.Resampling.NEAREST)
    middle = half.crop((9, 0, 34, 25))
    middle.thumbnail((24, 24), image.Resampling.LANCZOS)
    middle.save("want.jpg", quality=75)
    assert Path("out/large.png").read_bytes() == Path("want.jpg").read_bytes()
    with image.open("out/1.png") as square:
        assert square.size == (6, 6)  # not enlarged


@pytest.fixture
def detection(photos):
    """The photos, each with a file of one object, a list of both, and a map of labels."""
    names = [line.rpartition(" ")[0] for line in Path("list.txt").read_text().splitlines()]
    for name in names:
        Path("photos", f"{name}.txt").write_text("1 0 0 2 2")
    Path("pairs.txt").write_text("".join(f"{name} {name}.txt\n" for name in names))
    Path("map.prototxt").write_text('item { name: "thing" label: 1 }')
    return names


def test_objects_become_a_database_that_a_layer_reads(detection, run):
    flags = "--anno_type=detection --label_type=txt --label_map_file=map.prototxt --gray=False"

    result = run(f"convert_annoset {flags} --check_label=True photos/ pairs.txt boxes")

    assert f"{len(detection)} records" in result.output
    one = make_layer(
        'type: "AnnotatedData" top: "data" top: "label" '
        'data_param { source: "boxes" batch_size: 1 backend: LMDB }',
        phase="TEST",
        base_dir=Path.cwd(),
        dtype="float32",
    )
    _, label = one.forward()
    assert label.shape == (1, 1, 1, 8)
    one.layer.close()


def test_files_that_name_classes_need_a_map(detection, run):
    assert run("convert_annoset --anno_type detection photos/ pairs.txt db").exit_code == 2


def test_sizes_of_images(detection, run):
    Path("ids").write_text("".join(f"{Path(n).stem} {k}\n" for k, n in enumerate(detection)))

    run("get_image_size photos/ pairs.txt sizes.txt")
    run("get_image_size photos/ pairs.txt numbered.txt --name_id_file ids")

    height, width = read_image(Path("photos", detection[0])).shape[1:]
    assert Path("sizes.txt").read_text().splitlines()[0] == (
        f"{Path(detection[0]).stem} {height} {width}"
    )
    assert Path("numbered.txt").read_text().splitlines()[0] == f"0 {height} {width}"


@needs("names of any bytes")
def test_names_that_are_no_utf8_are_written_as_they_are(detection, run):
    image = Path("photos", detection[0]).read_bytes()
    Path("photos", os.fsdecode(b"caf\xe9.jpg")).write_bytes(image)
    Path("few.txt").write_bytes(b"caf\xe9.jpg caf\xe9.xml\n")

    result = run("get_image_size photos/ few.txt sizes.txt")

    assert result.exit_code == 0
    assert Path("sizes.txt").read_bytes().startswith(b"caf\xe9 ")
