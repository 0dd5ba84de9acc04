"""Kernels that walk over the planes of images: normalisations, and the gradients of gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demitasse.backends.kernels import norm
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.images import images_of, in_padded_blocks
from demitasse.backends.onednn.steps.norm_parts import NormParts
from demitasse.backends.onednn.threads import wanted

if TYPE_CHECKING:
    from demitasse.backends.kernels.channel_affine import GateGradient, Gates
    from demitasse.backends.kernels.norm.forward import Normalization, PlaneNorm

__all__ = ["gate_kernels", "norm_kernel", "plane_norm_kernel"]


def norm_kernel(engine: Engine, parts: NormParts, layout: Layout) -> Normalization | None:
    """Return what normalises by the batch's statistics in a layout; None where it is not for us.

    Args:
        engine: The engine.
        parts: What is to be computed.
        layout: Of input and output.
    """
    tuning = engine.tuning.as_set(wanted())
    if parts.norm is None or not parts.measures or not tuning.width:
        return None
    images = images_of(layout)
    if images is None:
        return None
    if not (norm.takes(images, tuning.width) or norm.has_rest(images, tuning.width)):
        return None
    from demitasse.backends.kernels.norm.forward import Normalization

    return Normalization(images, parts.norm[0].eps, tuning, relu=parts.relu)


def plane_norm_kernel(engine: Engine, eps: float, layout: Layout) -> PlaneNorm | None:
    """Return what normalises each channel of each image by itself; perhaps None.

    Args:
        engine: The engine.
        eps: What is added to deviations.
        layout: Of input and output.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout) or in_padded_blocks(engine, layout)
    if not tuning.width or images is None:
        return None
    if not norm.takes(images, tuning.width):
        return None
    from demitasse.backends.kernels.norm.forward import PlaneNorm

    return PlaneNorm(images, eps, tuning)


def gate_kernels(
    engine: Engine, layout: Layout, *, adds: bool, hands_on: bool
) -> tuple[Gates, GateGradient] | None:
    """Return what multiplies channels with gates in a layout, and the gradients; perhaps None.

    Args:
        engine: The engine.
        layout: Of the images and their gradients.
        adds: Whether something is added to the product.
        hands_on: Whether the gradient of that is to be written.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    if not (norm.takes(images, tuning.width) or norm.has_rest(images, tuning.width)):
        return None
    from demitasse.backends.kernels.channel_affine import GateGradient, Gates

    return Gates(images, tuning, adds=adds), GateGradient(images, tuning, adds=hands_on)
