"""Model cards for tests."""

import json
from collections.abc import Sequence

__all__ = ["classifier_card"]


def classifier_card(name: str, labels: Sequence[str], channels: str, *, net: str = "") -> str:
    """Return the card of a classifier with the weights ``name.caffemodel``."""
    return f"""
[model]
net = "{net or name}.prototxt"
weights = "{name}.caffemodel"
task = "classify"
labels = {json.dumps(labels)}

[preprocess]
channels = "{channels}"
"""
