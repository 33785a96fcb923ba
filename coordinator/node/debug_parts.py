"""What a node's machine adds to `muster debug bundle`: its settings and its metrics page."""

import http.client
import json
import tomllib
from http import HTTPStatus
from pathlib import Path
from typing import Final

from muster.cli.debug import PART_BYTES_MAX, NodeParts
from muster.cli.secrets import contents
from musterd.coordinator.node.config import (
    FIELDS,
    ConfigError,
    Settings,
    load_settings,
    split_address,
)

SECRET_FILES: Final = tuple(
    name for name in FIELDS if name.endswith(("_secret_file", "_token_file", "_key"))
)
"""Settings that name a file with a secret in it."""
PAGE_S: Final = 5.0


def parts(config: Path) -> NodeParts:
    """Return what belongs to the node with these settings. What cannot be had says why."""
    files: dict[str, bytes] = {}
    secrets = [secret for file in _secret_files(config) for secret in contents(file)]
    try:
        settings = load_settings(config, {})
    except ConfigError as error:
        files["node/settings.error.txt"] = f"{error}\n".encode()
        return NodeParts(files, secrets)
    dumped = json.dumps(settings.shown, indent=1)
    files["node/settings.json"] = dumped.encode() + b"\n"
    secrets += [
        secret
        for name in SECRET_FILES
        if (file := getattr(settings, name)) is not None
        for secret in contents(file)
    ]
    if settings.metrics_listen:
        try:
            files["node/metrics.txt"] = metrics_page(settings)
        except OSError as error:
            files["node/metrics.error.txt"] = f"{error}\n".encode()
    return NodeParts(files, secrets)


def _secret_files(config: Path) -> list[Path]:
    """What the file names, though its settings may be wrong."""
    try:
        keys = tomllib.loads(config.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [Path(keys[name]) for name in SECRET_FILES if isinstance(keys.get(name), str)]


def metrics_page(settings: Settings) -> bytes:
    """Fetch the metrics page of the node with these settings, by its token. Raises OSError."""
    address, token = settings.metrics_listen, settings.metrics_token
    shown = {} if token is None else {"Authorization": b"Bearer " + token}
    host, port = split_address(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # no address to bind
    connection = http.client.HTTPConnection(host, port, timeout=PAGE_S)
    try:
        connection.request("GET", "/metrics", headers=shown)
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise OSError(f"the metrics page at {address}: {answer.status} {answer.reason}")
        return answer.read(PART_BYTES_MAX)
    except http.client.HTTPException as error:
        raise OSError(f"the metrics page at {address}: {error!r}") from error
    finally:
        connection.close()
