"""Arguments of the kernels of a separable convolution."""

from __future__ import annotations

from demitasse.backends.kernels.depthwise.convolution import DepthwiseFields
from demitasse.backends.kernels.language.structs import (
    Address,
    Code,
    OptionalAddress,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import Word

__all__ = ["SeparableFields"]


class SeparableFields(Struct):
    """A depthwise convolution and a pointwise one."""

    depthwise: DepthwiseFields
    """The first; its output is the scratch memory."""
    y: Output
    """Address of the first pixel of the output."""
    y_stride: Word
    """Elements from one of its pixels to the next."""
    y_vector_stride: Word
    """Elements from a panel's first vector of a pixel's channels to its second."""
    channels: Word
    """Channels between the two."""
    filters: Address
    """Address of the filters of the second: for each panel, channel after channel."""
    panels: Word
    """Number of panels of filters."""
    quiet: Word
    """For how many of them, the first, nothing of the next block is fetched."""
    panel_table: Address
    """Address of the first filter of each."""
    place_table: Address
    """Address of elements from the beginning of an output pixel to the first filter of each."""
    next_vector: Word
    """Filters from a panel's first vector to its second; fewer than a vector where there are fewer
    than two vectors of filters, some of which both hold then."""
    offsets: Address
    """Address of one offset for each channel of the output."""
    other: OptionalAddress
    """Address of the first pixel of what is added, which lies as the output does; read only where
    there is any."""
    rectifier: Address
    """Address of its rectifier's numbers: the slope of what is below 0, or the limits."""
    most: Word
    """Pixels that are multiplied at a time."""
    multiply: Code
    """Address of the kernel that multiplies the pixels of a block with all filters."""
    rests: Address
    """Address of a table: for each number of pixels that a block leaves, the address of the kernel
    that multiplies so few with a panel."""
    scratch_bytes: Word
    """Bytes of scratch memory of each thread."""
    parts: Word
    """In how many parts the rows of outputs of all images are divided."""
    blocks: Word
    """In how many blocks each part is."""
    overlap: Word
    """Rows of the input that a row of outputs sees, and the one before it has seen."""
