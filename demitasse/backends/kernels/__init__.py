"""Kernels that are compiled at run time for the host's processor, for backends on the host."""
