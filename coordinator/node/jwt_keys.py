"""Keeps the keys of the identity provider as its file or its URL has them now.

One look at a time, in the background: every few minutes at a URL, every few seconds at a file, and
soon where a token names a key that is not known. A look that fails leaves the keys of before; a
set without keys that can be used is none such: then no JWT is taken.
"""

import asyncio
import contextlib
import io
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import structlog

from musterd.coordinator.api.frame.jwt_verifier import (
    KEYS_BYTES_MAX,
    JwtVerifier,
    KeySet,
    KeySetError,
    parse_keys,
)
from musterd.coordinator.node.jwt_source import is_url, read_file
from musterd.coordinator.runtime.timeouts import (
    JWT_KEYS_FETCH_MS,
    JWT_KEYS_GAP_MS,
    JWT_KEYS_LOOK_MS,
)

log = structlog.get_logger()

MS: Final = 1_000
HEAD_BYTES_MAX: Final = 16 * 1024
"""The longest head of an answer, before the keys."""
ASKED_MAX: Final = 64
"""Key ids that are not known and looked for at once, and that were looked for in vain."""
PART_BYTES: Final = 64 * 1024
TEXT_MAX: Final = 300
"""Characters of an error in a line of the log."""
_PORTS: Final = {"https": 443, "http": 80}


class JwtKeys:
    """The keys of one verifier; `follow` looks at them for ever."""

    def __init__(
        self, source: str, ca: Path | None, verifier: JwtVerifier, changed: Callable[[], None]
    ) -> None:
        """Nothing is read before `follow`.

        `source`: an https URL, an http URL of this machine, or a path. `ca`: PEM of the authority
        of the URL's certificate; None: those of the system. `changed` is called after each change
        of the keys.
        """
        self._source, self._ca = source, ca
        self._verifier, self._changed = verifier, changed
        self._is_url = is_url(source)
        self._read = b""
        """What the keys were made of."""
        self._asked: set[str] = set()
        self._in_vain: set[str] = set()
        self._wanted = asyncio.Event()
        self._said = ""
        self._read_total = self._failed_total = 0
        verifier.want = self.want

    @property
    def counts(self) -> tuple[int, int]:
        """How many looks went well, and how many failed."""
        return self._read_total, self._failed_total

    def want(self, kid: str) -> bool:
        """Look soon, since a token names this key; False where a look did not find it."""
        if kid in self._in_vain:
            return False
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()
        self._asked.add(kid)
        self._wanted.set()
        return True

    async def follow(self) -> None:
        """Look at the source again and again."""
        pause_ms = JWT_KEYS_LOOK_MS if self._is_url else JWT_KEYS_GAP_MS
        while True:
            done = await self.look()
            await asyncio.sleep(JWT_KEYS_GAP_MS / MS)
            if done:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((pause_ms - JWT_KEYS_GAP_MS) / MS):
                        await self._wanted.wait()

    async def look(self) -> bool:
        """Read the source once; whether that went well."""
        self._wanted.clear()
        asked, self._asked = self._asked, set()
        try:
            data = await self._fetch()
            keys = None if data == self._read else await asyncio.to_thread(parse_keys, data)
        except (OSError, ValueError) as error:
            self._asked |= asked
            self._failed_total += 1
            self._say(f"{type(error).__name__} {error}"[:TEXT_MAX])
            return False
        if keys is not None:
            self._use(data, keys)
        self._said = ""
        self._in_vain = asked - self._verifier.keys.keys()
        self._read_total += 1
        return True

    async def _fetch(self) -> bytes:
        if not self._is_url:
            return await asyncio.to_thread(read_file, Path(self._source))
        url = urlsplit(self._source)
        context = None
        if url.scheme == "https":
            context = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca)
        async with asyncio.timeout(JWT_KEYS_FETCH_MS / MS):
            return await fetch(url, context)

    def _use(self, data: bytes, keys: KeySet) -> None:
        self._read = data
        self._verifier.use(keys)
        self._changed()
        if keys:
            log.info("the keys of JWTs were read", source=self._source, keys=len(keys))
        else:
            log.warning(
                "the set of keys has none that can be used: no JWT is taken", source=self._source
            )

    def _say(self, error: str) -> None:
        """Once, until it is another error or none."""
        if error != self._said:
            self._said = error
            log.warning(
                "the keys of JWTs cannot be read: those of before stay",
                source=self._source,
                error=error,
            )


async def fetch(url: SplitResult, context: ssl.SSLContext | None) -> bytes:
    """GET this URL: the body of a 200. The caller bounds the time.

    No redirection is followed and no proxy asked. Why this is our own: ADR 30.

    Raises:
        OSError, ValueError: there is no connection, it is longer than a set of keys may be, another
            status, or no HTTP.
    """
    host, port = url.hostname or "", url.port or _PORTS[url.scheme]
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        head = f"GET {target} HTTP/1.1\r\nHost: {url.netloc}\r\n"
        writer.write(f"{head}Accept: application/json\r\nConnection: close\r\n\r\n".encode())
        raw = bytearray()
        while part := await reader.read(PART_BYTES):
            raw += part
            if len(raw) > HEAD_BYTES_MAX + KEYS_BYTES_MAX:
                raise KeySetError(f"answers with more than {KEYS_BYTES_MAX} bytes")
    finally:
        writer.transport.abort()
    return body_of(bytes(raw))


def body_of(raw: bytes) -> bytes:
    """The body of an answer in HTTP with status 200. Raises ValueError."""
    from http import client  # noqa: PLC0415  # 2 MiB, which a node without JWTs does without

    answer = client.HTTPResponse(_Received(raw))  # type: ignore[arg-type]  # all that it uses
    try:
        answer.begin()
        if answer.status != client.OK:
            raise KeySetError(f"answers {answer.status}, not 200")
        return answer.read()
    except OverflowError as error:
        raise KeySetError("answers with a length that nothing has") from error
    except client.HTTPException as error:
        raise KeySetError(f"answers no HTTP: {type(error).__name__} {error}") from error


class _Received:
    """A socket whose bytes have all arrived."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)
