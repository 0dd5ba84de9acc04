"""A net's layers, prepared for its device, and the buffers that their blobs share."""

from demitasse.plan.plan import Place, Plan

__all__ = ["Place", "Plan"]
