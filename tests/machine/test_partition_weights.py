"""What partitions weigh by a group's setting: its text, and what plans make of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musterd.coordinator.machine.commands import AlterGroupConfig, ConfigSetting
from musterd.coordinator.machine.decide.config import MODERN_LEVEL, decide_config, names_at
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.modern.spec import spec_of
from musterd.coordinator.machine.modern.weights import WEIGHTS, read, weights_of
from musterd.coordinator.machine.plan import Assignor, plan
from tests.machine.test_plan_properties import shares_of, weight_of
from tests.machine.world import World

TOPICS = ("a", "b", "c")
PARTITIONS = 6


@st.composite
def texts(draw):
    """A text in which nothing is wrong, and the weight of each partition that it names, by hand."""
    entries, own, others = [], {}, {}
    for topic in draw(st.lists(st.sampled_from(TOPICS), unique=True, min_size=1)):
        if draw(st.booleans()):
            others[topic] = draw(weights)
            entries.append(f"{topic}={draw(written(others[topic]))}")
        first = 0
        while first < PARTITIONS:
            last = draw(st.integers(first, PARTITIONS + 1))
            if draw(st.booleans()) or (topic not in others and not own):
                weight = draw(weights)
                own |= {(topic, number): weight for number in range(first, last + 1)}
                one = first == last and draw(st.booleans())
                where = f"{first}" if one else f"{first}-{last}"
                entries.append(f"{topic}[{where}]={draw(written(weight))}")
            first = last + 1
    return ";".join(draw(st.permutations(entries))), own, others


weights = st.one_of(st.integers(1, 1_000_000), st.sampled_from([1, 500, 1000, 1000, 2000, 5500]))


@st.composite
def written(draw, weight):
    """A decimal of so many thousandths."""
    whole, rest = divmod(weight, 1000)
    decimals = f"{rest:03}"
    shortest = decimals.rstrip("0")
    decimals = draw(st.sampled_from([decimals, shortest]))
    zeros = "0" * draw(st.integers(0, 4 - len(str(whole))))
    return f"{zeros}{whole}" + ("." + decimals if decimals else "")


def rows(text):
    """The weight of each partition of each topic, by what the machine makes of the text."""
    found = weights_of(text)
    return {
        (topic, number): weight
        for topic in TOPICS
        for number, weight in enumerate(
            found[topic].row(PARTITIONS) if topic in found else [1000] * PARTITIONS
        )
    }


@settings(max_examples=300)
@given(texts())
def test_a_partition_weighs_what_its_own_entry_says_else_its_topics_else_one(given_text):
    """In whatever order the entries stand, and also past the partitions that the topic has."""
    text, own, others = given_text
    assert read(text, LIMITS)[1] == ""
    assert rows(text) == {
        (topic, number): own.get((topic, number), others.get(topic, 1000))
        for topic in TOPICS
        for number in range(PARTITIONS)
    }


@settings(max_examples=300)
@given(texts())
def test_the_normal_form_says_the_same_is_no_longer_and_is_its_own(given_text):
    """It names a topic's others first and then its partitions, ascending; topics in order."""
    text, _, _ = given_text
    form, _ = read(text, LIMITS)
    assert rows(form) == rows(text)
    assert len(form) <= len(text)
    assert not form or read(form, LIMITS) == (form, "")
    assert [*weights_of(form)] == sorted(weights_of(form))


@settings(max_examples=300)
@given(texts())
def test_the_same_weights_are_one_text(given_text):
    """A text that names each partition by itself has the form of the one it was made from."""
    text, _, _ = given_text
    found = weights_of(text)
    apart = ";".join(
        f"{topic}={(one.others / 1000):.3f};"
        + ";".join(
            f"{topic}[{number}]={weight / 1000:.3f}"
            for number, weight in enumerate(one.row(PARTITIONS + 2))
        )
        for topic, one in reversed(found.items())
    )
    assert (read(apart, LIMITS) if apart else ("", "")) == read(text, LIMITS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no name of a topic."),
        ("a=2;", "'' is no name of a topic."),
        ("=2", "'' is no name of a topic."),
        ("a,b=2", "'a,b' is no name of a topic."),
        ("..=2", "'..' is no name of a topic."),
        ("a =2", "'a ' is no name of a topic."),
        ("x" * 250 + "=2", "no name of a topic."),
        ("a", "'' is no weight of 'a'"),
        ("a=", "'' is no weight of 'a'"),
        ("a=0", "'0' is no weight of 'a'"),
        ("a=0.000", "'0.000' is no weight of 'a'"),
        ("a=0.0001", "no weight"),
        ("a=.5", "no weight"),
        ("a=5.", "no weight"),
        ("a=1000.001", "no weight"),
        ("a=99999", "no weight"),
        ("a=-1", "no weight"),
        ("a=1e3", "no weight"),
        ("a=1,5", "no weight"),
        ("a=2=3", "'2=3' is no weight"),
        ("a=٣", "no weight"),
        ("a[]=2", "'[]' names no partitions of 'a'"),
        ("a[x]=2", "names no partitions"),
        ("a[-1]=2", "names no partitions"),
        ("a[3-1]=2", "the lesser first"),
        ("a[3-]=2", "names no partitions"),
        ("a[1-2-3]=2", "names no partitions"),
        ("a[1=2", "'[1' names no partitions"),
        ("a[1]x=2", "names no partitions"),
        ("a[1][2]=2", "names no partitions"),
        ("a[10000]=2", "a number from 0 to 9999"),
        ("a[0-10000]=2", "a number from 0 to 9999"),
        ("a[000001]=2", "names no partitions"),
        ("a[²]=2", "names no partitions"),
        ("a=2;b=1;a=2", "Topic 'a' has two weights."),
        ("a[3]=2;b[3]=1;a[3]=2", "Partition 3 of topic 'a' has two weights."),
        ("a[5-9]=2;a[0-5]=1", "Partition 5 of topic 'a' has two weights."),
        ("a[0-9]=2;a[4]=1;a[7]=1", "Partition 4 of topic 'a' has two weights."),
    ],
)
def test_each_kind_of_wrong_text_is_told(text, reason):
    """The answer begins with what the setting is, and says what is wrong with it."""
    form, wrong = read(text, LIMITS)
    assert form == ""
    assert reason in wrong
    env = Envelope(0, 0, MODERN_LEVEL, LIMITS_VERSION, 0, LIMITS)
    command = AlterGroupConfig("g", (ConfigSetting(WEIGHTS, text),), ())
    decision = decide_config(None, command, env)
    assert decision.events == ()
    assert decision.reply.error is Error.INVALID_CONFIG
    start = "consumer.weights is weights of topics and partitions, such as `a=2;a[7]=5.5`. "
    assert decision.reply.message.startswith(start)


@pytest.mark.parametrize("text", ["a=1000", "a=0.001", "a[9999]=0001.5", "a[0-9999]=1000.000"])
def test_what_is_at_its_bounds_is_taken(text):
    """The least and the largest weight, and the last partition that a topic may have."""
    assert read(text, LIMITS)[1] == ""


def test_there_is_no_such_setting_before_modern_groups():
    """It comes with their level, as all of theirs."""
    assert WEIGHTS in names_at(MODERN_LEVEL)
    assert WEIGHTS not in names_at(MODERN_LEVEL - 1)


@settings(max_examples=60, deadline=None)
@given(texts(), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 6))
def test_by_a_groups_weights_each_member_has_its_share_within_the_bound(given_text, capacities, n):
    """From the setting over the spec to the target, which the next plan leaves as it is."""
    text, own, others = given_text
    world = World(level=MODERN_LEVEL)
    for topic in TOPICS:
        world.run(f"topic {topic} {n}")
    for number, capacity in enumerate(capacities):
        named = ",".join(TOPICS[: 1 + number % len(TOPICS)])
        says = f"topics={named} assignor=weighted capacity={capacity * 500}"
        world.run(f"hear m{number} join {says}")
    world.run("settle")
    world.apply(AlterGroupConfig("g", (ConfigSetting(WEIGHTS, text),), ()))
    world.run("settle")
    group = world.state.groups["g"]
    spec = spec_of(group)
    assert spec.assignor is Assignor.WEIGHTED
    for topic in spec.topics:
        for number in range(n):
            expected = own.get((topic, number), others.get(topic, 1000))
            assert weight_of(spec, (topic, number)) == expected
    shares, bound = shares_of(spec)
    assert plan(spec).changes == []
    loads = dict.fromkeys((m.member_id for m in spec.members), 0)
    for topic, row in group.modern.target.items():
        for number, owner in enumerate(row):
            loads[group.modern.by_seq[owner]] += weight_of(spec, (topic, number))
    for member_id, load in loads.items():
        assert abs(load - shares[member_id]) <= bound
