"""Kernels made at run time: what is kept on the disk, dumped, and where none can be made."""

import signal
import threading
from functools import partial

import numpy as np
import pytest

from demitasse import Net
from demitasse.backends import kernel_cache as kept
from demitasse.backends.cpu.kernel_calls import PackedKernel
from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.language import call_recorder, compiler, instructions, target
from demitasse.backends.kernels.language.team import own_team
from demitasse.core.config import settings
from demitasse.errors import OutOfMemoryError

needs_llvm = pytest.mark.skipif(not jit.status().ready, reason=str(jit.status()))


def twice(module, name):
    """Write a kernel that doubles eight floats at the address it is given."""
    from demitasse.backends.kernels.language.kernel import Kernel

    k = Kernel(module, name, 1, 8)
    [at] = k.arguments
    k.store(k.load(at) + k.load(at), at)
    k.done()


def text_of(name):
    module = instructions.Module(name)
    twice(module, name)
    return str(module)


def kept_or_made(name):
    return compiler.machine_code(name, lambda module: twice(module, name))


@needs_llvm
def test_machine_code_is_kept_and_a_damaged_file_is_not_run(tmp_path, monkeypatch):
    own_team()  # whose code is kept elsewhere
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    optimised = compiler._optimised
    monkeypatch.setattr(compiler, "_optimised", lambda *text: made.append(1) or optimised(*text))

    def make(name):
        return jit.compiled(name, lambda module: twice(module, name))

    def doubled(kernel):
        array = np.ones(8, np.float32)
        call_recorder.run_kernel(kernel, array.ctypes.data, 1)
        return array[0]

    assert doubled(make("kept")) == 2
    [file] = (tmp_path / "demitasse" / "kernels").iterdir()
    code = kept_or_made("kept")
    assert len(made) == 1

    file.write_bytes(file.read_bytes()[:-1])

    assert kept_or_made("kept") == code
    assert len(made) == 2
    assert file.read_bytes().endswith(code)


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """The names of the kernels that are compiled, with those of the threads; nothing is stored."""
    own_team()  # whose code is stored elsewhere
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_known", {})
    compile_one, seen = compiler._compiled_code, []

    def compiled_code(name, write):
        seen.append((name, threading.current_thread().name))
        return compile_one(name, write)

    monkeypatch.setattr(compiler, "_compiled_code", compiled_code)
    return seen


def sources(*names):
    return {name: partial(twice, name=name) for name in names}


@needs_llvm
def test_kernels_that_threads_compile_are_those_of_one_thread(cold):
    wanted = sources(*(f"many{i}" for i in range(20)))
    compiler.compile_all(wanted, 3)
    by_threads = {name: compiler.machine_code(name, write) for name, write in wanted.items()}

    assert sorted(name for name, _ in cold) == sorted(wanted)
    assert {thread.rpartition("_")[0] for _, thread in cold} == {"demitasse-compile"}
    assert by_threads == {name: compiler._compiled_code(name, wanted[name]) for name in wanted}
    array = np.ones(8, np.float32)
    for name, write in wanted.items():
        call_recorder.run_kernel(jit.compiled(name, write), array.ctypes.data, 1)
    assert array[0] == 2**20


@needs_llvm
@pytest.mark.parametrize("threads", [1, 4])
def test_without_a_thread_kernels_are_compiled_when_they_first_run(cold, monkeypatch, threads):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    wanted = sources("first", "second")
    compiler.compile_all(wanted, threads)

    assert not cold
    assert jit.compiled("first", wanted["first"])
    assert [name for name, _ in cold] == ["first"]


@needs_llvm
def test_stored_kernels_start_no_threads(cold, monkeypatch):
    wanted = sources("one", "other")
    compiler.compile_all(wanted, 2)
    monkeypatch.setattr(compiler, "_known", {})
    monkeypatch.setattr(threading.Thread, "start", lambda *_: pytest.fail("a thread started"))
    compiler.compile_all(wanted, 2)

    assert set(compiler._known) == set(wanted)
    assert len(cold) == 2


@needs_llvm
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_waits_for_the_kernel(cold, monkeypatch):
    optimised = compiler._optimised

    def interrupted(text, machine):
        signal.raise_signal(signal.SIGINT)
        return optimised(text, machine)

    monkeypatch.setattr(compiler, "_optimised", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jit.compiled("interrupted", sources("interrupted")["interrupted"])

    assert "interrupted" in compiler._known


NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 1, 28, 28] } } }
layer { name: "target" type: "Input" top: "target" input_param { shape { dim: [2, 50] } } }
layer { name: "few" type: "Convolution" bottom: "x" top: "few"
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "few" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "many" type: "Convolution" bottom: "pool" top: "many"
  convolution_param { num_output: 50 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "product" type: "InnerProduct" bottom: "many" top: "product"
  inner_product_param { num_output: 50 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "product" top: "product" }
layer { name: "loss" type: "EuclideanLoss" bottom: "product" bottom: "target" top: "loss" }
"""


@needs_llvm
def test_a_first_pass_compiles_its_kernels_on_threads(cold):
    with settings.override(threads=2):
        net = Net(NET, "TRAIN", device="cpu", force_backward=True)
        passes = []
        for run in (net.forward, net.backward, net.forward, net.backward):
            cold.clear()
            run()
            passes.append([name for name, thread in cold if thread != "MainThread"])

    forward, backward, *later = passes
    assert any(name.startswith("pool") for name in forward)
    assert not any("gradient" in name for name in forward)
    assert any("gradient" in name for name in backward)
    assert later == [[], []]


@needs_llvm
def test_a_lack_of_memory_for_a_kernel_names_the_layer(monkeypatch):
    def make(kernel):
        raise MemoryError

    net = Net(NET, "TEST", device="cpu")
    monkeypatch.setattr(PackedKernel, "kernel", property(make))

    with pytest.raises(OutOfMemoryError) as caught:
        net.forward()

    assert "'few'" in caught.value.place


@needs_llvm
def test_where_nothing_can_be_kept_it_is_made_anew(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))

    assert kept_or_made("nowhere")


@needs_llvm
def test_without_a_home_it_is_made_anew(monkeypatch):
    def homeless():
        message = "Could not determine home directory."
        raise RuntimeError(message)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(kept.Path, "home", homeless)

    assert jit.folder() is None
    assert kept_or_made("homeless")


def test_a_setting_does_without():
    with settings.override(jit=False):
        assert not jit.status().ready
        assert "switched off" in str(jit.status())


@pytest.mark.parametrize("known", ["by Linux", "by LLVM alone"])
def test_what_lacks_is_named(monkeypatch, known):
    monkeypatch.setattr(target, "architecture", lambda: "x86_64")
    there = {"flags": "avx2 sse2"} if known == "by Linux" else {}
    monkeypatch.setattr(target, "_processor_fields", lambda _: there)
    features = {"avx2": True, "fma": False}
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: features)

    assert "no fma" in str(compiler._probed.__wrapped__())


def test_on_another_machine_no_compiler_is_loaded(monkeypatch):
    monkeypatch.setattr(compiler.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(compiler, "_llvm", lambda: pytest.fail("LLVM was loaded"))

    assert "riscv64" in str(compiler._probed.__wrapped__())


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)

    assert "llvmlite is not here" in str(compiler._probed.__wrapped__())


def test_a_missing_library_is_named(monkeypatch):
    def missing():
        message = "libllvmlite.so: cannot open shared object file"
        raise OSError(message)

    monkeypatch.setattr(target, "processor_features", missing)

    assert "cannot open shared object file" in str(compiler._probed.__wrapped__())


@needs_llvm
def test_kernels_are_dumped_where_a_setting_says(tmp_path):
    with settings.override(kernel_dump=str(tmp_path / "dump")):
        jit.compiled("dumped", lambda module: twice(module, "dumped"))

    assert (tmp_path / "dump" / "dumped.ll").read_text() == text_of("dumped")
    assert "dumped:" in (tmp_path / "dump" / "dumped.s").read_text()
