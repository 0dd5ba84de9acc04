"""Graphs in Graphviz's language, built as with pydot and drawn without Graphviz.

The classes have the names and the methods of pydot's that scripts for nets use, so one stands in
for the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from demitasse.compat.pycaffe.graphs.picture import Picture, picture
from demitasse.compat.pycaffe.graphs.pixels import FORMATS, pixels
from demitasse.compat.pycaffe.graphs.svg import svg
from demitasse.core.atomic import atomic_write
from demitasse.errors import ConfigError

__all__ = ["Dot", "Edge", "Node"]

TEXT = ("raw", "dot", "gv", "canon")
"""Formats that are the graph's own text."""

WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|-?\d+(\.\d+)?")
KEYWORDS = {"node", "edge", "graph", "digraph", "subgraph", "strict"}


class _Element:
    """What has attributes: the graph, nodes, edges."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self._attributes = {name: str(value) for name, value in attributes.items()}

    def get(self, name: str) -> str | None:
        """Return an attribute, None if it is not set."""
        return self._attributes.get(name)

    def set(self, name: str, value: str) -> None:
        """Set an attribute, such as ``fillcolor``."""
        self._attributes[name] = str(value)

    def get_attributes(self) -> dict[str, str]:
        """Return all attributes."""
        return self._attributes

    def to_string(self) -> str:
        """Return the element in Graphviz's language."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.to_string()

    def _attribute_text(self) -> str:
        pairs = [f"{name}={_quoted(value)}" for name, value in self._attributes.items()]
        return f" [{', '.join(pairs)}]" if pairs else ""


class Node(_Element):
    r"""A node; its name is also its text, in which ``\n`` as two characters begins a new line."""

    def __init__(self, name: str, **attributes: str) -> None:
        super().__init__(attributes)
        self._name = name

    def get_name(self) -> str:
        """Return its name as Graphviz reads it, in quotes where that needs them."""
        return _quoted(self._name)

    def to_string(self) -> str:
        """Return its line of text."""
        return f"{self.get_name()}{self._attribute_text()};"


class Edge(_Element):
    """An arrow from one node to another, each given as a node or by its name."""

    def __init__(self, src: Node | str, dst: Node | str, **attributes: str) -> None:
        super().__init__(attributes)
        self._ends = [
            _quoted(end) if isinstance(end, str) else end.get_name() for end in (src, dst)
        ]

    def get_source(self) -> str:
        """Return the name of the node it leaves."""
        return self._ends[0]

    def get_destination(self) -> str:
        """Return the name of the node it leads to."""
        return self._ends[1]

    def to_string(self) -> str:
        """Return its line of text."""
        return f"{' -> '.join(self._ends)}{self._attribute_text()};"


class Dot(_Element):
    """A graph. ``create_png()``, ``write_svg(path)`` and so on exist for every format.

    Args:
        graph_name: Its name.
        graph_type: ``digraph``; arrows are drawn in any case.
        attributes: Such as ``rankdir``.
    """

    def __init__(
        self, graph_name: str = "G", graph_type: str = "digraph", **attributes: str
    ) -> None:
        super().__init__(attributes)
        self._name, self._type = graph_name, graph_type
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []

    def get_name(self) -> str:
        """Return its name."""
        return _quoted(self._name)

    def add_node(self, graph_node: Node) -> None:
        """Add a node; of two with the same name the latter counts."""
        self._nodes[graph_node.get_name()] = graph_node

    def add_edge(self, graph_edge: Edge) -> None:
        """Add an edge; its nodes need not have been added."""
        self._edges.append(graph_edge)

    def get_nodes(self) -> list[Node]:
        """Return the nodes added."""
        return list(self._nodes.values())

    def get_edges(self) -> list[Edge]:
        """Return the edges added."""
        return list(self._edges)

    def get_node(self, name: str) -> list[Node]:
        """Return the node of a name, in a list that is empty if there is none."""
        node = self._nodes.get(_quoted(name))
        return [node] if node else []

    def get_edge(self, src: str, dst: str) -> list[Edge]:
        """Return the edges between two nodes."""
        ends = (_quoted(src), _quoted(dst))
        return [e for e in self._edges if (e.get_source(), e.get_destination()) == ends]

    def to_string(self) -> str:
        """Return the graph in Graphviz's language."""
        own = [f"{name}={_quoted(value)};" for name, value in self._attributes.items()]
        nodes = [node.to_string() for node in self._nodes.values()]
        edges = [edge.to_string() for edge in self._edges]
        return "\n".join([f"{self._type} {self.get_name()} {{", *own, *nodes, *edges, "}", ""])

    def create(self, prog: object = None, format: str = "ps", encoding: str | None = None) -> bytes:
        """Draw the graph.

        Args:
            prog: Which program of Graphviz would draw; none is needed, so it is not looked at.
            format: ``svg``, a format of pixels such as ``png``, or ``dot`` for the graph's text.
            encoding: Of the text; UTF-8 by default.

        Returns:
            The contents of the file.

        Raises:
            ConfigError: The format is none of these, or needs Pillow, which is not installed.
        """
        del prog
        if format in TEXT:
            return self.to_string().encode(encoding or "utf-8")
        if format == "svg":
            return svg(self._picture()).encode(encoding or "utf-8")
        if format in FORMATS:
            return pixels(self._picture(), format)
        known = ", ".join(["svg", *FORMATS, *TEXT])
        message = f"graphs are not drawn as {format!r}; formats are: {known}"
        raise ConfigError(message)

    def write(
        self, path: str, prog: object = None, format: str = "raw", encoding: str | None = None
    ) -> bool:
        """Draw the graph into a file; see ``create``."""
        content = self.create(prog, format, encoding)
        with atomic_write(path) as file:
            file.write(content)
        return True

    def __getattr__(self, name: str) -> Callable[..., bytes | bool]:
        verb, _, format = name.partition("_")
        if verb in {"create", "write"} and format in {"svg", *FORMATS, *TEXT}:
            return partial(self.create if verb == "create" else self.write, format=format)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message)

    def _picture(self) -> Picture:
        nodes = {_plain(name): node.get_attributes() for name, node in self._nodes.items()}
        edges = [
            (_plain(e.get_source()), _plain(e.get_destination()), _plain(e.get("label") or ""))
            for e in self._edges
        ]
        for ends in edges:
            for end in ends[:2]:
                nodes.setdefault(end, {})
        return picture(nodes, edges, self.get("rankdir") or "TB")


def _quoted(text: str) -> str:
    """Return text as Graphviz reads it; what is in quotes already stays."""
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        return text
    if WORD.fullmatch(text) and text.lower() not in KEYWORDS:
        return text
    return '"' + text.replace('"', r"\"") + '"'


def _plain(text: str) -> str:
    quoted = text.startswith('"') and text.endswith('"') and len(text) > 1
    return text[1:-1].replace(r"\"", '"') if quoted else text
