"""The promises of namesrv.core: the newest master is shown, the dead are forgotten, the tables agree."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from model.config import NamesrvConfig
from model.errors import Refused
from model.topic import DataVersion
from namesrv.core import (
    TOPICS_A_STEP,
    MasterChange,
    MinIdChange,
    Queues,
    Registered,
    Registration,
    RouteTable,
)
from namesrv.kv import KvTable

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
TOPICS = {"T": Queues(8, 8, 6), "S": Queues(1, 1, 6)}


def broker(address: str, broker_id: int, **changes: Any) -> Registration:
    usual = Registration(
        "c", "g", address, broker_id, ha_address=address.replace("11", "12"), topics=dict(TOPICS)
    )
    return replace(usual, **changes)


def epoch(number: int, counter: int = 0) -> DataVersion:
    return DataVersion(number, 0, counter)


def table(**config: Any) -> RouteTable:
    return RouteTable(NamesrvConfig(**config))


def addresses(routes: RouteTable, topic: str = "T") -> dict[int, str]:
    route = routes.route(topic)
    assert route is not None
    found: dict[int, str] = route["brokerDatas"][0]["brokerAddrs"]
    return found


def perm(routes: RouteTable, topic: str = "T") -> int:
    route = routes.route(topic)
    assert route is not None
    found: int = route["queueDatas"][0]["perm"]
    return found


def test_a_master_and_its_slave_are_shown_and_the_slave_learns_the_masters_addresses() -> None:
    routes = table()
    first = routes.register(broker(A, 0), 1, 0)
    assert first.master_address is None
    assert first.notices == (MasterChange("g", A),)
    second = routes.register(broker(B, 1), 2, 0)
    assert (second.master_address, second.ha_address, second.notices) == (A, "10.0.0.1:10912", ())
    assert routes.route("T") == {
        "brokerDatas": [
            {
                "brokerAddrs": {0: A, 1: B},
                "brokerName": "g",
                "cluster": "c",
                "enableActingMaster": False,
                "zoneName": None,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "g", "perm": 6, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}
        ],
        "topicQueueMappingByBroker": None,
    }


def test_a_deposed_master_that_still_registers_as_master_is_ignored() -> None:
    routes = table()
    routes.register(broker(A, 0, version=epoch(1)), 1, 0)
    promoted = routes.register(broker(B, 0, version=epoch(2)), 2, 0)
    assert promoted.notices == (MasterChange("g", B),)
    ignored = routes.register(broker(A, 0, version=epoch(1, 9)), 1, 0)
    assert (ignored.master_address, ignored.notices) == (None, ())
    assert addresses(routes) == {0: B}
    assert not routes.heartbeat(A, 1, 0)


def test_a_new_master_of_the_same_or_a_later_epoch_takes_id_0_in_either_order() -> None:
    for versions in ((1, 1), (1, 2)):
        routes = table()
        routes.register(broker(A, 0, version=epoch(versions[0])), 1, 0)
        routes.register(broker(B, 0, version=epoch(versions[1])), 2, 0)
        assert addresses(routes) == {0: B}
        # The unregistration of the old one comes late: it goes by address and removes nobody else.
        routes.unregister(A)
        assert addresses(routes) == {0: B}


def test_a_slave_that_becomes_master_leaves_its_old_id() -> None:
    routes = table()
    routes.register(broker(A, 0, version=epoch(1)), 1, 0)
    routes.register(broker(B, 2, version=epoch(1)), 2, 0)
    routes.register(broker(B, 0, version=epoch(2)), 2, 0)
    assert addresses(routes) == {0: B}
    routes.register(broker(A, 1, version=epoch(2)), 1, 0)
    assert addresses(routes) == {0: B, 1: A}


def test_a_slave_of_a_newer_epoch_is_not_sent_to_the_master_of_an_older_one() -> None:
    """A real slave connects to the first HA address it is told and stays there, whoever leads by then."""
    routes = table()
    routes.register(broker(A, 0, version=epoch(1)), 1, 0)
    assert routes.register(broker(B, 2, version=epoch(1, 5)), 2, 0).ha_address == "10.0.0.1:10912"
    # C was elected in epoch 2, and has not said so here; B has heard of it.
    early = routes.register(broker(B, 2, version=epoch(2)), 2, 0)
    assert (early.master_address, early.ha_address) == (None, None)
    assert addresses(routes) == {0: A, 2: B}
    routes.register(broker(C, 0, version=epoch(2)), 3, 0)
    told = routes.register(broker(B, 2, version=epoch(2)), 2, 0)
    assert (told.master_address, told.ha_address) == (C, "10.0.0.3:10912")
    # A slave may lag behind its master: it has not copied the newest table, or was away.
    assert routes.register(broker(A, 1, version=epoch(1)), 1, 0).master_address == C


def test_a_broker_with_one_topic_only_appears() -> None:
    """S6: the original refuses such a first registration."""
    routes = table()
    routes.register(broker(A, 0, topics={"T": TOPICS["T"]}), 1, 0)
    assert sorted(filter(None, routes.topics())) == ["T"]
    routes.register(broker(A, 0, topics={"N": TOPICS["T"]}), 1, 0)
    assert sorted(filter(None, routes.topics())) == ["N", "T"]


def test_of_masters_at_one_address_of_the_group_the_newest_has_the_entry() -> None:
    routes = table()
    first = replace(broker(A, 0, version=epoch(1)), ha_address="one")
    second = replace(broker(A, 0, version=epoch(2)), ha_address="two", topics=TOPICS | {"New": TOPICS["T"]})
    routes.register(first, 1, 0)
    routes.register(second, 2, 0)
    routes.register(first, 1, 0)  # it was frozen, and does not know yet
    assert routes.register(broker(B, 3), 3, 0).ha_address == "two"
    routes.session_ended(1)
    assert addresses(routes, "New") == {0: A, 3: B}
    routes.register(replace(second, version=epoch(2, 1)), 4, 0)  # on a connection of its own made anew
    routes.session_ended(2)
    assert addresses(routes) == {0: A, 3: B}


def test_topics_of_a_slave_count_only_in_a_group_that_may_act_for_its_master() -> None:
    routes = table()
    routes.register(broker(B, 1), 1, 0)
    assert routes.route("T") is None
    routes.register(broker(B, 1, acting_master=False), 1, 0)
    assert perm(routes) == 6
    acting = table()
    acting.register(broker(B, 1, acting_master=True), 1, 0)
    acting.register(broker(C, 2, acting_master=True, topics={"X": TOPICS["T"], "Y": TOPICS["T"]}), 1, 0)
    assert perm(acting) == 4
    assert acting.route("X") is None


def test_the_smallest_id_acts_as_master_for_reads_when_the_master_is_gone() -> None:
    routes = table(support_acting_master=True)
    member_topic = "rmq_sys_SYNC_BROKER_MEMBER_g"
    topics = {**TOPICS, member_topic: Queues(1, 1, 6)}
    for address, broker_id in ((A, 0), (B, 1), (C, 2)):
        routes.register(broker(address, broker_id, acting_master=True, topics=topics), broker_id, 0)
    assert addresses(routes) == {0: A, 1: B, 2: C}
    notices = routes.session_ended(0)
    assert notices == [MinIdChange("g", 1, B, A, None, (B, C))]
    assert addresses(routes) == {0: B, 2: C}
    assert addresses(routes, member_topic) == {1: B, 2: C}
    assert perm(routes) == 4


def test_a_new_smallest_id_is_told_to_the_others() -> None:
    routes = table()
    routes.register(broker(B, 2), 1, 0)
    found = routes.register(broker(A, 0), 2, 0)
    assert found.notices == (MasterChange("g", A), MinIdChange("g", 0, A, None, "10.0.0.1:10912", (B,)))


def test_an_unchanged_table_does_not_give_back_a_wiped_write_bit() -> None:
    routes = table()
    routes.register(broker(A, 0, version=epoch(1)), 1, 0)
    assert sum(routes.wipe_write_perm("g")) == 2
    routes.register(broker(A, 0, version=epoch(1)), 1, 0)
    assert perm(routes) == 4
    assert sum(routes.add_write_perm("g")) == 2
    assert perm(routes) == 6
    sum(routes.wipe_write_perm("g"))
    routes.register(broker(A, 0, version=epoch(1, 1)), 1, 0)
    assert perm(routes) == 6


def test_topics_missing_from_a_registration_stay_unless_asked_otherwise() -> None:
    for delete, left in ((False, ["S", "T", "U"]), (True, ["S", "U"])):
        routes = table(delete_topic_with_registration=delete)
        routes.register(broker(A, 0), 1, 0)
        routes.register(broker(A, 0, topics={"S": TOPICS["S"], "U": TOPICS["T"]}, version=epoch(0, 1)), 1, 0)
        assert sorted(filter(None, routes.topics())) == left


def test_a_broker_silent_for_longer_than_its_timeout_is_forgotten() -> None:
    routes = table(broker_expiry_ms=120_000)
    routes.register(broker(A, 0), 1, 0)
    routes.register(broker(B, 1, heartbeat_timeout_ms=10_000), 2, 0)
    assert routes.expire(10_000) == ([], [])
    assert routes.expire(10_001) == ([2], [])
    assert addresses(routes) == {0: A}
    assert routes.heartbeat(A, 1, 100_000)
    assert routes.expire(220_000) == ([], [])
    assert routes.expire(220_001) == ([1], [])
    assert routes.route("T") is None
    assert routes.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_the_end_of_an_old_connection_leaves_a_broker_that_speaks_on_a_new_one() -> None:
    routes = table()
    routes.register(broker(A, 0), 1, 0)
    routes.register(broker(A, 0), 2, 0)
    routes.session_ended(1)
    assert addresses(routes) == {0: A}
    routes.heartbeat(A, 3, 0)
    routes.session_ended(2)
    assert addresses(routes) == {0: A}
    routes.session_ended(3)
    assert routes.route("T") is None


def test_lists_name_topics_clusters_and_groups() -> None:
    routes = table()
    topics = {"P": Queues(1, 1, 6), "U": Queues(1, 1, 6, 1), "W": Queues(1, 1, 6, 3), "X": Queues(1, 1, 6, 2)}
    routes.register(broker(A, 0, topics=topics), 1, 0)
    routes.register(broker(B, 0, group="h", cluster="d"), 1, 0)
    assert sorted(filter(None, routes.topics())) == ["P", "S", "T", "U", "W", "X"]
    assert sorted(filter(None, routes.topics_of_cluster("d"))) == ["S", "T"]
    assert sorted(filter(None, routes.topics_of_cluster("none"))) == []
    assert routes.system_topics() == (["c", "d", "g", "h"], A)
    assert sorted(filter(None, routes.unit_topics(unit=True, subscribed=None))) == ["U", "W"]
    assert sorted(filter(None, routes.unit_topics(unit=None, subscribed=True))) == ["W", "X"]
    assert sorted(filter(None, routes.unit_topics(unit=False, subscribed=True))) == ["X"]
    assert routes.member_group("c", "g")["brokerAddrs"] == {0: A}
    assert routes.member_group("c", "none")["brokerAddrs"] == {}
    assert routes.brokers() == {"g": {"0": A}, "h": {"0": B}}


def test_a_topic_is_deleted_in_one_cluster_or_everywhere_and_announced_for_known_groups_only() -> None:
    routes = table()
    routes.register(broker(A, 0), 1, 0)
    routes.register(broker(B, 0, group="h", cluster="d"), 1, 0)
    routes.delete_topic("T", "d")
    route = routes.route("T")
    assert route is not None
    assert [queues["brokerName"] for queues in route["queueDatas"]] == ["g"]
    routes.delete_topic("T")
    routes.delete_topic("T")
    assert routes.route("T") is None
    routes.register_topic("T", {"h": Queues(2, 2, 6)})
    assert sorted(filter(None, routes.topics_of_cluster("d"))) == ["S", "T"]
    with pytest.raises(Refused, match="nobody"):
        routes.register_topic("T", {"nobody": Queues(2, 2, 6)})


def test_filter_servers_and_queue_mappings_travel_with_the_route() -> None:
    routes = table()
    routes.register(broker(A, 0, filter_servers=["f:1"], mappings={"T": {"bname": "g"}}), 1, 0)
    route = routes.route("T")
    assert route is not None
    assert route["filterServerTable"] == {A: ["f:1"]}
    assert route["topicQueueMappingByBroker"] == {"g": {"bname": "g"}}
    routes.unregister(A)
    routes.register(broker(A, 0), 1, 0)
    route = routes.route("T")
    assert route is not None
    assert route["topicQueueMappingByBroker"] is None


def test_an_address_that_changes_its_group_leaves_the_old_one() -> None:
    routes = table()
    routes.register(broker(A, 0), 1, 0)
    routes.register(broker(A, 0, group="h"), 1, 0)
    assert routes.brokers() == {"h": {"0": A}}


def test_a_kv_table_changes_in_copies() -> None:
    empty = KvTable()
    one = empty.with_value("n", "k", "v")
    assert (empty.get("n", "k"), one.get("n", "k"), one.namespace("n")) == (None, "v", {"k": "v"})
    assert one.to_json() == {"configTable": {"n": {"k": "v"}}}
    assert one.with_value("n", "k", None).namespace("n") is None
    assert empty.with_value("n", "k", None).to_json() == {"configTable": {}}


ADDRESSES = st.sampled_from([A, B, C, "10.0.0.4:10911"])
GROUPS = st.sampled_from(["g", "h"])


def test_what_an_older_connection_still_brings_takes_nothing_from_a_newer_one() -> None:
    """The broker was started again; then the network delivers what it had kept of its former connection."""
    routes = table(delete_topic_with_registration=True)
    routes.register(broker(A, 0, version=epoch(2)), 7, 0)
    assert routes.register(broker(A, 3, topics={}, version=epoch(1)), 6, 1) == Registered()
    assert routes.register(broker(A, 3, topics={}, version=epoch(2)), 6, 1) == Registered()
    assert routes.heartbeat(A, 6, 1)
    assert routes.unregister(A, 6) == []
    routes.session_ended(6)
    assert addresses(routes) == {0: A}
    assert routes.unregister(A, 8) == []
    assert routes.route("T") is None, "whoever says so now is believed"


def test_an_address_that_moved_to_a_process_with_an_older_connection_is_that_of_the_newer_epoch() -> None:
    routes = table()
    routes.register(broker(A, 0, version=epoch(1)), 7, 0)
    routes.register(broker(A, 0, topics={"N": Queues(1, 1, 6)}, version=epoch(2)), 6, 1)
    assert addresses(routes, "N") == {0: A}
    routes.session_ended(7)
    assert addresses(routes, "N") == {0: A}


class Routes(RuleBasedStateMachine):
    """Any order of brokers coming, changing id and group, going, and operators' commands."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.config = NamesrvConfig()
        self.routes = RouteTable(self.config)
        self.seen: dict[tuple[str, int], int] = {}  # (group, id) -> epoch of its holder when it came

    @rule(
        address=ADDRESSES,
        group=GROUPS,
        cluster=st.sampled_from(["c", "d"]),
        broker_id=st.integers(0, 3),
        state=st.integers(0, 3),
        counter=st.integers(0, 2),
        acting=st.sampled_from([None, False, True]),
        topics=st.sets(st.sampled_from(["T", "S", "U"]), max_size=3),
        session=st.integers(1, 3),
        timeout_ms=st.sampled_from([None, 10]),
    )
    def register(
        self,
        address: str,
        group: str,
        cluster: str,
        broker_id: int,
        state: int,
        counter: int,
        acting: bool | None,
        topics: set[str],
        session: int,
        timeout_ms: int | None,
    ) -> None:
        asked = Registration(
            cluster,
            group,
            address,
            broker_id,
            "",
            timeout_ms,
            acting,
            None,
            DataVersion(state, 0, counter),
            {topic: Queues(1, 1, 6) for topic in sorted(topics)},
        )
        before = self.routes.brokers()
        holder = before.get(group, {}).get(str(broker_id))
        version = self.routes.data_version(holder) if holder else None
        live = self.routes._live.get(address)
        late = live is not None and session < live.session and state <= live.version.state_version
        found = self.routes.register(asked, session, self.now_ms)
        if late:
            assert (self.routes.brokers(), found) == (before, Registered())
            return
        now = self.routes.brokers().get(group, {}).get(str(broker_id))
        if holder not in (None, address) and version is not None and version.state_version > state:
            assert now == holder, "an older epoch never takes an id from a newer one"
        else:
            assert now == address
        masters = [notice for notice in found.notices if isinstance(notice, MasterChange)]
        changed = broker_id == 0 and now == address and holder != address
        assert masters == ([MasterChange(group, address)] if changed else [])

    @rule(address=ADDRESSES)
    def unregister(self, address: str) -> None:
        self.routes.unregister(address)
        assert address not in str(self.routes.brokers())

    @rule(session=st.integers(1, 3))
    def session_ended(self, session: int) -> None:
        self.routes.session_ended(session)

    @rule(address=ADDRESSES, session=st.integers(1, 3))
    def heartbeat(self, address: str, session: int) -> None:
        self.routes.heartbeat(address, session, self.now_ms)

    @rule(step_ms=st.sampled_from([1, 11, 120_001]))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.routes.expire(self.now_ms)
        assert all(live.last_ms + live.timeout_ms >= self.now_ms for live in self.routes._live.values())

    @rule(group=GROUPS, wipe=st.booleans())
    def change_perm(self, group: str, wipe: bool) -> None:
        if wipe:
            sum(self.routes.wipe_write_perm(group))
        else:
            sum(self.routes.add_write_perm(group))

    @rule(topic=st.sampled_from(["T", "S"]), cluster=st.sampled_from([None, "c"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.routes.delete_topic(topic, cluster)

    @rule(support=st.booleans(), delete=st.booleans())
    def configure(self, support: bool, delete: bool) -> None:
        self.config.support_acting_master = support
        self.config.delete_topic_with_registration = delete

    @invariant()
    def the_tables_agree(self) -> None:
        routes = self.routes
        listed = [address for group in routes._groups.values() for address in group.addresses.values()]
        assert len(set(listed)) == len(listed), "no address is listed twice"
        assert set(listed) <= set(routes._live), "every listed address lives"
        assert all(group.addresses for group in routes._groups.values()), "no group is empty"
        in_clusters = {name for names in routes._clusters.values() for name in names}
        assert in_clusters == set(routes._groups)
        assert all(routes._clusters.values())
        for groups in routes._topics.values():
            assert groups
            assert set(groups) <= set(routes._groups) | set(routes._leaving)

    @invariant()
    def every_topic_has_a_route_to_listed_addresses(self) -> None:
        for topic in filter(None, self.routes.topics()):
            route = self.routes.route(topic)
            assert route is not None
            for data in route["brokerDatas"]:
                real = self.routes.brokers()[data["brokerName"]]
                assert sorted(data["brokerAddrs"].values()) == sorted(real.values())


class SweptRoutes(Routes):
    """What a group leaves is taken away a step at a time, while others come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Iterator[None]] = []
        self.routes.sweep = lambda steps: self.left.append(iter(steps))

    @rule()
    def sweep(self) -> None:
        for steps in self.left:
            next(steps, None)

    @invariant()
    def nobody_is_told_of_what_is_being_swept(self) -> None:
        for topic in filter(None, self.routes.topics()):
            route = self.routes.route(topic)
            assert route is not None
            assert {data["brokerName"] for data in route["queueDatas"]} <= set(self.routes._groups)


TestRoutes = Routes.TestCase
TestRoutes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSweptRoutes = SweptRoutes.TestCase
TestSweptRoutes.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_what_a_group_leaves_is_swept_in_steps_and_none_of_it_comes_back() -> None:
    routes = table()
    steps: list[Iterator[None]] = []
    routes.sweep = lambda work: steps.append(iter(work))
    many = {f"T{n}": Queues(4, 4, 6) for n in range(3 * TOPICS_A_STEP)}
    routes.register(broker(A, 0, topics=many), 1, 0)
    routes.unregister(A)
    assert routes.route("T1") is None
    assert not any(routes.topics())
    assert next(steps[0], 1) is None, "there is more to sweep"
    routes.register(broker(A, 0, topics={"T1": Queues(4, 4, 6)}), 2, 0)
    assert list(filter(None, routes.topics())) == ["T1"]
    assert set(routes._topics) == {"T1"}


def test_a_registration_in_steps_ends_when_its_broker_goes_or_another_is_master() -> None:
    many = {f"T{n}": Queues(4, 4, 6) for n in range(3 * TOPICS_A_STEP)}
    ends: list[Callable[[RouteTable], object]] = [
        lambda routes: routes.unregister(A),
        lambda routes: routes.register(broker(B, 0, version=epoch(9), topics={"T1": Queues(9, 9, 6)}), 2, 0),
    ]
    for end in ends:
        routes = table()
        _, begun = routes.begin(broker(A, 0, topics=many), 1, 0)
        steps = iter(begun)
        next(steps)
        assert 0 < routes.topic_count() < len(many), "some of them are there"
        end(routes)
        known = {topic: dict(groups) for topic, groups in routes._topics.items()}
        assert list(steps) == []
        assert routes._topics == known


@given(st.permutations([(A, 0, 1), (B, 0, 2), (C, 0, 3)]))
def test_whatever_the_order_of_registrations_the_newest_epoch_is_master(
    order: list[tuple[str, int, int]],
) -> None:
    routes = table()
    for address, broker_id, number in order:
        routes.register(broker(address, broker_id, version=epoch(number)), 1, 0)
    assert addresses(routes) == {0: C}
