"""Golden scenarios of sessions and rounds: tests/testdata/sessions/*.txt.

Blocks of `command args` / `----` / output. Time is given, never waited for. Commands:

promote GROUP/MEMBER:SESSION ...   a new leader with these members
joined GROUP/MEMBER SESSION [static] the member is in the applied group
gone GROUP/MEMBER                  it was removed
timer GROUP ROUND TIMER DEADLINE   the group's round timer in applied state; `timer GROUP none`
formed GROUP/MEMBER ...            a generation of these members formed
open | reply | break GROUP/MEMBER  a held call of the member begins, ends with a reply, breaks off
beat GROUP/MEMBER                  such a call begins, and is a heartbeat
heard GROUP/MEMBER                 a call that was not held
left GROUP/MEMBER                  whether its process seems gone
why GROUP/MEMBER                   the reason that its removal would carry now
run MS [lag=MS] [paused] [still] [many] [herd]
                                   turns of 10 ms for so long; prints what fires and when
                                   (`lag`: the first turn is late by so much; `still`: the loop
                                   makes no full round; `many`: Joins come as when a fleet starts;
                                   `herd`: more than are taken)
crowd COUNT SESSION                members crowd/m0 .. with a held call each
crowdbreak FIRST LAST              the calls of these break off within one turn
"""

from pathlib import Path

import pytest

from musterd.coordinator.machine.commands import CloseRound, RoundTimer
from musterd.coordinator.machine.state import DeadlineKey, Group, Member
from musterd.coordinator.runtime import sessions as module
from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.coordinator.runtime.shard_time import ShardTime

HERE = Path(__file__).parents[2] / "testdata" / "sessions"


class Bench:
    """The sessions of a shard with their clock, spoken to in words."""

    def __init__(self):
        self.sessions = Sessions()
        self.disconnects = DisconnectDetector()
        self.time = ShardTime()
        self.clock_ms = 1_000_000
        self.loop_round = 0
        self.time.advance(self.clock_ms)

    def run(self, command: str, *args: str) -> str:
        return getattr(self, f"do_{command}")(*args) or "ok"

    def do_promote(self, *members):
        groups = {}
        for spec in members:
            name, session = spec.split(":")
            key = _key(name)
            group = groups.setdefault(key.group_id, Group(key.group_id))
            group.members[key.member_id] = _member(key.member_id, int(session))
        self.sessions = Sessions(groups.values(), self.time.now_ms)
        ends = self.sessions._ends
        return "\n".join(
            f"{key.group_id}/{key.member_id} ends in {ends.get(key) - self.sessions._clock_ms}"
            for key in ends
        )

    def do_joined(self, name, session, *flags):
        self.sessions.member_present(_key(name), int(session), static="static" in flags)

    def do_gone(self, name):
        self.sessions.member_gone(_key(name))

    def do_timer(self, group_id, *rest):
        group = Group(group_id)
        if rest != ("none",):
            number, timer, deadline, *members = rest
            for member in range(int(members[0]) if members else 0):
                group.members[f"m{member}"] = _member(f"m{member}", 0)
            group.round, group.timer = int(number), RoundTimer[timer]
            group.deadline_ms = int(deadline)
        self.sessions.rounds_changed(group_id, group)

    def do_formed(self, *names):
        keys = [_key(name) for name in names]
        group = Group(keys[0].group_id)
        group.members = {key.member_id: _member(key.member_id, 0) for key in keys}
        self.sessions.formed(group)
        self.sessions.rounds_changed(group.group_id, group)

    def do_open(self, name):
        self.disconnects.opened()
        self.sessions.call_opened(_key(name))

    def do_beat(self, name):
        self.disconnects.opened()
        self.sessions.call_opened(_key(name), heartbeat=True)

    def do_reply(self, name):
        self.disconnects.closed()
        self.sessions.call_closed(_key(name), replied=True)

    def do_break(self, name):
        self.disconnects.closed()
        self.sessions.call_closed(_key(name), replied=False)
        self.disconnects.broke(lambda: self.sessions.heard(_key(name)))

    def do_heard(self, name):
        self.sessions.heard(_key(name))

    def do_why(self, name):
        return self.sessions.why_silent(_key(name))

    def do_left(self, name):
        return "gone" if self.sessions.is_disconnected(_key(name)) else "there"

    def do_crowd(self, count, session):
        for number in range(int(count)):
            self.do_joined(f"crowd/m{number}", session)
            self.do_open(f"crowd/m{number}")

    def do_crowdbreak(self, first, last):
        for number in range(int(first), int(last) + 1):
            self.do_break(f"crowd/m{number}")

    def do_run(self, span, *flags):
        lag = next((int(f[4:]) for f in flags if f.startswith("lag=")), 0)
        many_joins = "many" in flags or "herd" in flags
        fired = []
        end_ms = self.clock_ms + int(span)
        while self.clock_ms < end_ms:
            self.clock_ms += 10 + lag
            if "still" not in flags:
                self.loop_round += 1
            self.disconnects.turn(self.clock_ms)
            now = self.time.advance(self.clock_ms)
            self.sessions.turn(
                now,
                lag_ms=lag,
                loop_round=self.loop_round,
                waited_rounds=0,
                heard="paused" not in flags,
                herd="herd" in flags,
            )
            fired += [
                f"{now} close {closing.group_id} round {closing.round} {closing.timer.name}"
                f" {closing.deadline_ms}"
                for closing in self.sessions.rounds_due(many_joins=many_joins)
            ]
            fired += [
                f"{now} expire {key.group_id}/{key.member_id}"
                for key in self.sessions.sessions_due()
            ]
            lag = 0
        return "\n".join(fired) or "nothing"


def _key(name: str) -> MemberKey:
    return MemberKey(*name.split("/"))


def _member(member_id: str, session_ms: int) -> Member:
    return Member(member_id, "client", "host", session_ms, 60_000, (), (), 0, 0)


def _blocks(text: str) -> list[tuple[str, list[str], str]]:
    """(comment lines before, commands, expected output) of each block.

    A block ends at a blank line.
    """
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        comment = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        if rest:
            cut = rest.index("----")
            blocks.append(("\n".join(comment), rest[:cut], "\n".join(rest[cut + 1 :])))
        else:
            blocks.append(("\n".join(comment), [], ""))
    return blocks


def _play(text: str) -> str:
    bench = Bench()
    played = []
    for comment, commands, _ in _blocks(text):
        outputs = [bench.run(*command.split()) for command in commands]
        parts = [comment] if comment else []
        if commands:
            said = [output for output in outputs if output != "ok"] or ["ok"]
            parts += [*commands, "----", *said]
        played.append("\n".join(parts))
    return "\n\n".join(played) + "\n"


FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path, request, golden):
    """The output of each block is what the file says."""
    text = path.read_text("utf-8")
    played = _play(text)
    golden(path)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played, "utf-8")
    assert played == text


def test_there_are_scenarios():
    """The folder is found: an empty one would test nothing."""
    assert len(FILES) >= 8


def test_a_timer_of_a_member_fires_for_it(monkeypatch):
    """In a modern group, whose earliest deadline is armed; with its number, not a round's."""
    key = DeadlineKey("g", 3, RoundTimer.REVOCATION, "m")
    monkeypatch.setattr(module, "deadlines", lambda _group: [(key, 50)])
    bench = Bench()
    bench.sessions.rounds_changed("g", Group("g"))
    bench.run("run", "40")
    assert not bench.sessions.rounds_due(many_joins=True)
    bench.clock_ms += 10
    now = bench.time.advance(bench.clock_ms)
    bench.sessions.turn(now, lag_ms=0, loop_round=9, waited_rounds=0, heard=True, herd=False)
    closing = bench.sessions.rounds_due(many_joins=True)
    assert closing == [CloseRound("g", 3, RoundTimer.REVOCATION, 50, "m")]
