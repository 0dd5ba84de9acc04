"""A lack of memory: an error that names the layer and its pass, and which batch would fit."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

import demitasse as dm
from demitasse.core import host
from demitasse.core.config import settings
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.layers.activations import TanH
from demitasse.memory import SyncedMemory

MIB = 1 << 20
NET = """
    name: "n"
    layer { name: "x" type: "Input" top: "x" top: "label"
            input_param { shape { dim: 8 dim: 1024 } shape { dim: 8 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
            inner_product_param { num_output: 1024 weight_filler { type: "xavier" } } }
    layer { name: "tanh" type: "TanH" bottom: "ip" top: "tanh" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "tanh" bottom: "label" top: "loss" }
"""
GREW = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 65536 } } }'


def trained(device, **options):
    net = dm.Net(parse_text(NET, NetParameter), "TRAIN", device=device, seed=1, **options)
    net.blobs["x"].data[...] = 0.1
    return net


@contextmanager
def room_for(device, nbytes) -> Iterator[None]:
    """Let blobs have so much more than they have."""
    gc.collect()
    if device.startswith("cuda"):  # parts of blocks that are split count, and are of no use
        dm.Device(device).backend.pools.release()
    with settings.override(memory_limit=dm.memory_info(device).used + nbytes):
        yield


def fail(*args, **more):
    raise MemoryError("Unable to allocate 3 GiB")


@pytest.mark.parametrize("method", ["forward", "backward", "reshape"])
def test_the_layer_and_its_pass_are_named(backend, monkeypatch, method):
    net = trained(backend, optimize=False)
    net.forward()
    net.blobs["x"].reshape(4, 1024)
    net.blobs["label"].reshape(4)
    monkeypatch.setattr(TanH, method, fail)

    place = f"layer 'tanh' (TanH), {method}"
    with expect_error(dm.OutOfMemoryError, place=place, mentions="3 GiB") as caught:
        net.forward_backward()

    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_step_that_cannot_be_prepared_names_its_layer(backend, monkeypatch):
    net = trained(backend)
    monkeypatch.setattr(type(net.device.backend), "lower", fail)

    with expect_error(dm.OutOfMemoryError, place="layer 'ip' (InnerProduct), preparation"):
        net.forward()


def test_a_gradient_that_cannot_be_prepared_names_its_layer(monkeypatch):
    net = trained("numpy")
    net.forward()
    step = next(step for step in net.plan.steps() if step is not None)
    monkeypatch.setattr(type(step), "prepare_backward", fail)
    net.blobs["x"].reshape(4, 1024)
    net.blobs["label"].reshape(4)

    with expect_error(dm.OutOfMemoryError, place="layer ") as caught:
        net.forward()

    assert caught.value.place.endswith(", preparation")


def test_an_update_names_the_parameter(backend, monkeypatch):
    net = trained(backend)
    net.forward_backward()
    monkeypatch.setattr(dm.Blob, "update", fail)

    with expect_error(dm.OutOfMemoryError, place="update of parameter 'ip[0]'"):
        net.update()


def test_the_history_of_a_solver_that_does_not_fit_is_named(backend):
    param = SolverParameter(base_lr=0.1, lr_policy="fixed", momentum=0.9, snapshot_prefix="s")
    param.net_param.CopyFrom(parse_text(NET, NetParameter))
    solver = dm.Solver(param, device=backend, seed=1)
    solver.net.forward_backward()

    with (
        room_for(backend, MIB),
        expect_error(dm.OutOfMemoryError, place="update", mentions="history of the solver"),
    ):
        solver.apply_update()


def test_the_largest_batch_that_fits_is_told(backend):
    room, working = 12 * MIB, 0
    # on a GPU the limit counts temporary arrays too, which portable code makes and Steps do not
    lowered = backend.startswith("cuda")
    if lowered:
        trained(backend).forward_backward()
        gc.collect()
        room += dm.Device(backend).backend.working
        working = MIB  # it grows with the batch
    net = trained(backend, optimize=lowered)

    with room_for(backend, room):
        net.forward_backward()
        net.blobs["x"].reshape(512, 1024)
        net.blobs["label"].reshape(512)
        with pytest.raises(dm.OutOfMemoryError) as caught:
            net.forward_backward()

    batch = caught.value.details["largest_batch"]
    assert 8 < batch < 512
    assert f"a batch of {batch}" in str(caught.value)
    net = trained(backend, optimize=lowered)
    net.blobs["x"].reshape(batch, 1024)
    net.blobs["label"].reshape(batch)
    with room_for(backend, room + working):
        net.forward_backward()


def test_where_not_even_one_fits_it_is_said(backend):
    net = dm.Net(parse_text(GREW, NetParameter), "TEST", device=backend)

    with (
        room_for(backend, MIB // 8),
        expect_error(dm.OutOfMemoryError, largest_batch=0),
        net.exclusive("forward"),
    ):
        net.blobs["x"].buffer()


def test_a_net_goes_on_with_a_smaller_batch(backend):
    net = trained(backend, optimize=False)
    with room_for(backend, 12 * MIB):
        net.blobs["x"].reshape(2048, 1024)
        net.blobs["label"].reshape(2048)
        with pytest.raises(dm.OutOfMemoryError):
            net.forward()

    net.blobs["x"].reshape(8, 1024)
    net.blobs["label"].reshape(8)
    net.blobs["x"].data[...] = 0.1

    assert net.forward_backward() == trained(backend, optimize=False).forward_backward()


@needs("limits of memory")
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_system_that_refuses_memory_is_a_lack_of_memory(device):
    net = trained(device)
    net.forward_backward()
    net.blobs["x"].reshape(1 << 18, 1024)
    net.blobs["label"].reshape(1 << 18)

    with host.limited_to(256 * MIB), pytest.raises(dm.OutOfMemoryError) as caught:
        net.forward_backward()

    assert caught.value.place.startswith("layer ")
    assert f"a batch of {caught.value.details['largest_batch']}" in str(caught.value)


def test_a_memory_says_what_it_is_called():
    memory = SyncedMemory(4, "float32", dm.Device("numpy"), "the gradient of blob 'x'")
    gc.collect()
    used = dm.memory_info("numpy").used

    with (
        settings.override(memory_limit=used + 1),
        expect_error(dm.OutOfMemoryError, mentions=["the gradient of blob 'x'", "16 bytes"]),
    ):
        memory.mutable_cpu_data()[...] = np.float32(1)


def test_a_buffer_that_cannot_be_made_names_its_blob(backend, monkeypatch):
    net = trained(backend, optimize=False)
    name = "empty_host" if net.device.shares_host else "zeros"
    net.forward()
    net.blobs["x"].reshape(16, 1024)
    net.blobs["label"].reshape(16)
    net.blobs["x"].buffer()
    monkeypatch.setattr(type(net.device.backend), name, fail)

    with pytest.raises(dm.OutOfMemoryError) as caught:
        net.forward()

    assert re.match(r"layer '\w+' \(\w+\), forward: blob '\w+'$", caught.value.place)
