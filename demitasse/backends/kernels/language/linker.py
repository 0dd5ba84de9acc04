"""Link compiled modules into this process without LLVM, whose library takes 80 MiB to load.

LLVM's JIT target writes every address as 64 bits. Linking therefore copies a module's sections to
memory and fills in the addresses.

No thread has the right to write and to run the same page at once.

Sources: System V Application Binary Interface, AMD64 Architecture Processor Supplement; ELF for the
Arm 64-bit Architecture (AArch64);
Apple, "Porting just-in-time compilers to Apple silicon"; Microsoft, ``VirtualProtect``.
"""

import ctypes
import mmap
import os
import struct
from collections import namedtuple
from collections.abc import Mapping, Sequence

from demitasse.backends.kernels.language.target import (
    ARCHITECTURES,
    MACOS,
    WINDOWS,
    architecture,
    is_x86,
    system,
)

ELF64_LITTLE = b"\x7fELF\x02\x01\x01"
RELOCATABLE = 1
PROGBITS, SYMTAB, RELA = 1, 2, 4
ALLOCATED = 2
UNDEFINED = 0
ADDRESS64 = (1, 257)  # R_X86_64_64, R_AARCH64_ABS64: the address of a symbol, plus a number
MOVES = {264: 0, 266: 16, 268: 32, 269: 48}  # R_AARCH64_MOVW_UABS_G0_NC to G3: bits of an address
CALL = (282, 283)  # R_AARCH64_JUMP26, R_AARCH64_CALL26: words to a symbol, in 26 bits
REACH = 1 << 27
"""Bytes to either side that an instruction of AArch64 can call."""

READ, WRITE, EXECUTE = 1, 2, 4
JIT = 0x800
"""macOS's flag of memory for code, whose pages each thread can either write or run."""

RESERVE_AND_COMMIT, READ_WRITE, EXECUTE_READ = 0x3000, 0x04, 0x20
THIS_PROCESS = -1
"""Windows: kinds and rights of memory; handle of the calling process."""

_Section = namedtuple("_Section", "name type flags address offset size link info align entry")
SECTION, SYMBOL, RELOCATION = (struct.Struct(f) for f in ("<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))


def link(code: bytes, exports: Sequence[str], outside: Mapping[str, int]) -> dict[str, int]:
    """Copy a module's code to executable memory; return the addresses of its kernels.

    The code is a relocatable file written by LLVM, and trusted. External symbols are at the
    addresses ``outside``.

    Raises:
        ValueError: The code is for another system or processor.
        OSError: The system refuses memory for code.
    """
    kind = RELOCATABLE, ARCHITECTURES[architecture()].elf
    if code[: len(ELF64_LITTLE)] != ELF64_LITTLE or struct.unpack_from("<HH", code, 16) != kind:
        message = f"no ELF file for {architecture()}"
        raise ValueError(message)
    [table] = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [_Section(*SECTION.unpack_from(code, table + size * i)) for i in range(count)]
    places, memory = _load(code, sections)
    base = allocate(len(memory))
    [symbols] = (section for section in sections if section.type == SYMTAB)
    names, addresses, named = sections[symbols.link].offset, [], {}
    for at in range(symbols.offset, symbols.offset + symbols.size, SYMBOL.size):
        name, _, _, number, value, _ = SYMBOL.unpack_from(code, at)
        text = code[names + name : code.index(b"\0", names + name)].decode()
        address = base + places[number] + value if number in places else 0
        if number == UNDEFINED and text:
            address = outside[text]
        addresses.append(address)
        named[text] = address
    for section in sections:
        if section.type == RELA and section.info in places:
            for at in range(section.offset, section.offset + section.size, RELOCATION.size):
                offset, info, more = RELOCATION.unpack_from(code, at)
                place, address = places[section.info] + offset, addresses[info >> 32]
                _relocate(memory, place, info & 0xFFFFFFFF, address and address + more, base)
    publish(base, memory)
    return {name: named[name] for name in exports}


def _load(code: bytes, sections: Sequence[_Section]) -> tuple[dict[int, int], bytearray]:
    """Return the offset in memory of each allocated section, and the memory."""
    places, memory = {}, bytearray()
    for number, section in enumerate(sections):
        if section.flags & ALLOCATED and section.size:
            if section.type != PROGBITS:
                message = f"a section of type {section.type}"
                raise ValueError(message)
            memory += bytes(-len(memory) % max(section.align, 1))
            places[number] = len(memory)
            memory += code[section.offset : section.offset + section.size]
    return places, memory or bytearray(1)


def _relocate(memory: bytearray, place: int, kind: int, address: int, base: int) -> None:
    """Fill in the address of a symbol, which is 0 if it is not in memory.

    ``place`` is an offset in the memory, which will begin at ``base``.
    """
    distance = address - base - place
    if not address:
        kind = 0
    if kind == ADDRESS64[not is_x86()]:
        struct.pack_into("<Q", memory, place, address & 0xFFFFFFFFFFFFFFFF)
        return
    [instruction] = struct.unpack_from("<I", memory, place)
    if not is_x86() and kind in MOVES:
        part = address >> MOVES[kind] & 0xFFFF
        instruction = instruction & ~(0xFFFF << 5) | part << 5
    elif not is_x86() and kind in CALL and -REACH <= distance < REACH:
        instruction = instruction & ~0x3FFFFFF | distance >> 2 & 0x3FFFFFF
    else:
        message = f"a relocation of type {kind}"
        raise ValueError(message)
    struct.pack_into("<I", memory, place, instruction)


def allocate(size: int) -> int:
    """Return the address of new pages for :func:`publish`, which are never freed.

    Threads may still run there when Python's modules are taken apart.
    """
    if system() == WINDOWS:
        reserve = ctypes.CDLL("kernel32").VirtualAlloc
        reserve.restype = ctypes.c_void_p
        address: int = reserve(None, ctypes.c_size_t(size), RESERVE_AND_COMMIT, READ_WRITE) or 0
        if not address:
            raise MemoryError
        return address
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if system() == MACOS:
        memory = mmap.mmap(-1, size, flags | JIT, READ | WRITE | EXECUTE)
    else:
        memory = mmap.mmap(-1, size, flags, READ | WRITE)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def publish(start: int, code: bytearray) -> None:
    """Copy code to new pages, and make them executable.

    Raises:
        OSError: The system refuses the rights.
    """
    size, address = ctypes.c_size_t(len(code)), ctypes.c_void_p(start)
    library = ctypes.CDLL("kernel32" if system() == WINDOWS else None)
    if system() == MACOS:
        library.pthread_jit_write_protect_np(0)
    ctypes.memmove(start, bytes(code), len(code))
    if system() == WINDOWS:
        before = ctypes.byref(ctypes.c_ulong())
        if not library.VirtualProtect(address, size, EXECUTE_READ, before):
            raise OSError(library.GetLastError(), "VirtualProtect")
        library.FlushInstructionCache(ctypes.c_void_p(THIS_PROCESS), address, size)
    elif system() == MACOS:
        library.pthread_jit_write_protect_np(1)
        library.sys_icache_invalidate(address, size)
    else:
        protect(start, len(code), READ | EXECUTE)
        if not is_x86():
            clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
            clear(address, ctypes.c_void_p(start + len(code)))


def protect(start: int, size: int, rights: int) -> None:
    """Set the access rights of memory that begins at a page.

    Raises:
        OSError: The system refuses the rights.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), rights):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
