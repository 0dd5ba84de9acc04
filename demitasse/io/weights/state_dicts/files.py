"""Files of state_dicts: safetensors, and PyTorch's own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.errors import DemitasseError, ErrorCode, WeightsError
from demitasse.io.weights.safetensors import read_safetensors, write_safetensors

__all__ = ["ENDINGS", "read_state_dict", "write_state_dict"]

PICKLED = {".pt", ".pth"}

ENDINGS = {*PICKLED, ".safetensors"}
"""Extensions of files of state_dicts."""

WRAPPED = ("state_dict", "model_state_dict", "model")
"""Keys of the state_dict in a checkpoint."""

PARALLEL = "module."
"""Prefix of names saved by DataParallel."""


def read_state_dict(path: Path) -> dict[str, np.ndarray]:
    """Read a state_dict; 16-bit floats become float32.

    PyTorch reads ``.pt`` and ``.pth`` files with ``weights_only``: files that would run code are
    refused.

    Raises:
        WeightsError: The file does not exist, or is no state_dict.
        DemitasseError: The file needs PyTorch, which is not installed.
    """
    arrays = _unpickled(path) if path.suffix in PICKLED else read_safetensors(path)
    if arrays and all(name.startswith(PARALLEL) for name in arrays):
        arrays = {name.removeprefix(PARALLEL): array for name, array in arrays.items()}
    return {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in arrays.items()
    }


def write_state_dict(path: Path, arrays: dict[str, np.ndarray], dtype: str | None) -> None:
    """Write a state_dict, atomically.

    Args:
        path: Has one of the extensions ``ENDINGS``.
        arrays: Arrays by name.
        dtype: Storage type: "float32", "float16" or "bfloat16"; None: unchanged.

    Raises:
        DemitasseError: The file needs PyTorch, which is not installed.
        OSError: The file cannot be written; an old file is kept.
    """
    if path.suffix not in PICKLED:
        write_safetensors(path, arrays, "pt", dtype)
        return
    torch = _torch()
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    if dtype is not None:
        tensors = {name: one.to(getattr(torch, dtype)) for name, one in tensors.items()}
    with atomic_write(path) as file:
        torch.save(tensors, file)


def _unpickled(path: Path) -> dict[str, np.ndarray]:
    torch = _torch()
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # exceptions for damaged files have no common base
        message = f"{path} cannot be read as a state_dict: {error}"
        raise WeightsError(message, code=ErrorCode.UNREADABLE, file=str(path)) from error
    for key in WRAPPED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and torch.is_tensor(one) for name, one in found.items()
    ):
        message = (
            f"{path} is no state_dict, a dictionary of tensors; save one with "
            "torch.save(net.state_dict(), ...)"
        )
        raise WeightsError(message, code=ErrorCode.UNREADABLE, file=str(path))
    return {name: _array(torch, one) for name, one in found.items()}


def _array(torch: Any, tensor: Any) -> np.ndarray:
    plain = tensor.detach()
    half = plain.dtype in {torch.bfloat16, torch.float16}
    array: np.ndarray = (plain.float() if half else plain).contiguous().numpy()
    return array


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        message = (
            f".pt and .pth files need PyTorch ({error}); run: pip install 'demitasse[torch]', or "
            "use .safetensors"
        )
        raise DemitasseError(message, code=ErrorCode.UNAVAILABLE, extra="torch") from None
