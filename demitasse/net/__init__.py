"""Nets: what they are, how they are built, and their passes."""

from demitasse.net.net import Net

__all__ = ["Net"]
