"""Our own kernels where Steps run them in place of the library's primitives.

Modules whose names end in ``calls`` hold what runs and are imported where something runs; the
others choose a kernel for an operation and its layouts.
"""
