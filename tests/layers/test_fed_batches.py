"""Batches that come to a device as bytes, against those that the host has made numbers of."""

import numpy as np
import pytest
from cuda_host import cuda_at
from PIL import Image

from demitasse import Net
from demitasse.backends.cupy.library.uploads import GpuUploader
from demitasse.backends.pixels import ImageBatch
from demitasse.core.device import Device
from demitasse.io.data.databases.datum import array_to_datum
from demitasse.io.data.databases.writing import write_database, write_records
from demitasse.io.proto import BlobProto, Datum
from demitasse.memory import transfers

SHAPE = (3, 9, 8)
RECORDS = 7
BATCH = 3
TRANSFORMS = {
    "nothing": "",
    "scale": "scale: 0.00390625",
    "crop": "crop_size: 6",
    "sides": "crop_h: 5 crop_w: 7 scale: 0.3",
    "mirror": "mirror: true scale: 0.017",
    "values": "mean_value: 104.3 mean_value: 117 mean_value: 123.7 scale: 0.7",
    "one value": "mean_value: 127.5 crop_size: 4 mirror: true",
    "file": 'mean_file: "mean" crop_size: 5 mirror: true scale: 0.1',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A database, a list of images and a mean."""
    folder, rng = tmp_path_factory.mktemp("fed"), np.random.default_rng(3)
    records = rng.integers(0, 256, (RECORDS, *SHAPE), dtype=np.uint8)
    write_database(folder / "db", ((record, i) for i, record in enumerate(records)))
    for i, record in enumerate(records):
        Image.fromarray(np.ascontiguousarray(record.transpose(1, 2, 0))).save(folder / f"{i}.png")
    (folder / "list").write_text("".join(f"{i}.png {i}\n" for i in range(RECORDS)))
    mean = BlobProto(num=1, channels=3, height=9, width=8)
    mean.data.extend(rng.uniform(90, 140, SHAPE).ravel())
    (folder / "mean").write_bytes(mean.SerializeToString())
    return folder


SOURCES = {
    "Data": f'data_param {{ source: "db" backend: LMDB batch_size: {BATCH} }}',
    "ImageData": f'image_data_param {{ source: "list" batch_size: {BATCH} }}',
}


def reading(folder, device, transform, kind="Data", phase="TRAIN", **options):
    path = folder / f"{kind}.prototxt"
    path.write_text(
        f'layer {{ name: "d" type: "{kind}" top: "data" top: "label" {SOURCES[kind]} '
        f"transform_param {{ {transform} }} }}"
    )
    return Net(path, phase, device=device, seed=5, **options)


def batches(net, count=5):
    found = []
    for _ in range(count):
        net.forward()
        found.append([net.blobs[name].cpu_data().copy() for name in ("data", "label")])
    return found


def assert_same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.fixture
def sent(monkeypatch):
    """The batches that were sent as bytes."""
    found, send = [], GpuUploader.send
    monkeypatch.setattr(
        GpuUploader,
        "send",
        lambda self, pixels: (found.append(pixels.shape), send(self, pixels))[1],
    )
    return found


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_numbers_are_those_of_the_host_to_the_bit(folder, sent, transform, phase, kind):
    wanted = batches(reading(folder, "numpy", transform, kind, phase))

    got = batches(reading(folder, cuda_at("cuda:0"), transform, kind, phase))

    assert len(sent) >= 5
    assert_same(got, wanted)


def test_in_double_precision(folder, sent):
    transform, options = TRANSFORMS["file"], {"dtype": "float64"}
    wanted = batches(reading(folder, "numpy", transform, **options))

    got = batches(reading(folder, cuda_at("cuda:0"), transform, **options))

    assert sent
    assert_same(got, wanted)


def test_records_of_floats_come_as_floats_among_those_of_bytes(tmp_path, sent):
    rng = np.random.default_rng(4)
    records = [array_to_datum(rng.integers(0, 256, SHAPE, dtype=np.uint8), 1) for _ in range(8)]
    for datum in records[2:5]:
        floats = Datum(channels=3, height=9, width=8, label=2)
        floats.float_data.extend(rng.normal(size=SHAPE).ravel())
        datum.CopyFrom(floats)
    pairs = ((b"%d" % i, datum) for i, datum in enumerate(records))
    write_records(tmp_path / "db", pairs)
    transform = "crop_size: 5 scale: 0.5 mirror: true"
    wanted = batches(reading(tmp_path, "numpy", transform), 9)

    got = batches(reading(tmp_path, cuda_at("cuda:0"), transform), 9)

    assert 0 < len(sent) < 9
    assert_same(got, wanted)


def test_a_pass_that_is_taken_back_reads_the_same_batch_again(folder):
    net = reading(folder, cuda_at("cuda:0"), "mirror: true crop_size: 6")
    wanted = batches(reading(folder, "numpy", "mirror: true crop_size: 6"), 4)

    got = batches(net, 2)
    take_back = net.savepoint()
    net.forward()
    take_back()

    assert_same([*got, *batches(net, 2)], wanted)


@pytest.fixture
def feed(stand_in):
    return Device("cuda:0").backend.uploader()


def pixels(value):
    full = np.full((2, 1, 3, 4), value, np.uint8)
    return ImageBatch(full, np.zeros((2, 3), np.int32), None, 2.0)


def unpacked(sent):
    target = Device("cuda:0").backend.zeros(24, "float32")
    sent.unpack(target)
    return target


def test_a_batch_is_not_used_before_it_is_there(feed):
    target = unpacked(feed.send(pixels(3)))

    np.testing.assert_array_equal(Device("cuda:0").backend.to_host(target), 6)


def test_a_batch_is_not_overwritten_before_it_was_used(feed):
    for _ in range(2):  # so that there is room for two batches
        unpacked(feed.send(pixels(1)))

    first = unpacked(feed.send(pixels(3)))
    second = unpacked(feed.send(pixels(4)))
    third = feed.send(pixels(5))  # where the first is
    third.wait()

    for target, wanted in ((first, 6), (second, 8), (unpacked(third), 10)):
        np.testing.assert_array_equal(Device("cuda:0").backend.to_host(target), wanted)


def test_a_net_that_moves_goes_on_with_the_next_batch(folder, sent):
    transform, device = "mirror: true crop_size: 6 scale: 0.1", cuda_at("cuda:0")
    wanted = batches(reading(folder, "numpy", transform), 6)
    net = reading(folder, device, transform)

    got = batches(net, 2)
    got += batches(net.to("numpy"), 2)
    count = len(sent)
    got += batches(net.to(device), 2)

    assert_same(got, wanted)
    assert len(sent) > count


def test_a_quarter_of_the_bytes_is_copied(folder):
    net = reading(folder, cuda_at("cuda:0"), "")
    with net:
        net.forward()
        transfers.reset()
        net.forward()
        net.device.backend.synchronize()

    pixels, places, labels = BATCH * np.prod(SHAPE), BATCH * 3 * 4, BATCH * 4
    # this batch was perhaps sent before, and the one after it now
    assert transfers.bytes_to_device in {labels + n * (pixels + places) for n in (0, 1, 2)}
