"""Arrays given to nets and blobs: of the host or of their device; those of others are refused."""

import array_api_strict as xp
import numpy as np
import pytest
from expect_error import expect_error

import demitasse as dm
from demitasse.errors import ErrorCode
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import transfers

NET = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def net_on(device):
    return dm.Net(parse_text(NET, NetParameter), "TEST", device=device)


def strict(array, device):
    return xp.asarray(array, device=xp.Device(device), copy=True)


def test_an_array_of_the_host_is_taken_anywhere(backend):
    np.testing.assert_array_equal(net_on(backend)(X), 2 * X)
    np.testing.assert_array_equal(net_on(backend)(X.tolist()), 2 * X)


def test_an_array_of_the_nets_device_does_not_leave_it():
    net = net_on("strict:device1")
    given = strict(X, "device1")
    transfers.reset()

    net.set_input("x", given)
    net.forward()

    assert (transfers.to_host, transfers.to_device) == (0, 0)
    np.testing.assert_array_equal(net.blobs["y"].data, 2 * X)


def test_batches_of_an_array_of_the_nets_device():
    given = strict(np.arange(15, dtype=np.float32).reshape(5, 3), "device1")

    found = net_on("strict:device1").predict(given, batch_size=2)["y"]

    np.testing.assert_array_equal(found, 2 * np.arange(15).reshape(5, 3))


def test_whole_numbers_become_what_the_blob_holds():
    net = net_on("strict:device1")

    net.set_input("x", strict(X.astype(np.int64), "device1"))

    assert net.blobs["x"].data.dtype == np.float32
    np.testing.assert_array_equal(net.blobs["x"].data, X)


@pytest.mark.parametrize("device", ["strict:device2", "numpy", "readonly", "cpu"])
@pytest.mark.parametrize("way", ["call", "set_input", "predict", "data", "diff"])
def test_an_array_of_another_device_is_refused(device, way):
    net, given = net_on(device), strict(X, "device1")
    transfers.reset()
    ways = {
        "call": lambda: net(given),
        "set_input": lambda: net.set_input("x", given),
        "predict": lambda: net.predict({"x": given}),
        "data": lambda: setattr(net.blobs["x"], "data", given),
        "diff": lambda: setattr(net.blobs["x"], "diff", given),
    }

    names = ["'x'", "array_api_strict", "numpy"]
    with expect_error(dm.DeviceError, ErrorCode.CONFLICT, mentions=names, device=device):
        ways[way]()

    assert (transfers.to_host, transfers.to_device) == (0, 0)


def test_an_array_of_another_library_on_the_host_is_taken(backend):
    given = strict(X, "CPU_DEVICE")

    np.testing.assert_array_equal(net_on(backend)(given), 2 * X)


@pytest.mark.parametrize("kind", ["gradient", "bfloat16"])
def test_a_tensor_that_numpy_does_not_take_is_taken(backend, kind):
    torch = pytest.importorskip("torch", reason="needs torch: nox -s frameworks")
    given = torch.tensor(X)
    given = given.requires_grad_() if kind == "gradient" else given.bfloat16()

    np.testing.assert_allclose(net_on(backend)(given), 2 * X, rtol=2**-7)


def test_a_number_fills_a_blob(backend):
    blob = dm.Blob((2, 3), device=backend)

    blob.data = 3

    assert (blob.data == 3).all()


def test_nets_of_one_process_run_on_different_devices_at_the_same_time(backend):
    here, there = net_on(backend), net_on("strict:device2")

    for factor in (1, 2):
        np.testing.assert_array_equal(here(factor * X), there(factor * X))
