"""The stand-in for cupy shows the mistakes it is there to show."""

import numpy as np
import pytest
from expect_error import expect_error
from gpu import kernels, machine, memory
from gpu.errors import CUDARuntimeError, Misuse, OutOfMemoryError
from gpu.package import in_place


@pytest.fixture
def cupy(stand_in):
    import cupy

    return cupy


def pinned(cupy, values):
    values = np.asarray(values)
    host = np.frombuffer(cupy.cuda.alloc_pinned_memory(values.nbytes), values.dtype, values.size)
    host[...] = values
    return host


class TestArrays:
    def test_numpy_does_not_see_them(self, cupy):
        array = cupy.zeros(3)

        with expect_error(TypeError, mentions="NumPy"):
            np.asarray(array)
        with pytest.raises(TypeError):
            np.add(np.ones(3), array)
        with expect_error(TypeError, mentions="numpy.ndarray"):
            array + np.ones(3)

    def test_python_numbers_take_the_type_of_the_array_and_numpys_their_own(self, cupy):
        array = cupy.zeros(3, "float32")

        assert (array * 2.5).dtype == np.float32
        assert (array * np.float64(2.5)).dtype == np.float64

    def test_new_memory_is_poison(self, cupy):
        assert np.isnan(cupy.empty(5, "float32").get()).all()
        assert (cupy.empty(5, "int32").get() == -1).all()

    def test_slices_are_views(self, cupy):
        array = cupy.zeros((2, 3))

        array[:, 1] = 5
        array.reshape(6)[0:1] += 1

        assert array.get().tolist() == [[1, 5, 0], [0, 5, 0]]

    def test_another_gpus_arrays_are_refused(self, cupy):
        with cupy.cuda.Device(1):
            array = cupy.zeros(3)

        with expect_error(ValueError, mentions="(1)"):
            array + 1
        with expect_error(ValueError, mentions="Peer access"):
            array[...] = 1

    def test_indices_in_arrays_are_counted_modulo_the_size_of_their_axis(self, cupy):
        x, far = cupy.arange(6.0).reshape(2, 3), cupy.asarray(np.array([4, -2]))

        x[:, far] = x[:, far] + 10

        assert x.get().tolist() == [[0, 11, 2], [3, 14, 5]]
        assert cupy.take(x, far, axis=0).get().tolist() == [[0, 11, 2], [0, 11, 2]]
        assert cupy.take_along_axis(x, far[:, None], axis=1).get().tolist() == [[11], [14]]
        assert x[..., far, None].get().tolist() == [[[11], [11]], [[14], [14]]]


class TestOrder:
    def test_work_waits_until_somebody_waits_for_it(self, cupy):
        host = pinned(cupy, [1.0])
        array = cupy.empty(1)
        array.set(host)

        host[...] = 2  # too early

        assert array.get() == 2

    def test_memory_that_is_not_pinned_is_read_when_the_copy_runs(self, cupy):
        host = np.ones(1)
        array = cupy.empty(1)
        array.set(host)

        host[...] = 2

        assert array.get() == 2

    def test_memory_that_was_freed_before_is_poison(self, cupy):
        array = cupy.empty(2)
        array.set(np.ones(3)[1:])

        assert np.isnan(array.get()).all()

    def test_a_new_array_is_made_of_memory_that_may_be_overwritten(self, cupy):
        host = np.ones(1)
        array = cupy.array(host)

        host[...] = 2

        assert array.get() == 1

    def test_pinned_memory_that_dies_within_work_lets_no_later_work_begin(self, cupy):
        garbage, ran = [cupy.cuda.PinnedMemory(8)], []
        stream = cupy.cuda.Stream(non_blocking=True)

        def first(_):
            garbage.clear()
            ran.append("first")

        stream.launch_host_func(first, None)
        stream.launch_host_func(lambda _: ran.append("second"), None)
        stream.synchronize()

        assert ran == ["first", "second"]

    def test_an_event_is_a_point_in_a_stream(self, cupy):
        host, event = pinned(cupy, [1.0]), cupy.cuda.Event(disable_timing=True)
        array = cupy.empty(1)
        array.set(host)
        event.record()

        event.synchronize()
        host[...] = 2

        assert array.get() == 1

    def test_streams_do_not_wait_for_each_other_unless_told(self, cupy):
        one, two = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        with one:
            array = cupy.zeros(1)
            one.synchronize()
            array += 1
            event = one.record()

        with two:
            early = array.get(blocking=True)
            two.wait_event(event)
            late = array.get(blocking=True)

        assert (early, late) == (0, 1)

    @pytest.mark.parametrize(("non_blocking", "seen"), [(False, 1), (True, 0)])
    def test_the_default_stream_waits_for_blocking_streams(self, cupy, non_blocking, seen):
        array = cupy.zeros(1)
        cupy.cuda.Device().synchronize()
        with cupy.cuda.Stream(non_blocking=non_blocking):
            array += 1

        assert array.get() == seen

    def test_a_stream_is_current_in_its_thread_and_on_its_gpu(self, cupy):
        stream = cupy.cuda.Stream()
        with stream:
            assert cupy.cuda.get_current_stream() == stream
            with cupy.cuda.Device(1):
                assert cupy.cuda.get_current_stream().ptr == 0
                with expect_error(RuntimeError, mentions="device"):
                    stream.use()

        assert cupy.cuda.get_current_stream().ptr == 0


class TestMemory:
    def test_a_block_is_handed_out_again_on_its_own_stream(self, cupy):
        first = cupy.zeros(7777).data.ptr

        with cupy.cuda.Stream(non_blocking=True):
            elsewhere = cupy.zeros(7777).data.ptr
        second = cupy.zeros(7777).data.ptr

        assert first == second != elsewhere

    def test_pinned_memory_is_handed_out_again_at_once(self, cupy):
        host = pinned(cupy, [1.0])
        array = cupy.empty(1)
        array.set(host)

        del host
        other = pinned(cupy, [-1.0])

        assert array.get() == other == -1

    def test_more_than_there_is_is_refused(self, cupy, monkeypatch):
        gpu = machine.gpus[0]
        cupy.get_default_memory_pool().free_all_blocks()
        monkeypatch.setattr(gpu, "total", gpu.allocated + 4096)

        array = cupy.empty(4096, "uint8")
        with expect_error(OutOfMemoryError, mentions="512"):
            cupy.empty(1, "uint8")
        del array

        assert cupy.empty(1, "uint8").size == 1

    def test_memory_of_a_pool_that_dies_is_not_the_gpus_any_more(self, cupy):
        gpu, pool = machine.current(), cupy.cuda.MemoryPool()
        address = pool.malloc(1000).ptr
        allocated = gpu.allocated
        assert gpu.owns(address, 1000)

        cupy.cuda.Device(0).synchronize()
        del pool

        assert not gpu.owns(address, 1000)
        assert gpu.allocated < allocated

    def test_the_pool_counts(self, cupy):
        pool = cupy.get_default_memory_pool()
        pool.free_all_blocks()
        used = pool.used_bytes()

        array = cupy.empty(1000, "uint8")
        assert (pool.used_bytes() - used, pool.free_bytes()) == (1024, 0)
        del array
        assert (pool.used_bytes() - used, pool.free_bytes()) == (0, 1024)


SOURCE = r"""
extern "C" __global__ void reversed(const float* x, float* y, int count) {
  __shared__ float shared[64];
  const int i = threadIdx.x;
  if (i >= count) return;
  shared[i] = x[blockIdx.x * blockDim.x + i];
  __syncthreads();
  y[blockIdx.x * blockDim.x + i] = shared[blockDim.x - 1 - i];
}

extern "C" __global__ void racing(const float* x, float* y, int count) {
  __shared__ float shared[64];
  const int i = threadIdx.x;
  if (i >= count) return;
  shared[i] = x[i];
  y[i] = shared[blockDim.x - 1 - i];
}

extern "C" __global__ void divergent(float* y) {
  if (threadIdx.x < 3) __syncthreads();
  y[threadIdx.x] = 1;
}

extern "C" __global__ void parted(float* y) {
  if (threadIdx.x < 3) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 1;
}

extern "C" __global__ void warp_sums(const float* x, float* y) {
  float value = x[threadIdx.x];
  for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(0xffffffff, value, by);
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = value;
}

extern "C" __global__ void places(int* out) {
  const int i = ((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y) * blockDim.x
      + threadIdx.x;
  out[i] = i;
}
"""


class TestKernels:
    @pytest.fixture
    def launch(self, cupy):
        module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))

        def launch(name, grid, block, *args):
            module.get_function(name)(
                (grid,) if isinstance(grid, int) else grid,
                (block,) if isinstance(block, int) else block,
                args,
            )
            cupy.cuda.Device().synchronize()

        return launch

    @pytest.mark.parametrize("order", [0, 1, 7])
    def test_all_threads_of_all_blocks_run(self, cupy, launch, order, monkeypatch):
        monkeypatch.setattr(kernels, "order", order)
        x = cupy.asarray(np.arange(192, dtype="float32"))
        y, out = cupy.empty(192, "float32"), cupy.empty(60, "int32")

        launch("reversed", 3, 64, x, y, np.int32(192))
        launch("places", (2, 3), (2, 5), out)

        want = np.arange(192.0).reshape(3, 64)[:, ::-1].reshape(-1)
        np.testing.assert_array_equal(y.get(), want)
        np.testing.assert_array_equal(out.get(), np.arange(60))

    def test_what_no_thread_has_written_is_poison(self, cupy, launch):
        y = cupy.zeros(8, "float32")

        launch("racing", 1, 8, cupy.ones(8, "float32"), y, np.int32(8))

        assert np.isnan(y.get()).any()

    @pytest.mark.parametrize("name", ["divergent", "parted"])
    def test_a_barrier_is_for_all_threads(self, cupy, launch, name):
        with expect_error(Misuse, mentions=[name, "block 0", "barrier"]):
            launch(name, 1, 8, cupy.zeros(8, "float32"))

        launch("reversed", 1, 64, *[cupy.zeros(64, "float32")] * 2, np.int32(64))

    def test_threads_of_a_warp_exchange_values(self, cupy, launch):
        x, y = cupy.asarray(np.arange(64, dtype="float32")), cupy.zeros(2, "float32")

        launch("warp_sums", 1, 64, x, y)

        assert y.get().tolist() == [496, 1520]

    @pytest.mark.parametrize(
        ("arguments", "mentions"),
        [
            (lambda cp: (cp.zeros(8, "float32"),), ["3", "1"]),
            (lambda cp: (*[cp.zeros(8, "float32")] * 2, np.int64(8)), ["int64", "i4"]),
            (lambda cp: (*[cp.zeros(8, "float32")] * 2, 8), ["int64", "i4"]),
            (lambda cp: (*[cp.zeros(8, "float32")] * 2, np.float32(8)), ["float32", "i4"]),
            (lambda cp: (cp.zeros(8), cp.zeros(8, "float32"), np.int32(8)), ["float64", "f4"]),
            (lambda cp: (cp.zeros((8, 2), "float32")[:, 0], None, np.int32(8)), "contiguous"),
        ],
    )  # fmt: skip
    def test_arguments_are_held_against_the_source(self, cupy, launch, arguments, mentions):
        with expect_error(Misuse, mentions=mentions):
            launch("reversed", 1, 8, *arguments(cupy))

    def test_memory_of_another_gpu_is_refused(self, cupy, launch):
        array = cupy.zeros(8, "float32")

        with (
            cupy.cuda.Device(1),
            expect_error(Misuse, mentions=["cuda:0", "1"]),
        ):
            launch("reversed", 1, 8, array, array, np.int32(8))


class TestCapture:
    @pytest.fixture
    def stream(self, cupy):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            yield stream
            if stream.queue.capture is not None:
                with pytest.raises(CUDARuntimeError):
                    stream.end_capture()

    def test_a_graph_does_the_same_on_the_same_memory(self, cupy, stream):
        array, one = cupy.zeros(3), cupy.ones(3)
        stream.begin_capture()
        array += one
        graph = stream.end_capture()

        before = array.get()
        for _ in range(3):
            graph.launch()
        one[...] = 2
        graph.launch()

        assert before.tolist() == [0, 0, 0]
        assert array.get().tolist() == [5, 5, 5]

    def test_what_it_forbids(self, cupy, stream):
        array, mask = cupy.zeros(3), cupy.zeros(3, bool)
        host, event = pinned(cupy, np.ones(3)), cupy.cuda.Event()

        def upload():
            array.set(host)

        def ask_event():
            event.record()
            return event.done

        for error, forbidden in (
            (RuntimeError, upload),
            (RuntimeError, array.get),
            (RuntimeError, lambda: bool(array[0])),
            (RuntimeError, lambda: array[mask]),
            (CUDARuntimeError, ask_event),
            (CUDARuntimeError, stream.synchronize),
            (CUDARuntimeError, lambda: stream.done),
            (CUDARuntimeError, cupy.cuda.Device().synchronize),
            (Misuse, lambda: array + 1),
        ):
            stream.begin_capture()
            with pytest.raises(error):
                forbidden()
            try:
                stream.end_capture()
            except CUDARuntimeError as invalidated:
                assert "previous error" in str(invalidated)  # noqa: PT017
            assert not stream.is_capturing()

    def test_the_default_stream_cannot_be_captured(self, cupy):
        with expect_error(RuntimeError, mentions="default"):
            cupy.cuda.Stream.null.begin_capture()

    def test_another_stream_joins_by_an_event(self, cupy, stream):
        array, side = cupy.zeros(1), cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        side.wait_event(stream.record(cupy.cuda.Event(disable_timing=True)))
        with side:
            array += 1
        stream.wait_event(side.record(cupy.cuda.Event(disable_timing=True)))
        array *= 2
        graph = stream.end_capture()

        graph.launch()

        assert array.get() == 2

    def test_a_stream_that_does_not_come_back_is_refused(self, cupy, stream):
        array, side = cupy.zeros(1), cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        side.wait_event(stream.record(cupy.cuda.Event(disable_timing=True)))
        with side:
            array += 1

        with expect_error(CUDARuntimeError, mentions="unjoined"):
            stream.end_capture()

    def test_memory_may_be_allocated_where_that_is_asked_for(self, cupy, stream, monkeypatch):
        monkeypatch.setattr(memory, "allowed_in_capture", True)
        array = cupy.zeros(1)
        stream.begin_capture()
        kept = array + 1
        array += kept
        graph = stream.end_capture()

        graph.launch()

        assert array.get() == 1


def test_without_it_the_machine_is_as_it_was():
    import sys

    before = sys.modules.get("cupy")
    with in_place():
        assert sys.modules["cupy"] is not before

    assert sys.modules.get("cupy") is before
