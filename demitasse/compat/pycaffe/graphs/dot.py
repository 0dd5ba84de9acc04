"""Graphs in Graphviz's language, with pydot's interface, drawn without Graphviz.

The classes have the names and methods of pydot that scripts for nets use.
"""

import re
from collections.abc import Callable
from functools import partial

from demitasse.compat.pycaffe.graphs.render import FORMATS, Drawing, drawing, to_pixels, to_svg
from demitasse.core.atomic import write_bytes
from demitasse.errors import ConfigError, ErrorCode

TEXT = ("raw", "dot", "gv", "canon")
"""Formats that return the graph's text."""

WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|-?\d+(\.\d+)?")
KEYWORDS = {"node", "edge", "graph", "digraph", "subgraph", "strict"}


class _Element:
    """Element with attributes: the graph, a node or an edge."""

    def __init__(self, text: str, attributes: dict[str, str]) -> None:
        self._text = text
        self._attributes = {name: str(value) for name, value in attributes.items()}

    def get(self, name: str) -> str | None:
        """Return an attribute, or None."""
        return self._attributes.get(name)

    def set(self, name: str, value: str) -> None:
        """Set an attribute, such as ``fillcolor``."""
        self._attributes[name] = str(value)

    def get_attributes(self) -> dict[str, str]:
        """Return all attributes."""
        return self._attributes

    def to_string(self) -> str:
        """Return the element in Graphviz's language."""
        pairs = [f"{name}={_quoted(value)}" for name, value in self._attributes.items()]
        return f"{self._text} [{', '.join(pairs)}];" if pairs else f"{self._text};"

    def __str__(self) -> str:
        return self.to_string()


class Node(_Element):
    r"""A node; its name is also its text, in which ``\n`` (two characters) starts a new line."""

    def __init__(self, name: str, **attributes: str) -> None:
        super().__init__(_quoted(name), attributes)

    def get_name(self) -> str:
        """Return the name in Graphviz's language, quoted if necessary."""
        return self._text


class Edge(_Element):
    """A directed edge between two nodes, given as nodes or by name."""

    def __init__(self, src: Node | str, dst: Node | str, **attributes: str) -> None:
        self._ends = [
            _quoted(end) if isinstance(end, str) else end.get_name() for end in (src, dst)
        ]
        super().__init__(" -> ".join(self._ends), attributes)

    def get_source(self) -> str:
        """Return the name of the source node."""
        return self._ends[0]

    def get_destination(self) -> str:
        """Return the name of the target node."""
        return self._ends[1]


class Dot(_Element):
    """A graph. ``create_png()``, ``write_svg(path)`` and so on exist for every format."""

    def __init__(
        self, graph_name: str = "G", graph_type: str = "digraph", **attributes: str
    ) -> None:
        super().__init__(_quoted(graph_name), attributes)
        self._type = graph_type
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []

    def get_name(self) -> str:
        """Return the name of the graph."""
        return self._text

    def add_node(self, graph_node: Node) -> None:
        """Add a node; a later node replaces one with the same name."""
        self._nodes[graph_node.get_name()] = graph_node

    def add_edge(self, graph_edge: Edge) -> None:
        """Add an edge, perhaps between nodes that were not added."""
        self._edges.append(graph_edge)

    def get_nodes(self) -> list[Node]:
        """Return the nodes."""
        return list(self._nodes.values())

    def get_edges(self) -> list[Edge]:
        """Return the edges."""
        return list(self._edges)

    def get_node(self, name: str) -> list[Node]:
        """Return a list with the node of a name, or an empty list."""
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
        """Return the contents of a file with the graph, without Graphviz's program ``prog``.

        ``format`` is ``svg``, a format of pixels such as ``png``, or ``dot`` for the graph's text.

        Raises:
            ConfigError: The format is unknown, or needs Pillow, which is not installed.
        """
        del prog
        if format in TEXT:
            return self.to_string().encode(encoding or "utf-8")
        if format == "svg":
            return to_svg(self._drawing()).encode(encoding or "utf-8")
        if format in FORMATS:
            return to_pixels(self._drawing(), format)
        known = ", ".join(["svg", *FORMATS, *TEXT])
        message = f"graphs are not drawn as {format!r}; formats are: {known}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="format", got=format)

    def write(
        self, path: str, prog: object = None, format: str = "raw", encoding: str | None = None
    ) -> bool:
        """Draw the graph into a file; see ``create``."""
        content = self.create(prog, format, encoding)
        write_bytes(path, content)
        return True

    def __getattr__(self, name: str) -> Callable[..., bytes | bool]:
        verb, _, format = name.partition("_")
        if verb in {"create", "write"} and format in {"svg", *FORMATS, *TEXT}:
            return partial(self.create if verb == "create" else self.write, format=format)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message)

    def _drawing(self) -> Drawing:
        nodes = {_plain(name): node.get_attributes() for name, node in self._nodes.items()}
        edges = [
            (_plain(e.get_source()), _plain(e.get_destination()), _plain(e.get("label") or ""))
            for e in self._edges
        ]
        for ends in edges:
            for end in ends[:2]:
                nodes.setdefault(end, {})
        return drawing(nodes, edges, self.get("rankdir") or "TB")


def _quoted(text: str) -> str:
    """Return text in Graphviz's language; quoted text is unchanged."""
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        return text
    if WORD.fullmatch(text) and text.lower() not in KEYWORDS:
        return text
    return '"' + text.replace('"', r"\"") + '"'


def _plain(text: str) -> str:
    quoted = text.startswith('"') and text.endswith('"') and len(text) > 1
    return text[1:-1].replace(r"\"", '"') if quoted else text
