"""Stages of kernels, each run by itself."""

import ctypes
import os
from operator import index

import numpy as np
import pytest

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled, status

if not status().ready:
    pytest.skip(str(status()), allow_module_level=True)

from guarded_memory import call_guarded

from demitasse.backends.kernels.language.kernel import Kernel

__all__ = [
    "WIDE", "WIDTH", "WIDTHS", "called", "exported", "in_memory", "normal",
    "out_of_memory", "where",
]  # fmt: skip

WIDTHS = [int(one) for one in os.environ.get("KERNEL_TEST_WIDTHS", "4,8,16").split(",")]
"""Floats of the kernels' vectors: 4 for NEON, 8 for AVX2, 16 for AVX-512."""

WIDTH = pytest.mark.parametrize("width", WIDTHS)
"""LLVM splits vectors that the processor has no registers for."""

WIDE = pytest.mark.parametrize("width", [width for width in WIDTHS if width > 4])
"""For cases that vectors of 4 floats do not take."""


def where(array):
    return array.ctypes.data


guard = None
"""Side of the inaccessible pages that arrays of :func:`called` lie against; None for none."""


def called(address, *arguments):
    """Run the kernel at an address; arrays are passed by their addresses."""
    arguments = (*arguments, 0, 1)  # the number of the thread, and the number of threads
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(index(address))
    if guard is not None:
        call_guarded(function, arguments, guard)
        return
    function(*(where(one) if isinstance(one, np.ndarray) else one for one in arguments))


def exported(name, width, write, arguments=1):
    """The address of a kernel that ``write(k)`` writes."""

    def module(of):
        k = Kernel(of, name, arguments, width, threaded=True)
        write(k)
        k.done()

    return compiled(name, module)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def images_of(array):
    """Return the layout of an array (N, C, H, W) whose channels lie side by side."""
    image, _, row, column = (stride // array.itemsize for stride in array.strides)
    return Images(array.shape, image, row, column)


def in_memory(x, images):
    """Return an array (N, C, H, W) as it lies in the images' memory."""
    memory = aligned(x.size)
    last = images.channel_stride == 1
    memory[:] = (x.transpose(0, 2, 3, 1) if last else x).reshape(-1)
    return memory


def out_of_memory(memory, images):
    """Return a copy (N, C, H, W) of what lies in the images' memory."""
    n, c, h, w = images.shape
    if images.channel_stride == 1:
        return memory.reshape(n, h, w, c).transpose(0, 3, 1, 2).copy()
    return memory.reshape(images.shape).copy()
