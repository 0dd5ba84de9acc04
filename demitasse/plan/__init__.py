"""A net's layers, prepared for its device, and the buffers that their blobs share."""

from demitasse.plan.plan import Plan
from demitasse.plan.planned_layer import LayerBinding, PlannedLayer

__all__ = ["LayerBinding", "Plan", "PlannedLayer"]
