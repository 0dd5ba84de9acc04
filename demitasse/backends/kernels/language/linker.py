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
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8
ALLOCATED = 2
EH_FRAME = b".eh_frame"  # for exceptions, which kernels do not throw
ADDRESS64 = (1, 257)  # R_X86_64_64, R_AARCH64_ABS64: the address of a symbol, plus a number
MOVES = {264: 0, 266: 16, 268: 32, 269: 48}  # R_AARCH64_MOVW_UABS_G0_NC to G3: bits of an address
CALL = (282, 283)  # R_AARCH64_JUMP26, R_AARCH64_CALL26: words to a symbol, in 26 bits
REACH = 1 << 27
"""Bytes to either side that an instruction of AArch64 can call."""

STUB = struct.Struct("<IIQ")
LOAD_ADDRESS, BRANCH = 0x58000050, 0xD61F0200
"""Instructions ``ldr x16, .+8`` and ``br x16``; the address follows."""

READ, WRITE, EXECUTE = 1, 2, 4
JIT = 0x800
"""macOS's flag of memory for code, whose pages each thread can either write or run."""

RESERVE_AND_COMMIT, READ_WRITE, EXECUTE_READ = 0x3000, 0x04, 0x20
THIS_PROCESS = -1
"""Windows: kinds and rights of memory; handle of the calling process."""

UNDEFINED, HIGHEST_SECTION = 0, 0xFF00


_Section = namedtuple("_Section", "name type flags address offset size link info align entry")
_Symbol = namedtuple("_Symbol", "name info other section value size")
SECTION, SYMBOL, RELOCATION = (struct.Struct(f) for f in ("<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))


def link(code: bytes, exports: Sequence[str], outside: Mapping[str, int]) -> dict[str, int]:
    """Copy a module's code to executable memory; return the addresses of its kernels.

    The code is a relocatable file written by LLVM, and trusted. External functions are at the
    addresses ``outside``.

    Raises:
        ValueError: The code is for another system or processor.
        OSError: The system refuses memory for code.
    """
    return _Module(code).link(exports, outside)


class _Module:
    def __init__(self, code: bytes) -> None:
        if code[: len(ELF64_LITTLE)] != ELF64_LITTLE:
            message = "no ELF file"
            raise ValueError(message)
        machine = architecture()
        if struct.unpack_from("<HH", code, 16) != (RELOCATABLE, ARCHITECTURES[machine].elf):
            message = f"not for {machine}"
            raise ValueError(message)
        [table] = struct.unpack_from("<Q", code, 40)
        size, count, names = struct.unpack_from("<HHH", code, 58)
        self.code = code
        self.sections = [
            _Section(*SECTION.unpack_from(code, table + size * i)) for i in range(count)
        ]
        self.section_names = self.sections[names]
        [symbols] = (s for s in self.sections if s.type == SYMTAB)
        self.symbol_names = self.sections[symbols.link]
        self.symbols = [
            _Symbol(*SYMBOL.unpack_from(code, symbols.offset + SYMBOL.size * i))
            for i in range(symbols.size // SYMBOL.size)
        ]

    def link(self, exports: Sequence[str], outside: Mapping[str, int]) -> dict[str, int]:
        places, size = self._section_offsets()
        stubs = -(-size // STUB.size) * STUB.size
        memory = bytearray(size if is_x86() else stubs + STUB.size * len(self.symbols))
        base = allocate(len(memory))
        for number, place in places.items():
            section = self.sections[number]
            if section.type != NOBITS:
                content = self.code[section.offset : section.offset + section.size]
                memory[place : place + section.size] = content
        addresses = [self._address(s, base, places, outside) for s in self.symbols]
        for section in self.sections:
            if section.type == RELA and section.info in places:
                self._fill(memory, base, section, places[section.info], addresses, stubs)
        publish(base, memory)
        named = {self._text(self.symbol_names, s.name): a
                 for s, a in zip(self.symbols, addresses, strict=True)}  # fmt: skip
        return {name: named[name.encode()] for name in exports}

    def _section_offsets(self) -> tuple[dict[int, int], int]:
        """Return the offset in memory of each allocated section, and the total size."""
        places, end = {}, 0
        for number, section in enumerate(self.sections):
            if not section.flags & ALLOCATED or not section.size:
                continue
            if self._text(self.section_names, section.name) == EH_FRAME:
                continue
            if section.type not in (PROGBITS, NOBITS):
                message = f"a section of type {section.type}"
                raise ValueError(message)
            align = max(section.align, 1)
            places[number] = end = -(-end // align) * align
            end += section.size
        return places, max(end, 1)

    def _address(
        self, symbol: _Symbol, base: int, places: Mapping[int, int], outside: Mapping[str, int]
    ) -> int:
        """Return the address of a symbol; 0 for a symbol without a section in memory."""
        if symbol.section == UNDEFINED:
            name = self._text(self.symbol_names, symbol.name).decode()
            return outside[name] if name else 0
        if symbol.section >= HIGHEST_SECTION or symbol.section not in places:
            return 0
        return int(base + places[symbol.section] + symbol.value)

    def _fill(
        self, memory: bytearray, base: int, table: _Section, place: int, addresses: Sequence[int],
        stubs: int,
    ) -> None:  # fmt: skip
        """Fill in the addresses of a section, given the table of its relocations.

        ``place`` is the offset of the section in memory, ``stubs`` the offset of a stub for each
        symbol: code that jumps there.
        """
        kinds = ADDRESS64[:1] if is_x86() else (ADDRESS64[1], *MOVES, *CALL)
        for start in range(table.offset, table.offset + table.size, RELOCATION.size):
            offset, info, more = RELOCATION.unpack_from(self.code, start)
            kind, symbol, at = info & 0xFFFFFFFF, info >> 32, place + offset
            address = (addresses[symbol] + more) & 0xFFFFFFFFFFFFFFFF
            if not addresses[symbol] or kind not in kinds:
                message = f"a relocation of type {kind}"
                raise ValueError(message)
            if kind in ADDRESS64:
                struct.pack_into("<Q", memory, at, address)
                continue
            [instruction] = struct.unpack_from("<I", memory, at)
            if kind in MOVES:
                part = address >> MOVES[kind] & 0xFFFF
                instruction = instruction & ~(0xFFFF << 5) | part << 5
            else:
                if not -REACH <= address - base - at < REACH:
                    stub = stubs + STUB.size * symbol
                    STUB.pack_into(memory, stub, LOAD_ADDRESS, BRANCH, address)
                    address = base + stub
                instruction = instruction & ~0x3FFFFFF | (address - base - at) >> 2 & 0x3FFFFFF
            struct.pack_into("<I", memory, at, instruction)

    def _text(self, table: _Section, start: int) -> bytes:
        first = table.offset + start
        return self.code[first : self.code.index(b"\0", first)]


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
