"""Our own reader of prototxt: it finds every fault of a file, with its place.

Source: the protobuf text format's language specification.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from demitasse.proto.text.faults import Fault, error_of, grouped
from demitasse.proto.text.parser import Parser

__all__ = ["Fault", "Parsed", "parse"]

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Parsed(Generic[M]):
    """What a text holds.

    Attributes:
        message: The message.
        warnings: Fields that were left out, or read as another one; equal ones together.
        layer_lines: Of a net, the line that each entry of ``layer`` or ``layers`` begins on.
        input_line: Of a net, the line of its first ``input``, or None.
    """

    message: M
    warnings: list[Fault]
    layer_lines: list[int]
    input_line: int | None


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
    lines = parser.layer_lines["layers"] or parser.layer_lines["layer"]
    return Parsed(message, grouped(parser.warnings), lines, parser.input_line)
