"""What cupy offers, as the Steps use it: the GPU, its memory, cuBLAS, and compiled kernels."""
