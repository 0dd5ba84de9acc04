"""Kernels made at run time for the host's processor, for any backend that works on the host."""
