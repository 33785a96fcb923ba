"""Requests of a script (call_scripts.py), from words to messages."""

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from tests.coordinator.scripted import Names, nonce


class Asking:
    """Each method makes the name of a call and its request."""

    def __init__(self, names: Names) -> None:
        self._id = names.long
        self._beats: dict[str, int] = {}

    def topic(self, plain, _options):
        return "CreateTopic", admin.CreateTopicRequest(name=plain[0], partitions=int(plain[1]))

    def join(self, plain, options):
        group_id, client_id = plain
        names = [name for name in options.get("protocols", "range").split(",") if name]
        number = options.get("nonce", "1")
        chars = int(options.get("reason-chars", "0"))
        return "JoinGroup", pb.JoinGroupRequest(
            group_id="" if group_id == "-" else group_id,
            member_id=self._id(options.get("member", "")),
            client_id=client_id,
            join_nonce=nonce(number) if number else "",
            session_timeout_ms=int(options.get("session", "10000")),
            rebalance_timeout_ms=int(options.get("rebalance", "60000")),
            protocol_type=options.get("type", "consumer"),
            protocols=[
                pb.JoinGroupRequest.Protocol(name=n, metadata=options.get("meta", "m").encode())
                for n in names
            ],
            subscribed_topics=[t for t in options.get("topics", "t").split(",") if t],
            reason=options.get("reason", "r" * chars),
            group_instance_id=options.get("instance", ""),
        )

    def sync(self, plain, options):
        group_id, member_id, generation, *pairs = plain
        return "SyncGroup", pb.SyncGroupRequest(
            group_id="" if group_id == "-" else group_id,
            member_id=self._id(member_id),
            generation=int(generation),
            protocol_type=options.get("type", ""),
            protocol_name=options.get("name", ""),
            group_instance_id=options.get("instance", ""),
            assignments=[
                pb.SyncGroupRequest.Assignment(member_id=self._id(m), assignment=a.encode())
                for m, a in (pair.split(":") for pair in pairs)
            ],
        )

    def beat(self, plain, _options):
        process, *members = plain
        self._beats[process] = self._beats.get(process, 0) + 1
        request = pb.HeartbeatRequest(client_nonce=process, call_seq=self._beats[process])
        for one in members:
            group_id, member_id, generation, *instance = one.split("/")
            request.members.add(
                group_id=group_id,
                member_id=self._id(member_id),
                generation=int(generation),
                group_instance_id=instance[0] if instance else "",
            )
        return "Heartbeat", request

    def leave(self, plain, _options):
        request = pb.LeaveGroupRequest(group_id="" if plain[0] == "-" else plain[0])
        for one in plain[1:]:
            member_id, _, instance_id = one.partition("@")
            member_id = "" if member_id == "-" else self._id(member_id)
            request.members.add(member_id=member_id, group_instance_id=instance_id)
        return "LeaveGroup", request

    def commit(self, plain, options):
        group_id, *rest = plain
        placed = [one for one in rest if "/" in one]
        member_id, generation = ("", "-1") if len(placed) == len(rest) else rest[:2]
        request = pb.OffsetCommitRequest(
            group_id="" if group_id == "-" else group_id,
            member_id=self._id(member_id),
            generation=int(generation),
            commit_seq=int(options.get("seq", "0")),
            group_instance_id=options.get("instance", ""),
        )
        for one in placed:
            place, _, value = one.partition("=")
            topic, _, partition = place.partition("/")
            offset, _, size = value.partition(":")
            request.partitions.add(
                topic=topic,
                partition=int(partition),
                offset=int(offset),
                metadata="x" * int(size or 0),
            )
        return "OffsetCommit", request

    def fetch(self, plain, _options):
        stable, everything = "stable" in plain, "all" in plain
        words = [one for one in plain if one not in ("stable", "all")]
        named = [one for word in words if "/" not in word for one in word.split(",")]
        partitions = [
            pb.OffsetFetchRequest.Partition(topic=t, partition=int(p))
            for t, p in (one.split("/") for one in words if "/" in one)
        ]
        asked = {"partitions": partitions, "all": everything}
        groups = _groups(named)
        if len(groups) == 1:
            return "OffsetFetch", pb.OffsetFetchRequest(
                group_id=groups[0], require_stable=stable, **asked
            )
        many = [pb.OffsetFetchRequest.Group(group_id=one, **asked) for one in groups]
        return "OffsetFetch", pb.OffsetFetchRequest(groups=many, require_stable=stable)

    def find(self, plain, _options):
        request = pb.FindCoordinatorRequest()
        for one in plain:
            group_id, _, term = one.partition("@")
            request.keys.add(
                group_id="" if group_id == "-" else group_id, known_term=int(term or 0)
            )
        return "FindCoordinator", request

    def list(self, _plain, options):
        states = [s.replace("_", " ") for s in options.get("states", "").split(",") if s]
        types = [t for t in options.get("types", "").split(",") if t]
        of = options.get("protocol-types")
        return "ListGroups", admin.ListGroupsRequest(
            states=states, types=types, protocol_types=[] if of is None else of.split(",")
        )

    def describe(self, plain, _options):
        groups = _groups(one for one in plain if one != "confirmed")
        return "DescribeGroups", admin.DescribeGroupsRequest(
            group_ids=groups, linearizable="confirmed" in plain
        )

    def delete(self, plain, _options):
        return "DeleteGroups", admin.DeleteGroupsRequest(group_ids=_groups(plain))

    def delete_offsets(self, plain, _options):
        request = admin.OffsetDeleteRequest(group_id=_groups(plain)[0])
        for one in plain[1:]:
            topic, _, partition = one.partition("/")
            request.partitions.add(topic=topic, partition=int(partition))
        return "OffsetDelete", request


def _groups(plain) -> list[str]:
    return ["" if one == "-" else one for one in plain]
