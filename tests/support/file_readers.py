"""More readers of untrusted files: archives, databases, images, lists, logs, flags, settings."""

import io
import itertools
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import numpy as np
import PIL.Image
from google.protobuf.message import DecodeError
from reader import Call, Reader, put

from demitasse import cvdnn, load_weights
from demitasse.backends import kernel_cache as kept
from demitasse.benchmark.results import read_results
from demitasse.cli.commands.classify import _windows
from demitasse.cli.gflags import double_dashes
from demitasse.cli.training_log import read_log, seconds_of_iterations
from demitasse.compat.pycaffe import io as caffe_io
from demitasse.core.config.files import _read as read_settings
from demitasse.core.config.files import _read_trust_list
from demitasse.core.config.store import Settings
from demitasse.errors import ConfigError, DataError
from demitasse.inference.cards import read_card
from demitasse.inference.cards.card_file import FileOverrides
from demitasse.io.data.databases.annotation_files import read_objects
from demitasse.io.data.databases.cifar import read_cifar
from demitasse.io.data.databases.database import open_db, records
from demitasse.io.data.databases.datum import annotated_datum, array_to_datum
from demitasse.io.data.databases.hdf5 import read_list
from demitasse.io.data.databases.writing import SETTINGS, _need_same, write_database
from demitasse.io.data.images.codecs import decode_frames, decode_image
from demitasse.io.data.imageset import read_lines
from demitasse.io.data.sources.collate import AnnotatedMaker
from demitasse.io.data.sources.image_list import read_pairs
from demitasse.io.data.transform.augment import AnnotatedAugmenter
from demitasse.io.data.transform.geometric import EmitFilter
from demitasse.io.data.transform.random import RecordRandom
from demitasse.io.data.transform.transformer import DataTransformer
from demitasse.io.proto import (
    AnnotatedDatum,
    BlobProto,
    Datum,
    NetParameter,
    TransformationParameter,
    caffe_pb2,
    read_binary,
    read_text,
)
from demitasse.io.weights.npz import read_npy
from demitasse.io.weights.safetensors import write_safetensors
from demitasse.layers.detection.detection_evaluate import _read_sizes

RNG = np.random.default_rng(0)


def file_readers(folder: Path) -> list[Reader]:
    """Return the readers; they keep their files in ``folder``."""
    return [
        *_archives(folder),
        *_databases(folder),
        *_images(folder),
        *_annotated(),
        *_texts(folder),
        *_settings(folder),
        *_kept_code(folder),
        *_interfaces(folder),
    ]


def _reading(file: Path, read: Callable[[Path], object]) -> Call:
    def call(content: bytes) -> None:
        read(put(file, content))

    return call


# -- npy, npz, safetensors ---------------------------------------------------------------------


def _archives(folder: Path) -> Iterator[Reader]:
    weight, bias = RNG.random((4, 3), np.float32), np.zeros(4, np.float64)
    arrays = {"ip/0": weight, "ip/1": bias}
    files, members = [], []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, **arrays)
        files.append(file.getvalue())
    for array in (weight, bias, np.asfortranarray(weight), np.zeros((0, 3)), np.float32(1)):
        file = io.BytesIO()
        np.save(file, array)
        members.append(file.getvalue())
    whole, alone = folder / "weights.npz", folder / "array.npy"
    tensors = folder / "weights.safetensors"
    write_safetensors(tensors, arrays)

    def member(content: bytes) -> None:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("ip/0.npy", content)
        load_weights(put(whole, archive.getvalue()))

    def array(content: bytes) -> None:
        put(alone, content)
        try:
            read_npy(alone)
        except ValueError as error:
            raise DataError(str(error)) from error

    yield Reader("npz", files, _reading(whole, load_weights), 490)
    yield Reader("array in an npz", members, member, 590)
    yield Reader("npy", members, array, 130)
    sound = [tensors.read_bytes()]
    yield Reader(
        "safetensors", sound, _reading(tensors, load_weights), 290, repair=_with_header_length
    )


def _with_header_length(content: bytes) -> bytes:
    """Let the length of a safetensors' header be where its JSON ends."""
    end = content.rfind(b"}}") + 2
    return struct.pack("<Q", max(end - 8, 0)) + content[8:]


# -- databases ---------------------------------------------------------------------------------


def _databases(folder: Path) -> Iterator[Reader]:
    small = folder / "small_lmdb"
    write_database(small, [(np.full((1, 2, 3), i, np.uint8), i) for i in range(3)])
    large = folder / "large_lmdb"
    with lmdb.open(str(large), map_size=1 << 20) as env, env.begin(write=True) as changes:
        for number in range(40):
            changes.put(b"%08d" % number, bytes(number * 7))
        changes.put(b"x", bytes(5000))
    place = folder / "read_lmdb"
    place.mkdir()

    def read(path: Path, kind: str) -> None:
        with closing(open_db(path, kind)) as database, closing(database.new_cursor()) as cursor:
            for _ in itertools.islice(records(cursor), 10_000):
                pass

    def mapped(content: bytes) -> None:
        put(place / "data.mdb", content)
        read(place, "LMDB")

    found = [(path / "data.mdb").read_bytes() for path in (small, large)]
    yield Reader("LMDB", found, mapped, 410)
    level = folder / "level"
    write_database(
        level,
        [(np.full((1, 2, 3), i, np.uint8), i) for i in range(30)],
        backend="LEVELDB",
    )
    for kind, pattern in (("table", "*.ldb"), ("manifest", "MANIFEST-*"), ("CURRENT", "CURRENT")):
        [file] = level.glob(pattern)
        sound = file.read_bytes()

        def one(content: bytes, file: Path = file, sound: bytes = sound) -> None:
            put(file, content)
            try:
                read(level, "LEVELDB")
            finally:
                put(file, sound)

        yield Reader(f"LevelDB {kind}", [sound], one, 400)


# -- images ------------------------------------------------------------------------------------


def _images(folder: Path) -> Iterator[Reader]:
    pixels = RNG.integers(0, 256, (9, 8, 3), np.uint8)
    color = PIL.Image.fromarray(pixels)
    made = [color, color.convert("L"), color.convert("P"), color.convert("RGBA")]
    made += [color.convert("1"), color.resize((70, 50))]

    def saved(images: list[PIL.Image.Image], kind: str, **options: object) -> list[bytes]:
        files = []
        for image in images:
            file = io.BytesIO()
            image.save(file, kind, **options)
            files.append(file.getvalue())
        return files

    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    jpegs = saved([made[0], made[1], made[5]], "JPEG") + saved([made[5]], "JPEG", progressive=True)
    jpegs += saved([made[0]], "JPEG", exif=turned)
    kinds = {
        "PNG": saved(made, "PNG"),
        "JPEG": jpegs,
        "BMP": saved(made[:3], "BMP"),
        "GIF": saved([made[2]], "GIF"),
        "TIFF": saved(made[:2], "TIFF") + saved([made[0]], "TIFF", compression="tiff_lzw"),
        "WEBP": saved([made[0]], "WEBP"),
        "PPM": saved(made[:2], "PPM"),
    }
    modes = itertools.cycle(("native", "color", "gray", "indices"))

    def decode(content: bytes) -> None:
        image = decode_image(content, next(modes))
        assert image.dtype == np.uint8
        assert image.ndim == 3

    for kind, files in kinds.items():
        repair = _with_checksums if kind == "PNG" else None
        yield Reader(f"{kind} image", files, decode, 100, repair=repair)
    frames = [made[0], PIL.Image.fromarray(255 - pixels)]
    for kind in ("GIF", "PNG", "TIFF", "WEBP"):
        film = io.BytesIO()
        frames[0].save(film, kind, save_all=True, append_images=frames[1:])
        yield Reader(f"frames of {kind}", [film.getvalue()], _every_frame, 200)
    file = folder / "loaded"
    every = [files[0] for files in kinds.values()]
    yield Reader(
        "caffe.io image", every, _reading(file, caffe_io.load_image), 220, allowed=(OSError,)
    )


def _every_frame(content: bytes) -> None:
    for frame in decode_frames(content):
        assert frame.dtype == np.uint8
        assert len(frame) == 3


def _with_checksums(content: bytes) -> bytes:
    """Make the checksums of a PNG's chunks right."""
    fixed, at = bytearray(content), 8
    while at + 12 <= len(fixed):
        (length,) = struct.unpack_from(">I", fixed, at)
        end = at + 8 + length
        if end + 4 > len(fixed):
            break
        struct.pack_into(">I", fixed, end, zlib.crc32(fixed[at + 4 : end]))
        at = end + 4
    return bytes(fixed)


# -- records with boxes ------------------------------------------------------------------------


def _annotated() -> Iterator[Reader]:
    pixels = RNG.integers(0, 256, (3, 9, 8), np.uint8)
    box = annotated_datum(pixels, [(1, 0.1, 0.1, 0.5, 0.6, 0), (0, 0, 0, 1, 1, 1)])
    none = AnnotatedDatum(datum=array_to_datum(pixels, 3))
    random, keeping, how = RecordRandom(0, "x"), EmitFilter(), TransformationParameter()
    maker = AnnotatedMaker(
        AnnotatedAugmenter(how, [], keeping),
        DataTransformer(how, "TRAIN"),
        keeping,
        random,
        labels=True,
        boxes=False,
    )

    def batch_shapes(content: bytes) -> None:
        maker.batch_shapes(content, 0, 2)

    files = [box.SerializeToString(), none.SerializeToString()]
    yield Reader("annotated record", files, batch_shapes, 65, (AnnotatedDatum, False))


# -- lists, logs, tables -----------------------------------------------------------------------

LOG = b"""I1231 23:59:50.000000  1 caffe.cpp:1] before
I1231 23:59:58.500000  1 solver.cpp:2] Solving LeNet
I1231 23:59:58.600000  1 solver.cpp:3] Iteration 0, Testing net (#0)
I1231 23:59:58.700000  1 solver.cpp:4]     Test net output #0: accuracy = 0.1
I1231 23:59:59.000000  1 solver.cpp:5] Iteration 0 (0 iter/s, 1s/100 iters), loss = 2.4
I1231 23:59:59.000000  1 solver.cpp:6]     Train net output #0: loss = 2.375 (* 1 = 2.375 loss)
I0101 00:00:00.600000  1 sgd_solver.cpp:7] Iteration 100, lr = 0.005
I0101 00:00:00.500000  1 solver.cpp:6]     Train net output #0: loss = nan (* 1 = nan loss)
"""
LABELS = b"""item { name: "none" label: 0 display_name: "background" }
item { name: "n01" label: 1 display_name: "dog" }
"""
OBJECTS = {
    "xml": b"""<annotation><size><height>20</height><width>40</width></size><object>
<name>dog</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax><ymax>4</ymax></bndbox></object></annotation>
""",
    "json": b"""{"image": {"height": 20, "width": 40}, "annotation": [
{"bbox": [1, 2.5, 3, 4], "category_id": "dog", "iscrowd": 1}]}""",
    "txt": b"1 2 3 4 5\n2 0.5 1 9 9\n",
}
RESULTS = b"""{"benchmarks": [{"name": "a", "stats": {"median": 0.5}},
{"name": "b", "stats": {"median": 2}}]}"""
SIZES = b"a 10 20\nb 30 40\n"


def _texts(folder: Path) -> Iterator[Reader]:
    file = folder / "some_text"

    def log(content: bytes) -> None:
        found = read_log(put(file, content))
        seconds_of_iterations(file)
        for rows in (found.train, found.test):
            if rows:
                text = io.StringIO()
                _tabled(rows, text)

    def label_map(path: Path) -> None:
        message = read_text(path, caffe_pb2.LabelMap)
        put(path, message.SerializeToString() or b"\n")
        read_binary(path, caffe_pb2.LabelMap)

    form = (caffe_pb2.LabelMap, True)
    yield Reader("training log", [LOG], log, 290)
    yield Reader("label map", [LABELS], _reading(file, label_map), 320, form)
    yield Reader("sizes of images", [SIZES], _reading(file, _read_sizes), 90)
    yield Reader("list of HDF5 files", [b"a.h5\nb.h5\n"], _reading(file, read_list), 83)
    lines = [b"a.png 1\nb c.jpg 2\n"]
    yield Reader("list to be converted", lines, _reading(file, read_lines), 100)
    yield Reader(
        "list of label images",
        [b"a.png b.png\n"],
        _reading(file, lambda p: read_pairs(p, "PIXEL")),
        88,
    )
    table = [b"filename,xmin,ymin,xmax,ymax\na.png,0,1.5,20,30\nb.png,1,2,3,4\n"]
    yield Reader("table of windows", table, _reading(file, _windows), 140)
    labels = {"dog": 1, "cat": 2}
    for kind, content in OBJECTS.items():
        yield Reader(
            f"objects as {kind}",
            [content],
            _reading(file, lambda p, kind=kind: read_objects(p, kind, labels, (20, 40))),
            100,
        )
    yield Reader("saved results", [RESULTS], _reading(file, read_results), 80)
    begun = folder / "begun"
    begun.mkdir()
    settings = {"gray": False, "size": [3, 4]}

    def go_on(content: bytes) -> None:
        put(begun / SETTINGS, content)
        _need_same(settings, begun)

    yield Reader("list gone on with", [json.dumps(settings).encode()], go_on, 60)
    cifar = bytes(range(256)) * 25
    yield Reader("CIFAR-10 file", [cifar[: 2 * 3073]], _reading(file, read_cifar), 83)


def _tabled(rows: list[dict[str, float]], text: io.StringIO) -> None:
    import csv

    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns))
    writer.writeheader()
    writer.writerows(rows)


# -- settings, flags, kernels ------------------------------------------------------------------

TOML = b"""device = "cpu"
threads = 2
seed = 7
log_level = "info"   # all
"""
FLAGS = b"# flags\n-gray\n--resize_width=4\n-flagfile other\n--backend=leveldb\n"


CARD = b"""format = 1
[model]
name = "Faces"
net = "model.toml"
weights = ["model.toml", "./model.toml"]
task = "detect"
labels = ["nothing", "face"]
batch = 1

[preprocess]
channels = "rgb"
size = [240, 320]
resize = "warp"
crop = 200
mean = [104, 117, 123.5]
scale = 0.0078125

[detect]
boxes = "boxes"
scores = "scores"
threshold = 0.7
overlap = 0.3
background = 0

[detect.anchors]
sizes = [[10, 16, 24], [32, 48]]
steps = [8, 16]
variance = [0.1, 0.1, 0.2, 0.2]
"""


def _settings(folder: Path) -> Iterator[Reader]:
    names = Settings().names()

    def settings(file: Path) -> Call:
        file.parent.mkdir()

        def call(content: bytes) -> None:
            put(file, content)
            read_settings.cache_clear()
            here = Path.cwd()
            os.chdir(file.parent)
            try:
                for name in names:
                    try:
                        Settings().find(name)
                    except ConfigError:
                        if name == names[-1]:
                            raise
            finally:
                os.chdir(here)

        return call

    def trusted(file: Path) -> None:
        for value in _read_trust_list.__wrapped__(file, 0, "").values():
            assert isinstance(value, str)

    def flags(content: bytes) -> None:
        path = put(folder / "flags", content)
        try:
            double_dashes(["train", f"--flagfile={path}"])
        except (OSError, ValueError) as error:
            raise DataError(str(error)) from error

    cards = folder / "cards"
    cards.mkdir()

    def card(file: Path) -> None:
        read_card(file, FileOverrides(file, [file]))  # the net and the weights are not opened

    yield Reader("model card", [CARD], _reading(cards / "model.toml", card), 400)
    toml = settings(folder / "settings" / "demitasse.toml")
    project = settings(folder / "project" / "pyproject.toml")
    yield Reader("demitasse.toml", [TOML], toml, 1000)
    yield Reader("pyproject.toml", [b"[tool.demitasse]\n" + TOML], project, 1000)
    digests = b'{"/a/demitasse.toml": "0123", "/b/demitasse.toml": "4567"}'
    yield Reader("list of trusted files", [digests], _reading(folder / "trusted", trusted), 60)
    yield Reader("flags", [FLAGS], flags, 190, opens=True)


def _kept_code(folder: Path) -> Iterator[Reader]:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    code = bytes(range(200))
    kept.write_code("kernel", code)
    place = kept.folder()
    if place is None or not (place / "kernel").exists():  # others can write to a folder above
        return
    sound = (place / "kernel").read_bytes()
    (place / "kernel").chmod(0o600)

    def read(content: bytes) -> None:
        put(place / "kernel", content)
        assert kept.read_code("kernel") in ((code, None) if content == sound else (None,))

    yield Reader("kept kernel", [sound], read, 420)


# -- what scripts call -------------------------------------------------------------------------


NET = b"""name: "n" input: "x" input_shape { dim: 1 dim: 2 dim: 4 dim: 4 }
layer { name: "c" type: "Convolution" bottom: "x" top: "c"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 } }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "s" type: "Softmax" bottom: "p" top: "s" }
"""


def _drop(_result: object) -> None:
    """Forget what a reader returns."""


def _interfaces(folder: Path) -> Iterator[Reader]:
    blob = caffe_io.array_to_blobproto(RNG.random((2, 3)), RNG.random((2, 3)))
    datum = caffe_io.array_to_datum(RNG.integers(0, 256, (3, 4, 5), np.uint8), 2)
    vector = caffe_io.arraylist_to_blobprotovector_str([RNG.random((2, 3)), RNG.random(4)])

    def blob_array(content: bytes) -> None:
        message = BlobProto.FromString(content)
        caffe_io.blobproto_to_array(message)
        caffe_io.blobproto_to_array(message, return_diff=True)

    told = (ValueError, DecodeError)
    yield Reader(
        "caffe.io blob",
        [blob.SerializeToString()],
        blob_array,
        72,
        (BlobProto, False),
        allowed=told,
    )
    yield Reader(
        "caffe.io datum",
        [datum.SerializeToString()],
        lambda content: _drop(caffe_io.datum_to_array(Datum.FromString(content))),
        60,
        (Datum, False),
        allowed=told,
    )
    yield Reader(
        "caffe.io blobs",
        [vector],
        lambda content: _drop(caffe_io.blobprotovector_str_to_arraylist(content)),
        78,
        (caffe_pb2.BlobProtoVector, False),
        allowed=told,
    )
    weights = NetParameter()
    weights.layer.add(name="c").blobs.add(data=[0.5] * 36).shape.dim.extend([2, 2, 3, 3])
    weights.layer[0].blobs.add(data=[0.5] * 2).shape.dim.append(2)
    encoded = weights.SerializeToString()

    def text(content: bytes) -> None:
        cvdnn.readNetFromCaffe(content)

    def both(content: bytes) -> None:
        cvdnn.readNet("caffe", content, NET)

    yield Reader("cvdnn net", [NET], text, 4000, (NetParameter, True), opens=True)
    yield Reader("cvdnn weights", [encoded], both, 4000, (NetParameter, False))
