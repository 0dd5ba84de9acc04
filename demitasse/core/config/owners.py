"""Whose a file is, and who can write it."""

from __future__ import annotations

import os
import stat

__all__ = ["doubt"]


def doubt(status: os.stat_result) -> str:
    """Say why a file may not be the user's own, and what to do; else nothing."""
    if os.name != "posix":  # elsewhere neither owner nor mode tells
        return ""
    if status.st_uid not in {0, os.geteuid()}:
        return f"it belongs to another user (uid {status.st_uid}); make a copy that is yours"
    # many systems give every user a group of his own, and new files are writable for that group
    own_group = status.st_gid == os.getegid()
    if status.st_mode & (stat.S_IWOTH if own_group else stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(status.st_mode)
        return f"other users can write it ({mode}); chmod go-w takes that from them"
    return ""
