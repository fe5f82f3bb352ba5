"""controller.elections.outages promises: from a loss to the next master, and only what was seen whole."""

from controller.elections.outages import Outages


def test_an_outage_lasts_from_the_loss_to_the_next_master() -> None:
    outages = Outages()
    outages.on_lost("a", 1000)
    outages.on_elected("b", 1100)
    outages.on_elected("a", 1400)
    assert outages.lasted.to_json()["sum"] == 0.4
    assert outages.lasted.to_json()["counts"][-1] == 1


def test_what_another_leader_elected_is_no_outage_of_ours() -> None:
    outages = Outages()
    outages.on_lost("a", 1000)
    outages.forget()
    outages.on_elected("a", 900_000)
    outages.on_lost("a", 901_000)
    outages.on_lost("a", 902_000)
    outages.on_elected("a", 902_500)
    assert outages.lasted.to_json()["sum"] == 0.5
