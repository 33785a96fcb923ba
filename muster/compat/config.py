"""confluent-kafka's configuration keys, as far as they mean something here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from muster import timeouts
from muster.assignors import resolve
from muster.bounds import CLIENT_ID_BYTES_MAX, check_id, check_ms
from muster.compat.types import TopicPartition
from muster.errors import InvalidConfig
from muster.net.tls import Tls

OnCommit = Callable[[Exception | None, list[TopicPartition]], None]

_MEANINGLESS = {
    "auto.offset.reset": "the work is yours: position() is OFFSET_INVALID where nothing is stored",
    "enable.auto.offset.store": "nothing is read here, so nothing is stored: commit()",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of a consumer."""

    client: Mapping[str, Any]
    """For `muster.Client`."""
    group: Mapping[str, Any]
    """For `Client.group`, without topics and listener."""
    group_id: str
    request_timeout_ms: int
    rebalance_timeout_ms: int
    on_commit: OnCommit | None = None


def parse(config: Mapping[str, Any]) -> Settings:
    """The settings.

    Raises:
        InvalidConfig: a key is missing, or is one that could not be honoured, or its value is no
            possible one. All are named by their key.
    """
    given = dict(config)
    for key, why in _MEANINGLESS.items():
        if key in given:
            raise InvalidConfig(f"{key}: {why}", hint="leave it out")
    if _flag(given, "enable.auto.commit", default=False):
        raise InvalidConfig(
            "enable.auto.commit: nothing is read here, so nobody knows what to commit",
            hint="set it to False, and commit() what is done",
        )
    bootstrap, group_id = _text(given, "bootstrap.servers"), _text(given, "group.id")
    if not bootstrap or not group_id:
        raise InvalidConfig("bootstrap.servers and group.id are needed")
    client_id = _text(given, "client.id") or "muster"
    request_timeout_ms = _ms(given, "socket.timeout.ms", timeouts.REQUEST_MS)
    rebalance_timeout_ms = _ms(given, "max.poll.interval.ms", 300_000)
    client = {
        "bootstrap": bootstrap,
        "client_id": check_id("client.id", client_id, CLIENT_ID_BYTES_MAX),
        "tls": _tls(given),
        "token": _text(given, "muster.token"),
        "token_file": _text(given, "muster.token.file"),
        "request_timeout_ms": request_timeout_ms,
        "streams": _flag(given, "muster.streams", default=True),
    }
    group = {
        **_assignment(given),
        "rack": _text(given, "client.rack"),
        "session_timeout_ms": _ms(given, "session.timeout.ms", 10_000),
        "rebalance_timeout_ms": rebalance_timeout_ms,
        "group_instance_id": _text(given, "group.instance.id"),
    }
    on_commit = given.pop("on_commit", None)
    if on_commit is not None and not callable(on_commit):
        raise InvalidConfig(f"on_commit: give a function, not {on_commit!r}")
    if given:
        raise InvalidConfig(f"no such setting: {', '.join(sorted(map(str, given)))}")
    return Settings(client, group, group_id, request_timeout_ms, rebalance_timeout_ms, on_commit)


def _assignment(given: dict[str, Any]) -> dict[str, Any]:
    """Who assigns, and how."""
    protocol = _text(given, "group.protocol").lower() or "classic"
    strategies = _text(given, "partition.assignment.strategy")
    assignor = _text(given, "group.remote.assignor")
    if protocol == "consumer":
        if strategies:
            raise InvalidConfig(
                "partition.assignment.strategy: goes with group.protocol=classic",
                hint="set group.remote.assignor, or leave both out",
            )
        return {"assignment": "server", "assignor": assignor}
    if protocol != "classic":
        raise InvalidConfig(f"group.protocol: classic or consumer, not {protocol!r}")
    if assignor:
        raise InvalidConfig("group.remote.assignor: goes with group.protocol=consumer")
    names = [name.strip() for name in (strategies or "range").split(",")]
    return {"assignor": resolve(names)}


def _text(given: dict[str, Any], key: str) -> str:
    value = given.pop(key, "")
    if not isinstance(value, str):
        raise InvalidConfig(f"{key}: give text, not {value!r}")
    return value


def _ms(given: dict[str, Any], key: str, default: int) -> int:
    value = given.pop(key, default)
    try:
        found = int(value)
    except (TypeError, ValueError):
        found = 0
    if found <= 0 or isinstance(value, bool):
        raise InvalidConfig(f"{key}: give milliseconds, not {value!r}")
    return check_ms(key, found)


def _flag(given: dict[str, Any], key: str, *, default: bool) -> bool:
    value = given.pop(key, default)
    names = {"true": True, "false": False}
    found = names.get(str(value).lower())
    if found is None:
        raise InvalidConfig(f"{key}: give True or False, not {value!r}")
    return found


def _tls(given: dict[str, Any]) -> Tls | None:
    protocol = _text(given, "security.protocol").lower() or "plaintext"
    ca, cert, key = (_text(given, f"ssl.{name}.location") for name in ("ca", "certificate", "key"))
    if protocol == "ssl":
        return Tls(ca, cert=cert, key=key)
    if protocol != "plaintext" or ca or cert or key:
        raise InvalidConfig("security.protocol: plaintext, or ssl where ssl.*.location are given")
    return None
