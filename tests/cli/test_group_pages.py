"""A group that does not fit one answer is shown whole."""

import json

from muster.v1 import admin_pb2

Described = admin_pb2.DescribeGroupsResponse
SEATS = 7


def scripted(cluster, page):
    """The first node coordinates group g and answers DescribeGroups by `page(request)`."""
    node = cluster.nodes[0]
    cluster.coordinate(node)
    node.script["DescribeGroups"] = page
    return node


def page_of(first, generation, seats=SEATS):
    """Three members from `first` on."""
    group = Described.Group(group_id="g", state="Stable", generation=generation)
    for seat in range(first, min(first + 3, seats)):
        group.members.add(member_id=f"m{generation}-{seat}")
    group.next_member = first + 3 if first + 3 < seats else 0
    return Described(groups=[group], more=group.next_member > 0)


def members(ran):
    """Member ids that JSON shows."""
    (group,) = json.loads(ran.out)["groups"]
    return group["generation"], [member["member_id"] for member in group["members"]]


def test_all_pages_of_a_group_are_shown(cluster, muster):
    """In join order; three calls."""
    node = scripted(cluster, lambda request: page_of(request.first_member, 4))
    ran = muster("group", "describe", "g", "-o", "json")
    assert ran.exit_code == 0, ran.err
    assert members(ran) == (4, [f"m4-{seat}" for seat in range(SEATS)])
    assert [request.first_member for request in node.named("DescribeGroups")] == [0, 3, 6]


def test_pages_of_two_generations_are_not_mixed(cluster, muster):
    """Where a generation forms between two pages they are asked for anew."""
    generations = iter([4, 4, 5])

    def page(request):
        return page_of(request.first_member, next(generations, 5))

    node = scripted(cluster, page)
    ran = muster("group", "describe", "g", "-o", "json")
    assert members(ran) == (5, [f"m5-{seat}" for seat in range(SEATS)])
    asked = [request.first_member for request in node.named("DescribeGroups")]
    assert asked == [0, 3, 6, 0, 3, 6]


def test_a_page_of_nothing_that_promises_more_ends_the_command(cluster, muster):
    """It would be asked for without end."""
    empty = Described(groups=[Described.Group(group_id="g", state="Stable", next_member=3)])
    scripted(cluster, empty)
    ran = muster("group", "describe", "g", "--timeout", "5")
    assert ran.exit_code == 1
    assert "there is more, and gives nothing" in ran.err


def test_a_deletion_that_is_tried_counts_the_members_of_all_pages(cluster, muster):
    """It says how many are to be stopped."""
    scripted(cluster, lambda request: page_of(request.first_member, 4))
    ran = muster("group", "delete", "g", "--dry-run")
    assert ran.exit_code == 4
    assert f"{SEATS} members" in ran.err
