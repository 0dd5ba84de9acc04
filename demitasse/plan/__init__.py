"""A net's layers, prepared for its device, and the buffers that their blobs share."""

from demitasse.plan.entry import Entry, Place
from demitasse.plan.plan import Plan, Ran

__all__ = ["Entry", "Place", "Plan", "Ran"]
