"""The input pipeline by itself: batches read, decoded, transformed and put into place."""

import importlib.util

import pytest
from nets.images import IMAGES

from demitasse import Net
from demitasse.io.proto import NetParameter, parse_text

BATCHES = {"raw28": 64, "raw64": 64, "raw256": 32, "jpeg256": 32}


@pytest.fixture(params=IMAGES)
def net(request, device, smoke, tmp_path):
    images = IMAGES[request.param]
    if images.jpeg and not importlib.util.find_spec("PIL"):
        pytest.skip("Pillow is not installed")
    batch = 2 if smoke else BATCHES[request.param]
    images.write(tmp_path / "lmdb", 8 * batch)
    message = parse_text(images.net(tmp_path / "lmdb", batch), NetParameter)
    with Net(message, "TRAIN", device=device, seed=1) as net:
        yield net


def test_batch(benchmark, net):
    def batch():
        net.forward()
        net.blobs["data"].read()
        net.synchronize()

    batch()
    benchmark.extra_info["images"] = net.blobs["data"].shape[0]
    benchmark(batch)
