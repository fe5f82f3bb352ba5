"""Keys of every server."""

import json
from dataclasses import dataclass
from typing import Final

from model.settings import PORT_MAX, Config, is_loopback, key, need

PERIOD_MIN_MS: Final = 10
"""A loop that looks or sends more often than this does nothing else."""


METRICS_PERIOD_MIN_MS: Final = 1000
"""All figures are gathered on the event loop."""


@dataclass(kw_only=True)
class ServerConfig(Config):
    """What all servers share."""

    bind_address: str = key(
        "bindAddress", "127.0.0.1", "address to listen on; 0.0.0.0 = every interface", was="0.0.0.0"
    )
    admin_port: int = key(
        "adminPort", 0, "port of /healthz, /status, /metrics (HTTP) at adminAddress; 0 = none", most=PORT_MAX
    )
    admin_address: str = key(
        "adminAddress",
        "127.0.0.1",
        "address adminPort listens on; 0.0.0.0 = every interface. It only reads, but asks nobody for a key:"
        " beyond loopback (Prometheus on another host, Kubernetes' probes) is the operator's own choice",
    )
    frame_bytes_max: int = key(
        "frameMaxLength", 16777216, "longest frame taken, bytes; a longer one ends its connection", least=1
    )
    server_channel_max_idle_s: int = key(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "a connection without a byte for so long is closed, seconds",
        least=1,
    )
    connections_max: int = key(
        "maxConnections",
        20000,
        "connections of clients at the same time; those of peers do not count",
        least=1,
    )
    connections_per_address: int = key(
        "maxConnectionsPerAddress", 10000, "of these, those from one address", least=1
    )
    begun_bytes_max: int = key(
        "maxBegunFrameBytes",
        256 << 20,
        "bytes of clients' frames, and 4 KiB a request, from their begin until their requests are answered;"
        " beyond, the connection with most ends",
        least=1,
    )
    unread_bytes_per_connection: int = key(
        "maxUnreadBytesPerConnection",
        64 << 20,
        "bytes of answers that one connection may leave unread; beyond, it ends",
        least=1,
    )
    unread_bytes_max: int = key(
        "maxUnreadBytes",
        512 << 20,
        "bytes of answers that all clients together may leave unread; beyond, the connection with most ends",
        least=1,
    )
    slow_request_ms: int = key(
        "slowRequestMillis",
        1000,
        "a request that is answered only after so long has a line in the log, ms; 0 = none. What waits for"
        " messages (pulls, pops, notifications) is held on purpose and has none",
    )
    peer_credentials_file: str = key(
        "peerCredentialsFile",
        "",
        "JSON file of the accessKey and secretKey that peers and operators must sign with; empty = they are"
        " believed",
    )
    acl_enable: bool = key(
        "aclEnable", False, "ACL 1.0: clients sign, and may do what plain_acl.yml lets them (aclHome)"
    )
    acl_home: str = key(
        "aclHome", "conf", "directory of plain_acl.yml and acl/*.yml; they are read anew when they change"
    )
    authentication_enabled: bool = key(
        "authenticationEnabled", False, "ACL 2.0: requests must be signed by a user (mqadmin createUser)"
    )
    authorization_enabled: bool = key(
        "authorizationEnabled", False, "ACL 2.0: users may do what policies let them (mqadmin createAcl)"
    )
    authentication_whitelist: str = key(
        "authenticationWhitelist", "", "request codes that need no signature, with commas"
    )
    authorization_whitelist: str = key(
        "authorizationWhitelist", "", "request codes that need no policy, with commas"
    )
    init_authentication_user: str = key(
        "initAuthenticationUser",
        "",
        "a super user made where there are no users yet; take it out then:"
        ' {"username":"...","password":"..."}',
        secret=True,
    )
    inner_client_credentials: str = key(
        "innerClientAuthenticationCredentials",
        "",
        'a super user that servers sign with among themselves: {"accessKey":"...","secretKey":"..."};'
        " peerCredentialsFile goes before it",
        secret=True,
    )
    auth_config_path: str = key(
        "authConfigPath",
        "",
        "directory of auth.json, the users and policies of ACL 2.0; a broker's is in config/ of its store",
    )
    metrics_exporter_type: str = key(
        "metricsExporterType",
        "DISABLE",
        "OTLP_GRPC: metrics are pushed to metricsGrpcExporterTarget (needs keelmq[otlp]); DISABLE, and"
        " RocketMQ's PROM and LOG: they are not. /metrics of adminPort has them in any case",
    )
    metrics_target: str = key(
        "metricsGrpcExporterTarget",
        "",
        "an OTLP/gRPC collector, [http://]host:port; without http:// with TLS",
    )
    metrics_header: str = key(
        "metricsGrpcExporterHeader",
        "",
        "what goes along with each push: name:value, with commas",
        secret=True,
    )
    metrics_timeout_ms: int = key(
        "metricGrpcExporterTimeOutInMills", 3000, "a push takes at most, ms", least=PERIOD_MIN_MS
    )
    metrics_interval_ms: int = key(
        "metricGrpcExporterIntervalInMills", 60_000, "push every, ms", least=METRICS_PERIOD_MIN_MS
    )
    metrics_label: str = key("metricsLabel", "", "labels of each pushed metric: name:value, with commas")
    trust_peers: bool = key("trustPeers", False, "believe peers that prove nothing: only in a closed network")

    def check(self) -> None:
        super().check()
        self._check_metrics()
        lacking = [f"{name} ({why})" for name, file, why in self._proofs() if not file]
        for name, pair in (
            ("initAuthenticationUser", ("username", "password")),
            ("innerClientAuthenticationCredentials", ("accessKey", "secretKey")),
        ):
            text = getattr(self, self.keys()[name].name)
            need(
                not text or credentials_in(text, *pair) is not None,
                f"{name}: expected a JSON object of {pair}",
            )
        for name in ("authenticationWhitelist", "authorizationWhitelist"):
            text = getattr(self, self.keys()[name].name)
            need(
                codes_in(text) is not None, f"{name}={text[:100]}: expected numbers of requests, with commas"
            )
        need(
            self.authentication_enabled or not self.authorization_enabled,
            "authorizationEnabled=true without authenticationEnabled=true would believe whatever name a"
            " request says: set both",
        )
        # To a socket the empty address is every interface; nobody who leaves a value out means that.
        need(bool(self.admin_address.strip("[] ")), "adminAddress is empty: leave it out, or name an address")
        need(
            is_loopback(self.bind_address) or not lacking or self.trust_peers,
            f"bindAddress={self.bind_address} is not loopback, and whoever reaches it would be believed: set"
            f" {' and '.join(lacking)}, or trustPeers=true in a closed network",
        )

    def _check_metrics(self) -> None:
        known = ("DISABLE", "OTLP_GRPC", "PROM", "LOG")
        need(self.metrics_exporter_type in known, f"metricsExporterType: expected one of {', '.join(known)}")
        need(
            self.metrics_exporter_type != "OTLP_GRPC" or bool(self.metrics_target),
            "metricsExporterType=OTLP_GRPC without metricsGrpcExporterTarget: nobody to push to",
        )
        for name, text in (
            ("metricsGrpcExporterHeader", self.metrics_header),
            ("metricsLabel", self.metrics_label),
        ):
            need(pairs_in(text) is not None, f"{name}: expected name:value, with commas")

    def _proofs(self) -> list[tuple[str, str, str]]:
        """How those who reach this server prove who they are: (key, its file or "", what it is for)."""
        return [
            (
                "peerCredentialsFile",
                self.peer_credentials_file,
                "peers and operators then sign what they ask for",
            )
        ]


def codes_in(text: str) -> frozenset[int] | None:
    """``10, 310`` as numbers of requests; None when a part is none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(not (part.isascii() and part.isdigit() and len(part) < 10) for part in parts):
        return None
    return frozenset(map(int, parts))


def pairs_in(text: str) -> dict[str, str] | None:
    """``name:value,name:value`` as RocketMQ writes it; None when a part has no name or no colon."""
    found = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.partition(":")
        if not colon or not name.strip():
            return None
        found[name.strip()] = value.strip()
    return found


def credentials_in(text: str, name: str, secret: str) -> tuple[str, str] | None:
    """The two texts of a JSON object, neither empty; None when it has not both."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    values = found.get(name), found.get(secret)
    if not all(isinstance(value, str) and value.strip() for value in values):
        return None
    return str(values[0]), str(values[1])
