"""Make ``import caffe`` load Demitasse, for any folders on ``sys.path``.

Python imports this module at start-up; nothing else is loaded before the first ``import caffe``.
"""

import sys


class CaffeFinder:
    """Delegates the first ``import caffe`` to Demitasse's import hook."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Return the spec of ``caffe``; None for other names."""
        if name != "caffe":
            return None
        sys.meta_path.remove(cls)
        from demitasse.compat.caffe_import_hook import install

        install()
        return sys.meta_path[0].find_spec(name, path, target)


sys.meta_path.insert(0, CaffeFinder)
