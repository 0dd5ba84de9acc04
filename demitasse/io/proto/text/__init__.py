"""Our own reader of prototxt: it finds every fault of a file, with its place.

Source: the protobuf text format's language specification.
"""

from typing import Generic, TypeVar

from google.protobuf.message import Message

from demitasse.io.proto.text.faults import Fault, error_of, grouped
from demitasse.io.proto.text.parser import Parser

__all__ = ["Fault", "Parsed", "parse"]

M = TypeVar("M", bound=Message)


class Parsed(Generic[M]):
    """What a text holds.

    Attributes:
        message: The message.
        warnings: Fields that were left out, or read as another one; equal ones together.
        layer_lines: Of a net, the line that each entry of ``layer`` or ``layers`` begins on.
        input_line: Of a net, the line of its first ``input``, or None.
    """

    def __init__(self, message: M, parser: Parser) -> None:
        self.message = message
        self.warnings = grouped(parser.warnings)
        self.layer_lines = parser.layer_lines["layers"] or parser.layer_lines["layer"]
        self.input_line = parser.input_line


def parse(text: str, cls: type[M], source: str | None = None, lenient: bool = False) -> Parsed[M]:
    """Read prototxt.

    Args:
        text: The prototxt; an empty one is an empty message.
        cls: The message class.
        source: Where the text is from, for messages.
        lenient: Leave unknown fields out with a warning instead of refusing them.

    Raises:
        PrototxtError: The text is not a message of this class; all faults are listed.
    """
    parser = Parser(text, lenient)
    message = cls()
    parser.parse(message)
    if parser.faults:
        raise error_of(parser.faults, source)
    return Parsed(message, parser)
