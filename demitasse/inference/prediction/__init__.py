"""Many inputs through a net, in parts that several processes make and that are put together again.

Inputs are items in one order (``items``), cut into batches; a shard (``shards``) has some of the
batches, and what the net makes of them (``making``) goes into a part (``parts``), whole or not at
all. An item is in the same batch whatever the number of shards, so that it gets the same bits.
"""

from demitasse.inference.prediction.making import Maker
from demitasse.inference.prediction.parts import join_parts, made_from, make_part
from demitasse.inference.prediction.shards import Shard, find_shard

__all__ = ["Maker", "Shard", "find_shard", "join_parts", "made_from", "make_part"]
