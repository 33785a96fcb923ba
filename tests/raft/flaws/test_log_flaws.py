"""Flaws of log replication: what SyncObj cuts or never sends, and Replica does not."""

from collections.abc import Callable

from tests.raft.flaws.hand import HEARTBEAT_S, Group

Make = Callable[..., Group]


def test_f1_an_ack_of_the_first_batch_never_makes_the_follower_cut_later_ones(make: Make) -> None:
    """pso-F1: no failure, no reset: acknowledged commands survive the leader's crash."""
    g = make(batch_bytes=30)
    g.elect(0)
    g.replicate(0, [1, 2])
    for command in range(1, 15):
        g.enqueue(0, command)
    g.tick(0, 0.001)
    g.tick(0, HEARTBEAT_S)
    g.isolate(2)
    g.drop(0, 2)
    sent = g.appends(0, 1)
    batches = g.deliver(0, 1)
    reached = g.end(1)
    g.deliver(1, 0, 1)  # the leader sees the ack of the first batch alone
    g.tick(0, HEARTBEAT_S)
    g.deliver(1, 0)
    g.tick(0, 0.001)
    assert batches > 1
    assert g.answers.acked, "the clients were told of success"
    g.deliver(0, 1, 1)  # of what was sent again, one batch arrives,
    g.hand_over(0, 1, sent[0])  # and the network repeats the first one; then the leader dies
    cut = g.end(1) < reached
    g.crash(0)
    g.drop(0, 1)
    g.connect(1, 2)
    g.elect(1, [2])
    for _ in range(4):
        g.replicate(1, [2])
    assert cut is g.stock
    assert bool(g.lost(1) or g.lost(2)) is g.stock


def test_f1b_a_stale_reset_never_cuts_a_matched_prefix(make: Make) -> None:
    """pso-F1b: a reset that overtakes newer acks changes nothing at the follower."""
    g = make(batch_bytes=30)
    g.elect(0)
    g.replicate(0, [1, 2])
    g.disconnect(0, 1)
    g.propose(0, 4)
    g.replicate(0, [2])
    g.connect(0, 1)
    g.set_next_index(0, 1, g.end(0)[0] + 1)
    g.drop(0, 1)
    g.tick(0, HEARTBEAT_S)
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1)
    stale = list(g.queued(1, 0))
    assert stale, "node 1 answered that it lacks the entries"
    g.deliver(1, 0, 1)
    g.tick(0, HEARTBEAT_S)
    batch = g.appends(0, 1)[0]
    assert g.until(lambda: _exchange(g, 0, 1), lambda: g.end(1) == g.end(0))
    g.deliver(1, 0)
    g.tick(0, 0.001)
    before, commit = g.end(1), g.commit_index(0)
    g.hand_over(1, 0, stale[-1])
    g.drop(0, 1)
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1, 1)
    if g.end(1) == before:
        g.hand_over(0, 1, batch)  # what an earlier reset had sent
    assert before[0] >= commit > 4
    assert (g.end(1)[0] < commit) is g.stock


def _exchange(g: Group, leader: int, peer: int) -> None:
    g.tick(leader, HEARTBEAT_S)
    g.deliver(leader, peer)
    g.deliver(peer, leader)


def test_f1c_two_resets_in_order_never_lose_an_acknowledged_command(make: Make) -> None:
    """pso-F1c: strict fifo: the second of two resets makes nobody drop what was acknowledged."""
    g = make(batch_bytes=30)
    g.elect(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.propose(0, 4)
    g.connect(0, 1)
    g.set_next_index(0, 1, g.end(0)[0] + 1)
    g.drop(0, 1)
    g.tick(0, HEARTBEAT_S)
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1)
    assert len(g.queued(1, 0)) >= 2, "two resets are on their way"
    g.deliver(1, 0, 1)
    g.tick(0, HEARTBEAT_S)
    first_copy = len(g.queued(0, 1))
    batch = g.appends(0, 1)[0]
    g.deliver(1, 0)
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1, first_copy)
    if not g.stock:  # its window sends the rest only when the first part is acknowledged
        g.until(lambda: _exchange(g, 0, 1), lambda: len(g.answers.acked) == 4)
    g.deliver(1, 0)
    g.tick(0, 0.001)
    assert len(g.answers.acked) == 4
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1, 1)
    g.hand_over(0, 1, batch)
    g.crash(0)
    g.drop(0, 1)
    g.connect(1, 2)
    g.elect(1, [2])
    for _ in range(4):
        g.replicate(1, [2])
    assert bool(g.lost(1) or g.lost(2)) is g.stock


def test_f14_a_follower_with_a_long_divergent_tail_catches_up(make: Make) -> None:
    """pso-F14: resets of one burst do not cancel each other for ever."""
    g = make(batch_bytes=30)
    g.elect(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.propose(0, 20)
    g.elect(1, [2])
    g.propose(1, 12)
    g.replicate(1, [2], 12)
    g.elect(2, [1])
    g.replicate(2, [1])
    g.elect(1, [2])
    g.replicate(1, [2])
    g.connect(0, 1)

    def step() -> None:
        _exchange(g, 1, 0)
        g.deliver(1, 2)
        g.deliver(2, 1)

    caught_up = g.until(step, lambda: g.end(0) == g.end(1), tries=300)
    assert caught_up is not g.stock


def test_f19_truncation_and_compaction_never_empty_a_log(make: Make) -> None:
    """pso-F19: a log keeps its entries when a batch is sent again behind a compaction."""
    g = make(batch_bytes=30)
    g.elect(0)
    g.replicate(0, [1, 2])
    g.disconnect(0, 2)
    g.propose(0, 10)
    for _ in range(8):
        g.tick(0, HEARTBEAT_S)
        g.deliver(0, 1)
        g.deliver(1, 0)
        g.tick(0, 0.001)
        g.tick(1, 0.001)
    assert g.applied_index(1) > 8
    g.set_next_index(0, 1, 4)  # an earlier ack pulled nextIndex back, as in pso-F1
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1, 1)  # the first repeated batch alone arrives
    g.drop(0, 1)
    g.compact(1)
    emptied = _is_empty(g, 1)
    assert emptied is g.stock


def _is_empty(g: Group, node: int) -> bool:
    try:
        return g.end(node)[0] < g.applied_index(node)
    except IndexError:
        return True


def test_f20_compaction_keeps_enough_log_for_a_follower_one_batch_behind(make: Make) -> None:
    """pso-F20: after a compaction a follower that lacks a few entries gets entries, no snapshot."""
    g = make(keep_entries=10)
    g.elect(0)
    g.replicate(0, [1, 2])
    g.propose(0, 20)
    g.replicate(0, [1, 2])
    g.disconnect(0, 2)
    g.propose(0, 3)
    g.replicate(0, [1])
    behind = g.end(2)[0]
    g.compact(0)
    assert g.log(0)[0][0] > 1, "something was cut"
    can_send = g.log(0)[0][0] <= behind
    assert can_send is not g.stock
