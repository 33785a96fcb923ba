"""Golden scenarios of the assignors: tests/testdata/assignors/*.txt.

The first line names the rules that the file shows. Then blocks: commands, one a line, `----`, what
they print, an empty line. Each file is one group over time.

    topics A:3 B:3            the topics that exist, with their partition counts
    member ID TOPICS [instance=I] [owned=A0,A1] [gen=N] [keeps] [data=TEXT]
              TOPICS is A,B or - for none; a member that is there already is replaced
    old ID TOPICS             a member of the first SDK: it says its topics and nothing else
    gone ID ...
    restart ID NEW            the same process description under a new member id, owning nothing
    assign NAME               who shall own what
    round NAME                the same, and members own it from then on, under the next generation;
                              cooperative: they keep it, and what moves is withheld for this round

Every assignment is computed again with the members in other orders, and goes through the bytes that
members really exchange.
"""

import itertools
from dataclasses import replace
from pathlib import Path

from muster.assignors import Subscriber, checked_shares, resolve, withheld
from muster.group.consumer_protocol import decode_subscription, encode_subscription
from muster.types import TopicPartition
from muster.v1 import group_pb2

ORDERS_MAX = 24


def run_file(path: Path) -> tuple[str, str]:
    """The file as recorded, and as this build would record it."""
    recorded = path.read_text("utf-8")
    head, *blocks = recorded.strip("\n").split("\n\n")
    group = Members()
    parts = [head]
    for block in blocks:
        lines, _, _ = block.partition("\n----")
        said = [line for line in lines.splitlines() if not line.startswith("#")]
        printed = [out for line in said for out in group.run(line)]
        parts.append("\n".join([lines, "----", *printed]))
    return recorded, "\n\n".join(parts) + "\n"


class Members:
    """A group, its topics, and who owned what last."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.members: dict[str, Subscriber] = {}
        self.generation = 0

    def run(self, line: str) -> list[str]:
        """One command; what it prints."""
        verb, *args = line.split()
        return getattr(self, f"do_{verb}")(*args) or []

    def do_topics(self, *topics):
        self.counts = {name: int(count) for name, count in (t.split(":") for t in topics)}

    def do_member(self, member_id, topics, *options):
        named = dict(one.split("=", 1) for one in options if "=" in one)
        owned = [_key(one) for one in named.get("owned", "").split(",") if one]
        said = encode_subscription(
            _topics(topics),
            owned=owned,
            generation=int(named.get("gen", self.generation if owned else -1)),
            keeps_owned="keeps" in options,
            user_data=named.get("data", "").encode(),
        )
        self.members[member_id] = decode_subscription(member_id, said, named.get("instance", ""))

    def do_old(self, member_id, topics):
        said = group_pb2.ConsumerSubscription(topics=_topics(topics)).SerializeToString()
        self.members[member_id] = decode_subscription(member_id, said)

    def do_gone(self, *member_ids):
        for member_id in member_ids:
            del self.members[member_id]

    def do_restart(self, member_id, new_id):
        before = self.members.pop(member_id)
        self.members[new_id] = replace(before, member_id=new_id, owned=(), generation=-1)

    def do_assign(self, name):
        shares, waits = self._assign(name)
        return self._show(shares, waits)

    def do_round(self, name):
        shares, waits = self._assign(name)
        moved = self._moved(shares)
        self.generation += 1
        (assignor,) = resolve(name)
        for member_id, member in self.members.items():
            self.members[member_id] = replace(
                member,
                owned=tuple(key for key in shares[member_id] if key not in waits),
                generation=self.generation,
                keeps_owned=bool(getattr(assignor, "cooperative", False)),
            )
        return [*self._show(shares, waits), f"moved: {moved}"]

    def _assign(self, name):
        (assignor,) = resolve(name)
        members = list(self.members.values())
        shares = checked_shares(assignor, members, self.counts)
        for order in itertools.islice(itertools.permutations(members), ORDERS_MAX):
            assert checked_shares(assignor, order, self.counts) == shares, "order decides"
        return shares, withheld(shares, members)

    def _moved(self, shares) -> int:
        """Partitions that had a living owner and get another."""
        owner = {key: m for m, member in self.members.items() for key in member.owned}
        return sum(
            owner.get(key, member_id) != member_id
            for member_id, keys in shares.items()
            for key in keys
        )

    def _show(self, shares, waits) -> list[str]:
        lines = []
        for member_id in sorted(self.members):
            keys = sorted(shares[member_id])
            said = " ".join(f"{t}{p}" + "*" * ((t, p) in waits) for t, p in keys)
            lines.append(f"{member_id}: {said or '-'}")
        return lines


def _topics(text: str) -> list[str]:
    return [] if text == "-" else text.split(",")


def _key(text: str) -> TopicPartition:
    return TopicPartition(text[0], int(text[1:]))
