"""NVIDIA GPUs through cupy: transfers, own kernels, matrix products by cuBLAS.

Importing this package loads neither cupy nor a CUDA driver; ``CupyBackend.devices()`` does, and
answers with an empty list where either is missing.
"""

from demitasse.backends.cupy.backend import CupyBackend

__all__ = ["CupyBackend"]
