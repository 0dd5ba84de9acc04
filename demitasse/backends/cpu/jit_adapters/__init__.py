"""Kernels of Steps, and their calls.

``convolutions.py`` chooses a kernel for a convolution and its layouts. ``calls.py`` has the
interface of those kernels, and common parts of their calls. Functions raise ``Declined`` where no
kernel can be compiled, or none suits the layout.
"""
