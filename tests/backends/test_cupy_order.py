"""Work of GPUs in the right order and on the right one, where a GPU itself would say nothing.

On the stand-in: there, work is done as late as a GPU may do it, and there are two GPUs.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from replays import played_from_now_on

from demitasse import Net
from demitasse.backends.cupy.library.cublas import Cublas
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


@pytest.fixture
def another_thread():
    """A living thread that has used the GPU; runs functions."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: net_on("cuda:0").forward()).result()
        yield thread


class TestGraphsOfThreads:
    """Work that is launched as one while several threads use the GPU."""

    def passes(self, net, count=5):
        found = []
        for number in range(count):
            net.blobs["x"].mutable_cpu_data()[...] = number
            net.forward()
            found.append(net.blobs["ip"].cpu_data().copy())
        return np.stack(found)

    def queued(self, count=5):
        with settings.override(cuda_graphs="off"):
            return self.passes(net_on("cuda:0"), count)

    @pytest.fixture
    def played(self, monkeypatch):
        return played_from_now_on(monkeypatch)

    def test_each_thread_launches_its_own(self, another_thread, played):
        theirs = another_thread.submit(self.passes, net_on("cuda:0"))
        mine = self.passes(net_on("cuda:0"))

        np.testing.assert_array_equal(theirs.result(60), mine)
        np.testing.assert_array_equal(mine, self.queued())
        assert len(played) == 3 + 3

    def test_others_work_while_one_captures(self, another_thread, played, monkeypatch):
        recorder = Device("cuda:0").backend.recorder
        record, theirs, waiting = recorder.record, [], threading.Event()

        def wait_for_all():
            waiting.set()
            Device("cuda:0").backend.synchronize()

        def meanwhile(work):
            def both():
                theirs.append(another_thread.submit(self.passes, net_on("cuda:0"), 2).result(60))
                theirs.append(another_thread.submit(wait_for_all))
                waiting.wait(60)
                return work()

            return record(both)

        monkeypatch.setattr(recorder, "record", meanwhile)
        mine = self.passes(net_on("cuda:0"))
        theirs[1].result(60)

        assert len(played) == 3
        np.testing.assert_array_equal(mine, self.queued())
        np.testing.assert_array_equal(theirs[0], mine[:2])

    def test_two_capture_at_the_same_time(self, another_thread, played, monkeypatch):
        recorder, together = Device("cuda:0").backend.recorder, threading.Barrier(2)
        record = recorder.record

        def meet(work):
            together.wait(60)
            return record(work)

        monkeypatch.setattr(recorder, "record", meet)
        theirs = another_thread.submit(self.passes, net_on("cuda:0"))
        mine = self.passes(net_on("cuda:0"))

        np.testing.assert_array_equal(theirs.result(60), mine)
        np.testing.assert_array_equal(mine, self.queued())
        assert len(played) == 3 + 3

    def test_a_net_is_recorded_anew_in_another_thread(self, another_thread, played):
        net = net_on("cuda:0")
        mine = self.passes(net)

        theirs = another_thread.submit(self.passes, net).result(60)

        np.testing.assert_array_equal(theirs, mine)
        assert len(played) == 3 + 3
        assert len(set(played)) == 2

    def test_an_ended_thread_leaves_its_handle_to_the_next(self, monkeypatch):
        call, called = Cublas.call, []
        monkeypatch.setattr(Cublas, "call", lambda *given: (called.append(given[1]), call(*given)))

        for _ in range(3):
            called.clear()
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self.passes, net_on("cuda:0"), 1).result(60)

        assert "cublasSetStream_v2" in called
        assert "cublasCreate_v2" not in called

    def test_a_thread_needs_one_scratch_memory(self, another_thread):
        def needed(graphs):
            with settings.override(cuda_graphs=graphs):
                self.passes(net_on("cuda:0"))
            return Device("cuda:0").backend.engine.nbytes

        queued = another_thread.submit(needed, "off").result(60)

        assert another_thread.submit(needed, "auto").result(60) == queued


class TestPinnedMemory:
    def test_an_array_is_copied_before_its_memory_is_the_callers_again(self):
        backend = Device("cuda:0").backend
        host = backend.empty_host(4, "float32")
        host[...] = 1

        array = backend.asarray(host)
        host[...] = 2

        assert backend.to_host(array).tolist() == [1, 1, 1, 1]

    @pytest.mark.parametrize("size", [3, 1 << 19])
    def test_numbers_are_staged_before_their_memory_is_the_callers_again(self, size):
        backend, host = Device("cuda:0").backend, np.empty(size, "float32")
        arrays = [backend.zeros(size, "float32") for _ in range(5)]

        for number, array in enumerate(arrays):
            host[...] = number
            backend.engine.put(host, array)
        backend.engine.put(np.full(size, 9, "float32"), backend.zeros(size, "float32"))
        host[...] = -1

        for number, array in enumerate(arrays):
            assert (backend.to_host(array) == number).all()
