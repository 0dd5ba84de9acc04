"""Directed graphs with pydot's interface, layered layout, and SVG or pixel output."""
