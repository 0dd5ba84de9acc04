"""Directed graphs: built as with pydot, laid out in layers, drawn as SVG or pixels."""
