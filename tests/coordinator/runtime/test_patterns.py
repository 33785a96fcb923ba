"""Patterns: RE2, whole names, bounded, and what is wrong with one is said with its place."""

import pytest

from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.plan.pace import finished
from musterd.coordinator.runtime.patterns import (
    INSTRUCTIONS_PER_SLICE,
    _compiled,
    matching,
    why_invalid,
)


def anybody(_name):
    return True


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a(b", "missing ), at character 1: 'a(b'"),
        ("ab*c**", "bad repetition operator, at character 5: '**'"),
        ("*a", "no argument for repetition operator, at character 1: '*'"),
        ("ab(?=c)", "invalid perl operator, at character 3: '(?='"),
        (r"(a)\1", r"invalid escape sequence, at character 4: '\\1'"),
        ("é[z-a]", "invalid character class range, at character 3: 'z-a'"),
        ("x{1001}", "invalid repetition size, at character 2"),
        (r"\pL{100}", "too large"),
        ("(.*a.{20}){10}", "too large"),
        ("a" * (LIMITS.pattern_max_bytes + 1), "at most 1024 bytes; this one has 1025"),
    ],
)
def test_what_is_no_pattern_is_said_with_its_place(pattern, says):
    """A person finds it in the text that was given."""
    assert says in why_invalid(pattern)
    assert finished(matching(pattern, ["a"], (), anybody)) == ()


def test_a_pattern_matches_whole_names():
    """As Kafka's does."""
    names = ["orders", "orders-eu", "my-orders", "Orders", "commandes-é"]
    for pattern, found in (
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu"]),
        ("(?i)orders|.*é", ["Orders", "commandes-é", "orders"]),
        ("order", []),
    ):
        assert why_invalid(pattern) == ""
        assert list(finished(matching(pattern, names, (), anybody))) == found


def test_no_pattern_takes_more_than_linear_time():
    """What takes an engine that tries again 2 to the power of 200 steps."""
    for pattern in ("(x+x+)+y", "(a?){200}a{200}", "(a|b)*a(a|b){100}", "((a*)*)*b"):
        assert why_invalid(pattern) == ""
        assert (
            finished(matching(pattern, ["a" * 249, "ab" * 124, "x" * 249], (), anybody)) is not None
        )


@pytest.mark.parametrize("pattern", ["t.*", "(t.{20}|t.*)", "(t.{50}|t.*)"])
def test_no_slice_of_matching_holds_the_loop_for_long(pattern):
    """The larger the program, the fewer names: 2 ms of CPU for the worst that was found."""
    asked = []
    names = [f"t{n:06}" for n in range(5_000)]
    size = _compiled(pattern).programsize
    seen = 0
    for _ in matching(pattern, names, (), lambda name: asked.append(name) or True):
        assert (len(asked) - seen) * size <= INSTRUCTIONS_PER_SLICE
        seen = len(asked)
    assert asked == names


def test_a_slice_has_fewer_names_where_many_principals_have_the_pattern():
    """Each of them is asked for, of each name: 0.4 s of CPU in one slice for 2,000 of them."""
    asked = []
    names = [f"t{n:06}" for n in range(200)]
    seen = 0
    for _ in matching(".*", names, (), lambda name: asked.append(name) or True, 2_000):
        assert (len(asked) - seen) * 2_000 <= INSTRUCTIONS_PER_SLICE
        seen = len(asked)
    assert asked == names
