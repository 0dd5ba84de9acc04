"""All lowerings of the backend; importing this registers them."""

from demitasse.backends.onednn.steps import (
    activation,
    concat,
    convolution,
    deconvolution,
    dropout,
    inner_product,
    lrn,
    normalization,
    pooling,
    recurrent,
    softmax,
    softmax_loss,
    sums,
)

__all__ = [
    "activation",
    "concat",
    "convolution",
    "deconvolution",
    "dropout",
    "inner_product",
    "lrn",
    "normalization",
    "pooling",
    "recurrent",
    "softmax",
    "softmax_loss",
    "sums",
]
