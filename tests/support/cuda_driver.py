"""A CUDA driver that has no GPU, so that cuDNN's planning loads where there is no driver.

cuDNN's engines ask for the library ``libcuda.so.1`` when they are loaded. To make a plan for a
described GPU they need little more of it than its version.
"""

import ctypes

from cuda_host import need_compiler
from gpu.host import library

FUNCTIONS = (
    "cuCtxGetCurrent", "cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceGet",
    "cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString", "cuKernelGetAttribute",
    "cuKernelGetFunction", "cuKernelSetAttribute", "cuLaunchCooperativeKernel",
    "cuLaunchKernel", "cuLaunchKernelEx", "cuLibraryGetKernel", "cuLibraryLoadData",
    "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLinkAddData", "cuLinkComplete",
    "cuLinkCreate", "cuLinkDestroy", "cuModuleGetFunction", "cuModuleLoadData",
    "cuModuleUnload", "cuOccupancyMaxPotentialClusterSize", "cuStreamGetCtx",
    "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled",
)  # fmt: skip

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE``."""

VERSION = 13000


def load_driver() -> None:
    """Load the driver of the machine, or the one that has no GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        need_compiler()
        text = f'extern "C" int cuDriverGetVersion(int* v) {{ *v = {VERSION}; return 0; }}\n'
        for name in FUNCTIONS:
            text += f'extern "C" int {name}() {{ return {NO_DEVICE}; }}\n'
        ctypes.CDLL(str(library(text, "-Wl,-soname,libcuda.so.1")))
