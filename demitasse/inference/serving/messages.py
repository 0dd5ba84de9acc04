"""What a client asks and what it is answered: tensors with names, and which outputs are wanted.

Source: KServe, *Open Inference Protocol*, version 2, with the binary extension of Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["DTYPES", "LENGTH_HEADER", "InferRequest", "InferResponse", "Tensor", "datatype_of"]

LENGTH_HEADER = "Inference-Header-Content-Length"
"""The header that says how many bytes of a body are JSON; values in binary follow them."""

DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype("O"),
}
"""The protocol's name -> how numpy holds it; BYTES are objects, each of type ``bytes``."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, eq=False)
class Tensor:
    """An input or an output.

    Attributes:
        name: What it is called.
        values: Its values, of one of the dtypes in ``DTYPES``.
        parameters: What else is said of it.
    """

    name: str
    values: np.ndarray
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def datatype(self) -> str:
        """The protocol's name for the type of the values."""
        return datatype_of(self.values.dtype)


@dataclass(frozen=True, eq=False)
class InferRequest:
    """What a client asks.

    Attributes:
        inputs: The tensors.
        outputs: Names of the outputs that are wanted, and whether in binary; None for all.
        binary: Whether outputs are wanted in binary where ``outputs`` does not say.
        id: What the client calls the request.
    """

    inputs: Sequence[Tensor]
    outputs: Mapping[str, bool] | None = None
    binary: bool = False
    id: str = ""


@dataclass(frozen=True, eq=False)
class InferResponse:
    """What a client is answered.

    Attributes:
        model: The model's name.
        outputs: The tensors.
        id: What the client calls the request.
        version: The model's version.
    """

    model: str
    outputs: Sequence[Tensor]
    id: str = ""
    version: str = "1"


def datatype_of(dtype: np.dtype) -> str:
    """Return the protocol's name for a numpy type.

    Raises:
        KeyError: It has none.
    """
    return NAMES[dtype.newbyteorder("<")]
