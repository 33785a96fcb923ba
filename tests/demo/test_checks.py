"""Every check holds on a sound run, and fails where its promise is broken, and only there."""

import dataclasses

import msgspec
import pytest

from musterd.demo.checks import CHECKS, run_checks
from musterd.demo.events import Acknowledged, Attempt, Compared, Took
from musterd.demo.evidence import Evidence, WorkerEvents
from musterd.demo.ledger import CLAIM, WRITE, Note

WORK = "work finished"
COUNTS = "token table equals the single-process count"
OFFSETS = "every result has its committed offset"
ORDER = "no commit before its result"
READS = "acknowledged <= read <= attempted after each change of term"
GAP = "commits go on after the kill"
FAILOVER = "a failover is no rebalance"
KILLED = "fault: the leader's node was killed"
RESTARTED = "fault: the node was started again"
WORKER_KILLED = "fault: a worker was killed"
WORKER_ADDED = "fault: a worker was added"
WORKERS = "every worker counted lines"
TAKEOVERS = "takeovers resume where the last owner stopped"
OWNERS = "nobody works on a partition that is not theirs"
REBALANCES = "every rebalance has its cause"
REPLICAS = "all replicas have the same state"
HISTORY = "history (Spark): digests match"
PROCESSES = "no process is left behind"


@pytest.fixture
def proofs():
    """The helper beside this file."""
    import proofs  # noqa: PLC0415  # the path is a fixture's

    return proofs


def failed(evidence):
    """Names of the lines that do not hold."""
    return [check.name for check in run_checks(evidence) if not check.passed]


def test_a_sound_run_passes_every_check(proofs):
    """No line fails, and each says something."""
    checks = run_checks(proofs.sound())
    assert [check.name for check in checks if not check.passed] == []
    assert len(checks) == len(CHECKS) == 18
    assert all(check.detail for check in checks)


def test_a_run_that_never_began_passes_no_check():
    """Missing evidence is no proof: every line fails."""
    evidence = Evidence(lines=(10, 10), batch=(2, 2), workers=2)
    assert len(failed(evidence)) == len(CHECKS)


# ---- one broken promise each


def event_at(evidence, kind, last=False):
    """Place of the first, or last, event of a kind."""
    places = [i for i, (_, event) in enumerate(evidence.events) if isinstance(event, kind)]
    return places[-1 if last else 0]


def change(evidence, place, **fields):
    """Replace fields of one event."""
    worker, event = evidence.events[place]
    evidence.events[place] = worker, msgspec.structs.replace(event, **fields)


def counted_twice(e):
    """The workers' table is another one."""
    e.found_digest = "other"


def not_counted_alone(e):
    """There is nothing to compare with."""
    e.expected_digest = e.found_digest = None


def given_up(e):
    """Something unexpected happened."""
    e.trouble.append("worker-2 ended by itself")


def not_finished(e):
    """The time was over first."""
    e.finished = False


def last_commit_missing(e):
    """One line is written and not committed."""
    e.final = {0: 10, 1: 9}
    e.history = dataclasses.replace(e.history, committed=e.final)


def committed_before_written(e):
    """One attempt came before its write."""
    place = event_at(e, Attempt)
    note = next(n for n in e.notes if n.kind == WRITE)
    change(e, place, at_ns=note.at_ns - 1)


def outsider_saw_early_commit(e):
    """Whoever read both saw the commit ahead."""
    e.audit.ahead.append((0, 5, 3))


def nobody_looked(e):
    """No look from outside."""
    e.audit.samples = 0


def acknowledged_commit_gone(e):
    """Less was read than somebody had acknowledged."""
    change(e, event_at(e, Compared), committed={0: 2})


def unattempted_offset_read(e):
    """More was read than anybody had attempted."""
    change(e, event_at(e, Compared), committed={0: 9})


def takeover_read_too_little(e):
    """The same for a read at a takeover."""
    change(e, event_at(e, Took, last=True), committed={1: 4})


def committed_again_without_reading(e):
    """One owner went on under the new leader without a read."""
    del e.events[event_at(e, Compared)]


def read_in_the_old_term(e):
    """The read before going on was in the old term."""
    change(e, event_at(e, Compared), read_term=1)


def no_commit_after_the_kill(e):
    """Nothing was acknowledged in a later term."""
    for place, (_, event) in enumerate(e.events):
        if isinstance(event, Acknowledged):
            change(e, place, term=1)


def long_silence(e):
    """Ten seconds without a commit."""
    kill_ns = e.node_kill.at_ns
    for place, (_, event) in enumerate(e.events):
        if isinstance(event, Acknowledged) and event.at_ns > kill_ns:
            change(e, place, at_ns=event.at_ns + 10_000_000_000)


def rebalanced_by_failover(e):
    """The generation rose."""
    e.node_kill.after = e.node_kill.after._replace(generation=2)


def same_term(e):
    """The term did not."""
    e.node_kill.after = e.node_kill.after._replace(term=1)


def kill_did_not_happen(e):
    """The process never ended."""
    e.node_kill.exit_status = None


def leader_stayed(e):
    """The same node leads as before."""
    e.node_kill.after = e.node_kill.before


def never_ready(e):
    """The node did not come back."""
    e.node_restart.ready = False


def worker_lives(e):
    """The worker ended by itself, in good order."""
    e.worker_kill.exit_status = 0


def not_taken_over(e):
    """Its partitions stayed without an owner."""
    e.worker_kill.taken_over = False


def never_joined(e):
    """The new worker has no share."""
    e.worker_added.joined = False


def idle_worker(e):
    """One worker counted nothing."""
    e.notes[:] = [
        n._replace(member="worker-2-x") if n.kind == WRITE and n.member == "worker-3-x" else n
        for n in e.notes
    ]
    e.history = dataclasses.replace(
        e.history, owners=frozenset((n.partition, n.token, n.member) for n in e.notes)
    )


def takeover(e):
    """Place of the claim by which worker-2 took over partition 0."""
    return next(i for i, n in enumerate(e.notes) if n.kind == CLAIM and n.former_token == 1)


def began_again(e):
    """A partition was begun from its first line."""
    place = takeover(e)
    e.notes[place] = e.notes[place]._replace(offset=0)


def read_three_batches_twice(e):
    """More than a batch was read twice."""
    e.batch = (1, 1)


def foreign_write(e):
    """A worker reached for a partition of another one."""
    n = e.notes[-1]
    e.notes.append(n._replace(id=n.id + 1, at_ns=n.at_ns + 1, partition=0, granted=False))


def kept_after_losing(e):
    """A worker went on under an old token while it had a new one."""
    last = e.notes[-1]
    kept = Note(
        last.id + 1, last.at_ns + 1, WRITE, False, 1, 6, 0, 2, "worker-2-x", 3, "worker-3-x"
    )
    e.notes.append(kept)


def no_ownership(e):
    """The history does not say who owned what."""
    e.history = dataclasses.replace(e.history, owners=frozenset())


def cause_unknown(e):
    """A round has no trigger."""
    first, *rest = e.history.rounds
    e.history = dataclasses.replace(
        e.history, rounds=(dataclasses.replace(first, trigger=None), *rest)
    )


def kill_without_rebalance(e):
    """No round was caused by the killed worker."""
    first, second, third = e.history.rounds
    other = dataclasses.replace(second, cause_member="worker-2-x")
    e.history = dataclasses.replace(e.history, rounds=(first, other, third))


def unknown_generation(e):
    """The workers saw a generation that the history lacks."""
    e.history = dataclasses.replace(e.history, rounds=e.history.rounds[1:])


def replica_differs(e):
    """`muster cluster verify` found something."""
    e.verify = (5, "shard 5 differs")


def not_compared(e):
    """It was not run."""
    e.verify = None


def unsound_history(e):
    """The replay refuses its input."""
    e.history = dataclasses.replace(
        e.history, exit_code=5, sound=False, failed=("sha256: part-1.parquet differs",)
    )


def compared_too_little(e):
    """The last checkpoint is before the last commit."""
    e.history = dataclasses.replace(e.history, digests_up_to=79)


def history_has_other_commits(e):
    """The history ends at another offset than the group."""
    e.history = dataclasses.replace(e.history, committed={0: 10, 1: 9})


def something_left(e):
    """A process of the run still exists."""
    e.leftovers.append("4711 python -m muster.cli serve")


def worker_failed(e):
    """A worker ended with an error."""
    e.exits["worker-2"] = 1


BROKEN = {
    counted_twice: [COUNTS],
    not_counted_alone: [COUNTS],
    given_up: [WORK],
    not_finished: [WORK],
    last_commit_missing: [OFFSETS],
    committed_before_written: [ORDER],
    outsider_saw_early_commit: [ORDER],
    nobody_looked: [ORDER],
    acknowledged_commit_gone: [READS],
    unattempted_offset_read: [READS],
    takeover_read_too_little: [READS],
    committed_again_without_reading: [READS],
    read_in_the_old_term: [READS],
    no_commit_after_the_kill: [GAP],
    long_silence: [GAP],
    rebalanced_by_failover: [FAILOVER],
    same_term: [FAILOVER],
    kill_did_not_happen: [KILLED],
    leader_stayed: [FAILOVER, KILLED],
    never_ready: [RESTARTED],
    worker_lives: [WORKER_KILLED],
    not_taken_over: [WORKER_KILLED],
    never_joined: [WORKER_ADDED],
    idle_worker: [WORKERS],
    began_again: [TAKEOVERS],
    read_three_batches_twice: [TAKEOVERS],
    foreign_write: [OWNERS],
    kept_after_losing: [OWNERS],
    no_ownership: [OWNERS],
    cause_unknown: [REBALANCES],
    kill_without_rebalance: [REBALANCES],
    unknown_generation: [REBALANCES],
    replica_differs: [REPLICAS],
    not_compared: [REPLICAS],
    unsound_history: [HISTORY],
    compared_too_little: [HISTORY],
    history_has_other_commits: [HISTORY],
    something_left: [PROCESSES],
    worker_failed: [PROCESSES],
}


@pytest.mark.parametrize("breaking", BROKEN, ids=lambda f: f.__name__)
def test_a_broken_promise_fails_its_line_and_no_other(breaking, proofs):
    """One change of the sound evidence; the line says what it saw."""
    evidence = proofs.sound()
    breaking(evidence)
    assert failed(evidence) == BROKEN[breaking]


@pytest.mark.parametrize(("partition", "names"), [(1, [OWNERS]), (0, [])], ids=["same", "other"])
def test_where_the_coordinator_assigns_the_tokens_of_each_partition_rise(partition, names, proofs):
    """An older token is wrong after a newer one of the same partition alone."""
    evidence = proofs.sound()
    evidence.by_partition = True
    assert failed(evidence) == []
    at_ns = evidence.notes[-1].at_ns
    claim = Note(900, at_ns + 1, CLAIM, True, 1, 6, 0, 8, "worker-3-x", 3, "worker-3-x")
    late = Note(901, at_ns + 2, WRITE, False, partition, 6, 0, 7, "worker-3-x", 8, "worker-3-x")
    evidence.notes += [claim, late]
    owners = evidence.history.owners | {(n.partition, n.token, n.member) for n in (claim, late)}
    evidence.history = dataclasses.replace(evidence.history, owners=owners)
    assert failed(evidence) == names


def test_every_check_is_broken_by_some_test(proofs):
    """A new check needs a way to fail."""
    checks = {check.name for check in run_checks(proofs.sound())}
    assert {name for names in BROKEN.values() for name in names} == checks


def test_the_longest_gap_is_measured_from_the_last_commit_before_the_kill(proofs):
    """In milliseconds, for the group and for the worker that waited longest."""
    evidence = proofs.sound()
    kill_ns = evidence.node_kill.at_ns
    for place, (worker, event) in enumerate(evidence.events):
        if isinstance(event, Acknowledged):
            before = kill_ns - (30 if worker == "worker-1" else 10) * 1_000_000
            after = kill_ns + (50 if worker == "worker-1" else 90) * 1_000_000
            change(evidence, place, at_ns=before if event.at_ns <= kill_ns else after)
    check = next(check for check in run_checks(evidence) if check.name == GAP)
    assert check.figures == {"gap_ms": 60.0, "worker_gap_ms": 100.0}


def test_takeovers_are_told_with_their_offset_and_the_lines_read_twice(proofs):
    """One line per fencing token and pair of workers."""
    check = next(check for check in run_checks(proofs.sound()) if check.name == TAKEOVERS)
    assert check.each == (
        "token 2, worker-1 -> worker-2: partition 0 at 5 (2 lines read twice)",
        "token 3, worker-2 -> worker-3: partition 1 at 5",
    )
    assert check.figures["each"][0] == {
        "token": 2,
        "partition": 0,
        "from": "worker-1",
        "to": "worker-2",
        "resumed_at": 5,
        "lines_read_twice": 2,
    }


def test_rebalances_are_told_with_worker_and_reason(proofs):
    """As a person would say it."""
    check = next(check for check in run_checks(proofs.sound()) if check.name == REBALANCES)
    assert check.figures["each"][2]["cause"] == "worker-3"
    assert "no partitions moved" in check.each[0]
    assert check.each[1].startswith(
        "generation 2: session_expiry by worker-1 (why), 2 -> 1 members"
    )


def test_the_events_of_workers_tell_who_owns_what_and_what_is_acknowledged(proofs):
    """What the runner waits for."""
    evidence = proofs.sound()
    told = list(evidence.events)
    evidence.events.clear()
    worker_events = WorkerEvents(evidence)
    for worker, event in told[:2]:
        assert not worker_events.settled(2, 2)
        worker_events.hear(worker, event)
    assert worker_events.settled(2, 2)
    worker_events.gone("worker-1")
    assert not worker_events.settled(1, 2)
    for worker, event in told[2:]:
        worker_events.hear(worker, event)
    assert worker_events.acknowledged == {0: 10, 1: 10}
    assert worker_events.terms == {0: 2, 1: 2}
    assert evidence.events == told
