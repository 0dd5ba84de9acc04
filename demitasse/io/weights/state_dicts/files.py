"""State_dicts in files: safetensors, and what PyTorch itself loads and saves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.errors import DemitasseError, WeightsError
from demitasse.io.weights.safetensors import read_safetensors, write_safetensors

__all__ = ["ENDINGS", "read_state_dict", "write_state_dict"]

PICKLED = {".pt", ".pth"}

ENDINGS = {*PICKLED, ".safetensors"}
"""How files of state_dicts end."""

WRAPPED = ("state_dict", "model_state_dict", "model")
"""Under which key a checkpoint has its state_dict."""

PARALLEL = "module."
"""What every name begins with that DataParallel saved."""


def read_state_dict(path: Path) -> dict[str, np.ndarray]:
    """Read a state_dict; floats of 16 bits become ones of 32.

    Of ``.pt`` and ``.pth`` files PyTorch reads tensors alone (``weights_only``): a file that would
    run code is refused.

    Raises:
        WeightsError: The file is not there, or holds something else.
        DemitasseError: PyTorch is not installed, and the file needs it.
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
        path: Ends in one of ``ENDINGS``.
        arrays: Name -> array.
        dtype: What it is stored as: "float32", "float16", "bfloat16"; None: as it is.

    Raises:
        DemitasseError: PyTorch is not installed, and the file needs it.
        OSError: The file cannot be written; an old one is kept.
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
    except Exception as error:  # what damaged files raise has no common base
        message = f"{path} cannot be read as a state_dict: {error}"
        raise WeightsError(message) from error
    for key in WRAPPED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and torch.is_tensor(one) for name, one in found.items()
    ):
        message = (
            f"{path} holds no state_dict, a dictionary of tensors; save one with "
            "torch.save(net.state_dict(), ...)"
        )
        raise WeightsError(message)
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
            "take .safetensors"
        )
        raise DemitasseError(message) from None
