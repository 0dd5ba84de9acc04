"""Python layers that many nets bring, as layers of the catalogue that do the same."""

from __future__ import annotations

import re

from demitasse.io.proto import LayerParameter

__all__ = ["as_known"]

PROPOSALS = ("rpn.proposal_layer", "ProposalLayer")
"""Module and class of Faster R-CNN's (rbgirshick/py-faster-rcnn), which R-FCN has, too."""


def as_known(layer: LayerParameter) -> LayerParameter | None:
    """Return the layer that does what a Python layer does; None where nobody knows.

    What the module takes from Faster R-CNN's settings for tests are the defaults of Proposal: 6000
    regions are looked at, 300 stay, the largest overlap is 0.7, the least side 16 pixels.
    """
    p = layer.python_param
    if layer.type != "Python" or (p.module, p.layer) != PROPOSALS:
        return None
    known = LayerParameter(
        name=layer.name, type="Proposal", bottom=layer.bottom[:3], top=layer.top[:2]
    )
    known.proposal_param.SetInParent()
    stride = re.search(r"feat_stride\W+(\d+)", p.param_str)
    if stride:
        known.proposal_param.feat_stride = int(stride[1])
    for name, field in (("scales", "scale"), ("ratios", "ratio")):
        values = re.search(rf"{name}\b[^\[(]*[\[(]([\d.,\s]+)[\])]", p.param_str)
        if values:
            numbers = [float(one) for one in values[1].split(",") if one.strip()]
            getattr(known.proposal_param, field).extend(numbers)
    return known
