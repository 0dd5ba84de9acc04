"""Flags as gflags takes them: one dash or two, a space or ``=``.

Source: Caffe, ``tools/caffe.cpp``, whose flags are gflags' and glog's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["plain_name", "two_dashes"]

ONE_DASH = re.compile(r"-[A-Za-z][\w-]+(=.*)?", re.DOTALL)

GLOG = re.compile(
    r"--?((no)?(alsologtostderr|logtostderr|colorlogtostderr|logbuflevel|logbufsecs)"
    r"|stderrthreshold|v)(=\w*)?"
)
"""Flags that only say where glog puts its lines. Ours always go to standard error."""


def two_dashes(args: Sequence[str]) -> list[str]:
    """Give long flags two dashes, and leave those of glog out that change nothing here.

    What comes after a lone ``--`` is left alone.
    """
    end = list(args).index("--") if "--" in args else len(args)
    kept = (arg for arg in args[:end] if not GLOG.fullmatch(arg))
    return [f"-{arg}" if ONE_DASH.fullmatch(arg) else arg for arg in kept] + list(args[end:])


def plain_name(name: str) -> str:
    """Return a flag's or verb's name with underscores, so that hyphens are as good."""
    return name.replace("-", "_")
