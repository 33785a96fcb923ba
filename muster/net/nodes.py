"""The cluster's nodes as this process sees them: a channel to each, kept open.

Thousands of calls that are parked have more channels, each with a connection of its own.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from muster import timeouts
from muster.errors import InvalidConfig, TlsHandshakeFailed
from muster.net import background_tasks
from muster.net.bearer_token import BearerToken
from muster.net.credentials import Credentials, Shown
from muster.net.streams import METHODS, OpenCall, Stream
from muster.net.streams import PATH as STREAM_PATH
from muster.net.tls import Tls

if TYPE_CHECKING:
    from muster.net.tls_probe import TlsTrouble

NODES_MAX = 64
"""That the user gives, that the cluster names, and that hints name besides: each."""

SAID_MAX = 9
"""Nodes that an error names, with what each said."""

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of an answer, the server's limit too (arch-5)."""

REQUEST_BYTES_MAX = 1_536 * 1024
"""Bytes of a request, the server's limit too."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", timeouts.RECONNECT_FIRST_MS),
    ("grpc.min_reconnect_backoff_ms", timeouts.RECONNECT_FIRST_MS),
    ("grpc.max_reconnect_backoff_ms", timeouts.RECONNECT_MS_MAX),
    ("grpc.keepalive_time_ms", timeouts.KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", timeouts.KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Retries are this SDK's own: only it knows terms, hints and what is idempotent.
    ("grpc.enable_retries", 0),
)

PATIENT_CALLS_MAX = 800
"""Calls that a server may park, on one connection; more go by others. A server lets a connection
have 1,024 calls at a time, and all members of a group may be of this process."""

_ITS_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)

Response_co = TypeVar("Response_co", bound=Message, covariant=True)


class Answers(Protocol[Response_co]):
    """Parses a response: `FromString` of its class."""

    def __call__(self, data: bytes, /) -> Response_co: ...


def parse_endpoints(given: str | Sequence[str]) -> tuple[str, ...]:
    """`"h:p,h:p"` or a list of `"h:p"`, in order, each once.

    Raises:
        InvalidConfig: none, too many, or one that is not host:port.
    """
    several = given.split(",") if isinstance(given, str) else given
    endpoints = tuple(dict.fromkeys(one.strip() for one in several if one.strip()))
    if not endpoints or len(endpoints) > NODES_MAX:
        raise InvalidConfig(f"give 1 to {NODES_MAX} addresses as host:port, not {given!r}")
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - a port
            raise InvalidConfig(f"{endpoint!r} is not host:port")
    return endpoints


class Nodes:
    """Channels by endpoint: opened when a node is learned, closed when it is gone."""

    def __init__(
        self,
        bootstrap: Iterable[str],
        tls: Tls | None,
        token: BearerToken | None = None,
        *,
        streams: bool = True,
    ) -> None:
        """`token` is shown where nobody can listen: over TLS, and on loopback.

        `streams`: whether members' calls go through streams, where nodes have them.
        """
        self._credentials = Credentials(tls, token)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[tuple[str, str, int], Callable[..., object]] = {}
        """By endpoint, path, and which of its channels."""
        self._more: dict[str, list[grpc.aio.Channel]] = {}
        """The channels of an endpoint beside its first one."""
        self._patient: dict[str, list[int]] = {}
        """How many calls are parked by each channel of an endpoint."""
        self._closing: set[asyncio.Task[None]] = set()
        self.streams = streams
        self._streams: dict[tuple[str, int], Stream] = {}
        """By endpoint, and which of its channels."""
        self._retired: list[Stream] = []
        """Streams that others have replaced, while calls of theirs are under way."""
        self._streamless: dict[str, float] = {}
        """Whose nodes refused a stream since their connection stands; when they are asked again, on
        the loop's clock."""
        self._bootstrap = tuple(bootstrap)
        self._learned: tuple[str, ...] = ()
        self._ready_now: frozenset[str] | None = None
        self._tls = tls
        self._has_connected = False
        self._probed: dict[str, tuple[float, TlsTrouble | None]] = {}
        """When an endpoint that cannot be connected to was looked at, and what was seen."""
        self.closed = False
        """Whether calls that are cancelled were so because of that."""
        for endpoint in self._bootstrap:
            self._open(endpoint)
        self._follower = (
            background_tasks.start(self._follow_files()) if self._credentials.has_files else None
        )

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(timeouts.TLS_FILES_LOOK_MS / 1000)
            self.renew()

    def renew(self) -> None:
        """Connect anew where the files of TLS have changed and belong together.

        Calls that are under way go on by the former connections.
        """
        if not self.closed and self._credentials.renew():
            for endpoint in list(self._channels):
                self._drop(endpoint, timeouts.PARKED_ATTEMPT_MS)
                self._open(endpoint)

    def shown(self) -> Shown:
        """What a call shows that is started now."""
        return self._credentials.shown()

    def has_newer(self, shown: Shown) -> bool:
        """Whether the files have another credential than a call showed that was refused.

        Then the next call shows it, by a new connection where it is a certificate.
        """
        self.renew()
        return self._credentials.shown() != shown

    def endpoints(self) -> tuple[str, ...]:
        """The endpoints that the cluster named; before that, those that the user gave."""
        return self._learned or self._bootstrap

    def order(self, avoid: str = "") -> list[str]:
        """Whom to ask: connected ones first, the one to avoid last.

        The addresses that the user gave come after those that the cluster names, so that a cluster
        which advertises an address that cannot be reached from here can still be asked.
        """
        known = dict.fromkeys((*self._learned, *self._bootstrap))
        ready = self._ready()
        return sorted(known, key=lambda e: (e == avoid, e not in ready))

    @property
    def is_connected(self) -> bool:
        """Whether a connection to a node stands."""
        return bool(self._ready())

    def tls_failure(self) -> TlsHandshakeFailed | None:
        """Why no node can be connected to, where that is TLS; None once a connection has stood."""
        if self._has_connected or not self._probed.keys() >= {*self._bootstrap}:
            return None
        found = [trouble for _, trouble in self._probed.values() if trouble is not None]
        if not found:
            return None
        return TlsHandshakeFailed(found[0].message, hint=found[0].fault.sdk_hint)

    async def _see_state(self, endpoint: str, state: grpc.ChannelConnectivity) -> None:
        """Until a first connection stands: look whether TLS is why there is none."""
        if state is not grpc.ChannelConnectivity.READY:
            self._streamless.pop(endpoint, None)  # another build may be there next
        if state is grpc.ChannelConnectivity.READY:
            self._has_connected = True
        if self._has_connected or state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return
        now = asyncio.get_running_loop().time()
        looked_at, _ = self._probed.get(endpoint, (-math.inf, None))
        if (now - looked_at) * 1000 >= timeouts.TLS_PROBE_GAP_MS:
            from muster.net.tls_probe import find_trouble  # noqa: PLC0415  # most never need it

            trouble = await asyncio.to_thread(find_trouble, endpoint, self._tls)
            self._probed[endpoint] = (now, trouble)

    def others_count(self, avoid: str) -> int:
        """How many nodes there are besides one."""
        return sum(endpoint != avoid for endpoint in self.endpoints())

    def learn(self, endpoints: Iterable[str]) -> None:
        """Take the cluster's own list: open channels to new nodes, close those of gone ones.

        A node that has just started names those that it has heard of already: one that is connected
        is there all the same.
        """
        named = [endpoint for endpoint in endpoints if endpoint]
        if not named:
            return
        there = [endpoint for endpoint in self._learned if endpoint in self._ready()]
        learned = tuple(dict.fromkeys((*named, *there)))[:NODES_MAX]
        if set(learned) == set(self._learned):
            return
        for endpoint in set(self._learned) - set(learned) - set(self._bootstrap):
            self._drop(endpoint)
        self._learned = learned
        for endpoint in learned:
            self._open(endpoint)

    def unary(
        self,
        endpoint: str,
        path: str,
        parse: Answers[Response_co],
        request: bytes,
        timeout_ms: float,
        number: int = 0,
    ) -> OpenCall[Response_co]:
        """Start one call. The request goes out as it is, so that a retry is byte-equal.

        It goes through the node's stream where it has one. `number`: which of the node's channels,
        as `take_channel` said.
        """
        is_large = len(request) > REQUEST_BYTES_MAX  # refused, which must not end others' stream
        if path not in METHODS or is_large or not self._has_streams(endpoint):
            return self._unary(endpoint, path, parse, request, timeout_ms, number)
        stream = self._stream(endpoint, number)
        again = partial(self._unary, endpoint, path, parse, request, timeout_ms, number)
        return stream.call(path, request, parse, timeout_ms, again)

    def _has_streams(self, endpoint: str) -> bool:
        again_s = self._streamless.get(endpoint, -math.inf)
        return self.streams and asyncio.get_running_loop().time() >= again_s

    def _refused(self, endpoint: str, code: grpc.StatusCode) -> None:
        """A node has no streams, or none more at this connection."""
        wait_s = timeouts.STREAM_AGAIN_MS / 1000
        if code is grpc.StatusCode.UNIMPLEMENTED:
            wait_s = math.inf
        self._streamless[endpoint] = asyncio.get_running_loop().time() + wait_s

    def _retire(self, stream: Stream) -> None:
        """Have calls that are under way go on, and no other one begun in it."""
        stream.retire()
        self._retired = [one for one in (*self._retired, stream) if not one.has_ended]

    def _stream(self, endpoint: str, number: int) -> Stream:
        """The open stream of a channel, under the token that is shown now."""
        metadata = self._credentials.metadata(endpoint)
        stream = self._streams.get((endpoint, number))
        if stream is not None and (stream.is_over or stream.metadata != metadata):
            self._retire(stream)
            stream = None
        if stream is None:
            channel = self._channel(endpoint, number)
            open_one: Callable[[], object] = partial(
                channel.stream_stream(STREAM_PATH), metadata=metadata
            )
            refused = partial(self._refused, endpoint)
            stream = self._streams[endpoint, number] = Stream(open_one, metadata, refused)
        return stream

    def _unary(
        self,
        endpoint: str,
        path: str,
        parse: Answers[Response_co],
        request: bytes,
        timeout_ms: float,
        number: int,
    ) -> OpenCall[Response_co]:
        start: Callable[..., object] | None = self._calls.get((endpoint, path, number))
        if start is None:
            start = self._channel(endpoint, number).unary_unary(
                path, request_serializer=bytes, response_deserializer=parse
            )
            self._calls[endpoint, path, number] = start
        if metadata := self._credentials.metadata(endpoint):
            call = start(request, timeout=timeout_ms / 1000, metadata=metadata)
        else:
            call = start(request, timeout=timeout_ms / 1000)
        return cast("OpenCall[Response_co]", call)

    def take_channel(self, endpoint: str) -> int:
        """Which channel has room for a call that may be parked; to be given back when that ends."""
        taken = self._patient.setdefault(endpoint, [0])
        number = next((n for n, calls in enumerate(taken) if calls < PATIENT_CALLS_MAX), len(taken))
        if number == len(taken):
            taken.append(0)
        taken[number] += 1
        return number

    def give_channel(self, endpoint: str, number: int) -> None:
        """Such a call has ended."""
        taken = self._patient[endpoint]
        taken[number] -= 1
        if not any(taken):
            del self._patient[endpoint]

    def _channel(self, endpoint: str, number: int) -> grpc.aio.Channel:
        first = self._open(endpoint)
        more = self._more.setdefault(endpoint, []) if number else []
        while len(more) < number:
            more.append(self._connect(endpoint, (*CHANNEL_OPTIONS, _ITS_OWN_CONNECTION)))
        return more[number - 1] if number else first

    def _connect(self, endpoint: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        if self._credentials.channel is not None:
            return grpc.aio.secure_channel(endpoint, self._credentials.channel, options)
        return grpc.aio.insecure_channel(endpoint, options)

    def _open(self, endpoint: str) -> grpc.aio.Channel:
        """The channel to a node; also to one that a hint named before the node list did."""
        channel = self._channels.get(endpoint)
        if channel is None:
            strays = self._channels.keys() - set(self._learned) - set(self._bootstrap)
            if len(strays) >= NODES_MAX:
                self._drop(strays.pop())
            channel = self._connect(endpoint, CHANNEL_OPTIONS)
            self._channels[endpoint] = channel
            self._keepers[endpoint] = background_tasks.start(
                _keep_open(channel, partial(self._see_state, endpoint))
            )
        return channel

    def _ready(self) -> frozenset[str]:
        """Whose connection stands; looked at once in a turn of the loop: thousands may ask."""
        if self._ready_now is None:
            self._ready_now = frozenset(
                endpoint
                for endpoint, channel in self._channels.items()
                if channel.get_state() is grpc.ChannelConnectivity.READY
            )
            asyncio.get_running_loop().call_soon(self._look_again)
        return self._ready_now

    def _look_again(self) -> None:
        self._ready_now = None

    def _drop(self, endpoint: str, grace_ms: int = timeouts.COMMIT_ATTEMPT_MS) -> None:
        channel = self._channels.pop(endpoint, None)
        keeper = self._keepers.pop(endpoint, None)
        self._probed.pop(endpoint, None)
        for key in [key for key in self._calls if key[0] == endpoint]:
            del self._calls[key]
        for of in [of for of in self._streams if of[0] == endpoint]:
            self._retire(self._streams.pop(of))
        grace_s = grace_ms / 1000
        if channel is not None and keeper is not None:
            self._close_soon(_close(channel, keeper, grace_s))
        for one in self._more.pop(endpoint, ()):
            self._close_soon(one.close(grace_s))

    def _close_soon(self, closing: Coroutine[Any, Any, None]) -> None:
        task = background_tasks.start(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every channel; calls still open are cancelled."""
        self.closed = True
        if self._follower is not None:
            self._follower.cancel()
        for stream in (*self._streams.values(), *self._retired):
            await stream.close()
        self._streams.clear()
        self._retired.clear()
        for endpoint in list(self._channels):
            channel, keeper = self._channels.pop(endpoint), self._keepers.pop(endpoint)
            await _close(channel, keeper, None)
        for channel in (one for more in self._more.values() for one in more):
            await channel.close(None)
        self._more.clear()
        self._calls.clear()
        for task in list(self._closing):
            await task


def what_each_said(said: Mapping[str, str]) -> str:
    """Who was asked, and the latest that each said, in one line; of many nodes the first ones."""
    told = [f"{endpoint}: {what}" for endpoint, what in said.items()]
    more = [f"and {len(told) - SAID_MAX} more"] if len(told) > SAID_MAX else []
    return "; ".join([*told[:SAID_MAX], *more]) or "nobody was asked"


async def _keep_open(
    channel: grpc.aio.Channel,
    see: Callable[[grpc.ChannelConnectivity], Awaitable[None]] | None = None,
) -> None:
    """A channel without its connection goes idle; connect at once, not with the next call."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.SHUTDOWN:
        if see is not None:
            await see(state)
            if channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN:
                return  # closed meanwhile: it may not be waited for
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def _close(
    channel: grpc.aio.Channel, keeper: "asyncio.Task[None]", grace_s: float | None
) -> None:
    await channel.close(grace_s)
    # The close ends its wait. Cancelled, it would leave gRPC with an answer that it keeps, with
    # this loop, for ever, or that it brings when the loop is closed.
    _, unanswered = await asyncio.wait([keeper], timeout=timeouts.CHANNEL_END_MS / 1000)
    if unanswered:
        keeper.cancel()
        await asyncio.wait([keeper])
