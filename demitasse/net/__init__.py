"""Nets: structure, construction and execution."""

from demitasse.net.net import Net

__all__ = ["Net"]
