"""Kernels made at run time: what is kept on the disk, dumped, and where none can be made."""

import numpy as np
import pytest

from demitasse.backends import kernel_cache as kept
from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.language import call_recorder, compiler, instructions, target
from demitasse.backends.kernels.language.team import own_team
from demitasse.core.config import settings

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
