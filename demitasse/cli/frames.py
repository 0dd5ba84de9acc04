"""Tables in HDF5 files, as pandas' ``DataFrame.to_hdf`` writes them and ``pandas.read_hdf`` reads.

Columns of one type are one array, a block; nothing is pickled.

Source: pandas, ``pandas/io/pytables.py`` (the format "fixed"); PyTables, "File format".
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from demitasse.core.atomic import atomic_write
from demitasse.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Block", "write_frame"]

VERSION = "0.15.2"
"""Of the format: what versions of pandas have written since then."""


class Block(NamedTuple):
    """Columns of one type.

    Attributes:
        names: What they are called.
        values: Shape: (rows, columns).
    """

    names: Sequence[str]
    values: np.ndarray


def write_frame(path: Path, key: str, index: Block, blocks: Sequence[Block]) -> None:
    """Write a table.

    Args:
        path: The file.
        key: What the table is called in it.
        index: The name of the rows' names, and these: strings. Shape: (rows, 1).
        blocks: The columns; there are rows.

    Raises:
        ConfigError: h5py is not installed.
        OSError: The file cannot be written.
    """
    try:
        import h5py
    except ImportError:
        message = "HDF5 files need h5py; run: pip install 'demitasse[hdf5]', or name a .csv file"
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE, extra="hdf5") from None
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        _tell(file, CLASS="GROUP", VERSION="1.0", PYTABLES_FORMAT_VERSION="2.1")
        table = file.create_group(key)
        _tell(table, CLASS="GROUP", VERSION="1.0", encoding="UTF-8", errors="strict")
        _tell(table, pandas_type="frame", pandas_version=VERSION)
        table.attrs.update(ndim=2, nblocks=len(blocks))
        names = [name for block in blocks for name in block.names]
        _add_axis(table, "axis0", names)
        _add_axis(table, "axis1", index.values.ravel().tolist(), index.names[0])
        for number, block in enumerate(blocks):
            _add_axis(table, f"block{number}_items", block.names)
            _add_array(table, f"block{number}_values", block.values)
    with atomic_write(path) as out:
        out.write(content.getvalue())


def _tell(node: Any, **texts: str) -> None:
    """Give a node attributes, of the kind of string that every version of PyTables reads."""
    import h5py

    for name, text in texts.items():
        content = text.encode("utf-8", "surrogateescape")
        node.attrs.create(name, content, dtype=h5py.string_dtype("utf-8", len(content)))


def _add_axis(table: Any, name: str, texts: Iterable[str], called: str | None = None) -> None:
    import numpy as np

    _tell(table, **{f"{name}_variety": "regular"})
    _add_array(table, name, np.array([text.encode("utf-8", "surrogateescape") for text in texts]))
    _tell(table[name], kind="string", **({} if called is None else {"name": called}))


def _add_array(table: Any, name: str, values: np.ndarray) -> None:
    import numpy as np

    table[name] = values
    _tell(table[name], CLASS="ARRAY", FLAVOR="numpy", VERSION="2.4")
    table[name].attrs["transposed"] = np.uint8(1)  # rows first
