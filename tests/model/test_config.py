"""The promise of the configuration: a mistake is named before a server starts."""

import re
from pathlib import Path

import pytest

from admin.host.serve import plan
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.defaults import table
from model.errors import ConfigError
from model.settings import Config, parse_file, peers, with_values


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="unknown key inSyncReplica; did you mean inSyncReplicas"):
        BrokerConfig.from_mapping({"inSyncReplica": "2"})


def test_a_key_nothing_like_ours_gets_no_guess() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key zzzzqqqq$"):
        NamesrvConfig.from_mapping({"zzzzqqqq": "1"})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"listenPort": "ten"}, "listenPort=ten: expected a whole number"),
        ({"allAckInSyncStateSet": "maybe"}, "expected true or false"),
        ({"flushDiskType": "SOMETIMES"}, "expected ASYNC_FLUSH or SYNC_FLUSH"),
        ({"namesrvAddr": "localhost"}, "expected host:port"),
        ({"enableControllerMode": "true"}, "needs controllerAddr"),
        ({"deleteWhen": "25"}, "deleteWhen=25"),
        ({"deleteWhen": "\u00b2"}, "expected hours like 04"),
        ({"deleteWhen": "0" * 5000}, "expected hours like 04"),
        ({"namesrvAddr": ";".join(f"h{n}:1" for n in range(65))}, "namesrvAddr names 65 servers: at most 64"),
        ({"slaveTimeout": "9223372036854775808"}, "must be at most 9223372036854775807"),
        ({"transactionCheckInterval": "1" + "0" * 400}, "must be at most 9223372036854775807"),
        ({"listenPort": "99999999"}, "listenPort=99999999: must be at most 65535"),
        ({"listenPort": "0"}, "listenPort=0: must be at least 1"),
        ({"adminPort": "65536"}, "must be at most 65535"),
        ({"namesrvAddr": "h:98765"}, "a port is 1 to 65535"),
        # Not "for ever": every closed segment would be old at once.
        ({"fileReservedTime": "-1"}, "fileReservedTime=-1: must be at least 0"),
        ({"mappedFileSizeConsumeQueue": "0"}, "must be at least 20"),
    ],
)
def test_a_value_that_cannot_be_right_is_refused(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BrokerConfig.from_mapping(values)


def test_a_link_is_not_given_up_between_two_signs_of_life() -> None:
    def config(heartbeat: int | None, housekeeping: int | None) -> BrokerConfig:
        named = {"haSendHeartbeatInterval": heartbeat, "haHousekeepingInterval": housekeeping}
        return BrokerConfig.from_mapping({name: str(ms) for name, ms in named.items() if ms})

    config(5000, 20000)  # RocketMQ's
    config(None, 20000)
    config(1000, 2000)
    says = "haHousekeepingInterval=1999 must be at least 2 x haSendHeartbeatInterval=1000"
    with pytest.raises(ConfigError, match=says):
        config(1000, 1999)
    with pytest.raises(ConfigError, match="haHousekeepingInterval=5000 must be at least"):
        config(5000, None)


FAR = {"namesrvAddr": "127.0.0.1:1;10.0.0.1:9876"}
OUT = {"bindAddress": "0.0.0.0", "trustPeers": "true", "brokerIP1": "10.0.0.5"}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in (FAR | OUT).items() if key != name}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (FAR, r"brokerIP1=127.0.0.1 would be told elsewhere \(10.0.0.1:9876\)"),
        ({"enableControllerMode": "true", "controllerAddr": "ctl:9878"}, "brokerIP1=127.0.0.1 .*ctl:9878"),
        (without("brokerIP1"), "set brokerIP1 to .*, and bindAddress"),
        (without("bindAddress"), "bindAddress=127.0.0.1: nobody elsewhere gets in"),
        (
            {
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "namesrvAddr": "127.0.0.1:1",
                "haMasterAddress": "10.0.0.1:10912",
            },
            "brokerIP1=127.0.0.1 .*10.0.0.1:10912",
        ),
    ],
)
def test_a_default_that_nobody_elsewhere_reaches_is_not_told_elsewhere(
    values: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        BrokerConfig.from_mapping(values)


@pytest.mark.parametrize(
    ("values", "doubted"),
    [
        # The usual containers of one broker, whose port is published.
        ({"brokerIP1": "127.0.0.1", "namesrvAddr": "rmqnamesrv:9876"}, ["brokerIP1"]),
        ({"brokerIP1": "127.0.0.1", "brokerIP2": "172.18.0.3"}, ["brokerIP1"]),
        ({"brokerIP1": "localhost", "brokerIP2": "[::1]"}, ["brokerIP1", "brokerIP2"]),
        ({"brokerIP1": "0.0.0.0"}, ["brokerIP1"]),
        # Behind a forwarder on this machine.
        ({"brokerIP1": "10.0.0.7", "bindAddress": "127.0.0.1"}, ["bindAddress"]),
        ({}, []),
    ],
)
def test_who_sets_such_an_address_is_warned_of_it(values: dict[str, str], doubted: list[str]) -> None:
    made = plan("broker", FAR | OUT | values)
    assert [text.partition("=")[0] for text in made.doubts] == doubted


def test_one_broker_is_its_own_majority_only_where_somebody_says_so() -> None:
    with pytest.raises(ConfigError, match=r"totalReplicas=1: .*: set totalReplicas to the number"):
        plan("broker", {"majorityAck": "true"})
    (doubt,) = plan("broker", {"majorityAck": "true", "totalReplicas": "1"}).doubts
    assert doubt.startswith("majorityAck=true with totalReplicas=1: a broker that knows of no other")
    assert plan("broker", {"majorityAck": "true", "totalReplicas": "3"}).doubts == ()
    assert plan("broker", {"totalReplicas": "1"}).doubts == ()


@pytest.mark.parametrize(
    "host", ["127.0.0.2", "localhost", "[::1]", "Localhost", "localhost.localdomain", "mq.localhost."]
)
def test_among_servers_of_this_machine_a_default_is_told(host: str) -> None:
    near = {"namesrvAddr": f"127.0.0.2:1;{host}:2", "controllerAddr": "127.0.0.1:9878"}
    BrokerConfig.from_mapping({**near, "enableControllerMode": "true"})


def test_where_nobody_elsewhere_hears_of_it_a_default_may_stay() -> None:
    BrokerConfig.from_mapping({})
    BrokerConfig.from_mapping({"controllerAddr": "10.0.0.1:9878"})  # nobody uses it
    copy = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "10.0.0.1:10912"}
    BrokerConfig.from_mapping(copy)


SERVERS: tuple[type[Config], ...] = (BrokerConfig, NamesrvConfig, ControllerConfig)
BOUNDED = [
    (kind, name, field.metadata["least"])
    for kind in SERVERS
    for name, field in kind.keys().items()
    if type(field.default) is int and not name.startswith("raftElection")  # bound by each other
]


@pytest.mark.parametrize(("kind", "name", "least"), BOUNDED)
def test_a_number_that_would_spin_divide_by_zero_or_promise_nothing_is_refused(
    kind: type[Config], name: str, least: int
) -> None:
    member = {"controllerDLegerPeers": "n0-h:1", "controllerDLegerSelfId": "n0"}
    values = member if kind is ControllerConfig else {}
    if name == "haHousekeepingInterval":
        values = {"haSendHeartbeatInterval": "10"}
    kind.from_mapping({**values, name: str(least)})
    with pytest.raises(ConfigError, match=f"{name}={least - 1}: must be at least {least}"):
        kind.from_mapping({**values, name: str(least - 1)})


@pytest.mark.parametrize("kind", SERVERS)
def test_every_period_is_long_enough_to_rest(kind: type[Config]) -> None:
    for name, field in kind.keys().items():
        least = field.metadata["least"]
        if "every, ms" in field.metadata["help"]:
            assert least >= 10 or name == "raftAppendPeriodMs", name


@pytest.mark.parametrize("kind", SERVERS)
def test_no_number_below_zero_is_taken_unless_it_means_something(kind: type[Config]) -> None:
    base = {}
    if kind is ControllerConfig:
        base = {"controllerDLegerPeers": "n0-127.0.0.1:9878", "controllerDLegerSelfId": "n0"}
    taken = []
    for name, of in kind.keys().items():
        if type(of.default) is int:
            try:
                kind.from_mapping({**base, name: "-1"})
            except ConfigError:
                continue
            taken.append(name)
    below = ["defaultPopShareQueueNum", "brokerId", "brokerElectionPriority"]
    assert taken == (below if kind is BrokerConfig else [])


def test_a_controller_must_be_one_of_its_peers() -> None:
    with pytest.raises(ConfigError, match="is not among the peers"):
        ControllerConfig.from_mapping({"controllerDLegerPeers": "n0-h:1", "controllerDLegerSelfId": "n1"})


def test_properties_and_toml_say_the_same() -> None:
    conf = parse_file(
        "b.conf", "# a comment\nlistenPort = 10911\nenableControllerMode=false\nbrokerName=a=b\n"
    )
    toml = parse_file("b.toml", 'listenPort = 10911\nenableControllerMode = false\nbrokerName = "a=b"\n')
    assert conf == toml
    assert BrokerConfig.from_mapping(conf) == BrokerConfig.from_mapping(toml)


def test_a_line_without_a_value_is_named_by_its_number() -> None:
    with pytest.raises(ConfigError, match=r"x\.conf: line 2: expected key=value"):
        parse_file("x.conf", "a=1\nbroken\n")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("b.conf", "", "a=2\nb=x\n"),
        ("b.conf", "# a=1\n a = 1 \nc=3\n", "# a=1\na=2\nc=3\nb=x\n"),
        ("b.conf", "a=\\\n  1\nb=y\na=7", "a=2\nb=x\na=2\n"),
        ("b.conf", "ab=1\nca=b=1\n", "ab=1\nca=b=1\na=2\nb=x\n"),
        ("b.toml", "# mine\na = 1 # why\n'b' = true\n", '# mine\na = "2"\nb = "x"\n'),
    ],
)
def test_keys_of_a_file_change_and_the_rest_of_it_stays(name: str, before: str, after: str) -> None:
    assert with_values(name, before, {"a": "2", "b": "x"}) == after


@pytest.mark.parametrize("text", ['c = """\na = 1\n"""\n', 'a = """\n1\n"""\n'])
def test_a_file_whose_lines_cannot_be_told_apart_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigError, match=r"b\.toml"):
        with_values("b.toml", text, {"a": "2"})


def test_a_setting_overrides_the_file_and_survives_the_round_trip() -> None:
    config = BrokerConfig.parse({"listenPort": "1", "brokerName": "g"}, ["listenPort=2"])
    assert (config.listen_port, config.broker_name) == (2, "g")
    assert BrokerConfig.from_mapping(config.to_mapping()) == config


def test_raft_ports_are_ten_above_unless_said() -> None:
    values = {"controllerDLegerPeers": "n0-h:100;n1-h:200", "controllerDLegerSelfId": "n0"}
    assert ControllerConfig.from_mapping(values).raft_addresses() == {"n0": "h:110", "n1": "h:210"}
    assert ControllerConfig.from_mapping({**values, "raftPeers": "n0-h:1;n1-h:2"}).raft_addresses() == peers(
        "n0-h:1;n1-h:2"
    )


def test_the_page_of_defaults_is_the_one_in_the_repository() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "defaults.md"
    assert page.read_text() == table(), "run: python -m model.defaults > docs/defaults.md"


@pytest.mark.parametrize("config", [BrokerConfig, NamesrvConfig, ControllerConfig])
def test_every_key_says_what_it_means_and_in_which_unit(config: type[Config]) -> None:
    for name, field in config.keys().items():
        meaning = field.metadata["help"]
        assert len(meaning) > 8, name
        unit = _unit(field.name)
        if unit is not None and type(field.default) is int:
            assert re.search(rf"(?<!\w){unit}(?!\w)", meaning), f"{name}: {meaning!r} does not say {unit}"


def _unit(value: str) -> str | None:
    """What the help text calls the unit that the name of ``value`` here carries."""
    words = value.split("_")
    for word, unit in {"megabytes": "MiB", "bytes": "bytes"}.items():
        if word in words:
            return unit
    return {"ms": "ms", "s": "seconds", "hours": "hours", "ratio": "%"}.get(words[-1])


@pytest.mark.parametrize("text", ["n0-", "n0-;n1-h:2", "n0-h:1,h:2", "n0-h:²"])
def test_a_peer_without_one_address_is_an_error_of_the_configuration(text: str) -> None:
    with pytest.raises(ConfigError):
        peers(text)
