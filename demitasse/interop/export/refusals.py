"""Why a layer has no form in a format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from demitasse.interop.export.request import Reason, is_left_out
from demitasse.io.proto import LayerParameter

__all__ = ["Refusals", "dropout_refusal"]


@dataclass(frozen=True)
class Refusals:
    """What a format cannot say; called with a layer's message, it tells why, or "".

    Attributes:
        form: How the format says layers, for the message.
        known: Types of layers that it has a form for.
        reasons: Type of layer -> why it has none.
        fields: Type of layer -> what looks at its fields for a reason.
    """

    form: str
    known: Collection[str]
    reasons: Mapping[str, str]
    fields: Mapping[str, Reason]

    def __call__(self, param: LayerParameter) -> str:
        """Say why a layer has no form, by its message; "" where it has one."""
        if param.type in self.reasons:
            return self.reasons[param.type]
        if is_left_out(param.type):
            return "it is for training and tests, and left out only where no layer reads it"
        if param.type not in self.known:
            return f"nobody has said yet how it is written in {self.form}"
        return self.fields[param.type](param) if param.type in self.fields else ""


def dropout_refusal(param: LayerParameter) -> str:
    """Say why no format has a form for a Dropout."""
    p = param.dropout_param
    if p.sample_weights_test and p.dropout_ratio:
        return "dropout_param.sample_weights_test draws other random numbers in each run"
    return ""
