"""inv-I1 and inv-I13: no acknowledged commit is lost, and none reads as -1 or 0 afterwards."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from muster.errors import ErrorCode
from musterd.chaos.check.findings import Findings, named, some
from musterd.chaos.check.register import FOREVER, NONE, Access, Register, registers
from musterd.chaos.history import SUPERSEDED, History, Key, Operation, Outcome
from musterd.chaos.verdict import Verdict
from musterd.coordinator.runtime.routing import shard_of

NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED.name
"""What an atomic commit ends with of which one partition was superseded, and nothing refused."""


def check_lost(history: History) -> Verdict:
    """A read never answers what an acknowledged commit had replaced before the read began.

    A value is as new as its newest write that can be meant: a delete, a reset, or a commit whose
    outcome is unknown explains it as well. Every key with an acknowledged commit must have been
    read after its last one. And where the nodes' logs were exported, each acknowledged commit is in
    them that is not older than their beginning: a later one may have hidden its loss from reads.
    A commit that is answered as superseded was overtaken by a newer one: else its offset is lost,
    too, and its client does not know. Looks at: reads that began after an acknowledged commit; the
    note says how many commits were looked up in the logs.
    """
    found = Findings(history, "I1", "no acknowledged commit is lost")
    unread: list[Key] = []
    gone: set[int] = set()
    for key, register in registers(history).items():
        acknowledged = _Acknowledged(register)
        if not acknowledged.commits:
            continue
        reads = [read for read in register.reads if acknowledged.before(read)]
        found.looked_at += len(reads)
        last = acknowledged.commits[-1]
        if not reads or reads[-1].begin <= last.end:
            unread.append(key)
        for read, lost in _stale(register, acknowledged, reads, gone):
            more = f" (and {len(lost) - 1} acknowledged before it)" if len(lost) > 1 else ""
            found.broken(
                key,
                f"acknowledged {found.operation(lost[-1].operation)} is lost{more}: "
                f"{found.operation(read.operation)} answered what it had replaced",
                read.begin,
            )
    looked_up = _find_gone(found, history, gone)
    _superseded(found, history)
    found.counts = {"lost": len(gone), "unread": len(unread), "looked_up": looked_up}
    if unread:
        found.broken(
            "",
            f"{len(unread)} keys were not read after their last acknowledged commit, so nothing "
            f"shows that it is there: {some(map(named, unread))}",
        )
    return found.verdict()


def _find_gone(found: Findings, history: History, gone: set[int]) -> int:
    """How many were looked up; `gone` takes those that are not there."""
    looked_up = 0
    for one, shard, there in look_up(history):
        looked_up += 1
        if not there:
            gone.add(id(one))
            found.broken(
                one.key,
                f"acknowledged {found.operation(one)} is not in the log of shard {shard}",
                one.began_ns,
            )
    of = sum(one.outcome is Outcome.OK for one in history.commits())
    none = "" if history.logs or history.logged else ", which are not in this history"
    found.note(f"{looked_up} of {of} acknowledged commits were looked up in the nodes' logs{none}")
    return looked_up


def _superseded(found: Findings, history: History) -> None:
    answers = list(superseded(history))
    for one, overtaken in answers:
        if not overtaken:
            found.broken(
                one.key,
                f"superseded by nothing: no newer commit of its member "
                f"was sent before the answer to {found.operation(one)}",
                one.began_ns,
            )
    if answers:
        found.note(f"{len(answers)} commits were answered as superseded")


def look_up(history: History) -> Iterator[tuple[Operation, int, bool]]:
    """Each acknowledged commit that has to be in its shard's log, the shard, and whether it is.

    All of them where nothing of the log is missing. Else its beginning is gone, and nothing that a
    client sees says how far back it goes: what is sent after a commit that the log has was
    acknowledged comes behind that one, and has to be there; an earlier one may be there or not.
    Without exported logs: nothing.
    """
    logs: dict[Key, set[int]] = {}
    for line in history.logged:
        logs.setdefault(line.key, set()).update(line.values)
    shards = history.facts.get("shards")
    if not isinstance(shards, int):
        return
    mine = [
        (one, shard_of(one.key.group, shards), one.value in logs.get(one.key, ()))
        for one in history.commits()
        if one.outcome is Outcome.OK
    ]
    since = {log.shard: -FOREVER for log in history.logs if log.first == 1}
    for one, shard, there in mine:
        if there and one.ended_ns is not None:
            since[shard] = min(one.ended_ns, since.get(shard, one.ended_ns))
    for one, shard, there in mine:
        if one.began_ns > since.get(shard, FOREVER):
            yield one, shard, there


def superseded(history: History) -> Iterator[tuple[Operation, bool]]:
    """Each commit that was answered so, in order, and whether a newer one can have been there.

    Only a commit of the same member with a greater `commit_seq` overtakes one, and only at its own
    partition (gp-O9): one that was sent after it, and before it was answered. A refused one does
    not; one whose outcome is unknown may have. A reset or a deletion takes the number with it, so
    that neither explains anything. Of an atomic commit nobody knows which partition it was.
    """
    numbered: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in history.commits():
        if _is_numbered(one) and one.outcome is not Outcome.FAIL and one.error != NOT_ATTEMPTED:
            numbered[one.key.group, one.member_id].append(one)
    for one in history.commits():
        if one.error in {SUPERSEDED, NOT_ATTEMPTED} and one.ended_ns is not None:
            newer = numbered[one.key.group, one.member_id] if _is_numbered(one) else []
            yield (
                one,
                any(
                    one.began_ns < other.began_ns < one.ended_ns
                    and (other.key == one.key or one.error == NOT_ATTEMPTED)
                    for other in newer
                ),
            )


def _is_numbered(one: Operation) -> bool:
    """A commit outside of a membership is nobody's, whatever its number (sc-O13)."""
    return one.numbered and one.generation >= 0


def check_ghosts(history: History) -> Verdict:
    """After an acknowledged commit no read answers -1, or 0 that nobody wrote.

    Unless a delete or a reset explains it. Looks at: reads after an acknowledged commit.
    """
    found = Findings(history, "I13", "no ghost: a committed offset never reads as -1 or 0")
    for key, register in registers(history).items():
        acknowledged = _Acknowledged(register)
        reads = [read for read in register.reads if acknowledged.before(read)]
        found.looked_at += len(reads)
        ghosts = [read for read in reads if read.value == NONE or _is_invented_zero(register, read)]
        for read, lost in _stale(register, acknowledged, ghosts, set()):
            found.broken(
                key,
                f"{found.operation(read.operation)} answered {read.value} after "
                f"{found.operation(lost[-1].operation)} was acknowledged",
                read.begin,
            )
    return found.verdict()


def _is_invented_zero(register: Register, read: Access) -> bool:
    return read.value == 0 and all(write.value != 0 for write in register.writes)


class _Acknowledged:
    """The acknowledged commits of a register, by their ends."""

    def __init__(self, register: Register) -> None:
        commits = (w for w in register.writes if w.certain and w.operation.kind == "commit")
        self.commits = sorted(commits, key=lambda write: write.end)
        self._ends = [write.end for write in self.commits]
        self._newest = list(accumulate((write.begin for write in self.commits), max))
        """The latest begin among the commits that ended no later than this one."""

    def before(self, read: Access) -> int:
        """How many had ended when the read began."""
        return bisect_left(self._ends, read.begin)

    def missed(self, end: int, read: Access) -> list[Access]:
        """Those that began after `end` and ended before the read began; the newest last."""
        count = self.before(read)
        if not count or self._newest[count - 1] <= end:
            return []
        missed = [write for write in self.commits[:count] if write.begin > end]
        return sorted(missed, key=lambda write: write.begin)


def _stale(
    register: Register, acknowledged: _Acknowledged, reads: list[Access], gone: set[int]
) -> Iterator[tuple[Access, list[Access]]]:
    """Reads of what was replaced, with the commits that they miss; each newest such commit once.

    `gone` takes the operations of all those commits, by `id`.
    """
    newest = _Newest(register)
    told: set[int] = set()
    for read in reads:
        end = newest.end(read)
        missed = [] if end is None else acknowledged.missed(end, read)
        gone.update(id(write.operation) for write in missed)
        if missed and missed[-1].begin not in told:
            told.add(missed[-1].begin)
            yield read, missed


class _Newest:
    """Of each value: how late a write of it can have been."""

    def __init__(self, register: Register) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {NONE: ([-FOREVER], [-FOREVER])}
        for write in register.writes:
            begins, ends = self._of.setdefault(write.value, ([], []))
            begins.append(write.begin)
            ends.append(max(write.end, ends[-1]) if ends else write.end)

    def end(self, read: Access) -> int | None:
        """The latest end of a write of its value that began before the read ended.

        None: there is no such write (then inv-I2 says so; 0 is as old as the beginning).
        """
        begins, ends = self._of.get(read.value, ([], []))
        count = bisect_right(begins, read.end)
        if count:
            return ends[count - 1]
        return -FOREVER if read.value == 0 else None
