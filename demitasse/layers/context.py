"""What a net tells its layers about the world."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from demitasse.backends.storage import Stored
from demitasse.core.device import Device, current_device

__all__ = ["Clock", "LayerContext"]


@dataclass
class Clock:
    """Counts of passes that random numbers are keyed by; kept in snapshots.

    Attributes:
        passes: Forward passes of the net so far, in phase TRAIN or where a layer draws in TEST.
    """

    passes: int = 0


@dataclass
class LayerContext:
    """What a net tells its layers about the world.

    Attributes:
        device: Where the net runs.
        dtype: What it computes in.
        seed: Key of all its random numbers.
        base_dir: Folder of the prototxt, where named files are looked for too; or None.
        rank: Which of ``ranks`` data-parallel workers this is.
        ranks: How many of them there are.
        storage: How the device keeps what is computed, and weights: "float" as it is, or in 16
            bits, "half" or "bfloat16".
        python_layers: Whether ``Python`` layers may import modules.
        clock: The net's pass counter.
    """

    device: Device = field(default_factory=current_device)
    dtype: str = "float32"
    seed: int = 0
    base_dir: Path | None = None
    rank: int = 0
    ranks: int = 1
    storage: Stored = "float"
    python_layers: bool = True
    clock: Clock = field(default_factory=Clock)
