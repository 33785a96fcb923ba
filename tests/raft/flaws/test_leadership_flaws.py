"""Flaws of elections and leadership: what SyncObj counts or keeps, and Replica does not."""

from collections.abc import Callable

from tests.raft.flaws.hand import HEARTBEAT_S, Group

Make = Callable[..., Group]


def test_f2_an_ack_of_an_earlier_leadership_is_never_counted(make: Make) -> None:
    """pso-F2: A leads, B leads, A leads again: an ack of the first time commits nothing."""
    g = make(batch_bytes=30)
    g.elect(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.propose(0, 10)
    for other in (1, 2):
        g.drop(0, other)
    g.elect(2, [1])  # its no-op stays with it
    for a, b in ((2, 1), (1, 2)):
        g.drop(a, b)
    g.disconnect(1, 2)
    g.connect(0, 1)
    g.depose(0)
    g.elect(0, [1])

    def step() -> None:
        g.tick(0, HEARTBEAT_S)
        g.deliver(0, 1, 1)
        if g.end(1)[0] < 9:
            g.deliver(1, 0)

    assert g.until(step, lambda: g.end(1)[0] >= 9)
    acks = list(g.queued(1, 0))[-1:]
    acked_to = g.end(1)[0]
    assert acks
    for a, b in ((0, 1), (1, 0)):
        g.drop(a, b)
    g.disconnect(0, 1)
    g.connect(1, 2)
    g.depose(2)
    g.elect(2, [1])
    for a, b in ((2, 1), (1, 2)):
        g.drop(a, b)
    g.disconnect(1, 2)
    g.connect(0, 2)
    assert g.until(lambda: g.replicate(2, [0], 1), lambda: g.end(0) == g.end(2))
    g.elect(0, [2])
    for a, b in ((0, 2), (2, 0)):
        g.drop(a, b)
    g.disconnect(0, 2)
    g.connect(0, 1)
    g.propose(0, 8)
    before = g.commit_index(0)
    assert g.end(0)[0] >= acked_to, "the ack lies within the leader's log"
    g.hand_over(1, 0, acks[0])
    g.tick(0, 0.001)
    commit = g.commit_index(0)
    elsewhere = dict(g.log(1)).get(commit) == g.term(0) or dict(g.log(2)).get(commit) == g.term(0)
    committed_alone = commit > before and not elsewhere
    assert committed_alone is g.stock


def test_f3_a_deposed_leader_stops_leading_once_it_reaches_anybody(make: Make) -> None:
    """pso-F3: within a second of a contact with the newer term the old leader has stepped down."""
    g = make()
    g.elect(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.elect(1, [2])
    g.propose(1)
    g.replicate(1, [2])
    g.connect(0, 2)

    def step() -> None:
        g.tick(0, 0.1)
        g.deliver(0, 2)
        g.deliver(2, 0)

    stopped = g.until(step, lambda: not g.leads(0), tries=10)
    assert g.leads(1)
    assert stopped is not g.stock


def test_f7_a_repeated_vote_counts_once(make: Make) -> None:
    """pso-F7: five nodes: a candidate with two votes, one of them delivered twice, is no leader."""
    g = make(nodes=5)
    g.campaign(0)
    g.deliver(0, 1)
    (vote,) = g.queued(1, 0)
    g.drop(1, 0)
    g.hand_over(1, 0, vote)
    g.hand_over(1, 0, vote)
    assert g.leads(0) is g.stock
    g.deliver(0, 2)
    g.deliver(2, 0)
    assert g.leads(0), "a third voter makes it leader"


def test_f8_a_rejoining_node_never_deposes_a_healthy_leader(make: Make) -> None:
    """pso-F8: a node that heard nobody for a while comes back without disturbing the others."""
    g = make()
    g.elect(0)
    g.replicate(0, [1, 2])
    g.disconnect(0, 2)
    for _ in range(50):  # its link to node 1 is up, but nothing arrives
        g.tick(2, 0.1)
        g.replicate(0, [1], 1)
        g.drop(2, 1)
    g.propose(0)
    g.replicate(0, [1])
    g.connect(0, 2)
    term = g.term(0)
    for _ in range(20):
        g.tick(2, 0.1)
        g.replicate(0, [1], 1)
        for healthy in (0, 1):
            g.deliver(2, healthy)
    deposed = not g.leads(0) or g.term(0) > term
    assert deposed is g.stock


def test_f8b_a_lost_vote_is_granted_again_to_the_same_candidate(make: Make) -> None:
    """pso-F8b: a candidate whose answer was lost gets it on asking again, in the same term."""
    g = make()
    g.campaign(0)
    request = g.queued(0, 1)[-1]
    g.deliver(0, 1)
    assert g.queued(1, 0), "the first request was granted"
    g.drop(1, 0)
    g.hand_over(0, 1, request)
    again = g.deliver(1, 0)
    assert (again == 0) is g.stock
    assert g.leads(0) is not g.stock


def test_f10_leadership_can_be_handed_over_under_load(make: Make) -> None:
    """pso-F10: with a command offered in every round, a leader that shall go is gone soon."""
    g = make()
    g.elect(0)
    g.replicate(0, [1, 2])

    def step() -> None:
        g.propose(0)
        g.hand_leadership_over(0, 1)
        g.tick(0, HEARTBEAT_S)
        for a, b in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
            g.deliver(a, b)
        g.propose(0)  # one more is on its way whenever the leader looks
        g.tick(1, 0.001)

    handed_over = g.until(step, lambda: g.leads(1), tries=20)
    assert handed_over is not g.stock


def test_f16_a_deposed_leader_waits_for_a_full_timeout(make: Make) -> None:
    """pso-F16: whoever just lost leadership gives the others time to elect."""
    g = make()
    g.elect(0)
    for _ in range(30):
        g.replicate(0, [1, 2], 1)
    for other in (1, 2):
        g.drop(0, other)
    g.depose(0)
    for other in (1, 2):
        g.drop(0, other)
    g.tick(0, 0.001)
    assert g.is_campaigning(0) is g.stock
