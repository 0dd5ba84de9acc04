"""The engine under the Steps: random words, matrix products, launches, scratch memory."""

import numpy as np
import pytest
from cuda_host import HostEngine, cuda_at
from expect_error import expect_error

from demitasse.backends import random
from demitasse.backends.cupy.library.cublas import Product
from demitasse.backends.cupy.library.engine import WIDE
from demitasse.errors import DeviceError, ErrorCode

RNG = np.random.default_rng(0)

places = pytest.mark.parametrize("place", ["host", "cuda:0", (3, 4)], ids=str)


@places
@pytest.mark.parametrize(
    ("seed", "stream", "passes", "count", "first"),
    [
        (0, 0, 0, 8, 0),
        (1, 2, 3, 1, 0),
        (2**63 + 12345, 0xDEADBEEF, 2**33 + 7, 101, 3),
        (7, 8, 9, 2, 5),
        (7, 8, 9, 16, 4 * 2**32 - 6),
        (7, 8, 9, 0, 5),
    ],
)
def test_random_words_are_the_hosts_words(place, seed, stream, passes, count, first):
    backend = cuda_at(place).backend

    words = backend.to_host(backend.random_bits(seed, stream, passes, count, first))

    assert words.dtype == np.uint32
    np.testing.assert_array_equal(words, random.bits(seed, stream, passes, count, first))


class TestProducts:
    @pytest.mark.parametrize("place", ["host", "cuda:0"])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("transpose_a", [False, True])
    @pytest.mark.parametrize("transpose_b", [False, True])
    @pytest.mark.parametrize("accumulate", [False, True])
    @pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 4, 5), (2, 1, 6), (1, 5, 2), (3, 2, 0)])
    @pytest.mark.parametrize("batch", [1, 3])
    def test_every_form(self, place, dtype, transpose_a, transpose_b, accumulate, sizes, batch):
        m, n, k = sizes
        product = Product(dtype, m, n, k, transpose_a, transpose_b, accumulate, batch)
        a = RNG.normal(size=(batch, k, m) if transpose_a else (batch, m, k)).astype(dtype)
        b = RNG.normal(size=(batch, n, k) if transpose_b else (batch, k, n)).astype(dtype)
        out = RNG.normal(size=(batch, m, n)).astype(dtype)

        got = self.multiply(place, product, a, b, out)

        left = a.transpose(0, 2, 1) if transpose_a else a
        right = b.transpose(0, 2, 1) if transpose_b else b
        want = left.astype("float64") @ right + (out if accumulate else 0)
        np.testing.assert_allclose(got, want, atol=1e-5 if dtype == "float32" else 1e-12)

    @pytest.mark.parametrize("place", ["host", "cuda:0"])
    def test_an_operand_may_be_repeated(self, place):
        a, b = RNG.normal(size=(2, 3)), RNG.normal(size=(4, 3, 5))

        got = self.multiply(
            place, Product("float64", 2, 5, 3, batch=4, shares_a=True), a, b, np.zeros((4, 2, 5))
        )

        np.testing.assert_allclose(got, a @ b)

    @pytest.mark.parametrize("place", ["host", "cuda:0"])
    @pytest.mark.parametrize("sizes", [(0, 2, 3), (2, 0, 3)])
    def test_nothing_is_computed_into_nothing(self, place, sizes):
        m, n, k = sizes

        got = self.multiply(
            place, Product("float32", m, n, k), np.ones((m, k), "float32"),
            np.ones((k, n), "float32"), np.ones((m, n), "float32"),
        )  # fmt: skip

        assert got.shape == (m, n)

    @pytest.mark.parametrize("place", ["host", "cuda:0"])
    def test_single_precision_is_not_rounded_to_tf32(self, place):
        a = np.full((64, 64), 1 + 2**-12, "float32")
        b = np.eye(64, dtype="float32")

        got = self.multiply(place, Product("float32", 64, 64, 64), a, b, np.zeros_like(a))

        np.testing.assert_array_equal(got, a)

    @staticmethod
    def multiply(place, product, *arrays):
        backend = cuda_at(place).backend
        with backend.enter():
            a, b, out = map(backend.asarray, arrays)
            backend.engine.multiply(product, a, b, out)
        return backend.to_host(out)


def test_a_library_that_refuses_is_quoted():
    product = Product("float32", 2, 2, -1)
    one = np.zeros(4, "float32")

    with expect_error(
        DeviceError,
        ErrorCode.FAILED,
        function="cublasSgemm_v2",
        status="CUBLAS_STATUS_INVALID_VALUE",
    ):
        HostEngine().multiply(product, one, one, one)


class Recorded(HostEngine):
    """Keeps what kernels are bound to instead of running them."""

    def function(self, family, name, flags, grid, numbers):
        self.bound = (flags, grid, numbers)
        return lambda *arrays: None


class TestLaunches:
    def test_numbers_have_the_types_of_the_source(self):
        engine = Recorded()

        engine.elementwise("pool", "any", "float32", 1000, 3, 0.5)

        flags, grid, numbers = engine.bound
        assert flags == ("-std=c++17", "-DReal=float", "-DSTORED=0", "-DWIDE=0")
        assert (grid.blocks, grid.threads) == (4, 256)
        assert [n.dtype.name for n in numbers] == ["int32", "int32", "float32"]

    @pytest.mark.parametrize("count", [WIDE + 1, 5])
    def test_large_arrays_are_counted_with_64_bits(self, count):
        engine = Recorded()

        engine.elementwise("pool", "any", "float64", count, 3, 0.5, reach=WIDE + 1)

        flags, grid, numbers = engine.bound
        assert flags == ("-std=c++17", "-DReal=double", "-DSTORED=0", "-DWIDE=1")
        assert grid.blocks <= engine.most_blocks
        assert [n.dtype.name for n in numbers] == ["int64", "int64", "float64"]

    @pytest.mark.parametrize(
        ("length", "threads"), [(0, 32), (1, 32), (33, 64), (512, 512), (100_000, 512)]
    )
    def test_a_block_has_a_power_of_two_of_threads(self, length, threads):
        engine = Recorded()

        engine.row_blocks("softmax", "any", "float32", 7, length)

        assert engine.bound[1].threads == threads
        assert engine.bound[1].blocks == 7

    def test_nothing_is_launched_for_no_elements(self):
        engine = HostEngine()

        engine.elementwise("activation", "relu", "float32", 0, 0.0)()
        engine.row_blocks("softmax", "softmax_rows", "float32", 0, 3, 0, 3)()

        assert engine.launched == []


class TestScratch:
    def test_arrays_of_one_call_do_not_overlap(self):
        backend = cuda_at("cuda:0").backend
        with backend.enter():
            one, two = backend.engine.scratch("float32", 3, 1000)
            one[...] = 1
            two[...] = 2

            assert backend.to_host(one).tolist() == [1, 1, 1]
            assert one.data.ptr % 256 == two.data.ptr % 256 == 0

    def test_the_memory_is_the_same_every_time(self):
        backend = cuda_at("cuda:0").backend
        with backend.enter():
            first = backend.engine.scratch("float32", 3, 1000)[0].data.ptr

            assert backend.engine.scratch("float64", 10)[0].data.ptr == first
