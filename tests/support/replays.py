"""Runs that were recorded and then launched as one."""

import pytest

from demitasse.backends.cpu import slow_reason
from demitasse.backends.recording import Recording
from demitasse.plan.replay import Recorded, Replay

ALL_CALLS = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())
"""Marks tests of nets that are replayed whole on ``cpu``."""


def played_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """Return a list that grows by one for each run that is launched as one."""
    play, played = Replay.play, list[Recording]()

    def noted(self: Replay, recorded: Recorded) -> None:
        played.append(recorded.recording)
        play(self, recorded)

    monkeypatch.setattr(Replay, "play", noted)
    return played
