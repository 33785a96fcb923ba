"""inv-I17: what an operator was told is done stays done."""

import pytest

from musterd.chaos.check import operators
from musterd.chaos.history import FaultSpan, Operated, Outcome
from tests.chaos.check.made import S, commit, history, only, told

MAX = "classic.max.size"


def call(what, began, ended, *, outcome=Outcome.OK, subject="g", **fields):
    """Of an operator, in seconds."""
    return Operated("o", what, subject, began * S, ended * S, outcome, **fields)


def setting(what, value, began, ended, **fields):
    """It is `set`, or read (`setting`)."""
    return call(what, began, ended, name=MAX, value=value, **fields)


def of(*calls, **fields):
    """The verdict on these."""
    return operators.check(history(operated=list(calls), **fields))


def test_a_setting_is_read_until_it_is_changed():
    """Taken away, it is none."""
    verdict = of(
        setting("set", 20, 0, 1),
        setting("setting", 20, 2, 3),
        setting("set", -1, 4, 5),
        setting("setting", -1, 6, 7),
    )
    assert verdict.passed
    assert verdict.looked_at == 2


@pytest.mark.parametrize("value", [-1, 30])
def test_an_acknowledged_setting_that_is_not_there_is_told(value):
    """None, or one that nobody set."""
    calls = setting("set", 20, 0, 1), setting("setting", value, 2, 3)
    assert "nothing that was set" in only(of(*calls))


def test_a_setting_without_an_answer_may_be_there_or_not():
    """At any time; a refused one never is."""
    calls = setting("set", 20, 0, 1), setting("set", 30, 2, 3, outcome=Outcome.UNKNOWN)
    assert of(*calls, setting("setting", 20, 4, 5), setting("setting", 30, 6, 7)).passed
    refused = setting("set", 30, 2, 3, outcome=Outcome.FAIL)
    assert only(of(calls[0], refused, setting("setting", 30, 4, 5)))


def test_a_setting_that_is_read_amid_a_fault_says_nothing():
    """A coordinator that is deposed and does not know it answers without asking a majority."""
    calls = setting("set", 20, 0, 1), setting("setting", -1, 4, 5)
    fault = FaultSpan("isolate_leader", ("node-0",), 3 * S, 6 * S, quorum=True)
    assert of(*calls, faults=[fault]).looked_at == 0
    assert only(of(*calls, faults=[FaultSpan("x", (), 0, 1 * S, quorum=True)]))


def test_a_kicked_member_id_is_gone_for_good():
    """It commits nothing, and is in no generation that was asked for afterwards."""
    kick = call("kick", 0, 1, name="m")
    acted = commit(5, 2, 3, member_id="m", generation=4)
    assert "accepted commit 5" in only(operators.check(history(acted, operated=[kick])))
    late = told(5, ["m", "n"], 3, asked_ns=2 * S)
    assert "has in generation 5 m, kicked by o" in only(of(kick, generations=[late]))


def test_what_was_under_way_when_a_member_was_kicked_is_fine():
    """So is what another member does, and what follows a kick that was refused."""
    kick = call("kick", 1, 3, name="m")
    early = commit(5, 2, 4, member_id="m", generation=4)
    other = commit(6, 4, 5, member_id="n", generation=5)
    generations = [told(4, ["m"], 4, asked_ns=2 * S), told(5, ["n"], 5, asked_ns=4 * S)]
    verdict = operators.check(history(early, other, operated=[kick], generations=generations))
    assert verdict.passed
    assert verdict.looked_at == 2
    refused = call("kick", 0, 1, name="m", outcome=Outcome.FAIL)
    assert not operators.check(history(early, operated=[refused])).violations


def test_a_grown_topic_does_not_shrink():
    """At no node; a growth without an answer may have been none."""
    grown = call("grow", 0, 1, subject="t", value=5)
    doubtful = call("grow", 2, 3, subject="t", value=6, outcome=Outcome.UNKNOWN)
    fine = call("partitions", 4, 5, subject="t", value=5, node=1)
    assert of(grown, doubtful, fine).passed
    fewer = call("partitions", 4, 5, subject="t", value=4, node=2)
    assert "node-2 has 4 partitions, and 5 were acknowledged" in only(of(grown, fine, fewer))
