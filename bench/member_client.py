"""A client process with members that only heartbeat: one held call per coordinator, by raw stubs.

Config: {"endpoints": [...], "groups": [...], "session_timeout_ms": n, "name": str}: one member per
group. With "grace_s" a heartbeat has failed that is not answered so long after its interval.
Verbs: `join` (with `count`: so many that are not in their group), `leave` (`count` of them),
`status`, `begin` (forget what was counted), `report`.
"""

import asyncio
import collections
import secrets
import time

import grpc.aio

from bench.collector import tune_gc
from bench.raw import Member, ModernMember, Pool, name_of, settle_all
from muster.v1 import errors_pb2, group_pb2
from musterd.chaos import child

GATHER_S = 0.02
"""Members that become stable within it share a call."""

GRACE_S = 1.0
"""A heartbeat counts as answered within the interval that its coordinator dictated and this, where
the config says nothing else."""


class ClientProcess:
    """Members of one process, and their heartbeats."""

    def __init__(self, config: child.Message) -> None:
        """Take the groups of the config; `join` joins them."""
        self._endpoints: list[str] = config["endpoints"]
        self._pool = Pool()
        self._grace_s = config.get("grace_s", GRACE_S)
        self._session_s = config["session_timeout_ms"] / 1000
        kind = ModernMember if config.get("assignment") == "server" else Member
        self._members = [
            kind(group, config["name"], session_timeout_ms=config["session_timeout_ms"])
            for group in config["groups"]
        ]
        self._outside: set[int] = {id(member) for member in self._members}
        """Members that have not joined yet, or have left, by identity."""
        self._nonce = secrets.token_hex(16)
        self._seq = 0
        self._loops: set[asyncio.Task[None]] = set()
        self._covered: dict[str, set[int]] = {}
        """Endpoint -> the members, by identity, that its newest call names."""
        self._rejoins: set[asyncio.Task[None]] = set()
        self._interval_s: dict[str, float] = {}
        self._answered = 0
        self._failures: collections.Counter[str] = collections.Counter()
        self._over_interval_s: list[float] = []

    async def join(self, count: int | None = None) -> child.Message:
        """Join at once, then start to heartbeat. Returns when the first Join went out."""
        joining = [member for member in self._members if not member.stable][:count]
        self._outside.difference_update(id(member) for member in joining)
        began_s = time.monotonic()
        await settle_all(self._pool, self._endpoints, joining)
        self._beat_everywhere()
        return {"began_s": began_s}

    async def leave(self, count: int) -> child.Message:
        """So many members leave at once. Returns when the first Leave went out."""
        leaving = [member for member in self._members if member.stable][-count:]
        self._outside.update(id(member) for member in leaving)
        began_s = time.monotonic()
        await asyncio.gather(*(member.leave(self._pool) for member in leaving))
        return {"began_s": began_s}

    def status(self) -> child.Message:
        """Which generation each member is stable in; None while it is not; and what it holds.

        `shares`, where the coordinator assigns: how many partitions each of them has.
        """
        inside = [member for member in self._members if id(member) not in self._outside]
        return {
            "generations": [
                [member.group, member.generation if member.stable else None] for member in inside
            ],
            "shares": [
                [member.group, member.share]
                for member in inside
                if isinstance(member, ModernMember)
            ],
            "stable_s": max((member.stable_s for member in self._members), default=0.0),
            "joins": sum(member.joins for member in self._members),
        }

    def begin(self) -> None:
        """Forget what was counted so far."""
        self._answered = 0
        self._failures.clear()
        self._over_interval_s = []

    def report(self) -> child.Message:
        """Return the outcomes of heartbeats since `begin`: one per member and call."""
        return {
            "answered": self._answered,
            "failures": self._failures,
            "over_interval_s": self._over_interval_s,
            **self.status(),
        }

    def _beat_everywhere(self) -> None:
        """See that each coordinator holds a call that names all stable members it has here."""
        for endpoint in {member.endpoint for member in self._members if member.stable}:
            covered = self._covered.get(endpoint, set())
            if not {id(member) for member in self._stable_at(endpoint)} <= covered:
                self._covered[endpoint] = {id(member) for member in self._members}  # it comes soon
                task = asyncio.create_task(self._beat_forever(endpoint))
                self._loops.add(task)
                task.add_done_callback(self._loops.discard)
                task.add_done_callback(_must_not_fail)

    def _stable_at(self, endpoint: str) -> list[Member]:
        return [m for m in self._members if m.stable and m.endpoint == endpoint]

    async def _beat_forever(self, endpoint: str) -> None:
        """Call after call while a stable member has its coordinator here.

        Where more members have become stable a new one takes over (see `superseded`).
        """
        await asyncio.sleep(GATHER_S)
        while members := self._stable_at(endpoint):
            self._covered[endpoint] = {id(member) for member in members}
            self._seq += 1
            request = group_pb2.HeartbeatRequest(client_nonce=self._nonce, call_seq=self._seq)
            for member in members:
                request.members.add(
                    group_id=member.group,
                    member_id=member.member_id,
                    generation=member.generation,
                )
            # Before the first answer the interval is not known: at most a third of the session.
            interval_s = self._interval_s.get(endpoint, self._session_s / 3)
            before_s = time.monotonic()
            try:
                answer = await self._pool.at(endpoint).Heartbeat(
                    request, timeout=interval_s + self._grace_s
                )
            except grpc.aio.AioRpcError as error:
                self._failures[f"gRPC {error.code().name}"] += len(members)
                await asyncio.sleep(0.05)
                continue
            if answer.superseded:
                return
            self._over_interval_s.append(time.monotonic() - before_s - interval_s)
            self._interval_s[endpoint] = answer.interval_ms / 1000
            self._take(members, answer)
        self._covered.pop(endpoint, None)

    def _take(self, members: list[Member], answer: group_pb2.HeartbeatResponse) -> None:
        if len(answer.results) != len(members):
            self._failures["incomplete"] += len(members)
            return
        for member, result in zip(members, answer.results, strict=True):
            if result.status.code == errors_pb2.NONE:
                self._answered += 1
                continue
            if id(member) in self._outside or not member.stable:
                continue  # it is on its way out, or in again
            self._failures[name_of(result.status.code)] += 1
            if result.status.code == errors_pb2.NOT_COORDINATOR:
                member.endpoint = result.status.coordinator.endpoint
            member.stable = False
            rejoin = asyncio.create_task(self._rejoin(member))
            self._rejoins.add(rejoin)
            rejoin.add_done_callback(self._rejoins.discard)
            rejoin.add_done_callback(_must_not_fail)

    async def _rejoin(self, member: Member) -> None:
        await member.settle(self._pool, self._endpoints)
        self._beat_everywhere()


def _must_not_fail(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        child.answer(error=repr(error))


async def _main() -> None:
    process = ClientProcess(child.config())
    tune_gc()
    child.answer(ready=True)
    async for command in child.commands():
        match command["verb"]:
            case "join":
                child.answer(**await process.join(command.get("count")))
            case "leave":
                child.answer(**await process.leave(command["count"]))
            case "status":
                child.answer(**process.status())
            case "begin":
                process.begin()
                child.answer(begun=True)
            case "report":
                child.answer(**process.report())
            case verb:
                child.answer(error=f"unknown verb {verb}")


if __name__ == "__main__":
    asyncio.run(_main())
