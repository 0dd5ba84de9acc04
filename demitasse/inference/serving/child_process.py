"""Command lines of processes that run a module of the server."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: float) -> list[str]:
    """Return the command line that calls the function ``main`` of a module.

    The process imports from the folders of this one, whatever the environment and the present
    folder are.

    Args:
        module: Name of the module.
        arguments: Numbers that ``main`` is called with.
    """
    paths = [path for path in sys.path if path]
    code = (
        f"import sys; sys.path[:] = sys.argv[1:]; from {module} import main; "
        f"main(*map(float, {[*map(str, arguments)]}))"
    )
    return [sys.executable, "-I", "-c", code, *paths]
