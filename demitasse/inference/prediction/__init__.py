"""Prediction for many inputs, in parts that several processes write and one process joins.

The inputs are ordered items (``items``), divided into batches. Each shard has some of the batches,
and writes the net's outputs to one part (``parts``), atomically. An item is in the same batch for
any number of shards, so its results are the same bits.
"""

from demitasse.core.deprecated import deprecated_names
from demitasse.inference.prediction.parts import (
    BatchRunner,
    Shard,
    find_shard,
    fingerprint,
    join_parts,
    make_part,
)

__all__ = ["BatchRunner", "Shard", "find_shard", "fingerprint", "join_parts", "make_part"]

__getattr__ = deprecated_names(__name__, {"Maker": "BatchRunner", "made_from": "fingerprint"})
