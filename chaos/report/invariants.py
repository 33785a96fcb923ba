"""What muster promises, by the numbers of the checkers: name, meaning, and what waits for what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """One promise."""

    id: str
    title: str
    meaning: str
    waits_for: str = ""
    """What has to exist before it can be checked; "" where it applies."""


INVARIANTS = (
    Invariant(
        "I1",
        "no acknowledged commit is lost",
        "Every linearizable read that begins after a commit was acknowledged gives that offset or "
        "a later one, unless somebody reset or deleted it meanwhile. So does the read at the end. "
        "A commit is answered as superseded only where its member sent a newer one.",
    ),
    Invariant(
        "I2",
        "offsets are linearizable",
        "The commits, reads, resets and deletions of one partition's offset can be put in one "
        "order that fits their times, and in which each read gives what was written last. A call "
        "without an answer may take effect at any time after it began, or never.",
    ),
    Invariant(
        "I3",
        "generations rise",
        "A group's generation number never falls and is never given to two different sets of "
        "members: not over a change of coordinator, a restart, or deletion and creation anew.",
    ),
    Invariant(
        "I4",
        "one owner per partition",
        "In one generation a partition has one owner, of one static member one process after the "
        "other. Across generations no two live members that "
        "confirmed to own it overlap. A member that the group has declared dead may not know it "
        "yet: such overlaps are counted apart, and fencing (I6, I7) makes them harmless.",
    ),
    Invariant(
        "I5",
        "tokens of a partition never fall",
        "A later owner of a partition has a larger fencing token than every one before, and two "
        "owners never share one. Owners are processes: two of one static member are two.",
    ),
    Invariant(
        "I6",
        "a fenced member commits nothing",
        "Once a commit of a later generation was accepted, no commit of an earlier one that was "
        "sent afterwards is, and no heartbeat. Once another process has a partition under a later "
        "fencing token, no commit of it under an earlier one that is sent afterwards is accepted.",
    ),
    Invariant(
        "I7",
        "the fenced store takes no stale write",
        "A store that compares fencing tokens never accepts a write of a former owner. A second "
        "store that does not compare shows what fencing is good for.",
    ),
    Invariant(
        "I8",
        "everything is owned again",
        "Once the last fault is healed every partition has an owner within the session timeout, "
        "the rebalance timeout and 5 s, where the group has members. Where a workload kills, stops "
        "or restarts members itself, the time counts from when it has ended that.",
    ),
    Invariant(
        "I9",
        "what stays is not taken away",
        "A cooperative member is never told to give up a partition that it keeps.",
    ),
    Invariant(
        "I10",
        "replicas are equal",
        "Nodes that recorded a digest at the same index of a shard recorded the same one. In the "
        "simulation also: one leader a term, equal logs, no committed entry changes.",
    ),
    Invariant(
        "I11",
        "every rebalance has one cause",
        "Each round of a group has exactly one recorded cause, and the history folded from the log "
        "is the history that the coordinator tells.",
    ),
    Invariant(
        "I12",
        "a watch misses nothing",
        "Who watches sees every change once and in order, and can go on where it stopped.",
        "Watch, which muster does not have yet",
    ),
    Invariant(
        "I13",
        "no ghosts",
        "Once a partition has an offset it never reads as absent or as 0 by mistake.",
    ),
    Invariant(
        "I14",
        "damage is not served",
        "A node whose files are damaged refuses to start or takes its state from others. It serves "
        "nothing of it. Of one that lacks what it had synced, as on an older copy, the others find "
        "out by themselves, and make it whole. One that stores another state than a majority takes "
        "theirs, and nobody takes its.",
    ),
    Invariant(
        "I15",
        "a minority acknowledges nothing",
        "Nodes that cannot reach a majority acknowledge no commit and no linearizable read, and "
        "answer no heartbeat later than 0.4 s after they last heard from one. One whose machine "
        "slept gives up what it led.",
    ),
    Invariant(
        "I16",
        "a failed fsync ends the node",
        "A node whose disk returned an error acknowledges nothing afterwards. One none of whose "
        "syncs has ended for 5 s leads nothing; after 30 s it has ended, with exit code 1. One "
        "whose disk is low or full does not end.",
    ),
    Invariant(
        "I17",
        "what an operator did stays done",
        "A group's setting that was acknowledged is read until it is changed. The id of a member "
        "that was kicked is gone for good: it is in no later generation and commits nothing. A "
        "topic that was grown never has fewer partitions, at no node once all is quiet.",
    ),
)
BY_ID = {one.id: one for one in INVARIANTS}
