"""The promise of ``keelmq producer``: a master's answer is read; one that makes no sense is its problem."""

from __future__ import annotations

import pytest

from admin.commands.messaging.producer import Connected, producers_of
from model.errors import PeerError


def test_the_clients_of_every_group_are_read() -> None:
    one = {
        "clientId": "c1",
        "remoteIP": "1.2.3.4:5",
        "language": "JAVA",
        "version": 477,
        "lastUpdateTimestamp": 9,
    }
    found = producers_of("broker-a", {"data": {"writers": [one, {"clientId": "c2"}], "idle": []}})
    assert found == [
        Connected("writers", "broker-a", "c1", "1.2.3.4:5", "JAVA", 477, 9),
        Connected("writers", "broker-a", "c2", "?", "?", 0, 0),
    ]
    assert producers_of("broker-a", {}) == []


@pytest.mark.parametrize("data", [["x"], {"g": [1]}, {"g": [{}]}, {"g": [{"clientId": "c", "version": "x"}]}])
def test_an_answer_that_makes_no_sense_names_the_broker(data: object) -> None:
    with pytest.raises(PeerError, match="broker-a"):
        producers_of("broker-a", {"data": data})
