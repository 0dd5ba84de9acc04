"""The page of what stands in the files of solvers and nets, apart from the layers."""

from message_tables import field_tables

from demitasse.io.proto import NetParameter, NetState, SolverParameter

SOLVER_PAGE = "reference/solver_fields.md"
MESSAGES = (SolverParameter, NetParameter, NetState)
NOWHERE = {"V1LayerParameter"}
"""Messages of old files, which are upgraded when they are read and have no table."""

HEAD = """\
# Solver and net fields

What a solver's file and a net's file may hold, by messages. The layers of a net are on
[pages of their own](layer_types.md).
"""


def solver_fields() -> str:
    """Return the text of the page."""
    lines = [HEAD]
    for message in MESSAGES:
        lines.append(f"## {message.DESCRIPTOR.name}\n")
        lines += field_tables(message.DESCRIPTOR, address=_address)
    return "\n".join(lines)


def _address(message: str) -> str:
    if message in NOWHERE:
        return ""
    here = message in {known.DESCRIPTOR.name for known in MESSAGES}
    return f"{'' if here else 'layers/messages.md'}#{message.lower()}"
