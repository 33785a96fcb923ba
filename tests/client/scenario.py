"""Golden scenarios of the membership: tests/testdata/client/*.txt.

The first line says why the file exists. Then blocks: inputs, one a line, `----`, the actions that
they bring, an empty line. An input's words:

    static INSTANCE                                      a static member from the start: first line
    start | released | left | timer [id=N] | close [leave | stay] | subscribe TOPIC ...
    joined gen=5 [member=c-n1] [leader=c-n1] [protocol=range] [members=c-n1:t,c-n2:t] [counts=t:4]
           [skip] [assignment=t-0+t-1]
        (a member that had t-0 and t-1 under generation 4: c-n1:t:t-0+t-1@4; that keeps them: @4*)
    join-refused ERROR [member=...] [park] [held=25000] [retriable]
    synced [t-0 t-1 ...] [awaited=t-2] [protocol=range] [garbage]
    sync-refused ERROR [park] [held=25000]
    heartbeat ERROR [as=c-n1/5]                          commit ERROR [as=c-n1/5]

`call=N` answers an older Join or Sync than the last; `as=` says under which identity a heartbeat or
commit went out. A line `# assignors: a b` in the head is the member's list, by default range; its
first one is the protocol that is answered where the line does not say another. Jitter draws 0.5
always; nonces are n1, n2, ...
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from muster.assignors import resolve
from muster.errors import ErrorCode
from muster.group.actions import (
    AbandonCalls,
    Action,
    Claim,
    Close,
    CommitRefused,
    Ended,
    Fail,
    Give,
    HeartbeatAnswered,
    Identity,
    Input,
    JoinAnswered,
    JoinRefused,
    KeepAlive,
    LeaveAnswered,
    Lose,
    MemberConfig,
    Refusal,
    Released,
    Resubscribe,
    Revoke,
    SendJoin,
    SendLeave,
    SendSync,
    Start,
    StartTimer,
    StopKeepAlive,
    SyncAnswered,
    SyncRefused,
    TimerFired,
)
from muster.group.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from muster.group.membership import Membership
from muster.types import TopicPartition


def membership(assignors: Sequence[str], instance_id: str = "") -> Membership:
    """A member of group g, client id c, and nothing left to chance."""
    numbers = itertools.count(1)
    return Membership(
        MemberConfig("g", "c", resolve(assignors), instance_id),
        draw_nonce=lambda: f"n{next(numbers)}",
        jitter=lambda: 0.5,
    )


def run_file(path: Path) -> tuple[str, str]:
    """The file as recorded, and as this build would record it."""
    recorded = path.read_text()
    head, *blocks = recorded.strip("\n").split("\n\n")
    listed = re.search(r"^# assignors: (.*)$", head, re.MULTILINE)
    world = World(*listed[1].split()) if listed else World()
    parts = [head]
    for block in blocks:
        lines, _, _ = block.partition("\n----")
        inputs = [line for line in lines.splitlines() if not line.startswith("#")]
        printed = [out for line in inputs for out in world.run(line)]
        parts.append("\n".join([lines, "----", *printed]))
    return recorded, "\n\n".join(parts) + "\n"


class World:
    """One membership and what was last asked of the outside."""

    def __init__(self, *assignors: str) -> None:
        self.assignors = assignors or ("range",)
        self.machine = membership(self.assignors)
        self.protocol = self.assignors[0]
        self.call_id = 0
        self.timer_id = 0

    def run(self, line: str) -> list[str]:
        """One input; the actions, then where the member stands."""
        if line.startswith("static "):
            self.machine = membership(self.assignors, line.removeprefix("static ").strip("-"))
            return [f"= {self.machine.state} static"]
        actions = self.machine.handle(self.parse(line))
        for action in actions:
            if isinstance(action, SendJoin | SendSync):
                self.call_id = action.call_id
            if isinstance(action, StartTimer):
                self.timer_id = action.timer_id
        identity = self.machine.identity
        where = f"= {self.machine.state} {identity.member_id or '-'}/{identity.generation}"
        return [*(show(action) for action in actions), where]

    def parse(self, line: str) -> Input:  # noqa: C901, PLR0911 - one arm per word
        """One line."""
        word, *rest = line.split()
        flags = {one for one in rest if "=" not in one}
        named = dict(one.split("=", 1) for one in rest if "=" in one)
        code = next((int(ErrorCode[f]) for f in flags if f in ErrorCode.__members__), 0)
        code = next((int(f) for f in flags if f.lstrip("-").isdecimal()), code)
        refusal = Refusal(code, retriable="retriable" in flags, park_again="park" in flags)
        call_id = int(named.get("call", self.call_id))
        held_ms = int(named.get("held", 0))
        match word:
            case "start":
                return Start()
            case "joined":
                return self._joined(call_id, named, flags)
            case "join-refused":
                return JoinRefused(call_id, refusal, named.get("member", ""), held_ms)
            case "synced":
                return self._synced(call_id, named, flags)
            case "sync-refused":
                return SyncRefused(call_id, refusal, held_ms)
            case "heartbeat":
                return HeartbeatAnswered(self._identity(named), refusal)
            case "commit":
                return CommitRefused(self._identity(named), refusal)
            case "released":
                return Released()
            case "subscribe":
                return Resubscribe(frozenset(rest))
            case "timer":
                return TimerFired(int(named.get("id", self.timer_id)))
            case "close":
                return Close("bye", {"leave": True, "stay": False}.get(next(iter(flags), "")))
            case "left":
                return LeaveAnswered()
        raise ValueError(line)

    def _identity(self, named: dict[str, str]) -> Identity:
        if "as" not in named:
            return self.machine.identity
        member_id, generation = named["as"].split("/")
        return Identity(member_id, int(generation))

    def _joined(self, call_id: int, named: dict[str, str], flags: set[str]) -> JoinAnswered:
        member_id = named.get("member", "c-n1")
        members = [one.split(":") for one in named.get("members", "").split(",") if one]
        counts = [one.split(":") for one in named.get("counts", "").split(",") if one]
        made = [one.split(":") for one in named.get("made", "").split(",") if one]
        return JoinAnswered(
            call_id=call_id,
            member_id=member_id,
            generation=int(named["gen"]),
            protocol_name=named.get("protocol", self.protocol),
            leader_id=named.get("leader", "other"),
            members=tuple((m, _subscription(*said), "") for m, *said in members),
            partition_counts={topic: int(count) for topic, count in counts},
            skip_assignment="skip" in flags,
            assignment=_encoded(named["assignment"]) if "assignment" in named else None,
            previous_generation=int(named.get("previous", 0)),
            creation_versions={t: int(v) for t, v in made},
        )

    def _synced(self, call_id: int, named: dict[str, str], flags: set[str]) -> SyncAnswered:
        keys = "GARBAGE" if "garbage" in flags else "+".join(sorted(flags))
        encoded = _encoded(keys, named.get("awaited", ""))
        return SyncAnswered(call_id, encoded, named.get("protocol", self.protocol))


def _encoded(partitions: str, awaited: str = "") -> bytes:
    """`t-0+t-1`, or "GARBAGE"."""
    if partitions == "GARBAGE":
        return b"\xff"
    return encode_assignment(_keys(partitions), _keys(awaited))


def _keys(partitions: str) -> list[TopicPartition]:
    named = (one.rsplit("-", 1) for one in partitions.split("+") if one)
    return [TopicPartition(topic, int(partition)) for topic, partition in named]


def _subscription(topics: str, claim: str = "@-1") -> bytes:
    """`t+u` and `t-0+t-1@4*`."""
    if topics == "GARBAGE":
        return b"\xff"
    owned, generation = claim.split("@")
    keys = [one.rsplit("-", 1) for one in owned.split("+") if one]
    return encode_subscription(
        topics.split("+"),
        owned=[TopicPartition(t, int(p)) for t, p in keys],
        generation=int(generation.rstrip("*")),
        keeps_owned=generation.endswith("*"),
    )


def show(action: Action) -> str:  # noqa: C901, PLR0911, PLR0912 - one arm per action
    """An action on one line."""
    match action:
        case SendJoin(call_id, member_id, nonce, reason, claim, released, known):
            said = f"send Join {call_id} member={member_id or '-'} nonce={nonce} ({reason})"
            said += " released" * released
            if claim == Claim():
                return said
            keys = ",".join(map(str, claim.partitions))
            said += f" {'keeps' if claim.keeps else 'had'} [{keys}] of {claim.generation}"
            return said if known in (0, claim.generation) else f"{said}, knows {known}"
        case SendSync(call_id, identity, protocol, assignments):
            shares = " ".join(
                f"{m}=[{','.join(map(str, decode_assignment(a)))}]" for m, a in assignments
            )
            who = f"{identity.member_id}/{identity.generation}"
            return f"send Sync {call_id} as={who} protocol={protocol} {shares}".rstrip()
        case SendLeave(member_id, reason):
            return f"send Leave member={member_id} ({reason})"
        case KeepAlive(identity):
            return f"keep alive {identity.member_id}/{identity.generation}"
        case StopKeepAlive():
            return "stop keeping alive"
        case Give(assignment):
            return f"give {_assignment(assignment)}"
        case Revoke(assignment, reason):
            return f"revoke {_assignment(assignment)} ({reason})"
        case Lose(assignment, reason):
            return f"lose {_assignment(assignment)} ({reason})"
        case StartTimer(timer_id, delay_ms, reason):
            return f"timer {timer_id} in {delay_ms} ms ({reason})"
        case AbandonCalls():
            return "abandon calls"
        case Fail(error):
            return f"fail {type(error).__name__}"
        case Ended():
            return "ended"


def _assignment(assignment: object) -> str:
    keys = ",".join(map(str, assignment.partitions))
    return f"[{keys}] generation {assignment.generation}"
