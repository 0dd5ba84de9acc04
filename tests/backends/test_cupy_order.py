"""Work of GPUs in the right order and on the right one, where a GPU itself would say nothing.

On the stand-in: there, work is done as late as a GPU may do it, and there are two GPUs.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from demitasse import Net
from demitasse.blob import Blob
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import SyncedMemory
from demitasse.memory.arena import Arena, Assignment, Slot

pytestmark = pytest.mark.usefixtures("stand_in")


def other_stream():
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


class TestBlobsOfAnotherGpu:
    """What people and reports do with blobs, while another GPU is current."""

    @pytest.fixture(params=["fresh", "on the host", "on the device"])
    def blob(self, request):
        blob = Blob((2, 3), device="cuda:1")
        if request.param != "fresh":
            blob.data[...] = [[1, -2, 3], [-4, 5, -6]]
            blob.diff[...] = 1
        if request.param == "on the device":
            blob.mutable_gpu_data()
            blob.mutable_gpu_diff()
        return blob

    @pytest.fixture
    def array(self):
        return Device("cuda:1").backend.asarray(np.full((2, 3), 7, "float32"))

    def test_arrays_are_written(self, blob, array):
        blob.write(array)
        blob.write_diff(array)
        blob.add_diff(array)

        assert (blob.cpu_data() == 7).all()
        assert (blob.cpu_diff() == 14).all()

    def test_a_gradient_is_filled(self, blob):
        blob.set_diff(0.5)

        assert (blob.cpu_diff() == 0.5).all()

    def test_sums_are_taken(self, blob):
        blob.mutable_gpu_data()
        before = blob.cpu_data().copy()
        blob.gpu_data()
        blob.mutable_gpu_data()

        assert blob.asum_data() == np.abs(before).sum()
        assert blob.sumsq_data() == (before**2).sum()

    def test_numbers_are_scaled_and_updated(self, blob):
        blob.mutable_gpu_data()
        before = blob.cpu_data().copy()
        blob.mutable_gpu_data()
        blob.set_diff(1)

        blob.scale_data(2)
        blob.update()

        np.testing.assert_array_equal(blob.cpu_data(), 2 * before - 1)

    def test_one_blob_is_copied_to_another(self, blob):
        blob.mutable_gpu_data()
        copy = Blob((2, 3), device="cuda:1")

        copy.copy_from(blob)

        np.testing.assert_array_equal(copy.cpu_data(), blob.cpu_data())

    def test_stale_sides_are_spoiled(self):
        with settings.override(debug_fill_stale=True):
            blob = Blob((2, 3), device="cuda:1")
            blob.write(blob.device.backend.asarray(np.ones((2, 3), "float32")))
            blob.cpu_data()
            blob.mutable_cpu_data()[...] = 2

            assert (blob.cpu_data() == 2).all()

    def test_memory_that_was_cleared_is_zero(self):
        memory = SyncedMemory(3, "float32", Device("cuda:1"))
        memory.gpu_data()
        memory.mutable_cpu_data()[...] = 1
        memory.gpu_data()

        memory.clear()

        assert memory.device.backend.to_host(memory.gpu_data()).tolist() == [0, 0, 0]


class TestSharedBuffers:
    def test_a_memory_waits_for_the_upload_of_the_one_before(self):
        gpu, arena, slot = Device("cuda:0"), Arena(), Slot()
        arena.open = True
        first, second = (SyncedMemory(4, "float32", gpu) for _ in range(2))
        for memory in (first, second):
            memory.assign(Assignment(arena, slot, "x"))

        first.mutable_cpu_data()[...] = 1
        uploaded = first.gpu_data().copy()
        second.mutable_cpu_data()[...] = 2

        assert gpu.backend.to_host(uploaded).tolist() == [1, 1, 1, 1]


NET = """force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 8 dim: 3 dim: 16 dim: 16 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 16 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "exp" type: "Exp" bottom: "conv" top: "exp" }
layer { name: "ip" type: "InnerProduct" bottom: "exp" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""


def net_on(device, keep=None):
    net = Net(parse_text(NET, NetParameter), "TRAIN", device=device, seed=1, keep_blobs=keep)
    net.blobs["x"].data[...] = np.random.default_rng(1).normal(size=net.blobs["x"].shape)
    return net


class TestStreams:
    def test_what_a_stream_computed_is_read_outside_it(self):
        wanted = net_on("numpy")
        wanted.forward()
        net = net_on("cuda:0")

        with other_stream():
            net.forward()

        np.testing.assert_allclose(
            net.blobs["ip"].cpu_data(), wanted.blobs["ip"].cpu_data(), rtol=1e-4
        )

    @pytest.mark.parametrize("keep", [None, ["ip"]], ids=["all kept", "shared"])
    def test_each_pass_may_be_on_another_stream(self, keep):
        wanted, net = (net_on("cuda:0", keep) for _ in range(2))
        for one, streams in ((wanted, nullcontext), (net, other_stream)):
            for _ in range(3):
                with streams():
                    one.forward()
                one.blobs["ip"].set_diff(1)
                with streams():
                    one.backward()

        for name, params in wanted.params.items():
            np.testing.assert_array_equal(net.params[name][0].cpu_diff(), params[0].cpu_diff())

    def test_a_stream_waits_for_the_upload_of_another(self):
        memory = SyncedMemory(4, "float32", Device("cuda:0"))
        memory.mutable_cpu_data()[...] = 3
        memory.async_push()

        with other_stream():
            copy = memory.gpu_data().copy()

            assert copy.get().tolist() == [3, 3, 3, 3]


class TestPinnedMemory:
    def test_an_array_is_copied_before_its_memory_is_the_callers_again(self):
        backend = Device("cuda:0").backend
        host = backend.empty_host(4, "float32")
        host[...] = 1

        array = backend.asarray(host)
        host[...] = 2

        assert backend.to_host(array).tolist() == [1, 1, 1, 1]
