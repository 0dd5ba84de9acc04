"""Caffe's tools by their names: ``python -m demitasse.tools.convert_imageset ...`` and so on.

Each name is a module that is made when it is imported. Run by ``python -m``, it is the command
``demitasse caffe NAME``, with Caffe's exit code 1 for every failure.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from demitasse.cli import main
from demitasse.cli.commands import CAFFE_TOOLS
from demitasse.cli.commands.caffe import REMOVED
from demitasse.cli.errors import DEVICE, FAILED, MODEL_OR_DATA

__all__ = ["NAMES", "run"]

NAMES = frozenset({"caffe", *CAFFE_TOOLS, *REMOVED} - {"train", "test", "time"})
"""Names of the tools."""

USAGE = 2

CODE = "if __name__ == '__main__':\n    from demitasse.tools import run\n    run({name!r})\n"

__path__: list[str] = []  # a package without a folder: the finder below makes its modules


def run(name: str) -> None:
    """Run a tool on the process's arguments; exit codes 2, 3 and 4 become 1."""
    command = ["caffe"] if name == "caffe" else ["caffe", name]
    try:
        main([*command, *sys.argv[1:]])
    except SystemExit as end:
        if end.code in {USAGE, MODEL_OR_DATA, DEVICE}:
            raise SystemExit(FAILED) from None
        raise


class _Tools(MetaPathFinder, Loader):
    """Make the module of a tool."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, tool = name.rpartition(".")
        if package != __name__ or tool not in NAMES:
            return None
        return ModuleSpec(name, self, origin=f"{tool}.py")

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> CodeType:
        """Return the code of a tool, for ``python -m``."""
        return compile(CODE.format(name=name.rpartition(".")[2]), name, "exec")


sys.meta_path.append(_Tools())
