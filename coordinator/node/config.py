"""Settings of `muster serve`: a TOML file, MUSTERD_* variables, flags; flags win."""

import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin
from urllib.parse import urlsplit

from msgspec import NODEFAULT, Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.json import decode, encode
from msgspec.structs import FieldInfo, fields

from musterd.coordinator.api.frame.identity import Callers
from musterd.coordinator.api.frame.jwt_verifier import JwtVerifier, KeySetError, parse_keys
from musterd.coordinator.api.frame.operator_access import OperatorAccess, read_secret
from musterd.coordinator.host import FILES_MAX
from musterd.coordinator.machine.access import JWT_PREFIX, is_reserved
from musterd.coordinator.machine.limits import LIMITS, MIB
from musterd.coordinator.node.jwt_source import is_url, read_file
from musterd.coordinator.node.timeout_rules import broken_rules
from musterd.coordinator.runtime.state_limits import StateLimits
from musterd.coordinator.runtime.timeouts import REACH_PROBE_MS
from musterd.raft.settings import RaftSettings
from musterd.raft.tls import PeerTlsMode, TlsFiles
from musterd.storage.clock import machine_ms

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
ARGUMENT_MAX_BYTES: Final = 128 * 1024 - 1
"""What Linux takes as one argument of a program (execve(2), MAX_ARG_STRLEN), without its end."""
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


Limit = Annotated[int, Meta(ge=MIB, le=BYTES_MAX)]
Duration = Annotated[int, Meta(ge=1)]


class Settings(Struct, frozen=True, kw_only=True):
    """A node's settings; its identity is in its store, where `muster init` wrote it.

    `load_settings` makes them, and checks what their types do not say.
    """

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
    peers: dict[int, str] = field(default_factory=dict)
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
    superusers: tuple[str, ...] = ()
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
    offset_retention_ms: Annotated[int, Meta(ge=0, le=LIMITS.offset_retention_max_ms)] = (
        LIMITS.offset_retention_ms
    )
    """Offsets of groups without members are kept so long; 0 = for ever."""
    state_group_max_bytes: Limit = STATE.group
    """State of one group, as it is weighed (docs/adr/0018): the group grows no more."""
    state_shard_max_bytes: Limit = STATE.shard
    """State of one shard; no less than a group may have."""
    state_node_max_bytes: Limit = STATE.node
    """State of all shards that this node holds: for a node that may take 2 GiB of memory. No less
    than a shard may have."""
    disk_reserve_bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)] = DISK_RESERVE_BYTES
    """With less free on the file system of `data_dir` nothing that grows the state is taken, and
    with less than a quarter of it no entry at all. 0 switches that off: a full disk ends the node.
    """
    heartbeat_ms: Duration = RAFT.heartbeat_ms
    """A leader sends something to every follower so often. This and the next three are the same on
    every node."""
    quorum_ms: Duration = RAFT.quorum_ms
    """A leader that heard no majority for so long answers nothing, and steps down."""
    election_min_ms: Duration = RAFT.election_min_ms
    """A follower that hears nothing for so long begins an election, at the earliest."""
    election_max_ms: Duration = RAFT.election_max_ms
    """And at the latest."""
    connections_per_host: Annotated[int, Meta(ge=0, le=FILES_MAX)] = 0
    """Connections of one host to the client port; those that come beyond it are ended within a
    second. 0: a quarter of what the node takes in all, 4096 at most (docs/quotas.md)."""
    reach_probe_ms: Annotated[int, Meta(ge=0, le=600_000)] = REACH_PROBE_MS
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

    def check_together(self) -> None:
        """Check the settings against each other. Raises ValueError."""
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
        addresses = (self.peer_listen, *self.peers.values())
        is_local = all(map(is_loopback, addresses)) and self.tls_ca is None
        if self.forward and self.peer_tls_mode is not PeerTlsMode.REQUIRE and not is_local:
            # Clients' calls, and who makes them, are told to nodes alone.
            raise ValueError(
                "forward needs peer_tls = require where a node is not on loopback, and where "
                "clients show certificates"
            )

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

    def encode(self) -> str:
        """Encode the settings as one argument of a program.

        Raises ConfigError where they cannot be one.
        """
        try:
            argument = encode(self, enc_hook=str)
        except UnicodeEncodeError as error:
            raise ConfigError(f"settings: {SHOWN.repr(error.object)} is not UTF-8") from error
        if len(argument) > ARGUMENT_MAX_BYTES:
            raise ConfigError(
                f"settings: they take {len(argument)} bytes, and may take {ARGUMENT_MAX_BYTES}"
            )
        return argument.decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the settings of `encode`."""
        return decode(text, type=cls, dec_hook=_to_path)

    @property
    def shown(self) -> dict[str, Any]:
        """All settings by name, of types that JSON has."""
        told: dict[str, Any] = to_builtins(self, str_keys=True, enc_hook=str)
        return told


FIELDS: Final[Mapping[str, FieldInfo]] = {one.name: one for one in fields(Settings)}


ADDRESSES: Final = ("listen", "advertise", "peer_listen", "metrics_listen")
_TAKES: Final[Mapping[object, str]] = {
    str: "text",
    bool: "`true`, `false`",
    Path: "a path",
    Path | None: "a path",
    dict[int, str]: "id=host:port, ...",
    tuple[str, ...]: "text, ...",
}


def takes(setting: FieldInfo) -> str:
    """What a setting can be, for people."""
    kind = setting.type
    if setting.name in ADDRESSES:
        return "host:port"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(kind))
    if get_origin(kind) is Annotated:
        meta: Meta = get_args(kind)[1]
        return f"at least {meta.ge}" if meta.le is None else f"{meta.ge} to {meta.le}"
    return _TAKES[kind]


def is_required(setting: FieldInfo) -> bool:
    """True where it has to be given."""
    return setting.default is NODEFAULT and setting.default_factory is NODEFAULT


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
    of_flags = {name: value for name, value in flags.items() if value is not None}
    variables = {name: PREFIX + name.upper() for name in FIELDS}
    of_environment = {
        name: os.environ[variable] for name, variable in variables.items() if variable in os.environ
    }
    of_file = {} if file is None else _read(file)
    merged = of_file | of_environment | of_flags
    places = dict.fromkeys(of_file.keys() - of_environment.keys() - flags.keys(), f"{file}: ")
    settings = _convert(_with_tls_dir(merged), places)
    try:
        settings.check_together()
    except ValueError as error:
        raise ConfigError(f"settings: {error}") from error
    settings.check_exposure()
    _ = settings.metrics_token
    _ = settings.callers  # a secret that cannot be read is told before anything starts
    return settings


def _read(file: Path) -> dict[str, Any]:
    """Read the keys of a file. Raises ConfigError."""
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file")
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error


def _with_tls_dir(given: dict[str, Any]) -> dict[str, Any]:
    """Let the folder stand for the files that are not given."""
    folder = given.get("tls_dir")
    if not folder or not isinstance(folder, str | Path):
        return given
    files = {"cert": "cert.pem", "key": "key.pem", "ca": "ca.pem"}
    inside = {
        f"{port}_{kind}": Path(folder) / name
        for port in ("tls", "peer")
        for kind, name in files.items()
    }
    return inside | given


def _convert(given: Mapping[str, Any], places: Mapping[str, str]) -> Settings:
    """Give each setting its type. Raises ConfigError, which names all that are wrong.

    `places` has what stands before the name of a setting that a file gives.
    """
    values: dict[str, Any] = {}
    wrong = [
        f"{places.get(name, '')}{name}: there is no such setting"
        for name in given
        if name not in FIELDS
    ]
    for name, one in FIELDS.items():
        if name not in given:
            if is_required(one):
                wrong.append(f"{name}: it must be given")
            continue
        place = places.get(name, "") + name
        try:
            value = PARSED[name](given[name]) if name in PARSED else given[name]
            values[name] = convert(value, one.type, strict=False, str_keys=True, dec_hook=_to_path)
            _check(name, values[name])
        except (ValidationError, RecursionError):
            wrong.append(f"{place}: it takes {takes(one)}, not {SHOWN.repr(given[name])}")
        except ValueError as error:
            wrong.append(f"{place}: {error}")
    if wrong:
        raise ConfigError("; ".join(wrong))
    return Settings(**values)


def _to_path(kind: type, value: object) -> object:
    """Make a path of a text; `convert` calls it for types that it does not know."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValueError("Expected a path")


def _parse_peers(value: object) -> object:
    """Read "1=host:port,2=host:port"; a table of a file is taken as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    peers: dict[str, str] = {}
    for part in filter(None, value.split(",")):
        node, equals, address = part.partition("=")
        if not equals or not node.strip().isdigit():
            raise ValueError(f"{part!r} is not NODE=host:port")
        peers[node.strip()] = address.strip()
    return peers


def _parse_names(value: object) -> object:
    """Read "ann,bob"; a list of a file is taken as it is."""
    if not isinstance(value, str):
        return value
    return [name.strip() for name in value.split(",") if name.strip()]


SHOWN: Final = Repr()
"""It cuts what is long: a value that is wrong is shown."""
PARSED: Final[Mapping[str, Callable[[object], object]]] = {
    "peers": _parse_peers,
    "superusers": _parse_names,
}
"""Settings that may be given as one text, and are more."""


def _check(name: str, value: Any) -> None:
    """Check what the type of a setting does not say. Raises ValueError."""
    match name:
        case _ if name in ADDRESSES and value:
            split_address(value)
        case "peers":
            for address in value.values():
                split_address(address)
        case "superusers":
            if len(value) > SUPERUSERS_MAX:
                raise ValueError(f"there are at most {SUPERUSERS_MAX} superusers")
            for one in value:
                if is_reserved(one) and not one.startswith(JWT_PREFIX):
                    raise ValueError(f"nobody can be named {one}: it is a name that muster gives")


def _refuse_old_names() -> None:
    """Nodes once read MUSTER_*, as clients do. Raises ConfigError where such a name is set."""
    for name in FIELDS:
        old = CLIENT_PREFIX + name.upper()
        if name not in CLIENTS and old in os.environ:
            raise ConfigError(
                f"{old} is no setting: a node reads {PREFIX}{name.upper()}",
                f"name it {PREFIX}{name.upper()}, or unset it",
            )


def unread_variables() -> dict[str, str]:
    """Variables that look like a node's settings and are none, each with what to do about it."""
    known = {PREFIX + name.upper() for name in FIELDS}
    unread = {
        name: "no setting of that name; docs/configuration.md has them all"
        for name in sorted(os.environ)
        if name.upper().startswith(PREFIX) and name not in known
    }
    for name in CLIENTS:
        own = PREFIX + name.upper()
        if CLIENT_PREFIX + name.upper() in os.environ:
            unread[CLIENT_PREFIX + name.upper()] = f"for clients alone; a node reads {own}"
    return unread
