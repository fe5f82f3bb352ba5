"""The promise to a group whose slave forgot: what it acknowledged before counts for nothing any more."""

from model.ids import BrokerId
from tests.fakes.ha.group import Group, Node
from tests.plain import broker_ids
from tests.waiting import until


async def test_a_slave_that_registered_as_a_suspect_is_connected_anew_before_it_counts() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        await group.full()
        links = group.master.ha.links
        before = links.by_id[BrokerId(2)]
        assert links.incarnations_of(group.members) == {2: 0}
        links.on_incarnations({BrokerId(2): 1})
        assert 2 not in links.by_id, "at once: an acknowledgement from before may lie in the socket"
        assert links.incarnations_of(group.members) == {}
        await until(lambda: 2 in links.by_id, "it connects again")
        assert links.by_id[BrokerId(2)] is not before
        # The set may have shrunk for a moment: so both are named.
        assert links.incarnations_of(frozenset({BrokerId(1), BrokerId(2)})) == {2: 1}
        await group.full()


async def test_what_is_known_of_incarnations_only_grows_and_ends_no_link_twice() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        await group.full()
        links = group.master.ha.links
        links.on_incarnations({BrokerId(2): 2})
        await until(lambda: 2 in links.by_id, "it connects again")
        link = links.by_id[BrokerId(2)]
        for known in ({2: 2}, {2: 1}, {}, {3: 5}):
            links.on_incarnations({BrokerId(i): times for i, times in known.items()})
        assert links.by_id[BrokerId(2)] is link
        assert links.incarnations_of(broker_ids({2})) == {2: 2}
