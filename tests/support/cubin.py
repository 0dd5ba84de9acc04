"""What machine code for a GPU says of its kernels, read from the file's own tables."""

import struct

FRAME_SIZE = 0x11
"""The attribute (EIATTR_FRAME_SIZE) that holds how many bytes of local memory a kernel uses."""

WITH_VALUE = 0x04
"""The format of attributes that are followed by so many bytes as their size says."""


def local_bytes(code: bytes) -> dict[str, int]:
    """Return the bytes of local memory of each kernel, where what registers cannot hold goes."""
    sections = _sections(code)
    symbols, names = sections[".symtab"], sections[".strtab"]
    info, at, found = sections[".nv.info"], 0, {}
    while at < len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind == WITH_VALUE:
            if attribute == FRAME_SIZE:
                symbol, value = struct.unpack_from("<II", info, at)
                (start,) = struct.unpack_from("<I", symbols, 24 * symbol)
                found[_text(names, start)] = value
            at += size
    return found


def _sections(code: bytes) -> dict[str, bytes]:
    """Return the sections of an ELF file of 64 bits by name."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", code, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", code, table + i * size) for i in range(count)]
    start, length = rows[of_names][4:6]
    names = code[start : start + length]
    return {_text(names, row[0]): code[row[4] : row[4] + row[5]] for row in rows}


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
