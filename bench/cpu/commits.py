"""The CPU of a commit by process and layer: through calls, and through streams.

Taken from the processes' clocks while they are at work and no profiler runs; a second run of the
same with samples (bench/cpu/sampler.py) splits it by layer. Protobuf that gRPC's C code calls is
counted as gRPC's.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import machine
from bench.cpu.sampler import sampled
from bench.cpu.split import SampledNodes, Split, Watched, mean, measure, say_places, table
from bench.raw import PARTITIONS, TOPIC, group_names
from bench.report import Report
from musterd.chaos.child import Child, Message
from musterd.chaos.world.world import World
from musterd.coordinator.host import tied_command

GROUPS = 48
WARM_S = 1.0
REST_S = 2.0


def profile_calls(
    report: Report, cluster: World, nodes: SampledNodes, in_flight: int, seconds: float
) -> None:
    """The CPU of a commit by process and layer: a table, and one figure of each process."""
    groups, roles = _roles(cluster, nodes, f"split-{in_flight}", one_leads=True)
    members: Message = {"endpoints": cluster.endpoints, "groups": groups}
    with tempfile.TemporaryDirectory(prefix="muster-bench-commits-") as to, ExitStack() as stack:
        folder = Path(to)
        _say_rest(report, cluster)
        client, of_client, _ = _sampled("bench.commit_client", members, folder / "client", stack)
        roles = {"client": [of_client], **roles}
        splits = _split_of_roles(report, cluster, client, roles, in_flight, seconds)
        _, of_server, told = _sampled("bench.echo_server", {}, folder / "server", stack)
        echo: Message = {"echo": told["endpoint"]}
        caller, of_caller, _ = _sampled("bench.commit_client", echo, folder / "caller", stack)
        bare = {"echo client": [of_caller], "echo server": [of_server]}
        splits |= _split(report, caller, bare, in_flight, seconds / 2)
    _say(report, splits, f"CPU of one commit with {in_flight} in flight", in_flight)


def profile_streams(
    report: Report, cluster: World, nodes: SampledNodes, in_flight: int, seconds: float
) -> None:
    """The CPU of a commit through streams: where one node leads, and where each leads a third.

    A node that leads a third follows for the others, so that all three together are one commit's.
    """
    with tempfile.TemporaryDirectory(prefix="muster-bench-commits-") as to, ExitStack() as stack:
        splits: dict[str, Split] = {}
        for one_leads in (True, False):
            name = f"session-{in_flight}-{'one' if one_leads else 'all'}"
            groups, roles = _roles(cluster, nodes, name, one_leads=one_leads)
            members: Message = {"endpoints": cluster.endpoints, "groups": groups, "name": name}
            file = Path(to) / name
            client, of_client, _ = _sampled("bench.session_client", members, file, stack)
            kind = "session" if one_leads else "spread"
            roles = {f"{kind} {role}": r for role, r in {"client": [of_client], **roles}.items()}
            splits |= _split_of_roles(report, cluster, client, roles, in_flight, seconds)
    what = f"CPU of one commit through streams with {in_flight} in flight"
    _say(report, splits, what, in_flight)


def _roles(
    cluster: World, nodes: SampledNodes, name: str, *, one_leads: bool
) -> tuple[list[str], dict[str, list[Watched]]]:
    """Groups that one node leads, or each a third, and what is watched by what it does for them."""
    cluster.create_topic(TOPIC, PARTITIONS)
    cluster.wait_balanced()
    watched = {
        node_id: Watched(node.pid, nodes.file(node_id)) for node_id, node in cluster.nodes.items()
    }
    if not one_leads:
        groups = group_names(name, GROUPS, cluster.shards)
        return groups, {"node": list(watched.values())}
    leader, shards = cluster.leads_most()
    leading = watched.pop(leader)
    groups = group_names(name, GROUPS, cluster.shards, shards)
    return groups, {"leader": [leading], "follower": list(watched.values())}


def _split_of_roles(
    report: Report,
    cluster: World,
    client: Child,
    roles: Mapping[str, Sequence[Watched]],
    in_flight: int,
    seconds: float,
) -> dict[str, Split]:
    terms = cluster.terms()
    splits = _split(report, client, roles, in_flight, seconds)
    if cluster.terms() != terms:
        report.say("shards changed their leaders meanwhile: the table mixes roles")
    return splits


def _say(report: Report, splits: Mapping[str, Split], what: str, in_flight: int) -> None:
    for name, one in splits.items():
        report.add(f"{name.replace(' ', '_')}_cpu_us_{in_flight}", [one.total_us], "us")
    report.say(f"{what}, microseconds:")
    for line in table(splits):
        report.say(f"  {line}")
    for name, one in splits.items():
        if "echo" not in name:
            say_places(report, name, one)


def _sampled(
    module: str, config: Message, to: Path, stack: ExitStack
) -> tuple[Child, Watched, Message]:
    """A child under the sampler, which is ready, and what it said then."""
    child = Child(module, config, wrap=lambda argv: tied_command(sampled(argv, to)))
    stack.callback(child.close)
    told = child.ready(timeout_s=60)
    return child, Watched(child.pid, to), told


def _split(
    report: Report,
    client: Child,
    processes: Mapping[str, Sequence[Watched]],
    in_flight: int,
    seconds: float,
) -> dict[str, Split]:
    """Load by `client`, once it is warm; several processes of a name are their mean."""
    pids = [one.pid for some in processes.values() for one in some]

    def load(lasts_s: float = seconds) -> int:
        busy = machine.busy(pids)
        got = client.ask("closed", lasts_s + 30, in_flight=in_flight, seconds=lasts_s)
        others = machine.others_cores(busy, machine.busy(pids))
        acknowledged: int = got["acknowledged"]
        report.say(
            f"{acknowledged / lasts_s:,.0f} calls/s at {in_flight}; "
            f"other work kept {others:.2f} cores busy"
        )
        return acknowledged

    load(WARM_S)
    return {name: mean(some) for name, some in measure(processes, load).items()}


def _say_rest(report: Report, cluster: World) -> None:
    """What nodes use while nobody calls, which is in the figures of commits, too."""
    pids = [node.pid for node in cluster.nodes.values()]
    before = [machine.cpu_s(pid) for pid in pids]
    began_s = time.monotonic()
    time.sleep(REST_S)
    took_s = time.monotonic() - began_s
    used = [machine.cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
    percent = ", ".join(f"{100 * one / took_s:.1f}" for one in used)
    report.say(f"at rest the nodes use {percent} % of a core, which is in what follows")
