"""Numbers of oneDNN's C interface, version 3.

They are part of its binary interface and have not changed since 3.0.
"""

from enum import IntEnum


class Pass(IntEnum):
    """Propagation kinds of a forward primitive."""

    TRAINING = 64
    INFERENCE = 96
    BACKWARD = 128
    BACKWARD_DATA = 160


class Algorithm(IntEnum):
    """Ways to compute, one number space for all primitives."""

    CONVOLUTION = 1
    DECONVOLUTION = 10
    RELU = 0x20
    LINEAR = 0x26
    HARDSWISH = 0x34
    ADD = 0x1FFF0
    MUL = 0x1FFF1
    MAX = 0x1FFF2


class Arg(IntEnum):
    """Argument roles of a primitive."""

    SRC = 1
    SECOND_SRC = 2
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    DIFF_SRC = 129
    DIFF_DST = 145
    DIFF_WEIGHTS = 161
    DIFF_BIAS = 169
    DIFF_SCALE = 255
    DIFF_SHIFT = 256
    MULTIPLE_SRC = 1024
    ADDED = 32768 | 2  # what the first thing after a primitive reads
    SLOPE = 32768 | 33  # what it multiplies with below 0
    SECOND_SLOPE = 65536 | 33  # the same of the second thing


class Query(IntEnum):
    """Queries of a descriptor."""

    IMPLEMENTATION = 8
    STRIDES = 14
    SRC = 129
    DIFF_SRC = 130
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DST = 133
    DIFF_DST = 134
    WORKSPACE = 135
    SCRATCHPAD = 136
    NDIMS = 256
    DIMS = 257
    PADDED_DIMS = 260
    FORMAT_KIND = 262
    INNER_COUNT = 263
    INNER_BLOCKS = 264
    INNER_AXES = 265


class Normalization(IntEnum):
    """Flags of batch normalisation."""

    NONE = 0
    GLOBAL_STATISTICS = 1
    SCALE = 2
    SHIFT = 4
    RELU = 8


FLOAT32 = 3
"""The data type of every memory here."""

BLOCKED = 2
"""The format kind of layouts that strides and blocks describe."""

ANY = 1
"""The format tag that leaves the layout to the primitive."""

CPU_ENGINE = 1
DEFAULT_STREAM = 1
USER_SCRATCHPAD = 1
