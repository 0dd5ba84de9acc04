"""A net with everything that several processes could get wrong, and its data."""

import hashlib
import threading

import numpy as np
import pytest

from demitasse.core.config import settings
from demitasse.examples.data import Split, write_databases
from demitasse.training import Solver
from demitasse.training.distributed.threads import connected_threads

NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.0039 mirror: true }
  data_param { source: "train" batch_size: 3 backend: LMDB } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.0039 } data_param { source: "test" batch_size: 8 backend: LMDB } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "drop" type: "Dropout" bottom: "bn" top: "bn" }
layer { name: "ip" type: "InnerProduct" bottom: "bn" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""

SOLVER = """
net: "net.prototxt" base_lr: 0.1 momentum: 0.9 weight_decay: 0.001 lr_policy: "fixed"
clip_gradients: 5 random_seed: 3 max_iter: 6 test_iter: 2 test_interval: 3 snapshot: 3
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with the net, its solver and its data; nobody writes to it."""
    place = tmp_path_factory.mktemp("parallel")
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (61, 1, 8, 8), np.uint8)
    labels = rng.integers(0, 5, 61)
    write_databases(place, Split((images, labels), (images[:16], labels[:16])), ("train", "test"))
    (place / "net.prototxt").write_text(NET)
    (place / "solver.prototxt").write_text(SOLVER)
    return place


def digest(net):
    """Return what tells a net's parameters, running averages too, from any others."""
    blobs = net.structure.params_list
    return hashlib.sha256(b"".join(b.cpu_data().tobytes() for b in blobs)).hexdigest()


@pytest.fixture
def train(folder, tmp_path):
    """Train with so many threads in the place of processes; return what each comes to."""

    def run(
        size, work=lambda solver: solver.step(6), num_shards=8, timeout=60, place=folder,
        devices=None, **options,
    ):  # fmt: skip
        results, errors = [None] * size, [None] * size

        def one(communicator):
            own = {"device": devices[communicator.rank]} if devices else {}
            try:
                with Solver(
                    place / "solver.prototxt", num_shards=num_shards, communicator=communicator,
                    **options, **own,
                ) as solver:  # fmt: skip
                    solver.param.snapshot_prefix = str(tmp_path / "run")
                    results[communicator.rank] = (work(solver), digest(solver.net))
            except BaseException as error:
                errors[communicator.rank] = error

        with settings.override(threads=1):
            threads = [
                threading.Thread(target=one, args=(c,)) for c in connected_threads(size, timeout)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return results, errors

    return run
