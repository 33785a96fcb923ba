"""Health and agreement: what `cluster status`, `cluster verify` and `group list` find wrong."""

import json

import pytest

from muster.cli.cluster.commands import _require_healthy
from muster.cli.cluster.digests import NOBODY, Finding, compare
from muster.cli.cluster.verify import ROUNDS_MAX
from muster.cli.errors import CommandError
from muster.v1 import admin_pb2, group_pb2
from muster.v1.admin_pb2 import VerifyResponse

A, B = b"a" * 16, b"b" * 16


def _answer(node_id, digests, *, groups=(), differences=(), index=90, at_index=95):
    """What a node says: `digests` maps the nodes it compared itself with to shard 2's digest."""
    return VerifyResponse(
        node_id=node_id,
        checkpoints=[
            VerifyResponse.Checkpoint(
                shard=2, index=index, node_id=other, digest=digest, equal=digest == digests[node_id]
            )
            for other, digest in digests.items()
        ],
        groups=[
            VerifyResponse.GroupDigest(
                shard=2, group_id=group, digest=digest, applied_index=at_index
            )
            for group, digest in groups
        ],
        differences=[
            VerifyResponse.Difference(shard=2, group_id=group, detail=detail)
            for group, detail in differences
        ],
    )


def _script(cluster, answers):
    for node, answer in zip(cluster.nodes, answers, strict=True):
        node.script["Verify"] = answer


def test_verify_names_node_shard_and_group(cluster, muster):
    """A group whose keys differ on one node of three: exit 5, and exactly that is named."""
    digests = {1: A, 2: B, 3: A}
    _script(
        cluster,
        [
            _answer(1, digests, groups=[("billing", A), ("audit", A)]),
            _answer(
                2,
                digests,
                groups=[("billing", B), ("audit", A)],
                differences=[("billing", "the keys on disk do not give the running digest")],
            ),
            _answer(3, digests, groups=[("billing", A), ("audit", A)]),
        ],
    )
    ran = muster("cluster", "verify", "--shard", "2", "-o", "json")
    assert ran.exit_code == 5
    assert "node 2, shard 2, group billing" in ran.err
    document = json.loads(ran.out)
    assert document["equal"] is False
    assert {(d["node_id"], d["shard"], d["group_id"]) for d in document["differences"]} == {
        (2, 2, "billing")
    }


def test_verify_of_two_nodes_that_differ_blames_neither(cluster, muster):
    """Without a majority it says that they differ, and does not guess."""
    cluster.nodes[0].script["DescribeCluster"].nodes.pop()
    digests = {1: A, 2: B}
    _script(cluster, [_answer(1, digests), _answer(2, digests), VerifyResponse()])
    ran = muster("cluster", "verify", "--shard", "2")
    assert ran.exit_code == 5
    assert "no majority" in ran.err


def test_verify_blames_nobody_by_a_copy_of_a_state(cluster, muster):
    """Two nodes agree, one of which took its state from the other: they are one witness."""
    digests = {1: A, 2: B, 3: A}
    answers = [_answer(n, digests, groups=[("g", digests[n])]) for n in (1, 2, 3)]
    answers[0].copies.add(shard=2, node_id=3, copy_of=1)  # node 1 was told so by node 3
    answers[1].copies.add(shard=1, node_id=2, copy_of=1)  # of another shard
    _script(cluster, answers)
    ran = muster("cluster", "verify", "--shard", "2")
    assert ran.exit_code == 5
    assert "no majority" in ran.err
    assert "node 2" not in ran.err
    by_number = list(enumerate(answers, start=1))
    assert {finding.node_id for finding in compare(by_number, 2, 3)} == {NOBODY}
    del answers[0].copies[:]
    assert {finding.node_id for finding in compare(by_number, 2, 3)} == {2}


def test_verify_with_a_silent_node_has_not_passed(cluster, muster):
    """Equal digests of two nodes do not speak for the third."""
    digests = {1: A, 2: A, 3: A}
    _script(cluster, [_answer(n, digests) for n in (1, 2, 3)])
    cluster.nodes[2].stop()
    ran = muster("cluster", "verify", "--shard", "2")
    assert ran.exit_code == 5
    assert "node 3 did not answer" in ran.err


def test_verify_without_a_shared_checkpoint_has_not_passed(cluster, muster):
    """A shard that nobody could compare is reported, not assumed equal."""
    _script(cluster, [VerifyResponse(node_id=n) for n in (1, 2, 3)])
    ran = muster("cluster", "verify", "--shard", "2")
    assert ran.exit_code == 5
    assert "shard 2 was not compared" in ran.err


def test_verify_of_a_single_node_checks_its_disk(cluster, muster):
    """One node has nobody to compare with: its keys against its own digest are the check."""
    del cluster.nodes[0].script["DescribeCluster"].nodes[1:]
    _script(cluster, [VerifyResponse(node_id=1), VerifyResponse(), VerifyResponse()])
    assert muster("cluster", "verify").exit_code == 0
    _script(
        cluster,
        [_answer(1, {1: A}, differences=[("", "topics")]), VerifyResponse(), VerifyResponse()],
    )
    ran = muster("cluster", "verify")
    assert ran.exit_code == 5
    assert "node 1, shard 2, group (shard-wide): topics" in ran.err


def test_a_group_that_one_node_lacks_is_found():
    """A missing group is a difference, not a gap in the comparison."""
    digests = {1: A, 2: A, 3: B}
    answers = [
        (1, _answer(1, digests, groups=[("g", A), ("h", A)])),
        (2, _answer(2, digests, groups=[("g", A), ("h", A)])),
        (3, _answer(3, digests, groups=[("h", A)])),
    ]
    detail = "another digest than the others at index 95"
    assert compare(answers, 2, 3) == [Finding(2, 3, "g", detail)]
    assert compare(answers, 1, 3) == []


def test_a_checkpoint_that_differs_is_found_without_group_digests():
    """The checkpoints alone name node and shard; the newest difference is told."""
    answers = [
        (n, _answer(n, {1: B, 2: A, 3: A}, index=index)) for n in (1, 2, 3) for index in (80, 90)
    ]
    assert compare(answers, 2, 3) == [
        Finding(2, 1, "", "another digest than the others at index 90")
    ]


def test_digests_of_different_indexes_are_not_compared():
    """A busy group is at another index on each node: that is no difference."""
    digests = {1: A, 2: A, 3: B}
    answers = [
        (1, _answer(1, digests, groups=[("g", A), ("busy", b"1")], at_index=95)),
        (2, _answer(2, digests, groups=[("g", A), ("busy", b"2")], at_index=96)),
        (3, _answer(3, digests, groups=[("g", B), ("busy", b"2")], at_index=96)),
    ]
    detail = "another digest than the others at index 96"
    assert compare(answers, 2, 3) == [Finding(2, 3, "g", detail)]  # as the checkpoints say


def test_without_a_majority_anywhere_nobody_is_blamed():
    """Two nodes that differ, and nothing that says which: the group is named, no node."""
    answers = [(n, _answer(n, {1: A, 2: B}, groups=[("g", bytes([n]) * 16)])) for n in (1, 2)]
    assert compare(answers, 2, 3) == [
        Finding(2, NOBODY, "g", "another digest than the others at index 95")
    ]


def test_two_equal_nodes_of_five_blame_nobody():
    """Two more are not compared: they may agree with the third."""
    answers = [(n, _answer(n, {1: A, 2: A, 3: B})) for n in (1, 2, 3)]
    detail = "another digest than the others at index 90"
    assert compare(answers, 2, 5) == [Finding(2, NOBODY, "", detail)]
    assert compare(answers, 2, 3) == [Finding(2, 3, "", detail)]


def test_verify_asks_again_until_the_group_is_named(cluster, muster):
    """Nodes that answered at different indexes are asked once more, about that shard alone."""
    digests = {1: A, 2: B, 3: A}
    for node in cluster.nodes:
        number = node.node_id
        groups = [("billing", digests[number])]
        node.script["Verify"] = [
            _answer(number, digests, groups=groups, at_index=90 + number),
            _answer(number, digests, groups=groups, at_index=99),
        ]
    ran = muster("cluster", "verify", "--shard", "2")
    assert ran.exit_code == 5
    assert "node 2, shard 2, group billing" in ran.err
    assert [list(call.shards) for call in cluster.nodes[0].named("Verify")] == [[2], [2]]


def test_verify_stops_asking(cluster, muster):
    """A difference that no group explains is reported with node and shard after a few rounds."""
    digests = {1: A, 2: B, 3: A}
    _script(cluster, [_answer(n, digests) for n in (1, 2, 3)])
    ran = muster("cluster", "verify", "--shard", "2")
    assert ran.exit_code == 5
    assert "node 2, shard 2: another digest" in ran.err
    assert len(cluster.nodes[0].named("Verify")) == ROUNDS_MAX


def test_status_names_a_silent_node_and_a_shard_without_leader(cluster, muster):
    """Exit 5, with what is wrong on stderr and the rest of the picture on stdout."""
    cluster.nodes[2].stop()
    ran = muster("cluster", "status", "-o", "json")
    assert ran.exit_code == 5
    assert "node 3 does not answer" in ran.err
    assert "shard 2: no leader" in ran.err
    document = json.loads(ran.out)
    assert [node["status"] for node in document["nodes"]] == ["up", "up", "silent"]
    assert document["shards"][2]["status"] == "no leader"
    assert document["shards"][0]["status"] == "ok"


def test_status_shows_a_quarantined_shard(cluster, muster):
    """A quarantined replica is no health."""
    cluster.nodes[1].script["DescribeCluster"].shard_states[3].quarantined = True
    ran = muster("cluster", "status")
    assert ran.exit_code == 5
    assert "shard 3: quarantined on node 2" in ran.err


def test_status_shows_what_a_node_has_yet_to_load(cluster, muster):
    """Its shards are served once they are loaded; until then it is no health, and it is said."""
    states = cluster.nodes[1].script["DescribeCluster"].shard_states
    led = next(state.shard for state in states if state.role == "Leader")
    for number in (led, (led + 1) % len(states)):
        states[number].loading = True
    ran = muster("cluster", "status")
    assert ran.exit_code == 5
    assert "up, loading 2 of 4 shards" in ran.out
    assert f"shard {led}: loading on node 2" in ran.err
    assert "node 2 is loading 2 of 4 shards" in ran.err
    document = json.loads(muster("cluster", "status", "-o", "json").out)
    assert [node["loading"] for node in document["nodes"]] == [None, "2 of 4 shards", None]


def test_status_believes_the_leader_of_the_highest_term(cluster, muster):
    """A deposed leader that has not noticed yet is not shown."""
    stale = cluster.nodes[0].script["DescribeCluster"].shard_states[2]
    stale.role, stale.term = "Leader", 6
    ran = muster("cluster", "status", "-o", "json")
    assert (json.loads(ran.out)["shards"][2]["leader"], ran.exit_code) == (3, 0)


def test_group_list_says_when_it_is_incomplete(cluster, muster):
    """A dead node's shards are missing from the list: exit 6, and the shards are named."""
    for node in cluster.nodes:
        node.script["ListGroups"] = admin_pb2.ListGroupsResponse(
            groups=[admin_pb2.ListGroupsResponse.Group(group_id=f"g{node.node_id}", state="Empty")]
        )
    assert muster("group", "list", "-o", "name").out == "g1\ng2\ng3\n"
    cluster.nodes[2].stop()
    ran = muster("group", "list", "-o", "name")
    assert (ran.exit_code, ran.out) == (6, "g1\ng2\n")
    assert "shards 2" in ran.err


def _pages(cluster, after_shard_0_moves=False):
    """Node 1 lists five groups, two in a page."""
    names = [f"g{number}" for number in range(5)]

    def page(request):
        rest = [name for name in names if name > request.after_group_id]
        if after_shard_0_moves and request.after_group_id:
            cluster.nodes[0].script["DescribeCluster"].shard_states[0].term += 1
        return admin_pb2.ListGroupsResponse(
            groups=[admin_pb2.ListGroupsResponse.Group(group_id=name) for name in rest[:2]],
            more=len(rest) > 2,
        )

    for node in cluster.nodes:
        node.script["ListGroups"] = admin_pb2.ListGroupsResponse()
    cluster.nodes[0].script["ListGroups"] = page


def test_group_list_follows_the_pages(cluster, muster):
    """All groups, each once, in as many calls as it takes."""
    _pages(cluster)
    ran = muster("group", "list", "-o", "name")
    assert (ran.exit_code, ran.out.split()) == (0, ["g0", "g1", "g2", "g3", "g4"])
    asked = [request.after_group_id for request in cluster.nodes[0].named("ListGroups")]
    assert asked == ["", "g1", "g3"]


def test_pages_given_in_two_terms_are_no_complete_list(cluster, muster):
    """Another node may have led the shard, and changed its groups, in between."""
    _pages(cluster, after_shard_0_moves=True)
    ran = muster("group", "list", "-o", "name")
    assert ran.exit_code == 6
    assert "shards 0" in ran.err


def test_group_offsets_follows_the_pages(cluster, muster):
    """All offsets; and a full page with nothing in it ends the command instead of looping."""
    node = cluster.nodes[0]
    cluster.coordinate(node)
    group = admin_pb2.DescribeGroupsResponse.Group(group_id="g", state="Empty")
    node.script["DescribeGroups"] = admin_pb2.DescribeGroupsResponse(groups=[group])

    def page(request):
        first = request.after.partition + 1 if request.HasField("after") else 0
        response = group_pb2.OffsetFetchResponse(more=first + 3 < 8)
        for number in range(first, min(first + 3, 8)):
            response.partitions.add(topic="t", partition=number, offset=number)
        return response

    node.script["OffsetFetch"] = page
    ran = muster("group", "offsets", "g", "-o", "name")
    assert ran.out.split() == [f"t/{number}" for number in range(8)]
    node.script["OffsetFetch"] = group_pb2.OffsetFetchResponse(more=True)
    ran = muster("group", "offsets", "g")
    assert ran.exit_code == 1
    assert "gives nothing" in ran.err


@pytest.mark.parametrize("extra", [("--dry-run",), ()])
def test_nothing_is_replaced_without_yes_or_in_a_dry_run(cluster, muster, extra):
    """The dangerous call leaves only with --yes."""
    for node in cluster.nodes:
        node.script["ReplaceNode"] = admin_pb2.ReplaceNodeResponse()
    muster("cluster", "replace-node", "3", "--store-uuid", "u", *extra)
    assert [node.named("ReplaceNode") for node in cluster.nodes] == [[], [], []]


def test_a_dry_run_of_create_changes_nothing(cluster, muster):
    """--dry-run only reads."""
    cluster.nodes[0].script["DescribeTopics"] = admin_pb2.DescribeTopicsResponse(
        results=[
            admin_pb2.DescribeTopicsResponse.Result(
                name="t", topic=admin_pb2.Topic(name="t", partitions=1)
            )
        ]
    )
    assert muster("topic", "create", "t", "--partitions", "1", "--dry-run").exit_code == 0
    assert {name for name, _ in cluster.nodes[0].calls} == {"DescribeTopics"}


def test_a_topic_is_deleted_as_the_one_that_was_shown(cluster, muster):
    """A repeated call does not delete what has the name by then."""
    topic = admin_pb2.Topic(name="t", partitions=1, creation_version=7)
    script = cluster.nodes[0].script
    script["DeleteTopic"] = admin_pb2.DeleteTopicResponse(topic=topic)
    script["DescribeTopics"] = admin_pb2.DescribeTopicsResponse(results=[{"name": "t"}])
    assert muster("topic", "delete", "t", "--yes").exit_code == 0
    plan, deletion = cluster.nodes[0].named("DeleteTopic")
    assert plan.validate_only
    assert (deletion.validate_only, deletion.creation_version) == (False, 7)


def test_two_refused_stores_must_be_told_apart(cluster, muster):
    """With two candidates the operator names one: exit 4 lists both."""
    for store in ("u1", "u2"):
        cluster.nodes[0].script["DescribeCluster"].refused.append(
            admin_pb2.Node(node_id=3, store_uuid=store)
        )
    ran = muster("cluster", "replace-node", "3", "--yes")
    assert ran.exit_code == 4
    assert "u1, u2" in ran.err


def test_a_learner_is_shown_and_is_not_healthy(cluster, muster):
    """Who was replaced counts only once every shard has admitted it: exit 5 until then."""
    view = cluster.nodes[0].script["DescribeCluster"]
    next(node for node in view.nodes if node.node_id == 3).learner_shards = 2
    ran = muster("cluster", "status", "-o", "json")
    assert ran.exit_code == 5
    assert "node 3 is a learner in 2 shards" in ran.err
    assert "admit a learner by themselves" in ran.err
    shown = {node["node_id"]: node["learner_shards"] for node in json.loads(ran.out)["nodes"]}
    assert shown == {1: 0, 2: 0, 3: 2}


def test_a_first_start_that_is_not_complete_says_who_is_missing(cluster, muster):
    """A new node counts nowhere before it met all others: the operator learns whom to start."""
    first = cluster.nodes[0].script["DescribeCluster"]
    first.awaited.extend([2, 3])
    next(node for node in first.nodes if node.node_id == 1).learner_shards = 4
    ran = muster("cluster", "status", "-o", "json")
    assert ran.exit_code == 5
    assert "node 1 is new and waits for node 2,3" in ran.err
    assert "learner in" not in ran.err
    assert json.loads(ran.out)["nodes"][0]["waits_for"] == "2,3"


def _forgot(cluster, awaits, learners=()):
    """Node 2 says that its store forgot something, whom it waits for, and who else is a learner."""
    view = cluster.nodes[1].script["DescribeCluster"] = cluster.view(2)
    for node in view.nodes:
        if node.node_id == 2:
            node.lost, node.learner_shards = True, cluster.shards
            node.awaits.extend(awaits)
        node.learner_shards = cluster.shards if node.node_id in (2, *learners) else 0
        node.connected = node.node_id not in awaits


@pytest.mark.parametrize(("awaits", "learners"), [((3,), ()), ((), (3,))])
def test_a_dry_run_of_accept_loss_says_what_would_be_accepted(cluster, muster, awaits, learners):
    """Its store forgot something, and another node is away or counts as little."""
    _forgot(cluster, awaits, learners)
    ran = muster("cluster", "accept-loss", "2", "--dry-run", "-o", "json")
    assert ran.exit_code == 0
    assert json.loads(ran.out)["dry_run"] is True
    assert {name for node in cluster.nodes for name, _ in node.calls} == {"DescribeCluster"}


def test_a_dry_run_of_accept_loss_refuses_what_the_node_would_refuse(cluster, muster):
    """Its store forgot nothing; the shards admit it by themselves."""
    ran = muster("cluster", "accept-loss", "2", "--dry-run")
    assert (ran.exit_code, "its store forgot nothing" in ran.err) == (4, True)
    _forgot(cluster, awaits=())
    ran = muster("cluster", "accept-loss", "2", "--dry-run")
    assert (ran.exit_code, "by themselves" in ran.err) == (4, True)


def test_of_a_silent_node_that_told_others_why_it_is_unreachable_the_reason_comes_first():
    """It runs: to start it again would be the wrong first step."""
    silent = {"node_id": 1, "status": "silent", "error": "refused", "endpoint": "a:1"}
    silent |= {"reaches_itself": False, "waits_for": None, "learner_shards": 0}
    silent |= {"loading": None}
    with pytest.raises(CommandError) as raised:
        _require_healthy([silent], [], [])
    assert raised.value.next_step.startswith("the node's log says why")
    assert "start the node again" in raised.value.next_step
