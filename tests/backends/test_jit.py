"""Kernels made at run time: products against numpy, what is kept on the disk, threads."""

import ctypes

import numpy as np
import pytest

from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.language import compiler, team
from demitasse.backends.kernels.products.panels import panels
from demitasse.config import settings

needs_llvm = pytest.mark.skipif(not jit.status().ready, reason=str(jit.status()))
if jit.status().ready:
    from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel
    from demitasse.backends.kernels.products.products import products


def called(address, *arguments):
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)(*arguments)


def where(array):
    return array.ctypes.data


@needs_llvm
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_products_of_any_number_of_rows(packed, width, vectors, adds):
    rng, columns = np.random.default_rng(0), width * vectors
    for rows in range(1, 32):
        a = rng.normal(size=(rows, 11)).astype(np.float32)
        b = rng.normal(size=(11, columns)).astype(np.float32)
        c = rng.normal(size=(rows + 1, columns)).astype(np.float32)
        want = a @ b + adds * c[:-1]
        behind = c[-1].copy()

        called(
            products(width, packed=packed)[vectors],
            where(a), 11 * FLOAT, FLOAT, where(b), columns * FLOAT,
            where(c), columns * FLOAT, rows, 11, int(adds),
        )  # fmt: skip

        np.testing.assert_allclose(c[:-1], want, rtol=2e-5, atol=2e-6)
        assert np.array_equal(c[-1], behind)


@needs_llvm
@pytest.mark.parametrize("width", [8, 16])
def test_a_product_of_a_transposed_matrix(width):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(9, n)).astype(np.float32) for n in (5, width))
    c = np.zeros((5, width), np.float32)

    called(
        products(width)[1], where(a), FLOAT, 5 * FLOAT, where(b), width * FLOAT,
        where(c), width * FLOAT, 5, 9, 0,
    )  # fmt: skip

    np.testing.assert_allclose(c, a.T @ b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("columns", [1, 8, 9, 24, 25, 32, 50, 64, 100])
def test_panels_cover_all_columns_once(columns, width):
    found = panels(columns, width)

    places = [at + width * n for vectors, at in found for n in range(vectors)]
    assert places == list(range(0, columns, width))
    assert all(1 <= vectors <= 3 for vectors, _ in found)


def twice(module, name, width=8):
    """Write a kernel: every thread of the team doubles its part of an array's vectors."""
    k = Kernel(module, name, 1, width, exported=True)
    f = k.fields(("at", "count"))
    begin, end = k.part(f.count, *k.thread())
    with k.loop(end, begin) as loop:
        place = k.add(f.at, k.times(loop.i, width * FLOAT))
        k.store(k.plus(k.load(place), k.load(place)), place)
    k.wait()
    k.done()


@needs_llvm
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("width", [8, 16])
def test_a_team_does_all_of_the_work_once(width, threads):
    name = f"twice{threads}x{width}"
    kernel = jit.compiled(name, lambda module: twice(module, name, width), name)[name]
    array = np.arange(width * 37, dtype=np.float32)

    jit.Arguments(("at", "count"), at=where(array), count=37).run(kernel, threads)

    assert np.array_equal(array, 2 * np.arange(width * 37))


@needs_llvm
def test_without_openmp_one_thread_does_it(monkeypatch):
    monkeypatch.setattr(team, "openmp", lambda: None)
    kernel = jit.compiled("alone", lambda module: twice(module, "alone"), "alone")["alone"]
    array = np.arange(8 * 3, dtype=np.float32)

    jit.Arguments(("at", "count"), at=where(array), count=3).run(kernel, 2)

    assert np.array_equal(array, 2 * np.arange(8 * 3))
    number, count, barrier = team.functions.__wrapped__().values()
    ask = ctypes.CFUNCTYPE(ctypes.c_int)
    assert (ask(number)(), ask(count)()) == (0, 1)
    ctypes.CFUNCTYPE(None)(barrier)()


@needs_llvm
def test_machine_code_is_kept_and_a_damaged_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    optimised = compiler._optimised
    monkeypatch.setattr(compiler, "_optimised", lambda text: made.append(1) or optimised(text))

    def make(name):
        return jit.compiled(name, lambda module: twice(module, name), name)[name]

    def doubled(kernel):
        array = np.ones(8, np.float32)
        jit.Arguments(("at", "count"), at=where(array), count=1).run(kernel, 1)
        return array[0]

    assert doubled(make("kept")) == 2
    [file] = (tmp_path / "demitasse" / "kernels").iterdir()
    code = compiler._object(text_of("kept"))
    assert len(made) == 1

    file.write_bytes(file.read_bytes()[:-1])

    assert compiler._object(text_of("kept")) == code
    assert len(made) == 2
    assert file.read_bytes().endswith(code)


def text_of(name):
    from llvmlite import ir

    module = ir.Module(name)
    twice(module, name)
    return str(module)


@needs_llvm
def test_where_nothing_can_be_kept_it_is_made_anew(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))

    assert compiler._object(text_of("nowhere"))


@needs_llvm
def test_without_a_home_it_is_made_anew(monkeypatch):
    def homeless():
        message = "Could not determine home directory."
        raise RuntimeError(message)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compiler.Path, "home", homeless)

    assert jit.folder() is None
    assert compiler._object(text_of("homeless"))


def test_a_setting_does_without():
    with settings.override(jit=False):
        assert not jit.status().ready
        assert "switched off" in str(jit.status())


def test_what_lacks_is_named(monkeypatch):
    class Old:
        @staticmethod
        def get_host_cpu_features():
            return {"avx2": True, "fma": False}

    monkeypatch.setattr(compiler, "_llvm", lambda: Old)

    assert "no fma" in str(compiler._probed.__wrapped__())


def test_a_missing_library_is_named(monkeypatch):
    def missing():
        message = "No module named 'llvmlite'"
        raise ImportError(message)

    monkeypatch.setattr(compiler, "_llvm", missing)

    assert "llvmlite is not here" in str(compiler._probed.__wrapped__())


@needs_llvm
def test_fields_are_integers_by_name():
    assert np.dtype(np.int64).itemsize == WIDE
    with pytest.raises(KeyError):
        jit.Arguments(("at",), elsewhere=1)
