"""Held heartbeats: held, pushed, superseded, abandoned."""

import pytest

from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Joined
from musterd.coordinator.runtime.answers import NotHere
from musterd.coordinator.runtime.heartbeats import CLIENT_IDLE_MS, Beat, BeatAnswer
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.timeouts import HEARTBEAT_INTERVAL_MS
from musterd.coordinator.runtime.turn import Joins
from musterd.raft.contract import NodeId
from tests.coordinator.fakes import Rig, id_of, join, leave, sync


class Held:
    """A node with one shard and held heartbeats."""

    def __init__(self):
        self.rig = Rig()
        self.beats = self.rig.assembly.core.heartbeats
        self.rig.log.lead()
        self.answers = {}
        self.beats.turn(self.rig.clock_ms)

    def stable(self, *members, session_ms=10_000):
        for member in members:
            self.rig.ask(f"join {member}", join(member, session_ms=session_ms))
        self.run(1_100)
        joined = self.rig.answers[f"join {members[0]}"]
        assert isinstance(joined, Joined)
        for member in members:
            self.rig.ask(f"sync {member}", sync(member, joined.generation))
        self.run(20)
        return joined.generation

    def run(self, ms):
        for _ in range(ms // 10):
            self.rig.turn()
            self.beats.turn(self.rig.clock_ms)

    def beat(
        self, name, seq, *members, generation=1, nonce="process", at_once=False, connection=""
    ):
        def respond(answer):
            assert name not in self.answers, "answered once"
            self.answers[name] = answer

        keys = [Beat(0, MemberKey("g", id_of(m)), generation) for m in members]
        return self.beats.beat(
            nonce, seq, keys, respond, at_once=at_once, connection=connection or nonce
        )


@pytest.fixture
def node():
    """A node that leads its one shard."""
    return Held()


def test_a_heartbeat_is_held_for_the_interval(node):
    """Nothing to say: the call is answered when the interval is over, all NONE."""
    node.stable("a", "b")
    node.beat("1", 1, "a", "b")
    node.run(HEARTBEAT_INTERVAL_MS - 100)
    assert node.answers == {}
    node.run(200)
    assert node.answers["1"] == BeatAnswer((Error.NONE, Error.NONE), HEARTBEAT_INTERVAL_MS)
    assert node.beats.held == 0


def test_a_held_heartbeat_is_a_first_sign_of_life(node):
    """Of a member that started with many: from then on it has its session, and no more (ADR 19)."""
    node.rig.ask("join", join("a"))
    for _ in range(200):
        node.rig.turn(joins=Joins.MANY)
    assert not node.rig.answers
    node.run(1_100)
    assert isinstance(node.rig.answers["join"], Joined)
    assert node.beat("1", 1, "a") is not None
    node.run(HEARTBEAT_INTERVAL_MS + 100)
    assert "1" in node.answers
    node.run(10_500)
    assert not node.rig.shard.state.groups["g"].members


def test_a_heartbeat_that_asks_for_it_is_answered_at_once(node):
    """Who lost a connection hears how it stands; its session counts from then, nothing is held."""
    node.stable("a", session_ms=6_000)
    node.beat("held", 1, "a")
    node.run(1_000)
    node.beat("asked", 2, "a", at_once=True)
    assert node.answers["held"].superseded
    assert node.answers["asked"].statuses == (Error.NONE,)
    assert node.beats.held == 0
    node.run(5_900)
    assert "a" in str(node.rig.shard.state.groups["g"].members)
    node.run(200)
    assert not node.rig.shard.state.groups["g"].members


def test_the_interval_is_at_most_a_third_of_the_shortest_session(node):
    """A session of 3 s is heard of every second."""
    node.stable("a", "b", session_ms=3_000)
    node.beat("1", 1, "a")
    node.run(1_100)
    assert node.answers["1"].interval_ms == 1_000


def test_a_round_that_opens_is_pushed(node):
    """A new member joins: the others are told at once, not at the end of their interval."""
    node.stable("a", "b")
    node.beat("1", 1, "a", "b")
    node.run(100)
    node.rig.ask("join c", join("c"))
    node.run(20)
    assert node.answers["1"].statuses == (
        Error.REBALANCE_IN_PROGRESS,
        Error.REBALANCE_IN_PROGRESS,
    )


def test_the_same_news_is_told_once_and_then_held(node):
    """A member that is still busy is not answered in a circle; the next call is held."""
    node.stable("a", "b")
    node.rig.ask("join c", join("c"))
    node.run(20)
    node.beat("1", 1, "a")
    assert node.answers["1"].statuses == (Error.REBALANCE_IN_PROGRESS,)
    node.beat("2", 2, "a")
    node.run(100)
    assert "2" not in node.answers
    node.run(HEARTBEAT_INTERVAL_MS)
    assert node.answers["2"].statuses == (Error.REBALANCE_IN_PROGRESS,)


def test_a_client_that_calls_again_before_its_call_is_answered_is_told_again(node):
    """What it was told was lost; it may wait for less long than its call would be held."""
    node.stable("a", "b", session_ms=3_000)
    node.rig.ask("leave a", leave("a"))
    node.run(20)
    told = (Error.UNKNOWN_MEMBER_ID, Error.REBALANCE_IN_PROGRESS)
    node.beat("lost", 1, "a", "b")
    assert node.answers["lost"].statuses == told
    node.beat("held", 2, "a", "b")
    node.run(600)
    assert "held" not in node.answers
    node.beat("again", 3, "a", "b")
    assert node.answers["held"].superseded
    assert node.answers["again"].statuses == told


def test_a_heartbeat_for_members_that_nobody_knows_is_never_held(node):
    """Whoever makes up names takes no place, and nothing is kept of it."""
    node.stable("a")
    for seq in range(3):
        node.beat(seq, seq, "nobody", nonce="stranger")
        assert seq in node.answers
        assert node.answers[seq].statuses == (Error.UNKNOWN_MEMBER_ID,)
    assert node.beats.held == 0
    assert not node.beats._clients


def test_one_connection_does_not_take_the_places_of_others(node, monkeypatch):
    """Neither by calls nor by the members that they name; what it gives back it may take again."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.PER_CONNECTION_MAX", 2)
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.MEMBERS_PER_CONNECTION_MAX", 3)
    node.stable("a", "b")
    first = node.beat("1", 1, "a", nonce="p1", connection="c")
    assert node.beat("too many members", 1, "a", "b", "a", nonce="p2", connection="c") is None
    assert node.beat("2", 1, "b", nonce="p2", connection="c") is not None
    assert node.beat("too many calls", 1, "a", nonce="p3", connection="c") is None
    assert node.beat("another", 1, "a", nonce="p4", connection="d") is not None
    node.beats.abandon(first)
    assert node.beat("again", 1, "a", nonce="p5", connection="c") is not None


def test_many_connections_of_one_client_leave_places(node, monkeypatch):
    """64 that take all they get leave a quarter (docs/adr/0017); eight one gets while there are."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.PER_MEMBER_MAX", 10**6)
    node.stable("a")

    def takes(connection, calls):
        return sum(
            node.beat(0, 1, "a", nonce=f"{connection}-{number}", connection=connection) is not None
            for number in range(calls)
        )

    for number in range(64):
        takes(f"c{number}", 520)
    assert 0.25 < 1 - node.beats.held / LIMITS.max_held_heartbeats < 0.4
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.HELD_MAX", node.beats.held + 100)
    assert takes("late", 20) == 8


def test_a_refused_heartbeat_was_heard(node, monkeypatch):
    """Its members do not expire because there is no place for their call."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.PER_CONNECTION_MAX", 0)
    node.stable("a")
    for seq in range(15):
        assert node.beat(seq, seq, "a") is None
        node.run(1_000)
    assert id_of("a") in node.rig.shard.state.groups["g"].members


def test_places_are_given_back(node):
    """Answered, superseded or broken off: nothing is left of a held call."""
    node.stable("a", "b")
    node.beat("answered", 1, "a", nonce="p1")
    node.run(HEARTBEAT_INTERVAL_MS + 100)
    node.beat("superseded", 1, "a", "nobody", nonce="p2")
    node.beats.abandon(node.beat("newer", 2, "b", nonce="p2"))
    places = node.beats._places
    assert not places._calls
    assert not places._members
    assert not places._of_member


def test_a_member_that_has_joined_the_round_is_held(node):
    """Its Join is parked: there is nothing it could do."""
    node.stable("a", "b")
    node.rig.ask("join c", join("c"))
    node.run(20)
    node.rig.ask("rejoin", join("a", member_id=id_of("a")))
    node.run(20)
    node.beat("1", 1, "a")
    node.run(100)
    assert "1" not in node.answers


def test_a_removed_member_is_told_at_once(node):
    """Errors are per member: the one that is gone is told, the other stands."""
    node.stable("a", "b")
    node.beat("1", 1, "a", "b")
    node.rig.ask("leave b", leave("b"))
    node.run(20)
    assert node.answers["1"].statuses == (Error.REBALANCE_IN_PROGRESS, Error.UNKNOWN_MEMBER_ID)


def test_a_wrong_generation_does_not_hold_the_session(node):
    """sc-H06: the zombie is told, and its session runs on."""
    node.stable("a")
    for seq in range(12):
        node.beat(seq, seq, "a", generation=7)
        node.run(1_000)
    assert node.answers[0].statuses == (Error.ILLEGAL_GENERATION,)
    assert id_of("a") not in node.rig.shard.state.groups["g"].members


def test_a_newer_call_answers_the_older_at_once(node):
    """And the end of the older means nothing: the members stay held."""
    node.stable("a")
    node.beat("1", 1, "a")
    node.beat("2", 2, "a")
    assert node.answers == {"1": BeatAnswer((), HEARTBEAT_INTERVAL_MS, superseded=True)}
    node.run(100)
    assert node.beats.held == 1


def test_an_older_call_that_comes_late_is_answered_at_once(node):
    """The order of arrival is not the order of sending: the higher call_seq stands."""
    node.stable("a")
    node.beat("2", 2, "a")
    node.beat("1", 1, "a")
    assert node.answers["1"].superseded
    assert "2" not in node.answers


def test_a_call_that_breaks_off_leaves_the_grace(node):
    """Its process died: the members go after 2 s instead of 10."""
    node.stable("a", "b")
    node.beat("b", 1, "b", nonce="other process")
    call = node.beat("1", 1, "a")
    node.run(100)
    node.beats.abandon(call)
    node.run(2_200)
    assert id_of("a") not in node.rig.shard.state.groups["g"].members
    assert id_of("b") in node.rig.shard.state.groups["g"].members


def test_a_superseded_call_that_breaks_off_means_nothing(node):
    """The client dropped an old call after it sent a new one."""
    node.stable("a")
    older = node.beat("1", 1, "a")
    node.beat("2", 2, "a")
    node.beats.abandon(older)
    node.run(1_900)
    node.beat("3", 3, "a")
    node.run(1_900)
    assert id_of("a") in node.rig.shard.state.groups["g"].members


def test_many_members_of_one_process_are_one_break(node):
    """A process with 20 members dies: that is one broken call, not a mass break."""
    members = [f"m{number}" for number in range(20)]
    node.stable(*members)
    call = node.beat("1", 1, *members)
    node.run(100)
    node.beats.abandon(call)
    node.run(2_500)
    assert not node.rig.shard.state.groups["g"].members


def test_a_demoted_shard_answers_its_members_at_once(node):
    """With NOT_COORDINATOR and what is known of the new leader."""
    node.stable("a")
    node.beat("1", 1, "a")
    node.rig.wakes = 0
    node.rig.log.follow(leader=NodeId(2))
    assert node.rig.wakes
    node.run(10)
    assert node.answers["1"].statuses == (NotHere(NodeId(2), node.rig.log.term),)


def test_a_held_call_that_outlives_a_leadership_counts_in_the_next_one(node):
    """Deposed and elected again before the call was looked at: its break still ends the member."""
    node.stable("a")
    call = node.beat("1", 1, "a")
    node.rig.log.follow()
    node.rig.log.lead()
    node.run(100)
    assert "1" not in node.answers
    node.beats.abandon(call)
    node.run(2_500)
    assert not node.rig.shard.state.groups["g"].members


def test_a_call_of_an_earlier_leadership_ends_no_hold_of_this_one(node):
    """A Join of the member that is held now keeps its session from running."""
    node.stable("a")
    call = node.beat("1", 1, "a")
    node.rig.log.follow()
    node.rig.log.lead()
    key, sessions = MemberKey("g", id_of("a")), node.rig.shard.sessions
    sessions.call_opened(key)
    node.beats.abandon(call)
    assert sessions._ends.get(key) is None


def test_a_lost_quorum_answers_held_calls(node):
    """sc-H20: no NONE later than the leader-fallback time."""
    node.stable("a")
    node.beat("1", 1, "a")
    node.rig.log.quorum_heard = False
    node.run(20)
    assert isinstance(node.answers["1"].statuses[0], NotHere)


def test_held_calls_have_a_maximum(node, monkeypatch):
    """One more is refused, and holds nobody's session."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.HELD_MAX", 1)
    node.stable("a", "b")
    node.beat("1", 1, "a", nonce="p1")
    assert node.beat("2", 1, "b", nonce="p2") is None
    assert "2" not in node.answers
    assert node.rig.call_limits.disconnects.held == 1
    node.run(1_000)
    assert node.rig.shard.sessions._ends.get(MemberKey("g", id_of("b"))) is not None
    assert LIMITS.max_held_heartbeats == 32_768


def test_the_interval_stretches_under_many_clients(node, monkeypatch):
    """Beyond 20 % of the loop the interval grows, up to a third of the session."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.HEARTBEATS_PER_S", 4)
    others = [f"m{number}" for number in range(20)]
    node.stable("a", *others)
    for member in others:
        node.beat(member, 1, member, nonce=member)
    node.beat("1", 1, "a", nonce="a")
    node.run(10_000)
    assert HEARTBEAT_INTERVAL_MS < node.answers["1"].interval_ms <= 10_000 // 3


def test_idle_clients_are_forgotten(node):
    """The table of clients does not grow with every process that ever called."""
    node.stable("a")
    for number in range(50):
        node.beat(f"gone {number}", 1, "a", nonce=f"p{number}", at_once=True)
    assert len(node.beats._clients) == 50
    node.run(61_000)
    assert len(node.beats._clients) == 0


def test_a_move_looks_once_a_turn_at_the_members_of_its_group_alone(node, monkeypatch):
    """20 Leaves in an entry looked at 160,000 members 20 times: ten seconds without a heartbeat."""
    node.stable("a")
    leaving = ["x", "y", "z"]
    for member in leaving:
        node.rig.ask(f"join {member}", join(member, group="h"))
    node.run(1_100)
    strangers = [Beat(0, MemberKey("h", f"stranger {number}"), 1) for number in range(5)]
    beats = [Beat(0, MemberKey("g", id_of("a")), 1), *strangers]
    answers = []
    for seq in range(2):  # what the first was told is no news
        call = node.beats.beat("process", seq, beats, answers.append)
    assert call.held
    looked_at, heartbeat = [], node.rig.shard.heartbeat

    def looking(key, *rest):
        looked_at.append(key)
        return heartbeat(key, *rest)

    monkeypatch.setattr(node.rig.shard, "heartbeat", looking)
    for member in leaving:
        node.rig.ask(f"leave {member}", leave(member, group="h"))
    node.run(10)
    assert not node.rig.shard.state.groups["h"].members
    assert looked_at == [beat.key for beat in strangers]
    assert call.held
    assert not call.ended


def test_a_turn_answers_a_few_members_that_must_act_and_wakes_the_next(node, monkeypatch):
    """Calls of 160,000 members in one turn would stop the node for a second."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.BEATS_PER_TURN", 2)
    node.stable("a", "b", "c")
    for member in "abc":
        node.beat(member, 1, member, nonce=member)
    node.rig.ask("join d", join("d"))
    node.rig.turn()
    for answered in range(1, 4):
        node.rig.wakes = 0
        node.beats.turn(node.rig.clock_ms)
        assert len(node.answers) == answered
        assert bool(node.rig.wakes) == (answered < 3)


def test_a_call_that_has_ended_leaves_no_group_to_look_at(node):
    """The places of 160,000 strangers whose calls were answered took a turn of 12 s."""
    node.stable("a")
    strangers = [Beat(0, MemberKey(f"h{number}", "stranger"), 1) for number in range(5)]
    beats = [Beat(0, MemberKey("g", id_of("a")), 1), *strangers]
    for seq in range(2):
        call = node.beats.beat("process", seq, beats, lambda _: None)
    node.beats.shard_moved(0)
    assert len(node.beats._moved) == 6
    node.beats.abandon(call)
    assert not node.beats._moved
    assert not node.beats._by_group


def test_what_members_were_told_is_kept_of_so_many_alone(node, monkeypatch):
    """One client with ever new nonces had 87 MiB of it kept for a minute."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.TOLD_MAX", 12)
    node.stable("a")
    strangers = [Beat(0, MemberKey("h", f"stranger {number}"), 1) for number in range(5)]
    beats = [Beat(0, MemberKey("g", id_of("a")), 1), *strangers]
    for number in range(4):
        node.beats.beat(f"p{number}", 1, beats, lambda _: None, at_once=True)
    told = [len(client.told) for client in node.beats._clients.values()]
    assert told == [5, 5, 0, 0]
    held = [node.beats.beat(f"p{number}", 2, beats, lambda _: None).held for number in range(4)]
    assert held == [True, True, False, False]
    node.beats.turn(node.rig.clock_ms + CLIENT_IDLE_MS + HEARTBEAT_INTERVAL_MS)
    node.beats.turn(node.rig.clock_ms + 3 * CLIENT_IDLE_MS)
    assert node.beats._told == sum(len(client.told) for client in node.beats._clients.values()) == 0


def test_a_turn_ends_a_few_intervals_and_wakes_the_next(node, monkeypatch):
    """Calls that came together end together."""
    monkeypatch.setattr("musterd.coordinator.runtime.heartbeats.BEATS_PER_TURN", 1)
    node.stable("a", "b", "c")
    for member in "abc":
        node.beat(member, 1, member, nonce=member)
    for answered in range(1, 4):
        node.rig.wakes = 0
        node.beats.turn(node.rig.clock_ms + HEARTBEAT_INTERVAL_MS)
        assert len(node.answers) == answered
        assert node.rig.wakes
