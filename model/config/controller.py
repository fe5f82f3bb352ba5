"""Keys of a Controller."""

from dataclasses import dataclass

from model.config.server import PERIOD_MIN_MS, ServerConfig
from model.settings import key, need, peers, split_address


@dataclass(kw_only=True)
class ControllerConfig(ServerConfig):
    """Keys of a Controller."""

    group: str = key(
        "controllerDLegerGroup", "keelmq-controllers", "name of the Raft group, as tools are shown it"
    )
    peers: str = key(
        "controllerDLegerPeers",
        "",
        "id-host:port;... of every Controller, its request port; the same on all, ids for ever",
    )
    self_id: str = key("controllerDLegerSelfId", "", "id of this Controller among the peers")
    raft_peers: str = key("raftPeers", "", "id-host:port;... of the Raft ports; empty = request port + 10")
    raft_secret_file: str = key(
        "raftSecretFile",
        "",
        "file with the secret the Controllers share; needed beyond loopback unless raftTlsCert is set",
    )
    raft_tls_cert: str = key("raftTlsCert", "", "PEM certificate of this Controller; with it Raft is TLS 1.3")
    raft_tls_key: str = key("raftTlsKey", "", "PEM key of that certificate, without a password")
    raft_tls_ca_file: str = key("raftTlsCaFile", "", "PEM of the CA every Controller's certificate is of")
    store_path: str = key("controllerStorePath", "", "directory of the Raft journal")
    scan_not_active_ms: int = key(
        "scanNotActiveBrokerInterval",
        500,
        "look for silent brokers at least every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    scan_inactive_master_ms: int = key(
        "scanInactiveMasterInterval",
        1000,
        "look for groups without a living master at least every, ms",
        was=5000,
        least=PERIOD_MIN_MS,
    )
    elect_unclean_master: bool = key(
        "enableElectUncleanMaster",
        False,
        "elect a broker from outside of the SyncStateSet when no member lives: loses what it lacks",
    )
    notify_role_changed: bool = key(
        "notifyBrokerRoleChanged",
        True,
        "tell the brokers of a group of an election at once; else they find out by their next look",
    )
    elect_retry_max: int = key(
        "electMasterMaxRetryCount", 3, "tries of one election before the next look at the groups", least=1
    )
    raft_append_period_ms: int = key(
        "raftAppendPeriodMs",
        100,
        "a leader without work gives a sign of life every, ms; below a third of raftElectionMinMs",
        least=1,
    )
    raft_election_min_ms: int = key(
        "raftElectionMinMs", 500, "a leader silent for so long, at least, is replaced, ms"
    )
    raft_election_max_ms: int = key(
        "raftElectionMaxMs", 1000, "... and at most, ms: each member draws a time between the two"
    )

    def check(self) -> None:
        super().check()
        members = peers(self.peers, "controllerDLegerPeers")
        need(bool(members), "controllerDLegerPeers is empty: list every Controller as id-host:port")
        need(
            self.self_id in members,
            f"controllerDLegerSelfId={self.self_id!r} is not among the peers {sorted(members)}",
        )
        if self.raft_peers:
            need(
                set(peers(self.raft_peers, "raftPeers")) == set(members),
                "raftPeers must list the ids of controllerDLegerPeers",
            )
        tls = (self.raft_tls_cert, self.raft_tls_key, self.raft_tls_ca_file)
        need(all(tls) or not any(tls), "raftTlsCert, raftTlsKey and raftTlsCaFile go together")
        need(
            self.raft_append_period_ms * 3 < self.raft_election_min_ms < self.raft_election_max_ms,
            "need 3 x raftAppendPeriodMs < raftElectionMinMs < raftElectionMaxMs",
        )

    def raft_addresses(self) -> dict[str, str]:
        """id -> host:port of every member's Raft port."""
        if self.raft_peers:
            return peers(self.raft_peers)
        return {node: raft_port_of(address) for node, address in peers(self.peers).items()}


def raft_port_of(address: str) -> str:
    """Where the Raft port of a Controller is unless it is configured: 10 above its request port."""
    host, port = split_address(address)
    return f"{host}:{port + 10}"
