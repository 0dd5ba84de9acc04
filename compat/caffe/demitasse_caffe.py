"""Answers the first ``import caffe`` of a process, whichever folders are on ``sys.path``.

It is imported whenever Python starts, so it loads nothing until then.
"""

import sys


class First:
    """Finds ``caffe`` by leaving it to Demitasse."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Return where ``caffe`` is; nothing for other names."""
        if name != "caffe":
            return None
        sys.meta_path.remove(cls)
        from demitasse.compat.caffe_import_hook import install

        install()
        return sys.meta_path[0].find_spec(name, path, target)


sys.meta_path.insert(0, First)
