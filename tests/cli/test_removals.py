"""What is removed although an answer was lost, and what is told where only a part could be done."""

import json

import pytest

from muster.v1 import admin_pb2
from muster.v1.errors_pb2 import ErrorCode

TOO_LARGE = 3 * 10**6
"""So many results are longer than a message may be: the caller gets none of them."""


class Groups:
    """A node's groups: members by id, each with an instance id."""

    def __init__(self, no, lost):
        self.groups = {"gone": {}, "old": {}, "g": {"m1": "", "m2": "rack-2"}}
        self.came_back = {}
        """Who joins between the attempt that gets no answer and the next one."""
        self._no, self._lost = no, lost

    def describe(self, request):
        """DescribeGroups."""
        response = admin_pb2.DescribeGroupsResponse()
        for group_id in request.group_ids:
            group = response.groups.add(group_id=group_id, state="Stable")
            if group_id not in self.groups:
                group.state = "Dead"
            for member_id, instance_id in self.groups.get(group_id, {}).items():
                group.members.add(member_id=member_id, group_instance_id=instance_id)
        return response

    def delete(self, request):
        """DeleteGroups; `lost` answers are too large."""
        response = admin_pb2.DeleteGroupsResponse()
        for group_id in request.group_ids:
            one = response.results.add(group_id=group_id)
            if self.groups.pop(group_id, None) is None:
                one.status.CopyFrom(self._no(ErrorCode.GROUP_ID_NOT_FOUND, "There is no group."))
        return self._told(response, admin_pb2.DeleteGroupsResponse)

    def kick(self, request):
        """KickMembers, by instance id first (gp-2.0.4)."""
        response = admin_pb2.KickMembersResponse()
        group = self.groups[request.group_id]
        for one in request.members:
            holders = {instance: member for member, instance in group.items() if instance}
            member_id = one.member_id or holders.get(one.group_instance_id, "")
            code = ErrorCode.NONE
            if holders.get(one.group_instance_id, member_id) != member_id:
                code = ErrorCode.FENCED_INSTANCE_ID
            elif group.pop(member_id, None) is None:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            response.results.add(
                member_id=one.member_id,
                group_instance_id=one.group_instance_id,
                status=self._no(code, "no"),
            )
        answer = self._told(response, admin_pb2.KickMembersResponse)
        group |= self.came_back
        return answer

    def _told(self, response, kind):
        if not self._lost:
            return response
        self._lost -= 1
        return kind(results=[{}] * TOO_LARGE)


@pytest.fixture
def groups(cluster, no):
    """Node 2 coordinates; its first answer to a removal is lost."""
    made = Groups(no, lost=1)
    script = {"DescribeGroups": made.describe}
    cluster.nodes[1].script |= script | {"DeleteGroups": made.delete, "KickMembers": made.kick}
    cluster.coordinate(cluster.nodes[1])
    return made


def results(ran):
    """By line."""
    return [json.loads(line)["result"] for line in ran.out.splitlines()]


def test_a_group_whose_deletion_was_not_answered_is_deleted(groups, muster, cluster):
    """gp-2.17: the repeated call finds nothing, which is what was wanted."""
    ran = muster("group", "delete", "old", "--yes", "-o", "jsonl")
    assert (ran.exit_code, ran.err, results(ran)) == (0, "", ["deleted"])
    assert len(cluster.nodes[1].named("DeleteGroups")) == 2
    assert "old" not in groups.groups
    ran = muster("group", "delete", "old", "--yes", "-o", "jsonl")
    assert (ran.exit_code, results(ran)) == (3, ["not found"]), "answered at once, it says so"


def test_a_member_whose_removal_was_not_answered_is_removed(groups, muster, cluster):
    """Beside one that is there the second time only; what was never there is not found."""
    ran = muster("member", "kick", "g", "m1", "--yes", "-o", "jsonl")
    assert (ran.exit_code, ran.err, results(ran)) == (0, "", ["removed"])
    assert len(cluster.nodes[1].named("KickMembers")) == 2
    assert groups.groups["g"] == {"m2": "rack-2"}
    ran = muster("member", "kick", "g", "m1", "--instance=rack-9", "--yes", "-o", "jsonl")
    assert (ran.exit_code, results(ran)) == (3, ["not found", "not found"])


def test_a_repeated_kick_by_instance_spares_who_came_back(groups, muster, cluster):
    """It names the member that held the instance id when the command began."""
    groups.came_back = {"m3": "rack-2"}
    ran = muster("member", "kick", "g", "--instance=rack-2", "--yes", "-o", "jsonl")
    assert (ran.exit_code, ran.err, results(ran)) == (0, "", ["removed"])
    assert groups.groups["g"] == {"m1": "", "m3": "rack-2"}
    (sent, again) = cluster.nodes[1].named("KickMembers")
    assert sent == again
    assert [(one.member_id, one.group_instance_id) for one in sent.members] == [("m2", "rack-2")]


def test_a_member_named_twice_is_removed_once(groups, muster, cluster):
    """By its id, and as the holder of its instance id: both lines say what became of it."""
    groups.came_back = {}
    ran = muster("member", "kick", "g", "m2", "--instance=rack-2", "--yes", "-o", "jsonl")
    assert (ran.exit_code, results(ran)) == (0, ["removed", "removed"])
    assert len(cluster.nodes[1].named("KickMembers")[0].members) == 1


def test_what_was_deleted_is_told_where_the_command_ends_badly(groups, muster, cluster):
    """A is gone, B may be, C was not tried: all of it is printed before the error."""
    delete = groups.delete

    def only_gone(request):
        if request.group_ids[0] == "gone":
            return delete(request)
        return admin_pb2.DeleteGroupsResponse(results=[{}] * TOO_LARGE)

    cluster.nodes[1].script["DeleteGroups"] = only_gone
    ran = muster("group", "delete", "gone", "old", "g", "--yes", "-o", "jsonl", "--timeout=3")
    assert results(ran) == ["deleted", "unknown", "kept"]
    assert ran.exit_code not in (0, 3)
    assert "error:" in ran.err
