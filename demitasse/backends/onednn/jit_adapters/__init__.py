"""Our own kernels where Steps run them in place of the library's primitives.

``selection.py`` chooses a kernel for a convolution and its layouts. ``calls.py`` has the interface
of those kernels, and what their calls have in common.
"""
