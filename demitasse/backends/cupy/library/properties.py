"""Properties of a GPU as CUDA reports them."""

from __future__ import annotations

from importlib import import_module

from demitasse.errors import DeviceError

__all__ = ["properties"]

Property = int | str | list[int]


def properties(number: int) -> dict[str, Property]:
    """Return the properties of a GPU under CUDA's names, e.g. ``multiProcessorCount``.

    Sizes are in bytes and clock rates in kHz. Which names there are depends on the version of CUDA.

    Args:
        number: Which of the GPUs that CUDA shows to this process.

    Raises:
        DeviceError: cupy is not installed, or CUDA has no such GPU.
    """
    try:
        runtime = import_module("cupy").cuda.runtime
        found = runtime.getDeviceProperties(number)
    except Exception as error:  # whatever a missing driver or library raises
        message = f"cuda:{number} cannot be asked for its properties: {error}"
        raise DeviceError(message) from error
    plain: dict[str, Property] = {}
    for name, value in found.items():
        if isinstance(value, bytes) and name == "name":
            plain[name] = value.rstrip(b"\0").decode(errors="replace")
        elif isinstance(value, int | str):
            plain[name] = value
        elif isinstance(value, tuple | list):
            plain[name] = [int(part) for part in value]
    return plain
