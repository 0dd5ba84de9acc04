"""JIT compiler of kernels for the host's processor: a thin layer over LLVM.

Kernels are fused loops that numpy lacks; their values stay in registers and in a
core's own cache. They are written with :class:`Kernel` and the operators of its values, for vectors
of any width. Each kernel is compiled once for a processor and cached on the disk.
"""

from demitasse.backends.kernel_cache import folder
from demitasse.backends.kernels.language.compiler import Status, compiled, has_kernels, status

__all__ = ["Status", "compiled", "folder", "has_kernels", "status"]
