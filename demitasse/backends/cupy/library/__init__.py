"""CuPy as the Steps use it: the GPU, its memory, cuBLAS, compiled kernels."""
