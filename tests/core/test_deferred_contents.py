"""Memory whose first contents are made when they are first read: for weights that may be loaded."""

import threading

import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.io.weights.formats import write_weights
from demitasse.layers import fillers
from demitasse.memory import Head, SyncedMemory
from demitasse.net import build

SIZE = 6


class Writer:
    """Writes 0, 1, ... and counts how often it was asked."""

    def __init__(self):
        self.times = 0

    def __call__(self, host):
        self.times += 1
        host[...] = np.arange(host.size)


@pytest.fixture
def writer():
    return Writer()


@pytest.fixture
def memory(backend, writer):
    made = SyncedMemory(SIZE, "float32", Device(backend))
    made.lazy_init(writer)
    return made


READS = {
    "host": lambda m: m.cpu_data(),
    "host, to write": lambda m: m.mutable_cpu_data(),
    "device": lambda m: m.device.backend.to_host(m.gpu_data()),
    "device, to write": lambda m: m.device.backend.to_host(m.mutable_gpu_data()[...]),
    "live view": lambda m: m.live_view(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_they_are_made_once_when_they_are_read(memory, writer, read):
    assert writer.times == 0
    assert memory.head is Head.HEAD_AT_CPU
    assert not memory.cleared

    np.testing.assert_array_equal(read(memory), np.arange(SIZE))
    np.testing.assert_array_equal(read(memory), np.arange(SIZE))

    assert writer.times == 1


WRITES = {
    "host": lambda m: m.mutable_cpu_data(discard=True).fill(7),
    "device": lambda m: m.mutable_gpu_data(discard=True).__setitem__(..., 7),
    "adopted": lambda m: m.set_cpu_data(np.full(SIZE, 7, np.float32)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_they_are_never_made_where_others_come_first(backend, memory, writer, write):
    if backend == "readonly":
        pytest.skip("its arrays are not written in place")
    with memory.device.backend.device_scope():
        write(memory)

    np.testing.assert_array_equal(memory.cpu_data(), np.full(SIZE, 7))
    assert writer.times == 0


def test_cleared_memory_is_zero(memory, writer):
    memory.clear()

    np.testing.assert_array_equal(memory.cpu_data(), np.zeros(SIZE))
    assert writer.times == 0


def test_memory_that_moves_takes_them_along(memory, writer):
    memory.to(Device("numpy"))

    np.testing.assert_array_equal(memory.gpu_data(), np.arange(SIZE))
    assert writer.times == 1


def test_what_is_cut_short_is_made_again(backend):
    class StoppedError(Exception):
        pass

    def write(host, times=[]):  # noqa: B006 - counts calls
        times.append(1)
        host[: SIZE // 2] = 5
        if len(times) == 1:
            raise StoppedError
        host[...] = 1

    memory = SyncedMemory(SIZE, "float32", Device(backend))
    memory.lazy_init(write)
    with pytest.raises(StoppedError):
        memory.gpu_data()

    np.testing.assert_array_equal(memory.cpu_data(), np.ones(SIZE))


NET = """
input: "data" input_shape { dim: 2 dim: 3 }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.1 } } }
"""


@pytest.fixture
def drawn(monkeypatch):
    """The counts that were drawn since."""
    counts = []
    uniform = fillers.random.uniform

    def counted(seed, stream, passes, count):
        counts.append(count)
        return uniform(seed, stream, passes, count)

    monkeypatch.setattr(fillers.random, "uniform", counted)
    return counts


@pytest.fixture
def prototxt(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def save_arrays(net, path):
    write_weights(path, "npz", {"ip": {i: blob.data for i, blob in enumerate(net.params["ip"])}})


@pytest.mark.parametrize(
    ("save", "ending"),
    [(dm.Net.save, "caffemodel"), (dm.Net.save_hdf5, "h5"), (save_arrays, "npz")],
    ids=["caffemodel", "h5", "npz"],
)
def test_weights_that_are_loaded_are_not_drawn_before(prototxt, tmp_path, drawn, save, ending):
    path = tmp_path / f"weights.{ending}"
    net = dm.Net(prototxt, "TEST", seed=3)
    save(net, path)
    assert drawn
    drawn.clear()

    loaded = dm.Net(prototxt, "TEST", seed=4, weights=path)

    assert not drawn
    np.testing.assert_array_equal(loaded.params["ip"][0].data, net.params["ip"][0].data)


def test_a_net_that_shares_weights_draws_none(prototxt, drawn):
    one, other = dm.Net(prototxt, "TEST", seed=3), dm.Net(prototxt, "TEST", seed=4)

    other.share_trained_layers_with(one)
    other.forward()

    assert len(drawn) == 2  # Box-Muller: a radius and an angle
    assert other.params["ip"][0].data_memory is one.params["ip"][0].data_memory


def test_what_is_drawn_does_not_depend_on_when(prototxt, backend):
    first, later = (dm.Net(prototxt, "TEST", seed=3, device=backend) for _ in range(2))
    first.params["ip"][0].cpu_data()
    later.forward()

    np.testing.assert_array_equal(first.params["ip"][0].data, later.params["ip"][0].data)


def test_large_ones_are_made_on_all_cores_and_shared_ones_once(monkeypatch):
    monkeypatch.setattr("demitasse.core.threads.cores", lambda: 3)
    threads, writers = set(), [Writer() for _ in range(4)]
    blobs = [Blob((300_000,), device="numpy") for _ in writers]
    for blob, writer in zip(blobs, writers, strict=True):

        def write(host, writer=writer):
            threads.add(threading.current_thread().name)
            writer(host)

        blob.data_memory.lazy_init(write)

    build.initialize_parameters([*blobs, blobs[0]])

    assert [writer.times for writer in writers] == [1] * 4
    assert all(name.startswith("demitasse-begin") for name in threads)
    assert [blob.data[-1] for blob in blobs] == [299_999] * 4


def test_a_filler_s_constants_are_checked_when_the_net_is_made(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(NET.replace('type: "gaussian" std: 0.1', 'type: "uniform" min: 1 max: 0'))

    with expect_error(dm.DemitasseError, mentions=["1.0", "0.0"]):
        dm.Net(path, "TEST")
