"""What only a GPU can show: transfers, streams, threads, memory."""

import threading

import numpy as np
import pytest
from cuda_host import cuda_at
from expect_error import expect_error
from gpu.plugin import real_gpus

from demitasse import Net
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.errors import OutOfMemoryError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.memory import Head, SyncedMemory

LARGE = 1 << 26 if real_gpus() else 1 << 16
"""Elements whose copy is under way for milliseconds; on the stand-in a copy waits to be made."""

RNG = np.random.default_rng(0)


@pytest.fixture
def gpu() -> Device:
    return cuda_at("cuda:0")


class TestTransfers:
    @pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint32"])
    def test_there_and_back(self, gpu, dtype):
        memory = SyncedMemory(1000, dtype, gpu)
        memory.mutable_cpu_data()[...] = np.arange(1000)

        device = memory.mutable_gpu_data()
        device += device

        np.testing.assert_array_equal(memory.cpu_data(), 2 * np.arange(1000))
        assert memory.head is Head.SYNCED

    def test_the_host_side_is_pinned(self, gpu):
        import cupy

        host = gpu.backend.empty_host(1000, "float32")
        attributes = cupy.cuda.runtime.pointerGetAttributes(host.ctypes.data)

        assert attributes.type == 1  # cudaMemoryTypeHost: registered with CUDA
        assert not host.any()

    def test_overwriting_the_host_side_waits_for_the_upload(self, gpu):
        size = LARGE
        memory = SyncedMemory(size, "float32", gpu)
        memory.mutable_cpu_data()[...] = 1

        device = memory.gpu_data()
        memory.mutable_cpu_data()[...] = 2

        assert float(device.min()) == float(device.max()) == 1

    def test_memory_that_dies_under_way_is_not_reused(self, gpu):
        size = LARGE
        device = gpu.backend.zeros(size, "float32")
        for value in range(4):
            host = gpu.backend.empty_host(size, "float32")
            host[...] = value
            gpu.backend.upload(host, device)
            del host
            other = gpu.backend.empty_host(size, "float32")  # what the pool has free
            other[...] = -1

            assert float(device.min()) == float(device.max()) == value

    def test_arrays_of_any_shape(self, gpu):
        for shape in ((), (0, 3), (2, 3, 4)):
            host = np.array(RNG.normal(size=shape))

            array = gpu.backend.asarray(host)

            assert array.shape == shape
            np.testing.assert_array_equal(gpu.backend.to_host(array), host)

    def test_blobs_are_seen_by_other_libraries(self, gpu):
        import cupy

        blob = Blob((2, 3), "float32", gpu)
        blob.data[...] = 1

        cupy.from_dlpack(blob)[0, 0] = 5
        cupy.asarray(blob)[0, 1] = 6

        np.testing.assert_array_equal(blob.cpu_data(), [[5, 6, 1], [1, 1, 1]])


NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 8 dim: 3 dim: 16 dim: 16 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 16 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""


def net_on(device: Device) -> Net:
    net = Net(parse_text(NET, NetParameter), "TEST", device=device, seed=1)
    net.blobs["x"].data[...] = np.random.default_rng(1).normal(size=net.blobs["x"].shape)
    return net


class TestThreadsAndStreams:
    def test_nets_in_several_threads_do_not_disturb_each_other(self, gpu):
        nets = [net_on(gpu) for _ in range(4)]
        wanted = net_on(gpu)
        wanted.forward()
        results: list[np.ndarray] = []

        def work(net: Net) -> None:
            for _ in range(20):
                net.forward()
            results.append(net.blobs["ip"].cpu_data().copy())

        crew = [threading.Thread(target=work, args=(net,)) for net in nets]
        for one in crew:
            one.start()
        for one in crew:
            one.join()

        assert len(results) == 4
        for result in results:
            np.testing.assert_array_equal(result, wanted.blobs["ip"].cpu_data())

    def test_a_net_runs_on_the_stream_that_is_current(self, gpu):
        import cupy

        wanted = net_on(gpu)
        wanted.forward()
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
            net = net_on(gpu)
            net.forward()
            result = net.blobs["ip"].cpu_data().copy()

        np.testing.assert_array_equal(result, wanted.blobs["ip"].cpu_data())

    def test_two_runs_are_equal_bit_for_bit(self, gpu):
        results = []
        for _ in range(2):
            net = net_on(gpu)
            net.forward()
            results.append(net.blobs["ip"].cpu_data().copy())

        np.testing.assert_array_equal(*results)


class TestMemory:
    def test_there_is_some(self, gpu):
        free, total = gpu.backend.memory_info()

        assert 0 < free <= total

    def test_more_than_there_is_is_refused_with_sizes(self, gpu):
        _, total = gpu.backend.memory_info()

        with expect_error(
            OutOfMemoryError, device="cuda:0", requested=4 * total, mentions=["cuda:0", "GiB"]
        ):
            gpu.backend.zeros(total, "float32")

    def test_the_pools_know_the_gpu_and_its_memory(self, gpu):
        pools = gpu.backend.pools

        assert "NVIDIA" in pools.gpu
        assert pools.free <= pools.total
