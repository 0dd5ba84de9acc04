"""A stand-in for cupy, and for the GPUs, streams and libraries under it: test equipment.

What runs on it is all of the cupy backend as it is, with the kernels' own sources. It shows what
is computed, in which order, from which memory and on which device. It cannot show speed, nor what
only NVIDIA's driver, compiler and libraries know: nothing here has run on a GPU.

- ``machine``: the GPUs, their queues and the addresses of their memory.
- ``streams``, ``graphs``: streams, events and devices; capture and replay.
- ``memory``, ``pinned``: pools of device memory and of pinned host memory.
- ``arrays``, ``functions``: device arrays and what computes with them.
- ``host``, ``device.h``, ``kernels``: kernels compiled by g++, run thread by thread.
- ``blas``, ``blas.cpp``: cuBLAS.
- ``package``: all that as modules called ``cupy``.
"""
