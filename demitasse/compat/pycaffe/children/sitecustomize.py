"""Answers the first ``import caffe`` of a process whose PYTHONPATH names this folder.

Python imports a module of this name whenever it starts, before a program can put folders in front
of ``sys.path``. It loads nothing until ``caffe`` is wanted; the environment's own module of this
name runs as it would have.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


class First:
    """Finds ``caffe`` by leaving it to Demitasse."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where ``caffe`` is; nothing for other names."""
        if name != "caffe":
            return None
        sys.meta_path.remove(cls)
        from demitasse.compat.caffe_import_hook import install

        install()
        return sys.meta_path[0].find_spec(name, path, target)


sys.meta_path.insert(0, First)

next_one = PathFinder.find_spec(
    "sitecustomize", [folder for folder in sys.path if Path(folder) != Path(__file__).parent]
)
if next_one is not None and next_one.loader is not None:
    module = module_from_spec(next_one)
    sys.modules["sitecustomize"] = module
    next_one.loader.exec_module(module)
