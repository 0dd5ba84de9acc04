"""Make ``import caffe`` load Demitasse in a process whose PYTHONPATH contains this folder.

Python imports ``sitecustomize`` at start-up, before a program can prepend folders to ``sys.path``.
Nothing else is loaded before the first ``import caffe``. The environment's own ``sitecustomize``
runs, too.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


class CaffeFinder:
    """Delegates the first ``import caffe`` to Demitasse's import hook."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of ``caffe``; None for other names."""
        if name != "caffe":
            return None
        sys.meta_path.remove(cls)
        from demitasse.compat.caffe_import_hook import install

        install()
        return sys.meta_path[0].find_spec(name, path, target)


sys.meta_path.insert(0, CaffeFinder)

own_module = PathFinder.find_spec(
    "sitecustomize", [folder for folder in sys.path if Path(folder) != Path(__file__).parent]
)
if own_module is not None and own_module.loader is not None:
    module = module_from_spec(own_module)
    sys.modules["sitecustomize"] = module
    own_module.loader.exec_module(module)
