"""`muster quota` on a scripted cluster: what is asked for, what is shown, and the exit codes."""

import json

import pytest

from muster.v1 import admin_pb2 as pb
from muster.v1.quota_pb2 import QuotaChange


@pytest.fixture
def with_quotas(cluster):
    """Two of group billing, one of all principals."""
    quotas = [
        QuotaChange(entity=1, key=1, value=7),
        QuotaChange(entity=2, name="billing", key=2, value=1_000),
        QuotaChange(entity=2, name="billing", key=3, value=5_000),
    ]
    for node in cluster.nodes:
        node.script["DescribeClientQuotas"] = pb.DescribeClientQuotasResponse(quotas=quotas)
        node.script["AlterClientQuotas"] = pb.AlterClientQuotasResponse(changed=True)
    return cluster


def altered(cluster):
    """The changes that were asked for, at any node."""
    return [
        (one.entity, one.name, one.key, one.value)
        for node in cluster.nodes
        for request in node.named("AlterClientQuotas")
        for one in request.changes
    ]


def test_all_quotas_are_listed(with_quotas, muster):
    """As a table and as JSON."""
    assert muster("quota", "list").out == (
        "ENTITY             KEY                 VALUE\n"
        "principal-default  joins_per_s         7\n"
        "group:billing      commits_per_s       1000\n"
        "group:billing      commit_bytes_per_s  5000\n"
    )
    document = json.loads(muster("quota", "list", "-o", "json").out)
    first = {"entity": "principal-default", "key": "joins_per_s", "value": 7}
    assert document["quotas"][0] == first


def test_several_quotas_of_an_entity_are_set_at_once(with_quotas, muster):
    """In one call, so all or none."""
    ran = muster("quota", "set", "group:a:b", "commits_per_s=9", "groups_per_s=1")
    assert ran.exit_code == 0
    assert altered(with_quotas) == [(2, "a:b", 2, 9), (2, "a:b", 4, 1)]
    assert muster("quota", "set", "group-default", "joins_per_s=3").exit_code == 0
    assert altered(with_quotas)[-1] == (2, "", 1, 3)


def test_those_that_are_named_are_deleted_or_all_of_the_entity(with_quotas, muster):
    """Exit 3 where there is none."""
    assert muster("quota", "delete", "group:billing", "commits_per_s").exit_code == 0
    assert altered(with_quotas) == [(2, "billing", 2, 0)]
    assert muster("quota", "delete", "group:billing").exit_code == 0
    assert altered(with_quotas)[1:] == [(2, "billing", 2, 0), (2, "billing", 3, 0)]
    assert muster("quota", "delete", "group:nobody").exit_code == 3


def test_a_dry_run_changes_nothing(with_quotas, muster):
    """It says what would be."""
    assert "would be set" in muster("quota", "set", "group:g", "joins_per_s=3", "--dry-run").out
    ran = muster("quota", "delete", "group:billing", "--dry-run")
    assert "would be deleted" in ran.out
    assert altered(with_quotas) == []


@pytest.mark.parametrize(
    "args",
    [
        ("billing", "commits_per_s=1"),
        ("group:", "commits_per_s=1"),
        ("group:g", "commits=1"),
        ("group:g", "commits_per_s=0"),
        ("group:g", "commits_per_s=-1"),
        ("group:g", "commits_per_s=²"),
    ],
)
def test_what_is_no_quota_is_a_mistake_of_usage(with_quotas, muster, args):
    """Exit 2; nothing is asked."""
    assert muster("quota", "set", *args).exit_code == 2
    assert altered(with_quotas) == []
