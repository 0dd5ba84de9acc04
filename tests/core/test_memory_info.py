"""What nets hold of a device's memory, what is left, and a limit that is set."""

import gc

import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import ErrorCode
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import SyncedMemory

MIB = 1 << 20
NET = """
    name: "n"
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 65536 } } }
    layer { name: "relu" type: "ReLU" bottom: "x" top: "relu" }
    layer { name: "tanh" type: "TanH" bottom: "relu" top: "tanh" }
"""


@pytest.fixture
def device(backend):
    if str(backend).startswith("cuda"):
        pytest.skip("cupy's pool keeps what is let go")
    return Device(backend)


def net_on(device, **options):
    return dm.Net(parse_text(NET, NetParameter), "TEST", device=device, **options)


def test_what_blobs_hold_is_told_and_let_go(device):
    gc.collect()
    before = device.memory_info().used

    net = net_on(device)
    made = device.memory_info().used - before
    net.forward()
    run = device.memory_info().used - before
    del net
    gc.collect()

    assert made == 0  # a blob has memory when something is in it
    assert run >= 3 * MIB
    assert device.memory_info().used == before


def test_a_memory_that_blobs_share_counts_once(device):
    gc.collect()
    before = device.memory_info().used
    one, other = (dm.Blob((MIB // 4,), device=device) for _ in range(2))
    other.share_data(one)

    one.buffer()[...] = 1
    other.read()

    assert device.memory_info().used - before == MIB


def test_an_array_that_is_adopted_counts():
    before = dm.memory_info("numpy").used
    memory = SyncedMemory(MIB // 4, "float32", Device("numpy"))

    memory.set_cpu_data(np.zeros(MIB // 4, np.float32))

    assert dm.memory_info("numpy").used - before == MIB


def test_what_is_free_is_less_than_there_is(device):
    info = device.memory_info()

    assert 0 < info.free < info.total
    assert info.device == device.name
    assert f"{info.used} bytes in blobs" in str(info) or "iB in blobs" in str(info)


def test_the_current_device_is_asked_where_none_is_named():
    with dm.use_device("numpy"):
        assert dm.memory_info().device == "numpy"


class TestLimit:
    def test_a_blob_beyond_it_is_refused_by_name(self, device):
        gc.collect()
        used = device.memory_info().used
        with settings.override(memory_limit=used + 2 * MIB):
            net = net_on(device)

            with expect_error(
                dm.OutOfMemoryError,
                ErrorCode.OUT_OF_MEMORY,
                place="layer 'tanh' (TanH), forward",
                mentions=["blob 'tanh'", "1.0 MiB", "memory_limit"],
            ) as caught:
                net.forward()

        assert caught.value.__class__.__mro__[1] is dm.DeviceError

    def test_within_it_nothing_changes(self, device):
        gc.collect()
        used = device.memory_info().used
        with settings.override(memory_limit=used + 8 * MIB):
            net = net_on(device)
            net.forward()

            info = device.memory_info()

        assert info.limit == used + 8 * MIB
        assert info.free <= 8 * MIB - 3 * MIB
        assert "limited to" in str(info)

    def test_what_was_let_go_may_be_had_again(self, device):
        gc.collect()
        used = device.memory_info().used
        with settings.override(memory_limit=used + 5 * MIB):
            for _ in range(3):
                net_on(device).forward()
                gc.collect()

    def test_shared_buffers_fit_where_own_ones_do_not(self, device):
        gc.collect()
        used = device.memory_info().used
        text = NET + "".join(
            f'layer {{ name: "t{i}" type: "Tile" bottom: "{before}" top: "t{i}" '
            "tile_param { tiles: 1 } }\n"
            for i, before in enumerate(["tanh", "t0", "t1", "t2"])
        )
        with settings.override(memory_limit=used + 5 * MIB):
            param = parse_text(text, NetParameter)
            with expect_error(dm.OutOfMemoryError, mentions="memory_limit"):
                dm.Net(param, "TEST", device=device).forward()
            gc.collect()

            dm.Net(param, "TEST", device=device, keep_blobs="outputs").forward()

    def test_host_sides_of_a_device_with_its_own_memory_are_not_under_it(self):
        strict = Device("strict:device1")
        used = strict.memory_info().used
        with settings.override(memory_limit=used + MIB):
            blob = dm.Blob((MIB // 4,), device=strict)
            other = dm.Blob((MIB,), device=strict)

            other.mutable_cpu_data()[...] = 1
            blob.buffer()[...] = 1

            with expect_error(dm.OutOfMemoryError, mentions=["4.0 MiB", "strict:device1"]):
                other.read()

    def test_it_is_read_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("DEMITASSE_MEMORY_LIMIT", "64MiB")

        assert dm.memory_info("numpy").limit == 64 * MIB

    def test_what_is_no_size_is_refused(self, monkeypatch):
        monkeypatch.setenv("DEMITASSE_MEMORY_LIMIT", "much")

        with expect_error(
            dm.ConfigError,
            ErrorCode.INVALID,
            setting="memory_limit",
            got="much",
            where="DEMITASSE_MEMORY_LIMIT",
        ):
            settings.get("memory_limit")

    def test_what_came_while_there_was_none_counts(self):
        gc.collect()  # what earlier tests left may go at any time
        used = dm.memory_info("numpy").used
        one, other, third = (dm.Blob((MIB // 4,), device="numpy") for _ in range(3))
        with settings.override(memory_limit=used + MIB):
            one.buffer()[...] = 1
        other.buffer()[...] = 1

        with (
            settings.override(memory_limit=used + 2 * MIB),
            expect_error(dm.OutOfMemoryError, mentions="memory_limit"),
        ):
            third.buffer()
