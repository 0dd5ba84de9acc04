"""Snapshots of a run: files, the check that a run may resume from them, and their retention."""

from demitasse.training.checkpoint.state_file import State, read_state

__all__ = ["State", "read_state"]
