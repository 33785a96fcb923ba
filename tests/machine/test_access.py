"""The indexed answer of who may do what is that of the rules read one by one."""

from random import Random

import pytest

from musterd.coordinator.machine.access import (
    ANYBODY,
    OPERATIONS,
    AclRule,
    Operation,
    Pattern,
    Resource,
    RuleIndex,
    TokenScope,
    authorize,
    deciding_rules,
)

NAMES = ["", "a", "ab", "abc", "b", "ba", "é", "éa"]


def rules_of(random: Random) -> list[AclRule]:
    """Some rules about few names, so that they meet."""
    found = []
    for _ in range(random.randrange(12)):
        resource = random.choice(list(Resource))
        cluster = resource is Resource.CLUSTER
        found.append(
            AclRule(
                random.choice(["ann", "bob", ANYBODY]),
                random.choice(OPERATIONS[resource]),
                resource,
                Pattern.LITERAL if cluster else random.choice(list(Pattern)),
                "" if cluster else random.choice(NAMES),
                deny=random.random() < 0.3,
            )
        )
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("seed", range(60))
def test_the_index_answers_as_the_rules_read_one_by_one(seed):
    """Whatever was added and removed before: some rule allows it and none denies it."""
    random = Random(seed)
    rules, gone, index = rules_of(random), rules_of(random), RuleIndex()
    for rule in dict.fromkeys([*gone, *rules]):
        index.add(rule)
    for rule in gone:
        if rule not in rules:
            index.remove(rule)
    anew = RuleIndex()
    for rule in rules:
        anew.add(rule)
    assert index == anew
    for resource in Resource:
        for operation in Operation:
            for who in ("ann", "bob", "cid"):
                for name in NAMES if resource is not Resource.CLUSTER else [""]:
                    found = deciding_rules(iter(rules), who, operation, resource, name)
                    wanted = bool(found) and not any(rule.deny for rule in found)
                    assert authorize(index, who, operation, resource, name) is wanted


def test_a_question_costs_a_look_up_for_each_length_and_not_for_each_rule():
    """5,000 prefixes of one length are one look-up."""
    index = RuleIndex()
    for number in range(5_000):
        index.add(AclRule("ann", Operation.JOIN, Resource.GROUP, Pattern.PREFIX, f"p{number:04}-"))
    (patterns,) = index.by_principal.values()
    assert list(patterns.prefixes) == [len("p0000-")]
    assert authorize(index, "ann", Operation.JOIN, Resource.GROUP, "p4711-x")
    assert not authorize(index, "ann", Operation.JOIN, Resource.GROUP, "p5000-x")


def test_a_scope_covers_what_a_rule_of_the_same_words_would_allow():
    """Implied operations too; never another kind of resource."""
    scope = TokenScope(Operation.JOIN, Resource.GROUP, Pattern.PREFIX, "a")
    assert scope.covers(Operation.JOIN, Resource.GROUP, "ab")
    assert scope.covers(Operation.DESCRIBE, Resource.GROUP, "a")
    assert not scope.covers(Operation.COMMIT, Resource.GROUP, "ab")
    assert not scope.covers(Operation.DESCRIBE, Resource.TOPIC, "ab")
    assert not scope.covers(Operation.JOIN, Resource.GROUP, "b")
