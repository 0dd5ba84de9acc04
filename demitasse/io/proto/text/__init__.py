"""Parser of prototxt that finds every fault of a file, with its position.

Source: protobuf, "Text Format Language Specification".
"""

from typing import Generic, TypeVar

from google.protobuf.message import Message

from demitasse.io.proto.text.parser import Parser
from demitasse.io.proto.text.tokens import Fault, error_of, grouped

__all__ = ["Fault", "Parsed", "parse"]

M = TypeVar("M", bound=Message)


class Parsed(Generic[M]):
    """A parsed text.

    Attributes:
        warnings: Fields that were skipped, or read as another field; equal warnings are grouped.
        layer_lines: For a net, the line of each entry of ``layer`` or ``layers``.
        input_line: For a net, the line of its first ``input``, or None.
    """

    def __init__(self, message: M, parser: Parser) -> None:
        self.message = message
        self.warnings = grouped(parser.warnings)
        self.layer_lines = parser.layer_lines["layers"] or parser.layer_lines["layer"]
        self.input_line = parser.input_line


def parse(
    text: str, cls: type[M], source: str | None = None, ignore_unknown_fields: bool = False
) -> Parsed[M]:
    """Parse prototxt; a PrototxtError lists all faults. ``source`` names the text in messages."""
    parser = Parser(text, ignore_unknown_fields)
    message = cls()
    parser.parse(message)
    if parser.faults:
        raise error_of(parser.faults, source)
    return Parsed(message, parser)
