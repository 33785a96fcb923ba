"""Settings of `muster serve`: a TOML file, MUSTERD_* variables, flags; flags win."""

import ipaddress
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from musterd.coordinator.api.frame.identity import Callers
from musterd.coordinator.api.frame.jwt_verifier import JwtVerifier, KeySetError, parse_keys
from musterd.coordinator.api.frame.operator_access import OperatorAccess, read_secret
from musterd.coordinator.host import FILES_MAX
from musterd.coordinator.machine.access import JWT_PREFIX, is_reserved
from musterd.coordinator.machine.limits import LIMITS, MIB
from musterd.coordinator.node.jwt_keys import is_url, read_file
from musterd.coordinator.node.timeout_rules import broken_rules
from musterd.coordinator.node.wall_clock import machine_ms
from musterd.coordinator.runtime.growth import StateLimits
from musterd.coordinator.runtime.timeouts import REACH_PROBE_MS
from musterd.raft.settings import RaftSettings
from musterd.raft.tls import PeerTlsMode, TlsFiles

DEFAULT_LISTEN = "127.0.0.1:7070"
DEFAULT_PEER_LISTEN = "127.0.0.1:7170"
DEFAULT_METRICS_LISTEN = "127.0.0.1:7270"
PORT_MAX = 65_535
STATE = StateLimits()
DISK_RESERVE_BYTES = 256 * MIB
BYTES_MAX: Final = 2**62
"""What fits into an answer, an entry and a metric."""
RAFT = RaftSettings()
SUPERUSERS_MAX: Final = 100
PREFIX: Final = "MUSTERD_"
CLIENT_PREFIX: Final = "MUSTER_"
CLIENTS: Final = (
    "admin_secret_file",
    "insecure_admin_secret",
    "tls_ca",
    "tls_cert",
    "tls_dir",
    "tls_key",
)
"""Settings of clients that have the names of a node's: each reads its own prefix."""


class ConfigError(Exception):
    """A setting is missing or wrong; the message names it and says what would be right.

    `next_step` is what to do about it, where the message does not say it all.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


def about(data_dir: Path, error: Exception) -> str:
    """The error with the directory it is about, once."""
    text = str(error)
    return text if str(data_dir) in text else f"{data_dir}: {text}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def is_loopback(address: str) -> bool:
    """True where only this machine can reach the address."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Settings(BaseSettings):
    """A node's settings; its identity is in its store, where `muster init` wrote it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    data_dir: Path
    """Where `muster init` put the node's store."""
    listen: str = DEFAULT_LISTEN
    """Client port (gRPC)."""
    advertise: str = ""
    """Where clients reach this node, if that is not `listen`."""
    peer_listen: str = DEFAULT_PEER_LISTEN
    """Port for the other nodes."""
    metrics_listen: str = DEFAULT_METRICS_LISTEN
    """Port of the metrics page; "" switches it off."""
    peers: Annotated[dict[int, str], NoDecode] = Field(default_factory=dict)
    """Peer ports of the other nodes by id; as text "1=host:port,2=host:port"."""
    tls_cert: Path | None = None
    """Certificate of the client port, PEM. Files of certificates are read again when they change.
    """
    tls_key: Path | None = None
    """Its key, PEM."""
    tls_ca: Path | None = None
    """Where given, clients must present a certificate of this CA. Nodes compare their states with
    their own certificates (docs/adr/0005), which needs them to be of it and for clients, too."""
    tls_client_names: Literal["uri", "cn"] = "uri"
    """Who a client's certificate names: its URI `muster://CLUSTER/client/NAME` alone, or without
    one its common name (`cn`)."""
    peer_cert: Path | None = None
    """Certificate of the peer port, PEM. It names this node: `muster://CLUSTER/node/ID`."""
    peer_key: Path | None = None
    """Its key, PEM."""
    peer_ca: Path | None = None
    """The authority of the other nodes' certificates, PEM; of several while one takes the place of
    the other."""
    peer_tls: Literal["auto", "off", "prefer", "require"] = "auto"
    """How nodes talk to each other: plainly (`off`), by TLS where both speak it (`prefer`: on the
    way to `require`, one node after the other), by TLS alone (`require`). `auto` is `require` where
    `peer_cert` is given, else `off`."""
    tls_dir: Path | None = None
    """A folder with cert.pem, key.pem and ca.pem, as `muster cert node` writes it: for each of
    `tls_cert`, `tls_key`, `tls_ca`, `peer_cert`, `peer_key` and `peer_ca` that is not given."""
    admin_secret_file: Path | None = None
    """A file with the secret of operators' calls, the same on every node. What else these calls
    take, and what becomes of them without one: docs/access.md, The admin secret."""
    superusers: Annotated[tuple[str, ...], NoDecode] = ()
    """Principals that may do everything, whatever the rules say, the same on every node; as text
    "ann,bob". The first rule is refused where there are none (docs/access.md)."""
    jwt_issuer: str = ""
    """The identity provider whose JWTs are taken as bearer tokens, as their `iss` says it; "": none
    are (docs/access.md). This and the next four are the same on every node."""
    jwt_audience: str = ""
    """What their `aud` has to name."""
    jwt_keys: str = ""
    """The provider's keys (JWK set): an https:// URL, an http:// URL of this machine, or a file.
    They are looked at again while the node runs."""
    jwt_keys_ca: Path | None = None
    """The authority of that URL's certificate, PEM; those of the system where none is given."""
    jwt_claim: str = "sub"
    """The claim that names a JWT's owner: the principal is `jwt:` and its text."""
    insecure: bool = False
    """`listen` may be another address than loopback without TLS: anybody there is a client."""
    insecure_peers: bool = False
    """`peer_listen` may be another address than loopback, though nodes talk without TLS, or may
    (`prefer`): whoever reaches it can read every group and pass for a node."""
    metrics_token_file: Path | None = None
    """A file with a secret that callers of the metrics page beyond loopback show as a bearer token.
    The page has no TLS."""
    insecure_metrics: bool = False
    """`metrics_listen` may be another address than loopback: the page names groups and topics."""
    insecure_admin_secret: bool = False
    """The admin secret is taken over connections without TLS from other machines, too, and shown to
    other nodes so: whoever listens has it. Bearer tokens never are."""
    auto_finalize: bool = False
    """A level that every node knows is finalised without an operator: the former release cannot be
    put back from then on (docs/levels.md)."""
    offset_retention_ms: int = Field(
        default=LIMITS.offset_retention_ms, ge=0, le=LIMITS.offset_retention_max_ms
    )
    """Offsets of groups without members are kept so long; 0 = for ever."""
    state_group_max_bytes: int = Field(default=STATE.group, ge=MIB, le=BYTES_MAX)
    """State of one group, as it is weighed (docs/adr/0018): the group grows no more."""
    state_shard_max_bytes: int = Field(default=STATE.shard, ge=MIB, le=BYTES_MAX)
    """State of one shard; no less than a group may have."""
    state_node_max_bytes: int = Field(default=STATE.node, ge=MIB, le=BYTES_MAX)
    """State of all shards that this node holds: for a node that may take 2 GiB of memory. No less
    than a shard may have."""
    disk_reserve_bytes: int = Field(default=DISK_RESERVE_BYTES, ge=0, le=BYTES_MAX)
    """With less free on the file system of `data_dir` nothing that grows the state is taken, and
    with less than a quarter of it no entry at all. 0 switches that off: a full disk ends the node.
    """
    heartbeat_ms: int = Field(default=RAFT.heartbeat_ms, ge=1)
    """A leader sends something to every follower so often. This and the next three are the same on
    every node."""
    quorum_ms: int = Field(default=RAFT.quorum_ms, ge=1)
    """A leader that heard no majority for so long answers nothing, and steps down."""
    election_min_ms: int = Field(default=RAFT.election_min_ms, ge=1)
    """A follower that hears nothing for so long begins an election, at the earliest."""
    election_max_ms: int = Field(default=RAFT.election_max_ms, ge=1)
    """And at the latest."""
    connections_per_host: int = Field(default=0, ge=0, le=FILES_MAX)
    """Connections of one host to the client port; those that come beyond it are ended within a
    second. 0: a quarter of what the node takes in all, 4096 at most (docs/quotas.md)."""
    reach_probe_ms: int = Field(default=REACH_PROBE_MS, ge=0, le=600_000)
    """How often the node connects, as a client would, to the address that clients are told. After
    three failures in a row it hands its shards to nodes that reach themselves; 0 = off."""
    ready_needs_reach: bool = False
    """The node is not ready while it cannot reach itself there."""
    forward: bool = False
    """The node passes calls to their coordinators over the peers' network, so that any client may
    stay at any node: for load balancers and port-forwards. Set it on all nodes (docs/forward.md).
    Beyond loopback nodes need TLS for it (`peer_tls = require`)."""
    dev: bool = False
    """Server reflection on."""
    log_format: Literal["json", "text"] = "json"
    """Form of the lines on stderr."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""

    @model_validator(mode="before")
    @classmethod
    def _look_into_tls_dir(cls, given: Any) -> Any:
        """Let the folder stand for the files that are not given."""
        if isinstance(given, dict) and given.get("tls_dir"):
            folder = Path(given["tls_dir"])
            files = {"cert": "cert.pem", "key": "key.pem", "ca": "ca.pem"}
            inside = {
                f"{port}_{kind}": folder / name
                for port in ("tls", "peer")
                for kind, name in files.items()
            }
            return inside | given
        return given

    @field_validator("peers", mode="before")
    @classmethod
    def _parse_peers(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        peers: dict[str, str] = {}
        for part in filter(None, value.split(",")):
            node, equals, address = part.partition("=")
            if not equals or not node.strip().isdigit():
                raise ValueError(f"{part!r} is not NODE=host:port")
            peers[node.strip()] = address.strip()
        return peers

    @field_validator("superusers", mode="before")
    @classmethod
    def _parse_superusers(cls, value: object) -> object:
        if isinstance(value, str):
            value = tuple(name.strip() for name in value.split(",") if name.strip())
        if isinstance(value, list | tuple) and len(value) > SUPERUSERS_MAX:
            raise ValueError(f"there are at most {SUPERUSERS_MAX} superusers")
        if isinstance(value, list | tuple):
            for name in value:
                if isinstance(name, str) and is_reserved(name) and not name.startswith(JWT_PREFIX):
                    raise ValueError(f"nobody can be named {name}: it is a name that muster gives")
        return value

    @field_validator("listen", "peer_listen", "advertise", "metrics_listen")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, value: dict[int, str]) -> dict[int, str]:
        for address in value.values():
            split_address(address)
        return value

    @model_validator(mode="after")
    def _check_forward(self) -> Self:
        """Clients' calls, and who makes them, are told to nodes alone."""
        addresses = (self.peer_listen, *self.peers.values())
        is_local = all(map(is_loopback, addresses)) and self.tls_ca is None
        if self.forward and self.peer_tls_mode is not PeerTlsMode.REQUIRE and not is_local:
            raise ValueError(
                "forward needs peer_tls = require where a node is not on loopback, and where "
                "clients show certificates"
            )
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Check the settings against each other."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        if len({one is None for one in (self.peer_cert, self.peer_key, self.peer_ca)}) > 1:
            raise ValueError("peer_cert, peer_key and peer_ca belong together")
        if self.peer_tls_mode is not PeerTlsMode.OFF and self.peer_cert is None:
            raise ValueError(f"peer_tls = {self.peer_tls} needs peer_cert, peer_key and peer_ca")
        if not self.listen or not self.peer_listen:
            raise ValueError("listen and peer_listen cannot be empty")
        given = {bool(one) for one in (self.jwt_issuer, self.jwt_audience, self.jwt_keys)}
        if len(given) > 1 or not self.jwt_claim:
            raise ValueError("jwt_issuer, jwt_audience and jwt_keys belong together")
        _check_keys_url(self.jwt_keys, self.jwt_keys_ca)
        if self.ready_needs_reach and not self.reach_probe_ms:
            raise ValueError("ready_needs_reach needs reach_probe_ms: nobody would look")
        if (
            not self.state_group_max_bytes
            <= self.state_shard_max_bytes
            <= self.state_node_max_bytes
        ):
            raise ValueError(
                "state_group_max_bytes <= state_shard_max_bytes <= state_node_max_bytes must hold"
            )
        broken = broken_rules(self.raft_settings)
        if broken:
            raise ValueError(f"{'; '.join(broken)} must hold (docs/timeouts.md says why)")
        return self

    def check_exposure(self) -> None:
        """Each port stays on loopback unless its own setting says otherwise (arch-6.3).

        Raises ConfigError.
        """
        if not (is_loopback(self.listen) or self.tls_cert or self.insecure):
            raise ConfigError(
                f"listen {self.listen} is not loopback, and clients would talk without TLS",
                "give `--tls-cert` and `--tls-key`, or `--insecure` on a network that you trust",
            )
        secure = self.peer_tls_mode is PeerTlsMode.REQUIRE
        if not (is_loopback(self.peer_listen) or secure or self.insecure_peers):
            raise ConfigError(
                f"peer_listen {self.peer_listen} is not loopback, and nodes talk without TLS",
                "give `--peer-cert`, `--peer-key` and `--peer-ca`; or see that only the nodes "
                "reach this port (firewall, VPN, encrypted network), then give `--insecure-peers`",
            )
        page = self.metrics_listen
        shown = self.insecure_metrics or self.metrics_token_file is not None
        if page and not is_loopback(page) and not shown:
            raise ConfigError(
                f"metrics_listen {page} is not loopback, and the page has no TLS",
                "give `--metrics-token-file`, or see that only Prometheus reaches this port, then "
                "give `--insecure-metrics`",
            )

    @property
    def peer_tls_mode(self) -> PeerTlsMode:
        """How nodes talk to each other, with `auto` decided."""
        if self.peer_tls == "auto":
            return PeerTlsMode.OFF if self.peer_cert is None else PeerTlsMode.REQUIRE
        return PeerTlsMode(self.peer_tls)

    @property
    def peer_files(self) -> TlsFiles | None:
        """The files of the peer port; None where nodes talk plainly."""
        if self.peer_tls_mode is PeerTlsMode.OFF:
            return None
        if self.peer_cert is None or self.peer_key is None or self.peer_ca is None:
            return None  # refused when the settings were read
        return TlsFiles(self.peer_cert, self.peer_key, self.peer_ca)

    @property
    def is_on_loopback(self) -> bool:
        """Whether both ports that a cluster needs are for this machine alone."""
        return is_loopback(self.listen) and is_loopback(self.peer_listen)

    @property
    def hears_secret(self) -> bool:
        """Whether the client port takes the admin secret, where there is one, from other machines.

        Those who call from this one are always heard.
        """
        return self.tls_cert is not None or is_loopback(self.listen) or self.insecure_admin_secret

    @property
    def operator_access(self) -> OperatorAccess:
        """The check that operators' calls must pass. Raises ConfigError."""
        path = self.admin_secret_file
        try:
            secret = None if path is None else read_secret(path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"admin_secret_file: {error}",
                "give a file with a random secret, such as `openssl rand -hex 32` prints",
            ) from error
        loopback = self.is_on_loopback
        return OperatorAccess(secret, on_loopback=loopback, in_the_clear=self.insecure_admin_secret)

    @property
    def metrics_token(self) -> bytes | None:
        """What callers of the metrics page have to show, or None. Raises ConfigError."""
        try:
            return None if self.metrics_token_file is None else read_secret(self.metrics_token_file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"metrics_token_file: {error}",
                "give a file with a random secret, such as `openssl rand -hex 32` prints",
            ) from error

    @property
    def admin_secret(self) -> bytes | None:
        """What this node shows other nodes, or None. Raises OSError, ValueError."""
        return None if self.admin_secret_file is None else read_secret(self.admin_secret_file)

    @property
    def jwt(self) -> JwtVerifier | None:
        """A verifier of the identity provider's JWTs, with the keys of a file; None: there is none.

        Raises ConfigError.
        """
        if not self.jwt_issuer:
            return None
        verifier = JwtVerifier(self.jwt_issuer, self.jwt_audience, self.jwt_claim)
        if not is_url(self.jwt_keys):
            try:
                verifier.use(parse_keys(read_file(Path(self.jwt_keys))))
            except (OSError, KeySetError) as error:
                raise ConfigError(
                    f"jwt_keys: {self.jwt_keys}: {error}",
                    "give the JWK set of the identity provider, or its URL",
                ) from error
        return verifier

    @property
    def callers(self) -> Callers:
        """How the node knows who calls. Raises ConfigError."""
        has_tls = self.tls_cert is not None
        return Callers(
            self.superusers,
            self.operator_access,
            has_tls,
            has_client_ca=has_tls and self.tls_ca is not None,
            named_by=self.tls_client_names,
            jwt=self.jwt,
            machine_ms=machine_ms,
        )

    @property
    def state_limits(self) -> StateLimits:
        """The limits of state in bytes."""
        return StateLimits(
            self.state_group_max_bytes, self.state_shard_max_bytes, self.state_node_max_bytes
        )

    @property
    def raft_settings(self) -> RaftSettings:
        """The consensus layer's, with these times."""
        return replace(
            RAFT,
            heartbeat_ms=self.heartbeat_ms,
            quorum_ms=self.quorum_ms,
            election_min_ms=self.election_min_ms,
            election_max_ms=self.election_max_ms,
        )

    @property
    def endpoint(self) -> str:
        """The address that clients are told."""
        return self.advertise or self.listen


def _check_keys_url(source: str, ca: Path | None) -> None:
    """Raise ValueError where keys would come in the clear, or a URL is none."""
    if not is_url(source):
        if ca is not None:
            raise ValueError("jwt_keys_ca is for an https:// URL in jwt_keys")
        return
    url = urlsplit(source)  # ValueError where its brackets are no address
    if not source.isascii() or not source.isprintable() or " " in source or url.fragment:
        raise ValueError("jwt_keys: a URL has ASCII characters, no spaces and no fragment")
    if not url.hostname or "@" in url.netloc or url.port == 0:
        raise ValueError("jwt_keys: a URL needs a host, and takes no user")
    if url.scheme == "http" and not is_loopback(f"{url.hostname}:{url.port or 80}"):
        raise ValueError("jwt_keys: by http:// whoever is on the way could give keys; use https://")


def load_settings(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Merge file, environment and flags. Raises ConfigError."""
    _refuse_old_names()
    if file is not None and not file.is_file():
        raise ConfigError(f"{file}: there is no such file")

    class _WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del dotenv_settings, file_secret_settings
            sources = [init_settings, env_settings]
            if file is not None:
                sources.append(TomlConfigSettingsSource(settings_cls, file))
            return tuple(sources)

    try:
        merged = _WithFile(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        given = {name for name, value in flags.items() if value is not None}
        raise ConfigError(_sentence(error, given, file)) from error
    except (ValueError, RecursionError) as error:  # a TOML file that is none
        raise ConfigError(f"{file}: {error}") from error
    merged.check_exposure()
    _ = merged.metrics_token
    _ = merged.callers  # a secret that cannot be read is told before anything starts
    return merged


def _refuse_old_names() -> None:
    """Nodes once read MUSTER_*, as clients do. Raises ConfigError where such a name is set."""
    for name in Settings.model_fields:
        old = CLIENT_PREFIX + name.upper()
        if name not in CLIENTS and old in os.environ:
            raise ConfigError(
                f"{old} is no setting: a node reads {PREFIX}{name.upper()}",
                f"name it {PREFIX}{name.upper()}, or unset it",
            )


def unread_variables() -> dict[str, str]:
    """Variables that look like a node's settings and are none, each with what to do about it."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unread = {
        name: "no setting of that name; docs/configuration.md has them all"
        for name in sorted(os.environ)
        if name.upper().startswith(PREFIX) and name.upper() not in known
    }
    for name in CLIENTS:
        own = PREFIX + name.upper()
        if CLIENT_PREFIX + name.upper() in os.environ:
            unread[CLIENT_PREFIX + name.upper()] = f"for clients alone; a node reads {own}"
    return unread


def _sentence(error: ValidationError, flags: Collection[str], file: Path | None) -> str:
    """What is wrong with each setting; of one that is the file's, with the file's name."""
    keys = tomllib.loads(file.read_text("utf-8")) if file else {}
    parts = []
    for one in error.errors():
        name = ".".join(str(part) for part in one["loc"]) or "settings"
        message = one["msg"].removeprefix("Value error, ")
        key = name.partition(".")[0]
        is_variable = any(one.upper() == PREFIX + key.upper() for one in os.environ)
        where = f"{file}: " if key in keys and key not in flags and not is_variable else ""
        parts.append(f"{where}{name}: {message}")
    return "; ".join(parts)
