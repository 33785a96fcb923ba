"""One HTTP GET over TCP or a unix socket."""

import http.client
import socket

_UNIX = "unix:"
_OK = 200


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


def fetch_page(target: str, path: str, timeout_s: float) -> str:
    """GET `path` from "host:port" or "unix:PATH". Raises OSError where there is no 200 answer."""
    if target.startswith(_UNIX):
        connection: http.client.HTTPConnection = _UnixConnection(
            target.removeprefix(_UNIX), timeout_s
        )
    else:
        connection = http.client.HTTPConnection(target, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != _OK:
            raise OSError(f"{target}{path}: status {answer.status}")
        return answer.read().decode()
    except http.client.HTTPException as error:
        raise OSError(f"{target}{path}: {error!r}") from error
    finally:
        connection.close()
