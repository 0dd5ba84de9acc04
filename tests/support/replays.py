"""What was recorded and then launched as one."""

import pytest

from demitasse.net.replay import Replay


def played_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Return a list that grows by one for each work that is launched as one."""
    play, played = Replay.play, list[Replay]()

    def noted(self: Replay) -> None:
        played.append(self)
        play(self)

    monkeypatch.setattr(Replay, "play", noted)
    return played
