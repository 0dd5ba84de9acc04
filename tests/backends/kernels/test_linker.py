"""Kernels linked without LLVM: the same results, and nothing of LLVM in the process."""

import ctypes
import struct
import subprocess
import sys
from operator import index
from pathlib import Path

import numpy as np
import pytest
from needs import needs

from demitasse.backends.kernels import language as jit
from demitasse.backends.kernels.language import call_recorder, compiler, linker, target
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.linker import link
from demitasse.backends.kernels.language.structs import Address, Struct

pytestmark = pytest.mark.skipif(not jit.status().ready, reason=str(jit.status()))

NAME = "linked"


def write(module):
    """Write a kernel that adds 0.5, a constant in memory."""
    k = Kernel(module, NAME, 1, 8)
    [at] = k.arguments
    k.store(k.load(at) + k.constant(0.5), at)
    k.done()


@pytest.fixture
def code():
    return compiler.machine_code(NAME, write)


def without_symbols(code):
    """Return a module whose sections are of no type."""
    [table] = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    changed = bytearray(code)
    for i in range(count):
        struct.pack_into("<I", changed, table + size * i + 4, 0)
    return bytes(changed)


def result_of(address):
    array = np.ones(8, np.float32)
    call_recorder.run_kernel(address, array.ctypes.data, 1)
    return array


def test_a_linked_kernel_does_what_llvm_s_does(code):
    found = link(code, [NAME], {})

    np.testing.assert_array_equal(result_of(found[NAME]), np.full(8, 1.5, np.float32))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda code: b"", id="empty"),
        pytest.param(lambda code: b"MZ" + code[2:], id="another system's"),
        pytest.param(lambda code: code[:18] + b"\x08" + code[19:], id="another processor's"),
        pytest.param(lambda code: code[: len(code) // 2], id="cut short"),
        pytest.param(without_symbols, id="no symbols"),
    ],
)
def test_what_is_no_such_file_is_not_linked(code, change):
    with pytest.raises((ValueError, struct.error)):
        link(change(code), [NAME], {})


FAR = 0x7FFF_1234_5678
NEON_MODULE = """
@numbers = internal constant [2 x i64] [i64 3, i64 5]
@pointer = internal constant ptr @numbers
@outside = internal constant ptr @far
declare void @far()
define ptr @near() nounwind {
  %far = load volatile ptr, ptr @outside
  ret ptr %far
}
define i64 @linked(i64 %i) nounwind {
  call ptr @near()
  %at = load volatile ptr, ptr @pointer
  %there = getelementptr i64, ptr @numbers, i64 %i
  %value = load i64, ptr %there
  %where = ptrtoint ptr %at to i64
  %sum = add i64 %value, %where
  ret i64 %sum
}
"""


def addresses_in(words):
    """Return the addresses that instructions write to registers."""
    filled = {}
    for word in words:
        if word >> 23 in (0b110100101, 0b111100101):  # movz, movk of 64 bits
            register, shift = word & 31, 16 * (word >> 21 & 3)
            before = filled.get(register, 0) if word >> 29 & 1 else 0
            filled[register] = before | (word >> 5 & 0xFFFF) << shift
    return filled.values()


def words_at(address, count):
    return [ctypes.c_uint32.from_address(address + 4 * i).value for i in range(count)]


def test_addresses_are_filled_into_instructions_of_aarch64(monkeypatch):
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        cpu="neoverse-n1", opt=2, jit=True
    )
    code = machine.emit_object(binding.parse_assembly(NEON_MODULE))
    monkeypatch.setattr(linker, "architecture", lambda: "aarch64")
    monkeypatch.setattr(linker, "is_x86", lambda: False)

    found = link(code, [NAME, "near"], {"far": FAR})

    start = found[NAME]
    words = words_at(start, 40)
    words = words[: words.index(0xD65F03C0)]  # ret; data may look like a call
    [call] = (i for i, word in enumerate(words) if word >> 26 == 0b100101)  # bl
    distance = (words[call] & 0x3FFFFFF ^ 0x2000000) - 0x2000000
    assert start + 4 * (call + distance) == found["near"]
    [outside] = addresses_in(words_at(found["near"], 4))
    assert ctypes.c_uint64.from_address(outside).value == FAR
    kept = {ctypes.c_uint64.from_address(at).value: at for at in addresses_in(words)}
    [numbers] = (at for value, at in kept.items() if value == 3)
    assert numbers in kept  # the pointer to them


def test_a_kernel_that_is_not_in_the_module_is_not_found(code):
    with pytest.raises(KeyError):
        link(code, ["another"], {})


@needs("/proc")
def test_no_memory_of_kernels_can_be_written_and_run(code):
    [address] = link(code, [NAME], {}).values()

    assert rights(address).startswith("r-x")


def test_cache_keys_name_what_our_own_sources_write():
    def ours(name):
        from demitasse.backends.kernels import products as registers

        return compiler._key(name, registers.split_columns)

    assert ours("one") == ours("one")
    assert ours("one") != ours("another")


def test_what_other_sources_write_has_no_cache_key():
    from functools import partial

    from demitasse.backends.kernels import products as registers

    assert not compiler._key(NAME, write)
    assert not compiler._key(NAME, partial(registers.split_columns, write))


def test_a_kernel_of_a_struct_is_kept_by_its_writer_s_sources(monkeypatch):
    class Nothing(Struct):
        at: Address

    keys = []
    monkeypatch.setattr(compiler, "linked", lambda name, write, *_: keys.append(
        compiler._key(name, write)) or {name: 1})  # fmt: skip

    index(Nothing.kernel("of_a_test")(lambda k, f: None)(8))

    assert keys == [""]


PROGRAM = """
import operator
import sys
import numpy as np
from demitasse.backends.kernels.winograd.convolution import product_kernel
assert operator.index(product_kernel(8, 1, [20]))
print("llvmlite.binding" in sys.modules)
"""


@pytest.mark.skipif(
    target.processor_signature() is None, reason="an emulator; LLVM alone can name its processor"
)
def test_a_process_whose_kernels_are_kept_loads_no_llvm(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    loaded = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]

    assert loaded == ["True", "False"]


def rights(address):
    """Return the rights of the mapped memory around an address, on Linux."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        area, found = line.split(maxsplit=2)[:2]
        first, end = (int(number, 16) for number in area.split("-"))
        if first <= address < end:
            return found
    return ""
