"""Kernels of the numpy backend, one module for each family; importing this registers them."""
