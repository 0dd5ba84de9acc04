"""Machine code for the host's processor, made at run time by LLVM.

For what neither numpy nor oneDNN has: kernels that keep their values in registers and in a core's
own cache from beginning to end. They are written with :class:`Kernel` and the operators of
its values, a thin layer over LLVM's instructions, for vectors of any width; compiled once for each
processor, and kept on the disk.
"""

from demitasse.backends.kernel_cache import folder
from demitasse.backends.kernels.language.compiler import Status, compiled, status

__all__ = ["Status", "compiled", "folder", "status"]
