"""A coordinator in memory, for the tests of programs that use muster.

`Cluster` starts real gRPC servers on loopback that speak the whole group protocol in a simple
form: rounds, generations, fencing, commits, held heartbeats, failover. Nothing is stored, nothing
is replicated: the nodes share one memory, so whatever was acknowledged is there after a "crash".

    async with muster.testing.Cluster(topics={"orders": 4}) as cluster:
        async with muster.Client(cluster.bootstrap) as client:
            ...
            await cluster.kill(cluster.leader)         # the others elect; clients follow
            cluster.script("OffsetCommit", Hang())     # the next commit is never answered
"""

from muster.testing.cluster import Abort, Call, Cluster, Hang, LoseAnswer, Refuse, Step
from muster.testing.groups import Group, Member, Phase

__all__ = [
    "Abort",
    "Call",
    "Cluster",
    "Group",
    "Hang",
    "LoseAnswer",
    "Member",
    "Phase",
    "Refuse",
    "Step",
]
