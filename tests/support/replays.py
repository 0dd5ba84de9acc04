"""What was recorded and then launched as one."""

import pytest

from demitasse.net.graph_capture import GraphReplay


def played_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[GraphReplay]:
    """Return a list that grows by one for each work that is launched as one."""
    play, played = GraphReplay.play, list[GraphReplay]()

    def noted(self: GraphReplay) -> None:
        played.append(self)
        play(self)

    monkeypatch.setattr(GraphReplay, "play", noted)
    return played
