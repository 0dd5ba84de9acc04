"""Families of layers, each with its converters."""
